"""The argument parser of every command: what it does not know is an error with a suggestion, never a guess.

argparse alone reads `-ml` as `-m l`, `-ss` as `-s -s` and `--stat` as `--statistics`. Options of other tools
would be misread in silence, and a new option would change the meaning of old scripts.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NoReturn

from continual_segment.names import did_you_mean, printable


def paragraphs(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a description, and whether each is to be kept as it is: its lines are indented."""
    for part in text.strip("\n").split("\n\n"):
        for indented, lines in groupby(part.splitlines(), lambda line: line.startswith(" ")):
            yield indented, "\n".join(lines)


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the width of the terminal; indented lines, such as examples, stay as they are."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 28} | options)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):  # argparse forgets that commands are indented
            self._action_max_length += self._indent_increment

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._fill_part(part, width, indent) for part in text.strip("\n").split("\n\n"))

    def _fill_part(self, part: str, width: int, indent: str) -> str:
        filled = (
            lines if indented else textwrap.fill(" ".join(lines.split()), width - len(indent))
            for indented, lines in paragraphs(part)
        )
        return textwrap.indent("\n".join(filled), indent)


class Parser(argparse.ArgumentParser):
    """Options are given by their full name, and the value of a short one is an argument of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter} | options)

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        print(f"{self.prog}: {message}{end} See `{self.prog} --help`.", file=sys.stderr)
        sys.exit(2)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """The options that an argument with a dash, which is no option itself, may abbreviate: none."""
        name = option_string.partition("=")[0]
        is_option = name[1:2] not in "0123456789." and " " not in name
        if is_option and self._subparsers is None:  # else it may be an option of the command that follows
            self._refuse(name)
        return []

    def _refuse(self, option: str) -> NoReturn:
        known = self._option_string_actions
        short, value = option[:2], option[2:]
        if short in known and known[short].nargs != 0 and not option.startswith("--"):
            hint = f"Separate the value: {short} {value}"
        else:
            hint = did_you_mean(option, [name for name in known if known[name].help is not argparse.SUPPRESS])
        self.error(f"unknown option {printable(option)}. {hint}".strip())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        is_command = isinstance(action, argparse._SubParsersAction)
        raise argparse.ArgumentError(
            None if is_command else action,
            f"unknown {'command' if is_command else 'value'} {printable(repr(value))}. "
            f"{did_you_mean(str(value), names)}There are {', '.join(names)}",
        )
