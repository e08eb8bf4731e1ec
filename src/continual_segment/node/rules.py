"""Which rule of the configuration a series follows."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from continual_segment.files.dicom.instance import Instance
from continual_segment.node.config import Rule


def rule_for(rules: Sequence[Rule], instance: Instance, calling_ae: str, slices: int) -> Rule | None:
    """The first rule that matches a series, of which one instance is given; None where none does."""
    return next((rule for rule in rules if _matches(rule, instance, calling_ae, slices)), None)


def _matches(rule: Rule, instance: Instance, calling_ae: str, slices: int) -> bool:
    least, greatest = rule.thickness_mm
    return (
        slices >= rule.fewest_slices
        and least <= instance.thickness_mm <= greatest
        and _fits(rule.description, instance.description)
        and _fits(rule.body_part, instance.body_part)
        and _fits(rule.calling_ae_titles, calling_ae)
    )


def _fits(patterns: Sequence[str], value: str) -> bool:
    return not patterns or any(fnmatchcase(value.lower(), pattern.lower()) for pattern in patterns)
