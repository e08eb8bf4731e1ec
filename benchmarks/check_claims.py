"""Every number for readers has a source: a file of results/ that was measured, or a file that defines it.

    python benchmarks/check_claims.py

Checked are README.md and all pages of docs/. A block (paragraph, list or table) with numbers names its files
in a comment before it: <!-- source: results/demo/scores.json results/small_packs/laptop.md -->. Each number
must be in one of them, rounded to as many digits; a share may be a percentage. What was not measured but set,
such as a default, names the code that sets it. Numbers are decimals, whole numbers with a unit of time,
memory, share or ratio, and cells of tables that hold a number alone. Code, links, names in backticks and
sections of the paper (§3.2) are not read.
Exits with 1 and a list of what is missing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")))
SOURCE = re.compile(r"<!-- source: (.*?) -->", re.DOTALL)
NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+", re.DOTALL)
DECIMAL = re.compile(r"(?<![\w.§-])\d+\.\d+(?![\w.]*\d)")
UNIT = r"(?:s|min|minutes?|seconds?|hours?|[KMG]i?B|%|times|points?)(?!\w)"
MEASURED = re.compile(rf"(?<![\w.,-])(?:\d+(?:,\d{{3}})+|\d+)(?= {UNIT})")
CELL = re.compile(r"(?<=\|)[ *]*(\d+(?:,\d{3})*)[ *]*(?=\|)")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


@dataclass(frozen=True)
class Block:
    """Lines up to an empty one, and the files that its numbers come from."""

    text: str
    sources: tuple[str, ...]

    @property
    def numbers(self) -> list[str]:
        found = [*DECIMAL.findall(self.text), *MEASURED.findall(self.text), *CELL.findall(self.text)]
        return [number.replace(",", "") for number in found]


def blocks(page: str) -> Iterator[Block]:
    """A comment belongs to the block that follows it."""
    sources: tuple[str, ...] = ()
    for part in re.split(r"\n\s*\n", NOT_PROSE.sub(" ", page)):
        for comment in SOURCE.finditer(part):
            sources = tuple(comment.group(1).split())
        if text := SOURCE.sub("", part).strip():
            yield Block(text, sources)
            sources = ()


def unsupported(block: Block) -> list[str]:
    """What is wrong with a block's numbers, one sentence each."""
    if not block.numbers:
        return []
    if not block.sources:
        return [f"no source is named for {', '.join(block.numbers)}: {block.text[:60]!r}"]
    if absent := [name for name in block.sources if not (ROOT / name).is_file()]:
        return [f"there is no file {', '.join(absent)}"]
    found = [number for name in block.sources for number in numbers_in(name)]
    missing = [number for number in block.numbers if not is_in(number, found)]
    return [f"{number} is in none of {', '.join(block.sources)}" for number in missing]


@cache
def numbers_in(name: str) -> tuple[float, ...]:
    text = THOUSANDS.sub("", (ROOT / name).read_text(encoding="utf-8"))
    return tuple(map(float, NUMBER.findall(text.replace("_", ""))))


def is_in(claimed: str, found: list[float]) -> bool:
    """Whether a value of the files, or a share of them in percent, rounds to the number."""
    digits = len(claimed.partition(".")[2])
    half = 0.5 * 10**-digits + 1e-9
    return any(abs(abs(value) * times - float(claimed)) <= half for value in found for times in (1, 100))


def main() -> int:
    problems = [
        f"{page}: {problem}"
        for page in PAGES
        for block in blocks((ROOT / page).read_text(encoding="utf-8"))
        for problem in unsupported(block)
    ]
    print("\n".join(problems) or f"Every number of {len(PAGES)} pages is in its source.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
