"""Tilted series: only voxels that were scanned have labels, in every result, for hardly more time."""

from __future__ import annotations

import json

import nibabel as nib
import nrrd
import numpy as np
import pydicom
import pytest
import torch
from made_scans import AIR, LEVEL, LPS, Made, tilted, write_nifti, write_series

from continual_segment.clinic.formats import FORMATS
from continual_segment.clinic.outputs import OutputConfig
from continual_segment.clinic.sanity import look_at
from continual_segment.clinic.segment import segment
from continual_segment.files import read_scan, read_source
from continual_segment.segmentation import ScanContext, SegmentConfig
from continual_segment.segmentation.label_upsampler import LabelUpsampler
from continual_segment.segmentation.merge import highest_probability
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.predictions import PackPrediction, PackProfile
from continual_segment.segmentation.sampling import Sampling
from continual_segment.segmentation.slab import Slab
from continual_segment.segmentation.window_accumulator import AccumulatedSlab

MADE = tilted(-18.5, shape=(20, 46, 50))
SLICE_ML = 46 * 50 * abs(np.linalg.det(MADE.affine[:3, :3])) / 1000
EVERYTHING = OutputConfig(
    tuple(FORMATS), scores=True, explain=True, statistics=True, preview=True, force=True
)


def one_organ_everywhere(pack, values, share):
    """In place of a pack's prediction: a model that labels tissue, air and padding alike."""
    probabilities = torch.zeros(len(pack.organ_ids), *values.shape[1:])
    probabilities[1] = 1.0
    return PackPrediction(pack.profile, pack.organ_ids, probabilities)


@pytest.fixture(scope="module")
def results(shared_model_folder, tmp_path_factory):
    """Everything that such a model makes of a tilted series and of a sheared NIfTI file, by kind."""
    folder = tmp_path_factory.mktemp("tilted")
    write_series(folder / "series" / "case", MADE)
    (folder / "nifti").mkdir()
    write_nifti(folder / "nifti" / "case.nii.gz", MADE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackDecoder, "predict", one_organ_everywhere)
        for kind, name in {"series": "case", "nifti": "case.nii.gz"}.items():
            source, out = folder / kind / name, folder / kind / "out"
            config = SegmentConfig(progress=False, nested=False, body_parts=False)
            assert segment(source, shared_model_folder, out, config=config, outputs=EVERYTHING) == {}
    return {kind: folder / kind / "out" for kind in ("series", "nifti")}


def scanned_voxels(shape, affine, made=MADE):
    """Of every voxel (x, y, z) of a file, whether its middle is within a slice."""
    index = np.indices(shape).reshape(3, -1)
    own = np.linalg.inv(made.affine) @ LPS @ affine @ np.vstack([index, np.ones(index.shape[1])])
    inside = (own[:3].T > -0.5) & (np.array(made.shape[::-1]) - 0.5 > own[:3].T)
    return inside.all(axis=1).reshape(shape)


def rows_of(folder):
    rows = json.loads((folder / "statistics" / "case.json").read_text())
    return {name: row for name, row in rows.items() if row["volume_ml"] > 0}


def test_voxels_that_were_never_scanned_have_no_label_in_any_volume(results):
    folder = results["series"]
    organs = [folder / f"{name}.nii.gz" for name in rows_of(folder)]
    assert len(organs) == 1
    maps = [folder / kind / "case.nii.gz" for kind in (".", "scores", "packs")]
    for path in (*maps, *organs):
        image = nib.load(path)
        scanned = scanned_voxels(image.shape, image.affine)
        assert 0.6 < scanned.mean() < 0.9  # the box has wedges
        np.testing.assert_array_equal(np.asarray(image.dataobj) > 0, scanned)
    voxels, _ = nrrd.read(str(folder / "case.seg.nrrd"))
    np.testing.assert_array_equal(voxels > 0, scanned_voxels(image.shape, image.affine))


def test_dicom_results_label_all_of_every_slice(results):
    folder = results["series"]
    assert pydicom.dcmread(folder / "case.seg.dcm").pixel_array.sum() == MADE.voxels.size
    assert (pydicom.dcmread(folder / "case.labelmap.dcm").pixel_array == 1).all()
    (contours,) = pydicom.dcmread(folder / "case.rtstruct.dcm").ROIContourSequence
    assert len(contours.ContourSequence) == MADE.shape[0]
    area = (MADE.shape[1] * MADE.shape[2] - 2) * np.prod(MADE.pixel_mm)  # without the four corners
    for contour in contours.ContourSequence:
        loop = np.array(contour.ContourData, float).reshape(-1, 3)
        crosses = np.cross(loop - loop[0], np.roll(loop, -1, axis=0) - loop[0])
        assert np.linalg.norm(crosses.sum(axis=0)) / 2 == pytest.approx(area, rel=0.02)


@pytest.mark.parametrize("kind", ["series", "nifti"])
def test_statistics_and_quality_count_the_voxels_that_were_scanned(results, kind):
    ((name, row),) = rows_of(results[kind]).items()
    assert row["volume_ml"] == pytest.approx(MADE.shape[0] * SLICE_ML, rel=0.005)
    assert row["mean_hu"] == pytest.approx(MADE.voxels.mean(), abs=5)
    assert row["mean_score"] == pytest.approx(1.0, abs=0.01)  # far from that with the wedges
    assert set(row["touches_edge"]) == {"bottom", "top", "back", "front", "left", "right"}
    (quality,) = json.loads((results[kind] / "quality" / "case.json").read_text())["organs"]
    assert (quality["organ"], quality["volume_ml"]) == (name, row["volume_ml"])


def test_a_sheared_file_is_labelled_on_its_own_grid(results):
    for path in ("case.nii.gz", "scores/case.nii.gz", "packs/case.nii.gz"):
        image = nib.load(results["nifti"] / path)
        assert image.shape == MADE.shape[::-1]
        np.testing.assert_allclose(image.affine, LPS @ MADE.affine, atol=1e-4)
        assert (np.asarray(image.dataobj) > 0).all()
    copies = [pydicom.dcmread(path) for path in sorted((results["nifti"] / "case_ct").iterdir())]
    np.testing.assert_array_equal([copy.pixel_array for copy in copies], MADE.voxels)


def labels_by_threshold(scan, grid):
    """Bright voxels, by the way that labels take from the prepared scan to a grid."""
    pack = PackDecoder.__new__(PackDecoder)
    pack.organ_ids, pack.profile = torch.tensor([0, 1]), PackProfile()
    pack.accumulates_features = pack.regions = pack.as_nnunet = False
    bright = torch.from_numpy(scan.voxels.astype(np.float32)) - LEVEL
    output = AccumulatedSlab(torch.stack([-bright, bright]), None)
    slab = Slab(slice(0, len(bright)), [pack], [output], ScanContext())
    sampling = Sampling.of(scan, scan.grid.shape, grid)
    found = LabelUpsampler(highest_probability, sampling, np.arange(2, dtype=np.uint16))
    found.add(slab, slab.merge([highest_probability])[0][0])
    return found.organ


@pytest.mark.parametrize("degrees", [2.0, -5.0, 25.0])
def test_labels_of_slices_are_made_at_their_own_pixels(degrees, tmp_path):
    """With labels of upright voxels, all of a slice would be off by up to half a pixel."""
    made = tilted(degrees)
    write_series(tmp_path, made)
    source = read_source(tmp_path)
    truth = made.voxels[:, ::-1, ::-1] > LEVEL  # rows to the front, columns to the right
    on_slices = labels_by_threshold(source.volume, source.slices) > 0
    assert np.mean(on_slices != truth) < 0.05 * np.mean(truth)
    shift = np.argwhere(on_slices).mean(axis=0) - np.argwhere(truth).mean(axis=0)
    assert np.abs(shift).max() < 0.05


def test_padding_does_not_hide_that_values_are_not_hounsfield_units(tmp_path):
    made = tilted(18.0)
    write_series(tmp_path, made, RescaleIntercept=AIR - 24)
    for path in tmp_path.iterdir():
        data = pydicom.dcmread(path)
        data.RescaleIntercept = 0
        data.save_as(path)
    (problem,) = look_at(read_source(tmp_path)).problems
    assert "without the scanner's offset of -1024" in problem


def pixels_asked(monkeypatch, made: Made, model, folder, formats):
    """Voxels at which packs predict while a series is segmented, which takes most of the time."""
    write_series(folder / "case", made)
    original, asked = PackDecoder.predict, []

    def predict(pack, values, share):
        asked.append(values[0].numel())
        return original(pack, values, share)

    with monkeypatch.context() as patch:
        patch.setattr(PackDecoder, "predict", predict)
        config = SegmentConfig(progress=False, body_parts=False)
        assert (
            segment(folder / "case", model, folder / "out", config=config, outputs=OutputConfig(formats))
            == {}
        )
    return sum(asked)


@pytest.mark.parametrize(("formats", "most"), [(("nifti",), 1.3), (("nifti", "dicom_seg"), 2.6)])
def test_a_tilted_series_takes_no_more_than_its_pixels_do(
    formats, most, shared_model_folder, monkeypatch, tmp_path
):
    straight, tilt = (
        pixels_asked(monkeypatch, tilted(degrees), shared_model_folder, tmp_path / name, formats)
        for name, degrees in {"straight": 0.0, "tilted": -18.5}.items()
    )
    assert straight > 10_000
    assert tilt < most * straight


def test_a_folder_of_training_data_reads_a_tilted_series_upright(tmp_path):
    write_series(tmp_path, MADE)
    scan = read_scan(tmp_path)
    assert scan.grid.same_place(read_source(tmp_path).grid)
    assert scan.scanned.sum() == MADE.voxels.size
