"""The texts of the repository: links lead somewhere, commands exist, numbers have a source."""

import importlib.util
import inspect
import json
import re
import shlex
import sys
import tomllib
from functools import cached_property
from pathlib import Path
from types import FunctionType

import pytest

import continual_segment
from continual_segment.cli.main import make_parser
from continual_segment.model import starter
from continual_segment.organs import known_organs

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("results/*.md"),
        *ROOT.glob("results/*/README.md"),
    }
)
SITE_PAGES = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def anchors(page):
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(page, link):
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    links = [link for link in LINK.findall(page.read_text()) if not link.startswith("http")]
    assert [link for link in links if leads_nowhere(page, link)] == []


def test_the_readme_is_short():
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(text.split()) <= 600


# Commands


def commands(page):
    """The calls of conseg in its code blocks; one may continue on the next line."""
    blocks = (block.replace("\\\n", " ") for block in FENCE.findall(page.read_text()))
    lines = (line.strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("conseg ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=str)
def test_every_command_that_is_shown_is_one_that_the_parser_accepts(page, capsys, monkeypatch):
    monkeypatch.setattr(starter, "installed", lambda: starter.FOLDER)  # a checkout may lack it
    for command in commands(page):
        try:
            make_parser().parse_args(shlex.split(command, comments=True)[1:])
        except SystemExit:
            pytest.fail(f"{command}\n{capsys.readouterr().err}")


# The site


@pytest.fixture(scope="module")
def hooks():
    return import_script(ROOT / "docs" / "hooks.py")


def test_the_navigation_of_the_site_has_every_page_once(hooks):
    listed = re.findall(r"[\w/]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.relative_to(ROOT).as_posix() for page in SITE_PAGES]
    assert sorted(listed) == sorted(hooks.site_path(path) for path in (*pages, *hooks.OUTSIDE))


def test_the_command_reference_has_every_command_and_option(hooks):
    text = hooks.commands()
    for name, parser in hooks.subcommands(make_parser()):
        assert f"\n## {name}\n" in f"\n{text}"
        for action in parser._actions:
            if hooks.is_shown(action):
                assert hooks.spelling(action) in text
    assert "### pack add" in text


def test_the_command_reference_shows_arguments_as_they_are_typed(hooks):
    text = hooks.commands()
    assert "| `--spacing` `Z Y X` |" in text
    assert r"`totalseg` \| `chest` \|" in text  # a bar inside code would show its backslash
    assert r"&lt;trainer>\_\_&lt;plans>\_\_&lt;configuration>" in text


def test_the_command_reference_shows_examples_as_code_and_not_in_the_text(hooks):
    blocks = FENCE.findall(hooks.commands())
    assert any("conseg starter -o mymodel\nconseg prepare RAW" in block for block in blocks)
    assert any("labelsTr/<case>.nii.gz" in block for block in blocks)
    outside = FENCE.sub("", hooks.commands())
    assert "RAW is a folder in one of three layouts; the layout is detected automatically:\n\n" in outside
    assert "conseg prepare RAW" not in outside


def test_a_picture_on_the_site_opens_alone(hooks):
    picture = '<img alt="Dice" src="../pictures/steps.png" />'
    assert hooks.with_picture_links(f"<p>{picture}</p>") == (
        f'<p><a href="../pictures/steps.png">{picture}</a></p>'
    )


def test_the_organ_reference_has_every_organ(hooks):
    text = hooks.organs()
    assert all(f"| `{organ.name}` | {organ.id} |" in text for organ in known_organs())


def test_the_scores_of_the_starter_are_those_of_its_test_scans(hooks, tmp_path, monkeypatch):
    organ = {"name": "larynx", "scored": 9, "dice": 0.7512, "hd95_mm": 8.04, "asd_mm": 2.3, "excluded": 1}
    other = organ | {"name": "mandible", "dice": 0.8512, "excluded": 0}
    (tmp_path / "a.json").write_text(json.dumps({"split": "test", "organs": [organ, other]}))
    (tmp_path / "b.json").write_text(json.dumps({"split": "validation", "organs": [organ]}))
    monkeypatch.setattr(hooks, "STARTER_SCORES", tmp_path)
    assert hooks.starter().splitlines()[2:] == [
        "| `larynx` | 9 | 0.751 | 8.0 | 2.3 | 1 |",
        "| `mandible` | 9 | 0.851 | 8.0 | 2.3 | 0 |",
        "| **mean** | 18 | 0.801 | 8.0 | 2.3 | 1 |",
    ]


def test_the_licence_of_every_dependency_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        each for name, group in project["optional-dependencies"].items() if name != "dev" for each in group
    ]
    needed = {re.match(r"[\w-]+", each).group() for each in (*project["dependencies"], *extras)}
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    assert needed - {name for row in rows for name in re.findall(r"[\w-]+", row)} == set()


def test_the_api_reference_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^::: continual_segment\.(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(set(continual_segment.__all__) - {"__version__"})


def without_docstring(name):
    """Members of a public class, or the function itself, that the API reference leaves out."""
    member = getattr(continual_segment, name)
    if not inspect.isclass(member):
        return [] if inspect.getdoc(member) else [name]
    public = {key: value for key, value in vars(member).items() if not key.startswith("_")}
    described = (classmethod, staticmethod, property, cached_property, FunctionType)
    return [key for key, value in public.items() if isinstance(value, described) and not value.__doc__]


@pytest.mark.parametrize("name", sorted(set(continual_segment.__all__) - {"__version__"}))
def test_every_member_of_the_api_has_a_docstring(name):
    assert without_docstring(name) == []


@pytest.mark.parametrize(
    ("source", "link", "found"),
    [
        ("docs/results.md", "[a](../results/islands/README.md#a)", "[a](project/results/islands/notes.md#a)"),
        ("docs/how_to/merge.md", "[a](../clinic.md)", "[a](../clinic.md)"),
        ("results/comparison.md", "![a](../docs/pictures/x.png)", "![a](../../pictures/x.png)"),
        ("CHANGELOG.md", "[a](docs/viewer.md)", "[a](../viewer.md)"),
        ("docs/performance.md", "[packed](../src/continual_segment/packed.py)", "packed"),
        ("docs/nnunet.md", "[a](#import) [b](https://x.org/y.md)", "[a](#import) [b](https://x.org/y.md)"),
    ],
)
def test_links_between_files_become_links_between_pages(hooks, source, link, found):
    assert hooks.with_site_links(link, source) == found


def test_parameters_that_a_docstring_explains_are_found():
    pytest.importorskip("griffe", reason="griffe is installed by `make docs`")
    docstrings = import_script(ROOT / "docs" / "docstrings.py")
    explained = "Learn.\n\nname: of the pack.\nlicence: text,\n    long.\n\nNote: more."
    found = docstrings.in_google_style(explained, {"name", "licence"})
    assert (
        found == "Learn.\n\nArgs:\n    name: of the pack.\n    licence: text,\n        long.\n\nNote: more."
    )


# Numbers


@pytest.fixture(scope="module")
def check_claims():
    return import_script(ROOT / "benchmarks" / "check_claims.py")


def import_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_every_number_for_readers_is_in_a_file_of_results(check_claims, capsys):
    assert check_claims.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Dice is 0.913.", "no source is named"),
        ("<!-- source: results/none.txt -->\nDice is 0.913.", "no file results/none.txt"),
        ("<!-- source: results/small_packs/laptop.md -->\nDice is 0.999.", "0.999 is in none"),
        ("<!-- source: results/small_packs/laptop.md -->\nDice is 0.871, or 87.12 %.", None),
        ("Version `0.913` of [it](https://x.org/1.25), Apache-2.0, §3.2 of the paper, 3 scans.", None),
        ("It takes 37 minutes.", "no source is named for 37"),
        ("| a | b |\n|---|---|\n| x | 1,482 |", "no source is named for 1482"),
        ("<!-- source: src/continual_segment/networks/heads.py -->\nAt most 0.04 of a decoder.", None),
        ("<!-- source: results/small_packs/laptop.md -->\nText.\n\nDice is 0.871.", "no source is named"),
    ],
)
def test_a_number_without_its_source_is_found(check_claims, text, problem):
    problems = [each for block in check_claims.blocks(text) for each in check_claims.unsupported(block)]
    assert [problem in each for each in problems] == [True] if problem else not problems
