"""Preparing for an imported nnU-Net: labels stay on the organ, arrays at their place in the patient."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nibabel.affines import apply_affine

from continual_segment.data.intensity import Intensity
from continual_segment.data.nnunet_resample import resample_like_nnunet
from continual_segment.data.nnunet_scan import NetworkView, NnunetScan
from continual_segment.data.patches import PatchConfig, Patches
from continual_segment.data.prepare import PrepareConfig, PreparedDataset, prepare
from continual_segment.data.prepare_config import NnunetPreparation
from continual_segment.errors import DatasetError
from continual_segment.packed import PackedVolume
from continual_segment.segmentation.prepared_scan import prepare_for_windows
from continual_segment.volume import Grid, Volume

CT = Intensity("ct-percentiles", (-900.0, 600.0), 40.0, 250.0, padding="zero")
ORIENTATIONS = ["RAS", "LPS", "LAS", "SAR", "PIR", "ASL", "RSP"]


def config(spacing_mm=(4.0, 2.0, 3.0), intensity=CT, **settings):
    return PrepareConfig(spacing_mm, intensity, NnunetPreparation(**settings))


def made_volume(orientation="LPS", shape=(14, 17, 19), spacing_mm=(3.0, 2.0, 2.5)):
    """A bright ball away from the middle, in a border of zeros."""
    z, y, x = np.indices(shape)
    ball = (z - 9) ** 2 + (y - 6) ** 2 + (x - 12) ** 2 < 12
    voxels = np.where(ball, 500, -100).astype(np.int16)
    voxels[:2], voxels[:, -3:] = 0, 0
    affine = np.diag([*spacing_mm[::-1], 1.0])
    affine[:3, 3] = 5, -40, 100
    return Volume(voxels, Grid(shape, affine, orientation)), ball


def centre_mm(mask, grid):
    return apply_affine(grid.affine, np.argwhere(mask)[:, ::-1]).mean(axis=0)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ORIENTATIONS), st.permutations(range(3)))
def test_network_input_is_at_its_place_in_the_patient(orientation, axes):
    volume, ball = made_volume(orientation)
    way = NnunetScan(volume, config(transpose_forward=tuple(axes)))
    found = np.concatenate(list(way.slabs()))
    assert found.shape == way.shape
    bright = way.frame.from_network(found) > (200 - 40) / 250
    assert bright.shape == way.grid.shape
    assert np.abs(centre_mm(bright, way.grid) - centre_mm(ball, volume.grid)).max() < 1.0


@pytest.mark.parametrize("axes", list(permutations(range(3))))
@pytest.mark.parametrize("orientation", ["RAS", "LPI"])
def test_what_is_put_back_is_where_it_was(axes, orientation):
    volume, ball = made_volume(orientation)
    way = NnunetScan(volume, config(transpose_forward=axes))
    assert np.array_equal(way.put_back(way.crop(ball)), ball)
    assert way.crop(ball).shape == way.crop_shape


@pytest.mark.parametrize("orientation", ["RAS", "LPI", "SAR"])
def test_slices_of_a_packed_scan_are_those_of_the_whole(orientation):
    volume, _ = made_volume(orientation)
    frame = NnunetPreparation().frame(orientation)
    view = NetworkView(PackedVolume.compress(volume), frame)
    expected = frame.to_network(volume.voxels)
    assert view.shape == expected.shape
    assert np.array_equal(view[3:9], expected[3:9])
    assert np.array_equal(view[:], expected)


def test_a_mask_limits_statistics_and_normalisation():
    volume, _ = made_volume("RAS")
    volume.voxels[5:7, 3:5, 3:5] = 0  # a hole, which is filled
    volume.voxels[2:6, :6, :6] = 0  # a corner, which is not
    way = NnunetScan(volume, config((3.0, 2.0, 2.5), Intensity("z-score"), use_mask_for_norm=True))
    found = np.concatenate(list(way.slabs()))
    mask = way.normalised.mask
    assert found[mask].mean() == pytest.approx(0, abs=1e-4)
    assert found[mask].std() == pytest.approx(1, abs=1e-4)
    assert not found[~mask].any()
    assert (~mask).any()


@pytest.mark.parametrize("spacing", [(4.0, 2.0, 3.0), (12.0, 2.0, 2.0)])
def test_training_and_segmentation_read_the_same_input(raw, tmp_path, tiny, spacing):
    wanted = config(spacing, transpose_forward=(1, 0, 2))
    dataset = prepare(raw, tmp_path / "out", wanted, workers=1, progress=False)
    assert PreparedDataset.open(tmp_path / "out").config == wanted
    case = dataset.case(tiny.cases[0])
    volume, _ = raw.read(raw.cases[0])
    padded = prepare_for_windows(volume, wanted, (1, 1, 1)).padded
    assert case.shape == padded.scan_shape
    np.testing.assert_allclose(case.scan[:], padded[slice(0, case.shape[0])], atol=2e-3)  # float16
    (images, labels), *_ = Patches(dataset, "train", PatchConfig((4, 8, 8)), None, 0, 1)
    assert images.dtype.is_floating_point
    assert images.shape[2:] == labels.shape[1:] == (4, 8, 8)


def test_the_prepared_case_gives_hounsfield_units_and_labels_in_our_axes(raw, tmp_path, tiny):
    z, y, x = tiny.spacing_mm
    wanted = config((x, z, y), replace(CT, clip_hu=(-1024.0, 1024.0)), transpose_forward=(2, 0, 1))
    dataset = prepare(raw, tmp_path / "out", wanted, workers=1, progress=False)
    case = dataset.case(tiny.cases[1])
    assert case.shape == tuple(case.grid.shape[axis] for axis in (2, 0, 1))
    np.testing.assert_allclose(case.volume.voxels, tiny.scan(), atol=2)
    labels = case.label_map({1: "liver", 2: "spleen"})
    assert np.array_equal(labels.voxels, tiny.labels(1))
    assert case.grid.same_place(raw.read(raw.cases[1])[0].grid)


def test_a_case_that_was_prepared_another_way_is_refused(raw, tmp_path, tiny):
    prepare(raw, tmp_path / "out", config(tiny.spacing_mm), workers=1, progress=False)
    file = tmp_path / "out" / "cases" / tiny.cases[0] / "case.json"
    described = json.loads(file.read_text())
    del described["frame"]
    file.write_text(json.dumps(described))
    with pytest.raises(DatasetError, match=r"case\.json.*frame"):
        PreparedDataset.open(tmp_path / "out").case(tiny.cases[0])


def test_slabs_are_the_resampled_whole():
    volume, _ = made_volume("LPS")
    way = NnunetScan(volume, config())
    whole = resample_like_nnunet(way.normalised[:], way.shape)
    np.testing.assert_array_equal(np.concatenate(list(way.slabs())), whole)
