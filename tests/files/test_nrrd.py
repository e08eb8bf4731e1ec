"""NRRD in: what is refused before it costs memory."""

from __future__ import annotations

import os

import pytest

from continual_segment.errors import ScanError
from continual_segment.files import read_scan


def test_of_a_file_that_is_no_nrrd_only_the_first_bytes_are_read(tmp_path):
    path = tmp_path / "scan.nrrd"
    path.write_bytes(b"DICM")
    os.truncate(path, 2**40)  # of holes: reading it whole would need as much memory
    with pytest.raises(ScanError, match="no NRRD file"):
        read_scan(path)
