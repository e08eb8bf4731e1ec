"""JSON and TOML from outside become dataclasses; a wrong field is an error that names its path.

The types of a dataclass's fields are its schema. `__post_init__` checks what types cannot express.

In:  a file or parsed data, and a dataclass
Out: an instance of it, or the caller's kind of error
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from continual_segment.errors import ContinualSegmentError
from continual_segment.names import printable

Record = TypeVar("Record")
ErrorType = type[ContinualSegmentError]
LONGEST_PROBLEM = 400
INVALID_CHOICE = re.compile(r"^Invalid enum value .* at `\$(?P<path>[^`]+)`$", re.DOTALL)
FIELD = re.compile(r"\.(\w+)(\[.*?\])?")


def read_toml(path: Path, kind: type[Record], error: ErrorType, advice: str) -> Record:
    """The record in a TOML file; `advice` ends the error message with what to do."""
    data = _parse(_read_text(path, error, advice), tomllib.loads, "TOML", str(path), error, advice)
    return as_record(data, kind, str(path), error, advice)


def read_json(path: Path, kind: type[Record], error: ErrorType, advice: str) -> Record:
    """The record in a JSON file, as `read_toml`."""
    return parse_json(_read_text(path, error, advice), kind, str(path), error, advice)


def parse_json(text: str, kind: type[Record], where: str, error: ErrorType, advice: str) -> Record:
    """The record in a JSON text that is stored in another file, such as a safetensors header."""
    return as_record(_parse(text, json.loads, "JSON", where, error, advice), kind, where, error, advice)


def as_record(data: Any, kind: type[Record], where: str, error: ErrorType, advice: str = "") -> Record:
    """The record in parsed data, with the types of its fields: tuples of lists, floats of whole numbers."""
    try:
        return msgspec.convert(data, kind, str_keys=True, dec_hook=_path_of)  # keys as in JSON and TOML
    except msgspec.ValidationError as problem:
        sentence = printable(str(problem), LONGEST_PROBLEM).removesuffix(".") + _choices(kind, str(problem))
        raise error(f"{where}: {sentence}. {advice}".rstrip()) from problem


def _path_of(kind: type, value: Any) -> Any:
    """The one type of ours that msgspec does not know."""
    if kind is not Path or not isinstance(value, str):
        raise ValueError(f"Expected a {kind.__name__}, got {type(value).__name__}")
    return Path(value)


def refuse_unknown(table: Any, kind: Any, where: str, error: ErrorType) -> None:
    """Raise where a table, or one in it, has a setting that the dataclass does not have.

    `where` is the file, and behind it, in brackets, the table that is not the file itself.
    """
    if not isinstance(table, dict):
        # a text may be a secret
        shown = table if isinstance(table, (int, float)) else f"a {type(table).__name__}"
        raise error(f"{where} is a table of settings, not {shown}.")
    kinds = {item.name: get_type_hints(kind)[item.name] for item in fields(kind)}
    if unknown := sorted(set(table) - set(kinds)):
        raise error(f"{where} has no setting '{printable(unknown[0])}'. Its settings: {', '.join(kinds)}.")
    for name, value in table.items():
        inner = f"{where[:-1]}.{name}]" if where.endswith("]") else f"{where}: [{name}]"
        several = get_origin(kinds[name]) is tuple and isinstance(value, list)
        item = get_args(kinds[name])[0] if several else kinds[name]
        for each in value if several else [value]:
            if is_dataclass(item):
                refuse_unknown(each, item, inner, error)


def _choices(kind: Any, problem: str) -> str:
    """The values a field can have, where it has one of a few and the problem is another one."""
    found = INVALID_CHOICE.search(problem)
    for name, item in FIELD.findall(found["path"]) if found else ():
        kind = get_type_hints(kind).get(name) if is_dataclass(kind) else None
        kind = next(iter(get_args(kind)), None) if item else kind  # of a tuple, the type of its items
    if found is None or get_origin(kind) is not Literal:
        return ""
    return f", which is one of {', '.join(map(str, get_args(kind)))}"


def _read_text(path: Path, error: ErrorType, advice: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not a text file ({problem.reason}). {advice}") from problem
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror}). {advice}") from problem


def _parse(
    text: str, parse: Callable[[str], Any], form: str, where: str, error: ErrorType, advice: str
) -> Any:
    try:
        return parse(text)
    except (ValueError, RecursionError) as problem:  # both decoders' errors are ValueErrors
        raise error(f"{where}: not valid {form} ({printable(str(problem))}). {advice}") from problem
