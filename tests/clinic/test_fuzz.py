"""Damaged files of every kind: read, or refused in a sentence; never anything else.

A few seconds by default; CONSEG_FUZZ_SECONDS=60 asks for a minute, CONSEG_FUZZ_SEED for other damage.
"""

from __future__ import annotations

import gzip
import os
import random
import time

import pytest
from made_scans import AXIAL, compress, write_by_itk, write_enhanced, write_nifti, write_series, write_zip

from continual_segment.clinic.sanity import look_at
from continual_segment.errors import ContinualSegmentError
from continual_segment.files import read_source

SECONDS = float(os.environ.get("CONSEG_FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("CONSEG_FUZZ_SEED", "0"))
FEW = AXIAL.without(*range(5, 26))
EXTREMES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\x80\x7f")
RLE = 13  # gdcm's number of the only compression that is decoded by plain Python, which cannot crash


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Files of every kind by their names."""
    folder = tmp_path_factory.mktemp("sound")
    files = [
        write_nifti(folder / "a.nii"),
        write_nifti(folder / "b.nii.gz"),
        write_by_itk(folder / "c.nrrd"),
        write_by_itk(folder / "d.mha"),
        write_enhanced(folder / "e.dcm"),
        write_zip(folder / "f.zip", write_series(folder / "zipped", FEW)),
        *write_series(folder / "series", FEW),
    ]
    packed = write_series(folder / "packed", FEW)
    for path in packed:
        compress(path, RLE)
    return {str(path.relative_to(folder)): path.read_bytes() for path in (*files, *packed)}


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Most damage near the front, where headers are."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        at = min(int(chance.expovariate(1) * chance.choice((60, 600, len(data)))), len(data) - 1)
        kind = chance.randrange(5)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at : at + 4] = chance.choice(
                (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\x80\x7f")
            )
        elif kind == 2:
            del data[at : at + chance.randrange(1, 40)]
        elif kind == 3:
            data[at:at] = chance.randbytes(chance.randrange(1, 20))
        else:
            del data[at:]
        if not data:
            break
    return bytes(data)


def write_damaged(folder, files: dict[str, bytes], chance: random.Random):
    """All files of a scan, one of them damaged; a gzip file most often before it is packed."""
    hit = chance.choice(sorted(files))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if name != hit:
            path.write_bytes(content)
        elif name.endswith(".gz") and chance.random() < 0.8:
            path.write_bytes(gzip.compress(damaged(gzip.decompress(content), chance)))
        else:
            path.write_bytes(damaged(content, chance))


def outcome(path) -> str:
    """What came of reading: `read`, `refused`, or the name of an error that nobody should meet."""
    try:
        look_at(read_source(path))
    except ContinualSegmentError as error:
        return "refused" if str(error) else "refused without a word"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def test_damaged_files_are_read_or_refused_in_a_sentence(sound, tmp_path):
    chance = random.Random(SEED)
    scans = sorted({name.split("/")[0] for name in sound})
    outcomes, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end or len(outcomes) < 40:
        scan = scans[len(outcomes) % len(scans)]
        write_damaged(tmp_path, {n: c for n, c in sound.items() if n.split("/")[0] == scan}, chance)
        outcomes.append((scan, outcome(tmp_path / scan)))
    assert {each for each in outcomes if each[1] not in ("read", "refused")} == set()
    assert {what for _, what in outcomes} == {"read", "refused"}
