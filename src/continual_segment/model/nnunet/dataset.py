"""dataset.json: which organ each output channel of the network means, and where the data came from.

A model has either labels or regions. With labels, channel 0 is the background and channel i is label i; the
highest logit wins. With regions, which may overlap, there is no background channel; every channel is a region
of several labels, and where several probabilities are above 0.5, the last of these channels wins.

In:  the text of dataset.json
Out: NnunetLabels, Attribution
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from continual_segment.data.label_list import same_organ_problems
from continual_segment.errors import ModelError
from continual_segment.names import printable
from continual_segment.organs import Organ, find_organ

ADVICE = "Correct dataset.json."
LONGEST_TEXT = 4000
UNKNOWN_LICENCE = "lazy and didn't look it up"
"""In the text that nnU-Net writes where the author of a dataset gave no licence."""


@dataclass(frozen=True)
class NnunetLabels:
    """What the output channels mean."""

    names: tuple[str, ...]
    """Organs as the dataset names them: by channel, for labels without the background's."""
    values: tuple[tuple[int, ...], ...]
    """Label values of each of them in the training data: several for a region."""
    regions_class_order: tuple[int, ...] = ()
    """Only with regions: the value that each one gets in nnU-Net's label maps."""
    ignore: int | None = None
    """Label value of voxels that training left out; it is no output."""

    @property
    def has_regions(self) -> bool:
        return bool(self.regions_class_order)

    @property
    def channels(self) -> int:
        """Output channels of the network."""
        return len(self.names) + (0 if self.has_regions else 1)

    @property
    def organs(self) -> tuple[Organ, ...]:
        """The same organs in our table; one that it lacks has an id hashed from its name."""
        return tuple(find_organ(name) for name in self.names)


@dataclass(frozen=True)
class Attribution:
    """What the dataset's author wrote about it; empty where there is nothing."""

    name: str = ""
    description: str = ""
    licence: str = ""
    reference: str = ""
    citation: str = ""
    release: str = ""


@dataclass(frozen=True)
class Dataset:
    """The fields of dataset.json that are read."""

    labels: dict[str, int | tuple[int, ...]]
    channel_names: dict[str, str] | None = None
    modality: dict[str, str] | None = None
    """The older name of `channel_names`."""
    regions_class_order: tuple[int, ...] | None = None
    name: Any = None
    description: Any = None
    licence: Any = None
    license: Any = None
    reference: Any = None
    citation: Any = None
    release: Any = None

    @property
    def attribution(self) -> Attribution:
        texts = {field.name: _text(getattr(self, field.name)) for field in fields(Attribution)}
        licences = (text for text in (texts["licence"], _text(self.license)) if UNKNOWN_LICENCE not in text)
        return Attribution(**texts | {"licence": next(filter(None, licences), "")})


def read_modality(dataset: Dataset, where: str) -> str:
    """The name of the one input channel, such as CT."""
    channels = dataset.channel_names if dataset.modality is None else dataset.modality
    if channels is None or len(channels) != 1:
        raise ModelError(
            f"{where}: {len(channels or {})} input channels in channel_names, one was expected. Only models "
            "of CT alone can be imported."
        )
    return next(iter(channels.values()))


def read_labels(dataset: Dataset, where: str) -> NnunetLabels:
    """What the output channels mean, read as nnU-Net does."""
    values = {name: _values(value) for name, value in dataset.labels.items() if name != "ignore"}
    if values.pop("background", None) != (0,):
        raise ModelError(f"{where}: no label 'background' with value 0. {ADVICE}")
    ignore = _ignore_label(dataset, values, where)
    values = {name: value for name, value in values.items() if set(value) != {0}}
    if any(len(value) > 1 for value in values.values()):
        labels = _regions(dataset, values, ignore, where)
    else:
        labels = _labels(values, ignore, where)
    _check_organs(labels, where)
    return labels


def _values(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else value


def _labels(values: dict[str, tuple[int, ...]], ignore: int | None, where: str) -> NnunetLabels:
    ordered = sorted(values.items(), key=lambda item: item[1])
    found = [value for _, value in ordered]
    if found != [(number,) for number in range(1, len(found) + 1)]:
        numbers = printable(", ".join(str(number) for value in found for number in value))
        raise ModelError(
            f"{where}: label values {numbers}; each of 1 to {len(found)} once was expected. {ADVICE}"
        )
    return NnunetLabels(tuple(name for name, _ in ordered), tuple(found), ignore=ignore)


def _regions(
    dataset: Dataset, values: dict[str, tuple[int, ...]], ignore: int | None, where: str
) -> NnunetLabels:
    order = dataset.regions_class_order or ()
    if len(order) != len(values):
        raise ModelError(
            f"{where}: regions_class_order has {len(order)} entries, one per region, {len(values)}, was "
            f"expected. {ADVICE}"
        )
    return NnunetLabels(tuple(values), tuple(values.values()), order, ignore)


def _ignore_label(dataset: Dataset, values: dict[str, tuple[int, ...]], where: str) -> int | None:
    ignore = dataset.labels.get("ignore")
    if ignore is None:
        return None
    highest = max((number for value in values.values() for number in value), default=0)
    if ignore != highest + 1:
        raise ModelError(
            f"{where}: label 'ignore' has value {printable(str(ignore))}, the highest, {highest + 1}, was "
            f"expected. {ADVICE}"
        )
    return highest + 1


def _check_organs(labels: NnunetLabels, where: str) -> None:
    """Raise where two channels would be one organ, or one has no name."""
    nameless = [name for name in labels.names if not any(map(str.isalnum, name))]
    if not labels.names or nameless:
        raise ModelError(f"{where}: an organ with a name was expected, not {nameless}. {ADVICE}")
    if problems := same_organ_problems(labels.names):
        raise ModelError(f"{where}: {printable(' '.join(problems), 1000)}")


def _text(value: Any) -> str:
    """A text, number or list of these on one line; empty for anything else."""
    parts = value if isinstance(value, list) else [value]
    text = ", ".join(str(part) for part in parts if isinstance(part, str | int | float))
    return printable(" ".join(text.split()), LONGEST_TEXT)
