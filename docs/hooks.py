"""What mkdocs adds to the pages at build time.

Pages have markers such as `<!-- generated: commands -->`. Tables from the argument parser, the presets,
organs.csv and results/starter replace them. Texts outside docs/ that pages link to (the changelog, the
notebook of results) become pages of the site, and links are rewritten from paths in the repository to pages.
"""

from __future__ import annotations

import argparse
import csv
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from continual_segment.cli.main import make_parser
from continual_segment.cli.parser import paragraphs
from continual_segment.config import PRESETS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "results/README.md",
    "results/comparison.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("results/*/README.md")),
    "results/performance/int8_dice.md",
)
"""Files that become pages below project/."""
STARTER_SCORES = ROOT / "results" / "starter"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
PICTURE = re.compile(r'<img\b[^>]*\bsrc="([^"]+)"[^>]*>')
MARKDOWN = re.compile(r"[*_\[\]]")
MARKER = re.compile(r"<!-- generated: (\w+) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for name in OUTSIDE:
        files.append(File.generated(config, site_path(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = MARKER.sub(lambda marker: GENERATED[marker[1]](), markdown)
    return with_site_links(markdown, repository_path(page.file.src_uri))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_picture_links(html)


def with_picture_links(html: str) -> str:
    """A picture opens alone when it is clicked: on a phone, the page is too narrow for its text."""
    return PICTURE.sub(lambda picture: f'<a href="{picture[1]}">{picture[0]}</a>', html)


# Links


def site_path(path: str) -> str:
    """Where the site has a file of the repository; a README would become the index of its folder."""
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"project/{path.replace('README', 'notes')}"


def repository_path(uri: str) -> str:
    return {site_path(name): name for name in OUTSIDE}.get(uri, f"docs/{uri}")


def with_site_links(markdown: str, source: str) -> str:
    """Links of a file of the repository as links between pages; a file that is no page becomes its name."""
    here = posixpath.dirname(site_path(source))

    def link(match: re.Match[str]) -> str:
        image, text, address = match.groups()
        path, hash_mark, anchor = address.partition("#")
        if not path or "://" in address:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not target.startswith("docs/") and target not in OUTSIDE:
            return text
        return f"{image}[{text}]({posixpath.relpath(site_path(target), here)}{hash_mark}{anchor})"

    return LINK.sub(link, markdown)


# Reference pages


def commands() -> str:
    """Every command with its arguments, in the order of `conseg --help`."""
    return "\n\n".join(text for name, parser in subcommands(make_parser()) for text in describe(name, parser))


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def describe(name: str, parser: argparse.ArgumentParser, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield from as_paragraphs(parser.description)
    actions = list(subcommands(parser))
    if not actions:
        yield f"```\n{usage(parser)}\n```"
    for group in parser._action_groups:
        yield from describe_group(group)
    yield from as_paragraphs(parser.epilog)
    for action_name, action_parser in actions:
        yield from describe(f"{name} {action_name}", action_parser, level + 1)


def usage(parser: argparse.ArgumentParser) -> str:
    """What must be given; the tables have the rest."""
    positional = [action for action in parser._actions if not action.option_strings]
    needed = [action for action in parser._actions if action.required and action.option_strings]
    places = [f"[{value_of(each)}]" if each.nargs in ("?", "*") else value_of(each) for each in positional]
    options = [f"{each.option_strings[0]} {value_of(each)}" for each in needed]
    return " ".join([parser.prog, *places, *options, "[options]"])


def value_of(action: argparse.Action) -> str:
    """The placeholder of an argument's value; empty for a switch."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    return str(action.metavar or "|".join(map(str, action.choices or [action.dest])))


def describe_group(group: argparse._ArgumentGroup) -> Iterator[str]:
    shown = [action for action in group._group_actions if is_shown(action)]
    if not shown:
        return
    if group.title not in ("positional arguments", "options"):
        yield f"**{str(group.title).capitalize()}.** {as_text(group.description)}".strip()
    rows = "\n".join(f"| {spelling(action)} | {in_cell(explanation(action))} |" for action in shown)
    yield f"| argument | meaning |\n|---|---|\n{rows}"


def is_shown(action: argparse.Action) -> bool:
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and action.help is not argparse.SUPPRESS


def spelling(action: argparse.Action) -> str:
    """As it is typed: all names of an option, then its value."""
    names = [f"`{name}`" for name in action.option_strings]
    values = [f"`{value}`" for value in value_of(action).split("|") if value]
    return " ".join(filter(None, [", ".join(names), in_cell(" | ".join(values))]))


def explanation(action: argparse.Action) -> str:
    return as_text((action.help or "") % {**vars(action), "prog": "conseg"})


def as_paragraphs(text: str | None) -> Iterator[str]:
    """Text as text; indented lines, such as examples, as code."""
    for indented, part in paragraphs(text or ""):
        if part:
            yield f"```\n{dedent(part)}\n```" if indented else as_text(part[0].upper() + part[1:])


def as_text(text: str | None) -> str:
    """One paragraph, in which only the code between backticks is Markdown."""
    plain_and_code = " ".join((text or "").split()).split("`")
    plain_and_code[::2] = [
        MARKDOWN.sub(r"\\\g<0>", plain).replace("<", "&lt;") for plain in plain_and_code[::2]
    ]
    return "`".join(plain_and_code)


def in_cell(text: str) -> str:
    return text.replace("|", r"\|")


def presets() -> str:
    """The presets and what the first comment of each states."""
    folder = resources.files("continual_segment") / "presets"
    rows = []
    for name in PRESETS:
        first_line = (folder / f"{name}.toml").read_text(encoding="utf-8").splitlines()[0]
        rows.append(f"| `{name}` | {first_line.removeprefix('#').strip()} |")
    return "\n".join(["| preset | for |", "|---|---|", *rows])


def organs() -> str:
    text = (resources.files("continual_segment") / "organs.csv").read_text(encoding="utf-8")
    titles = ("name", "id", "SNOMED CT", "body part", "group", "part of", "also known as")
    head = (table_row(titles), table_row(["---"] * len(titles)))
    return "\n".join([*head, *map(organ_row, csv.DictReader(text.splitlines()))])


def organ_row(row: dict[str, str]) -> str:
    plain = {key: value.replace("_", " ") for key, value in row.items()}
    aliases = ", ".join(f"`{alias}`" for alias in row["aliases"].split(";") if alias)
    part_of = f"`{row['part_of']}`" if row["part_of"] else ""
    place = (plain["body_part"], plain["group"], part_of)
    return table_row((f"`{row['name']}`", row["id"], row["snomed"], *place, aliases))


def table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def starter() -> str:
    """Scores of the model in the package, by organ, as `conseg evaluate` wrote them on its test scans."""
    scores = [organ for path in sorted(STARTER_SCORES.glob("*.json")) for organ in scored_organs(path)]
    if not scores:
        return "Not measured yet: this checkout has no `results/starter`."
    titles = ("organ", "scans", "Dice", "HD95 mm", "ASD mm", "missed")
    head = (table_row(titles), table_row(["---"] * len(titles)))
    return "\n".join([*head, *map(score_row, scores), mean_row(scores)])


def scored_organs(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["organs"] if isinstance(found, dict) and found.get("split") == "test" else []


def score_row(organ: dict[str, Any]) -> str:
    numbers = (f"{organ['dice']:.3f}", f"{organ['hd95_mm']:.1f}", f"{organ['asd_mm']:.1f}")
    return table_row((f"`{organ['name']}`", str(organ["scored"]), *numbers, str(organ["excluded"])))


def mean_row(organs: Sequence[dict[str, Any]]) -> str:
    """Every organ counts once."""
    means = {key: fmean(organ[key] for organ in organs) for key in ("dice", "hd95_mm", "asd_mm")}
    sums = {key: sum(organ[key] for organ in organs) for key in ("scored", "excluded")}
    return score_row({"name": "mean", **means, **sums}).replace("`mean`", "**mean**")


GENERATED = {"commands": commands, "presets": presets, "organs": organs, "starter": starter}
