"""Every number in the texts for readers is in a file of results/.

    python benchmarks/check_claims.py

A block of README.md or docs/results.md (paragraph, list or table) with decimal numbers names its files in a
comment before it: <!-- source: results/demo/scores.json results/small_packs/laptop.md -->. Each of its
decimal numbers must be in one of them, rounded to as many digits; a share may be a percentage. Exits with 1
and a list of what is missing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/results.md")
SOURCE = re.compile(r"<!-- source: (.*?) -->", re.DOTALL)
NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+", re.DOTALL)
DECIMAL = re.compile(r"(?<![\w.-])\d+\.\d+(?![\w.]*\d)")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """Lines up to an empty one, and the files that its numbers come from."""

    text: str
    sources: tuple[str, ...]

    @property
    def decimals(self) -> list[str]:
        return DECIMAL.findall(self.text)


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
    if not block.decimals:
        return []
    if not block.sources:
        return [f"no source is named for {', '.join(block.decimals)}: {block.text[:60]!r}"]
    if absent := [name for name in block.sources if not (ROOT / name).is_file()]:
        return [f"there is no file {', '.join(absent)}"]
    found = [float(number) for name in block.sources for number in NUMBER.findall((ROOT / name).read_text())]
    missing = [number for number in block.decimals if not is_in(number, found)]
    return [f"{number} is in none of {', '.join(block.sources)}" for number in missing]


def is_in(claimed: str, found: list[float]) -> bool:
    """Whether a value of the files, or a share of them in percent, rounds to the number."""
    digits = len(claimed.partition(".")[2])
    half = 0.5 * 10**-digits + 1e-9
    return any(abs(abs(value) * times - float(claimed)) <= half for value in found for times in (1, 100))


def main() -> int:
    problems = [
        f"{page}: {problem}"
        for page in PAGES
        for block in blocks((ROOT / page).read_text())
        for problem in unsupported(block)
    ]
    print("\n".join(problems) or f"Every decimal number of {' and '.join(PAGES)} is in its source.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
