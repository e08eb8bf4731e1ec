"""Read a safetensors file that may come from a stranger: its tensors and the JSON object in its header.

No size that the file claims is believed before it is compared with a limit, and whatever is wrong with it is
one ModelError. What the entries of the JSON object must be is decided by those who asked for the file.

In:  a path, the key of the header's JSON text
Out: the JSON object, tensors by name
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from continual_segment.errors import ModelError
from continual_segment.names import printable

LARGEST_HEADER = 16 * 2**20
"""Bytes; the header of a pack with 143 organs and 32 pruning paths has less than a hundredth of it."""
DEEPEST_JSON = 32
"""Levels of objects and lists within each other; a training card has about six."""


def read_tensor_file(
    path: Path, key: str, what: str, formats: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON object under `key` in the header, and all tensors; `what` names the kind of file in errors."""
    try:
        _check_header_size(path)
        with safe_open(path, framework="pt") as file:
            described = json.loads((file.metadata() or {})[key])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if not isinstance(described, dict) or is_deeper(described, DEEPEST_JSON):
            raise ValueError(f"its header has no JSON object of up to {DEEPEST_JSON} levels")
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such {key} file.") from error
    except (SafetensorError, KeyError, ValueError, RuntimeError, OSError) as error:  # RecursionError, too
        raise ModelError(
            f"{path}: this is no {what}, or a damaged one ({printable(str(error))}). Get it again."
        ) from error
    if described.get("format") not in formats:
        found, known = printable(str(described.get("format"))), " and ".join(map(str, formats))
        raise ModelError(
            f"{path}: a {key} of format {found}; this version reads {known}. Update continual-segment."
        )
    return described, tensors


def _check_header_size(path: Path) -> None:
    with Path(path).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > LARGEST_HEADER:
        raise ValueError(f"its header claims {size} bytes; at most {LARGEST_HEADER} were expected")


def is_deeper(data: Any, levels: int) -> bool:
    """Whether objects and lists are nested in more than so many levels."""
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if levels == 0:
        return isinstance(data, dict | list)
    return any(is_deeper(child, levels - 1) for child in children)
