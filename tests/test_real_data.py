"""Real scans, where they are at hand: ../shared/data beside this repository."""

from pathlib import Path

import numpy as np
import pytest

from continual_segment.clinic.segment import segment
from continual_segment.data.raw import RawDataset
from continual_segment.files import read_labels, read_scan
from continual_segment.segmentation import SegmentConfig

DATASET = Path(__file__).parents[2] / "shared" / "data" / "open-kbp" / "Dataset104_EsophagusTumour"

pytestmark = pytest.mark.skipif(
    not DATASET.is_dir(), reason=f"the real scans of OpenKBP are not on this machine ({DATASET})"
)


@pytest.fixture(scope="module")
def dataset():
    return RawDataset.open(DATASET, workers=1, progress=False)


def test_a_real_dataset_passes_every_check(dataset):
    assert dataset.layout == "nnunet"
    assert "esophagus" in [organ.name for organ in dataset.organs]
    assert len(dataset.cases) == len(list((DATASET / "imagesTr").iterdir()))


def test_a_real_scan_is_segmented_on_its_own_grid(dataset, shared_model_folder, tmp_path):
    source = min((case.scan for case in dataset.cases), key=lambda path: path.stat().st_size)
    target = tmp_path / "labels.nii.gz"
    assert segment(source, shared_model_folder, target, config=SegmentConfig(overlap=0, progress=False)) == {}
    scan, labels = read_scan(source), read_labels(target)
    assert labels.grid.same_place(scan.grid)
    assert labels.grid.orientation == scan.grid.orientation
    assert set(np.unique(labels.voxels)) <= {0, *labels.names}
