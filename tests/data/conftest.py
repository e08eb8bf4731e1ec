"""Six tiny cases whose voxel values say where they lie, raw and prepared."""

import json

import nibabel
import numpy as np
import pytest

from continual_segment.data.prepare import PrepareConfig, prepare
from continual_segment.data.raw import RawDataset


class TinyDataset:
    side = 12
    spacing_mm = (3.0, 2.0, 2.0)
    cases = tuple(f"case_{number}" for number in range(6))

    def scan(self):
        """Every voxel has its own value, between -1000 and 727."""
        return np.arange(self.side**3, dtype=np.int16).reshape([self.side] * 3) - 1000

    def labels(self, number):
        """A liver of 6 x 6 x 4 voxels and a spleen of one."""
        labels = np.zeros([self.side] * 3, np.uint8)
        labels[2:8, 3:9, 1:5] = 1
        labels[self.side - 2, self.side - 3, number] = 2
        return labels

    def write(self, path, voxels):
        """Voxels (z, y, x) near RAS into a file."""
        affine = np.diag([*self.spacing_mm[::-1], 1.0])
        path.parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(voxels.transpose(2, 1, 0), affine), path)


@pytest.fixture
def tiny():
    return TinyDataset()


@pytest.fixture
def raw_folder(tmp_path, tiny):
    folder = tmp_path / "Dataset007_Tiny"
    for number, case in enumerate(tiny.cases):
        tiny.write(folder / "imagesTr" / f"{case}_0000.nii.gz", tiny.scan())
        tiny.write(folder / "labelsTr" / f"{case}.nii.gz", tiny.labels(number))
    description = {
        "channel_names": {"0": "CT"},
        "labels": {"background": 0, "liver": 1, "spleen": 2},
        "numTraining": len(tiny.cases),
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


@pytest.fixture
def raw(raw_folder):
    return RawDataset.open(raw_folder, workers=1, progress=False)


@pytest.fixture
def config(tiny):
    return PrepareConfig(spacing_mm=tiny.spacing_mm)


@pytest.fixture
def prepared(raw, tmp_path, config):
    return prepare(raw, tmp_path / "prepared", config, workers=1, progress=False)
