"""Which series of a study is the CT volume.

A study holds scouts, several reconstructions, other modalities, dose reports and older results. Candidates
are stacks of CT slices; localisers and, where there are others, derived reformats are none. Where several
candidates remain the user chooses, or a rule that the user has named; nothing is guessed.

In:  a Study
Out: one Series of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from continual_segment.errors import ConfigError, ScanError
from continual_segment.files.dicom.headers import number, text
from continual_segment.files.dicom.listing import listing
from continual_segment.files.dicom.series import Series, Study, read_study
from continual_segment.names import printable

FEWEST_SLICES = 3
Pick = Literal["thinnest", "most-slices", "all"]
PICKS: tuple[str, ...] = get_args(Pick)


def check_pick(pick: str | None, wanted: str | None) -> None:
    """Raise where a rule is unknown, or given beside a series."""
    if pick is not None and pick not in PICKS:
        raise ConfigError(f"There is no rule {pick!r} to pick a series; there are {', '.join(PICKS)}.")
    if pick is not None and wanted is not None:
        raise ConfigError(f"Give either --series {wanted} or --pick {pick}.")


def choose_series(study: Study, wanted: str | None, pick: str | None, force: bool) -> Series:
    """The series that is wanted, or the only candidate, or that which a rule picks; ScanError lists them."""
    if wanted is not None:
        series = _wanted(study, wanted.strip())
        _check_modality(study, [series], force)
        return series
    found = candidates(study, force)
    if len(found) == 1:
        return found[0]
    if pick is not None:
        _check_one_study(study, found)
    if pick in ORDERS:
        return min(found, key=ORDERS[pick])
    raise ScanError(
        f"{study.path}: {len(found)} series could be meant. Choose with --series NUMBER, its UID or its "
        f"position in this list, such as --series=#1; or let a rule choose with --pick:\n{listing(study)}"
    )


def series_of_each(path: Path) -> list[tuple[str, Series]]:
    """Every candidate at a path with what `wanted` must be to choose it, for `--pick all`."""
    study = read_study(path)
    found = candidates(study)
    _check_one_study(study, found)
    return [(_selector(study, series), series) for series in found]


def candidates(study: Study, force: bool = False) -> list[Series]:
    """The CT volumes of a study; ScanError where there is none."""
    _check_modality(study, study.series, force)
    volumes = [series for series in study.series if _can_be_volume(series)]
    if not volumes:
        raise ScanError(
            f"{study.path}: no CT volume is among these images; at least {FEWEST_SLICES} parallel slices "
            f"were expected. Found:\n{listing(study)}"
        )
    _check_modality(study, volumes, force)  # again: a CT scout beside MR volumes is no CT volume
    return _narrowed(volumes, lambda s: s.modality == "CT", lambda s: s.is_ct, lambda s: not s.is_derived)


def _narrowed(found: Sequence[Series], *rules: Callable[[Series], bool]) -> list[Series]:
    """What satisfies the rules, of which one that nothing satisfies does not count."""
    left = list(found)
    for rule in rules:
        left = [series for series in left if rule(series)] or left
    return left


def _can_be_volume(series: Series) -> bool:
    return not series.is_localiser and len(series.frames) >= FEWEST_SLICES


def _check_modality(study: Study, found: Sequence[Series], force: bool) -> None:
    """Raise where no series is CT; other errors would mislead."""
    if force or any(series.is_ct for series in found):
        return
    kinds = " and ".join(sorted({printable(series.modality, 16) for series in found}))
    raise ScanError(
        f"{study.path}: The images are {kinds}; CT in Hounsfield units was expected. If this is a CT all the "
        f"same, give --force. Found:\n{listing(study)}"
    )


def _check_one_study(study: Study, found: Sequence[Series]) -> None:
    count = len({text(series.header, "StudyInstanceUID") for series in found})
    if count > 1:
        raise ScanError(
            f"{study.path}: the CT series are of {count} studies; --pick chooses within one. Put every study "
            f"into a folder of its own:\n{listing(study)}"
        )


def _wanted(study: Study, wanted: str) -> Series:
    """By SeriesNumber, SeriesInstanceUID or, behind a #, by position in the list."""
    matches = [series for at, series in enumerate(study.series, 1) if _matches(series, at, wanted)]
    if len(matches) > 1:  # a scout, or an image of another machine, may share the number
        matches = _narrowed(matches, _can_be_volume, lambda s: s.modality == "CT")
    if len(matches) == 1:
        return matches[0]
    found = f"{len(matches)} series are" if matches else "no series is"
    raise ScanError(
        f"{study.path}: {found} {printable(wanted)!r}. --series takes DICOM's SeriesNumber, a UID, or a "
        f"position in this list, such as --series=#1:\n{listing(study)}"
    )


def _matches(series: Series, position: int, wanted: str) -> bool:
    if wanted.startswith("#"):
        return wanted == f"#{position}"
    if wanted.isdecimal():
        return (wanted.lstrip("0") or "0") == str(series.number)
    return wanted == series.uid != ""


def _selector(study: Study, series: Series) -> str:
    """The UID, which files that arrive in the meantime do not change; the position where phases share it."""
    if series.uid and sum(each.uid == series.uid for each in study.series) == 1:
        return series.uid
    return f"#{study.series.index(series) + 1}"


def _by_thickness(series: Series) -> tuple[float, ...]:
    step = series.step_mm or 0.0
    thickness = number(series.header, "SliceThickness", 0.0)
    return (thickness if thickness > 0 else step, step)


def _last_resort(series: Series) -> tuple[float, str]:
    """The same among equals every time."""
    return (float("inf") if series.number is None else series.number, series.uid)


ORDERS: dict[str | None, Callable[[Series], tuple[object, ...]]] = {
    "thinnest": lambda s: (*_by_thickness(s), -len(s.frames), *_last_resort(s)),
    "most-slices": lambda s: (-len(s.frames), *_by_thickness(s), *_last_resort(s)),
}
"""Rule -> the order of which it takes the first."""
