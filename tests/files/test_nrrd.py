"""NRRD in: what is refused before it costs memory."""

from __future__ import annotations

import bz2
import gzip
import os
import tracemalloc

import numpy as np
import pytest

from continual_segment.errors import ScanError
from continual_segment.files import read_scan

PACKERS = {"gzip": gzip.compress, "bzip2": bz2.compress}
VOXELS = np.arange(24, dtype=np.int16).reshape(4, 3, 2)


def write_packed(path, encoding, data, further="", data_name=None):
    header = (
        "NRRD0004\ntype: short\ndimension: 3\nspace: right-anterior-superior\nsizes: 2 3 4\n"
        "space directions: (1,0,0) (0,1,0) (0,0,1)\nkinds: domain domain domain\nendian: little\n"
        f"encoding: {encoding}\n{further}"
    )
    if data_name is None:
        path.write_bytes(header.encode() + b"\n" + data)
    else:
        path.write_bytes(f"{header}data file: {data_name}\n".encode())
        path.with_name(data_name).write_bytes(data)


@pytest.mark.parametrize("data_name", [None, "voxels.raw"])
@pytest.mark.parametrize("encoding", PACKERS)
def test_compressed_voxels_are_read_in_the_file_and_beside_it(tmp_path, encoding, data_name):
    path = tmp_path / "scan.nhdr"
    write_packed(path, encoding, PACKERS[encoding](VOXELS.tobytes()), data_name=data_name)
    np.testing.assert_array_equal(read_scan(path).voxels, VOXELS)


@pytest.mark.parametrize("data_name", [None, "voxels.raw"])
@pytest.mark.parametrize("encoding", PACKERS)
def test_voxels_that_unpack_to_more_than_the_header_speaks_of_are_refused_before_they_take_memory(
    tmp_path, encoding, data_name
):
    path = tmp_path / "scan.nhdr"
    write_packed(path, encoding, PACKERS[encoding](bytes(10**8)), data_name=data_name)
    tracemalloc.start()
    try:
        with pytest.raises(ScanError, match=r"scan.nhdr.*2 x 3 x 4"):
            read_scan(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * 10**7
    finally:
        tracemalloc.stop()


def test_compressed_voxels_behind_skipped_bytes_are_refused(tmp_path):
    path = tmp_path / "scan.nrrd"
    write_packed(path, "gzip", gzip.compress(bytes(2) + VOXELS.tobytes()), further="byte skip: 2\n")
    with pytest.raises(ScanError, match=r"scan.nrrd.*skipped"):
        read_scan(path)


def test_of_a_file_that_is_no_nrrd_only_the_first_bytes_are_read(tmp_path):
    path = tmp_path / "scan.nrrd"
    path.write_bytes(b"DICM")
    os.truncate(path, 2**40)  # of holes: reading it whole would need as much memory
    with pytest.raises(ScanError, match="no NRRD file"):
        read_scan(path)
