"""Names that come from outside: cases, organs, packs, series, files in an archive.

A name is checked here before it becomes part of a path, and cleaned here before it is shown on a terminal or
a page. A dataset, a pack or a scan from a stranger may be named `../../etc/passwd` or carry escape sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import PurePosixPath, PureWindowsPath

LONGEST_NAME = 200
"""Bytes in UTF-8: file systems allow 255, and endings are added."""


def check_file_name(name: str, what: str, error: type[Exception]) -> str:
    """Return `name` if it can be the name of one file or folder on every system; raise `error` otherwise."""
    if problem := _problem(name):
        raise error(
            f"{what} {printable(repr(name))} cannot be used as a file name: it {problem}. Rename it, "
            "for example with letters, digits, '_' and '-' only."
        )
    return name


def printable(text: str, longest: int = LONGEST_NAME) -> str:
    """The text on one line: control characters are replaced, and what is too long is cut."""
    clean = "".join(letter if letter.isprintable() else "�" for letter in text)
    return clean if len(clean) <= longest else f"{clean[:longest]}..."


def some_of(names: Iterable[str], at_most: int = 5, longest: int = LONGEST_NAME) -> str:
    """The first names of a list, printable, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - at_most} more" if len(every) > at_most else ""
    return ", ".join(printable(name, longest) for name in every[:at_most]) + more or "none"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question with the nearest known names, for an error before the names there are; or nothing."""
    near = get_close_matches(given, list(known), 2)
    return f"Did you mean {' or '.join(sorted(near))}? " if near else ""


def _problem(name: str) -> str:
    if not name.strip():
        return "is empty"
    if not name.isprintable():
        return "contains control characters"
    if any(letter in name for letter in '/\\:*?"<>|'):
        return "contains a path separator or another reserved character"
    if name.startswith((".", "-", " ")) or name.endswith((".", " ")):
        return "starts or ends with a dot or a space, or starts with a dash"
    if PureWindowsPath(name).is_reserved() or PurePosixPath(name).name != name:
        return "is reserved by the operating system"
    if len(name.encode()) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} bytes"
    return ""
