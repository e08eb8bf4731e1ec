"""What must be true of a description and of tensors from a stranger before anything is computed with them.

Every check raises ModelError; `damage_named` adds the file and what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from continual_segment.errors import ModelError
from continual_segment.model.assessment import Assessment
from continual_segment.names import check_file_name, printable
from continual_segment.organs import BODY_PARTS, Organ

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
MOST_TEXTS, LONGEST_TEXT = 1000, 100_000
MOST_PARAMETERS = 500_000_000
"""Of one decoder: thirty times the paper's largest."""


@contextmanager
def damage_named(path: Path, what_to_do: str = "Get the file again.") -> Iterator[None]:
    """Whatever is wrong with the description in a file becomes a ModelError that names the file."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{path}: {error} {what_to_do}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"{path}: the description is damaged ({printable(repr(error))}). {what_to_do}"
        ) from error


def check_name(name: str) -> None:
    """Raise where a pack cannot be called so: names are file names on every system."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        shown = printable(repr(name))
        raise ModelError(f"A pack is named with letters, digits, '_', '-' and '.', not {shown}.")
    check_file_name(name, "The pack", ModelError)


def check_sha256(text: str, what: str) -> None:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ModelError(f"The {what} is a sha256 of 64 hexadecimal digits, not {printable(repr(text))}.")


def check_texts(texts: Sequence[str], what: str) -> None:
    """Free text of any letters, which is cleaned wherever it is shown, but not of any length."""
    if not isinstance(texts, list | tuple) or len(texts) > MOST_TEXTS:
        raise ModelError(f"The {what} is a list of at most {MOST_TEXTS} texts, not {printable(repr(texts))}.")
    for text in texts:
        if not isinstance(text, str) or len(text) > LONGEST_TEXT:
            raise ModelError(
                f"The {what} is text of at most {LONGEST_TEXT} letters, not {printable(repr(text))}."
            )


def check_shares(shares: Mapping[str, float], what: str) -> None:
    """Body parts, each with a share from 0 to 1."""
    good = isinstance(shares, dict) and all(
        part in BODY_PARTS and is_number(share) and 0 <= share <= 1 for part, share in shares.items()
    )
    if not good:
        raise ModelError(
            f"The {what} has a share from 0 to 1 for some of {', '.join(BODY_PARTS)}; it has "
            f"{printable(repr(shares))}."
        )


def check_assessment(found: Assessment | None, organs: Iterable[Organ], channels: int) -> None:
    """Organs of the pack, and the channels of its encoder; the numbers are within their limits already."""
    if found is None:
        return
    if strange := found.organs.keys() - {organ.name for organ in organs}:
        shown = printable(repr(sorted(strange)[0]))
        raise ModelError(f"The assessment has {shown}, which is no organ of the pack.")
    if found.domain and len(found.domain.mean) != channels:
        raise ModelError(
            f"The domain in the assessment has {len(found.domain.mean)} channels; {channels} were expected."
        )


def check_choice(value: Any, choices: Sequence[Any], what: str) -> None:
    """One of a few values, of the same type: 1 is not True, and [0] not (0,)."""
    if repr(value) not in map(repr, choices):
        raise ModelError(
            f"The {what} is one of {', '.join(map(str, choices))}, not {printable(repr(value))}."
        )


def is_number(value: Any) -> bool:
    """Finite, and no bool."""
    return type(value) in (int, float) and math.isfinite(value)


class _WithoutInitialisation(TorchFunctionMode):
    """Draws no random numbers: for tensors without memory PyTorch imports its compiler to draw them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def check_tensors(tensors: Mapping[str, Tensor], build: Callable[[], nn.Module], what: str) -> None:
    """Raise unless tensors have the names, shapes and types of the module that `build` makes.

    The module is built without memory for its weights, so a description of any size costs nothing.
    """
    try:
        with torch.device("meta"), _WithoutInitialisation():
            expected = build().state_dict()
    except ValueError as error:
        raise ModelError(f"The {what} cannot be built. {printable(str(error))}") from error
    if sum(tensor.numel() for tensor in expected.values()) > MOST_PARAMETERS:
        raise ModelError(f"The {what} would have more than {MOST_PARAMETERS:,} parameters.")
    if different := sorted(expected.keys() ^ tensors.keys()):
        raise ModelError(
            f"The {what} has {len(tensors)} tensors, and {len(expected)} were expected; the first that is in "
            f"one of them alone is {printable(repr(different[0]))}."
        )
    for name, tensor in expected.items():
        check_tensor(tensors[name], tensor.shape, f"{what}'s {name}", tensor.dtype)


def check_tensor(tensor: Tensor, shape: Sequence[int], what: str, dtype: torch.dtype = torch.float32) -> None:
    if tensor.shape != torch.Size(shape) or tensor.dtype != dtype:
        raise ModelError(
            f"The {what} has shape {tuple(tensor.shape)} and type {tensor.dtype}; {tuple(shape)} and {dtype} "
            "were expected."
        )


def check_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ModelError(f"The {what}'s {name} has numbers that are not finite.")
