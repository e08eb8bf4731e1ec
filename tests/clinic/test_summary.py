"""What a summary counts: voxels in millilitres, parts with their wholes, faces of the scan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from continual_segment.clinic.summary import summarise
from continual_segment.organs import find_organ, part_of
from continual_segment.segmentation.clean_up import RemovedIslands
from continual_segment.volume import Grid, LabelMap

WHOLE, PART = "aorta", "aortic_arch"


@pytest.fixture
def labels():
    """A whole of 8 voxels of 0.5 ml, 2 of them drawn as its part at the top; a liver of one; no spleen."""
    ids = {name: find_organ(name).id for name in (WHOLE, PART, "liver", "spleen")}
    voxels = np.zeros((10, 5, 5), np.uint16)
    voxels[2:10, 2, 2] = ids[WHOLE]
    voxels[8:10, 2, 2] = ids[PART]
    voxels[5, 4, 3] = ids["liver"]
    grid = Grid(voxels.shape, np.diag([10.0, 10.0, 5.0, 1.0]))
    return LabelMap(voxels, grid, {number: name for name, number in ids.items()})


def test_organs_have_volumes_and_faces_and_a_whole_has_those_of_its_parts(labels):
    assert part_of(PART) == WHOLE
    summary = summarise("case", labels, True, 1.5)
    found = {organ.name: (organ.volume_ml, organ.touches_edge) for organ in summary.found}
    assert found == {
        WHOLE: (pytest.approx(4.0), ("top",)),
        PART: (pytest.approx(1.0), ("top",)),
        "liver": (pytest.approx(0.5), ("front",)),
    }
    assert summary.missing == ("spleen",)
    apart = {organ.name: organ for organ in summarise("case", labels, False, 1.5).found}
    assert apart[WHOLE].volume_ml == pytest.approx(3.0)
    assert apart[WHOLE].touches_edge == ()


def test_a_table_has_a_row_per_organ_and_a_batch_a_line(labels):
    summary = summarise("case", labels, True, 1.5)
    head, *rows, missing = summary.table().splitlines()
    assert head.split() == ["organ", "ml"]
    assert {row.split()[0] for row in rows} == {WHOLE, PART, "liver"}
    assert all(row.split()[1] in ("4.0", "1.0", "0.5") for row in rows)
    assert missing == "Not found: spleen."
    assert summary.line() == "case: 3 of 4 organs, 3 at the edge of the scan, 1.5 s"


def test_what_clean_up_removed_is_in_table_and_line(labels):
    removed = (RemovedIslands("liver", 1.25, 2), RemovedIslands(WHOLE, 2.5, 1))
    summary = replace(summarise("case", labels, True, 1.5), removed=removed)
    assert "3.8 ml of 2 organs removed in 3 islands" in summary.line()
    assert "3.8 ml of 2 organs removed in 3 islands" in summary.table().splitlines()[-1]
    assert "conseg segment --keep-islands" in summary.table()  # `conseg view` prints it and lacks the option


def test_nothing_found_is_said(labels):
    empty = LabelMap(np.zeros_like(labels.voxels), labels.grid, labels.names)
    summary = summarise("case", empty, True, 0.0)
    assert summary.table().startswith("Not found: ")
    assert summary.line() == "case: 0 of 4 organs, 0.0 s"
