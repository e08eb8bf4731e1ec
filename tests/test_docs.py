"""The texts of the repository: links lead somewhere."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")})
LINK = re.compile(r"\]\(([^)\s]+)\)")


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
        ("Version `0.913` of [it](https://x.org/1.25), Apache-2.0.", None),
        ("<!-- source: results/small_packs/laptop.md -->\nText.\n\nDice is 0.871.", "no source is named"),
    ],
)
def test_a_number_without_its_source_is_found(check_claims, text, problem):
    problems = [each for block in check_claims.blocks(text) for each in check_claims.unsupported(block)]
    assert [problem in each for each in problems] == [True] if problem else not problems
