"""Hounsfield units become network input."""

import json
from dataclasses import replace

import numpy as np
import pytest

from continual_segment.data.augment import AugmentConfig, change_values
from continual_segment.data.intensity import FittedIntensity, Intensity
from continual_segment.data.patches import PatchConfig, Patches
from continual_segment.data.prepare import PrepareConfig, PreparedDataset, on_spacing, prepare
from continual_segment.errors import DatasetError
from continual_segment.files.records import as_record
from continual_segment.packed import PackedVolume
from continual_segment.segmentation.padded_scan import PaddedScan
from continual_segment.volume import Grid, Volume, VolumeSlices

HU = np.array([-3000, -1024, 0, 512, 1024, 3000], np.int16)
PERCENTILES = Intensity("ct-percentiles", (-991.5, 387.25), mean=-100.5, std=310.25)
KINDS = [
    Intensity(),
    Intensity.window(-400, 400),
    PERCENTILES,
    Intensity("z-score"),
    Intensity("z-score", (-800.0, 900.0), mask_above_hu=-500.0),
    Intensity("z-score", (-200.0, 300.0), mask_above_hu=-900.0),
    Intensity("rescale-01", padding="zero"),
    Intensity("none"),
]


@pytest.fixture
def scan():
    """A made-up scan of 19 slices: no multiple of the slices that are read at once."""
    voxels = np.random.default_rng(0).integers(-1024, 1500, (19, 6, 7)).astype(np.int16)
    return Volume(voxels, Grid(voxels.shape, np.eye(4)))


def test_a_window_becomes_minus_one_to_one():
    found = Intensity().fitted().normalise(HU)
    assert found.tolist() == [-1, -1, 0, 0.5, 1, 1]
    assert found.dtype == np.float32
    assert Intensity.window(-400, 400).fitted().normalise(HU[2:]).tolist() == [0, 1, 1, 1]


def test_percentiles_are_nnunets_ct_normalisation():
    expected = (np.clip(HU.astype(np.float32), -991.5, 387.25) - np.float32(-100.5)) / np.float32(310.25)
    assert np.array_equal(PERCENTILES.fitted().normalise(HU), expected)


def test_a_z_score_has_mean_0_and_deviation_1_in_every_scan(scan):
    found = Intensity("z-score").fitted(scan.voxels).normalise(scan.voxels)
    assert found.dtype == np.float32
    assert (found.mean(), found.std()) == pytest.approx((0, 1), abs=1e-6)


def test_within_a_mask_a_z_score_counts_and_changes_the_voxels_of_the_mask_alone(scan):
    found = Intensity("z-score", mask_above_hu=0.0).fitted(scan.voxels).normalise(scan.voxels)
    inside = scan.voxels > 0
    assert (found[inside].mean(), found[inside].std()) == pytest.approx((0, 1), abs=1e-6)
    assert not found[~inside].any()


def test_rescaled_scans_reach_from_0_to_1(scan):
    found = Intensity("rescale-01").fitted(scan.voxels).normalise(scan.voxels)
    assert (found.min(), found.max()) == (0, 1)


@pytest.mark.parametrize("kind", ["z-score", "rescale-01"])
@pytest.mark.parametrize("mask", [None, 5000.0])
def test_a_scan_of_one_value_or_an_empty_mask_becomes_zeros(kind, mask):
    flat = Volume(np.full((3, 4, 5), 40, np.int16), Grid((3, 4, 5), np.eye(4)))
    intensity = Intensity(kind, mask_above_hu=mask if kind == "z-score" else None)
    assert not intensity.fitted(flat.voxels).normalise(flat.voxels).any()


@pytest.mark.parametrize("intensity", KINDS)
def test_statistics_do_not_depend_on_how_the_scan_is_held(intensity, scan):
    assert intensity.fitted(scan.voxels) == intensity.fitted(VolumeSlices(PackedVolume.compress(scan)))


@pytest.mark.parametrize("intensity", KINDS)
def test_what_is_stored_is_read_again(intensity):
    config = PrepareConfig((3.0, 1.0, 1.0), intensity)
    stored = json.loads(json.dumps(config.described()))
    assert as_record(stored, PrepareConfig, "dataset.json", DatasetError, "") == config


def test_a_window_is_stored_as_version_0_1_did():
    config = PrepareConfig((3.0, 1.0, 1.0), Intensity.window(-400, 400))
    assert config.described() == {"spacing_mm": (3.0, 1.0, 1.0), "window_hu": (-400.0, 400.0)}
    assert PrepareConfig((3.0, 1.0, 1.0), window_hu=(-400, 400)) == config
    assert config.format == 2
    assert replace(config, intensity=Intensity("window", (-400, 400), padding="zero")).format == 3


@pytest.mark.parametrize(("padding", "value"), [("air", (-991.5 + 100.5) / 310.25), ("zero", 0.0)])
def test_around_the_scan_there_is_air_or_zero(padding, value, scan):
    fitted = replace(PERCENTILES, padding=padding).fitted()
    assert fitted.padding_value == pytest.approx(value)
    padded = PaddedScan(scan.voxels, (24, 8, 8), fitted)[slice(0, 24)]
    assert padded.shape == (24, 8, 8)
    assert np.all(padded[0] == np.float32(fitted.padding_value))


def test_augmented_values_stay_within_the_limits_of_the_intensity():
    image = np.random.default_rng(0).uniform(-2.8, 1.5, (6, 8, 8)).astype(np.float32)
    noisy = replace(AugmentConfig.none(), noise_share=1.0, noise=(5.0, 5.0))
    limits = PERCENTILES.fitted().limits
    assert limits == pytest.approx(((-991.5 + 100.5) / 310.25, (387.25 + 100.5) / 310.25))
    clipped = change_values(image, noisy, np.random.default_rng(1), limits)
    free = change_values(image, noisy, np.random.default_rng(1), None)
    assert np.array_equal(clipped, np.clip(free, *limits))
    assert free.max() > limits[1]
    assert Intensity().fitted().limits == (-1, 1)
    assert Intensity("z-score").fitted(image).limits is None


@pytest.mark.parametrize("intensity", KINDS)
def test_training_and_segmentation_read_the_same_numbers(intensity, raw, tmp_path, tiny):
    config = PrepareConfig((5.0, 2.0, 2.0), intensity)
    prepare(raw, tmp_path / "out", config, workers=1, progress=False)
    dataset = PreparedDataset.open(tmp_path / "out")
    assert dataset.config == config
    case = dataset.case(tiny.cases[0])
    volume, _ = raw.read(raw.cases[0])
    resampled = on_spacing(volume, config)
    rows = PaddedScan(resampled.voxels, (1, 1, 1), intensity.fitted(resampled.voxels))
    assert np.array_equal(case.intensity.normalise(case.scan[:]), rows[slice(0, case.shape[0])])


@pytest.mark.parametrize("intensity", KINDS)
def test_patches_are_normalised_and_padded_by_the_intensity(intensity, raw, tmp_path, tiny):
    config = PrepareConfig(tiny.spacing_mm, intensity)
    dataset = prepare(raw, tmp_path / "out", config, workers=1, progress=False)
    size = (tiny.side + 4, tiny.side, tiny.side)
    (name,) = dataset.case_names("validation")[:1]
    images, _ = Patches(dataset, [name], PatchConfig(size), None, seed=0, iterations=1)[0]
    case = dataset.case(name)
    assert np.array_equal(images[0, 0, 2:-2].numpy(), case.intensity.normalise(case.scan[:]))
    assert np.all(images[0, 0, :2].numpy() == np.float32(case.intensity.padding_value))


def test_a_case_without_its_statistics_is_refused(raw, tmp_path, tiny):
    config = PrepareConfig(tiny.spacing_mm, Intensity("z-score"))
    dataset = prepare(raw, tmp_path / "out", config, workers=1, progress=False)
    file = dataset.case_folder(tiny.cases[0]) / "case.json"
    case = json.loads(file.read_text())
    assert as_record(case.pop("intensity"), FittedIntensity, "case.json", DatasetError, "").divide > 0
    file.write_text(json.dumps(case))
    with pytest.raises(DatasetError, match=r"case\.json.*conseg prepare"):
        PreparedDataset.open(dataset.folder).case(tiny.cases[0])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kind": "sharp"}, "kind is one of window, ct-percentiles"),
        ({"padding": "mirror"}, "padding is one of air, zero"),
        ({"clip_hu": (400, -400)}, "clip_hu is"),
        ({"clip_hu": (0, 1, 2)}, "clip_hu is"),
        ({"clip_hu": (float("nan"), 0)}, "clip_hu is"),
        ({"mean": 3.0}, "mean is a setting of ct-percentiles, not of window"),
        ({"mask_above_hu": 3.0}, "mask_above_hu is a setting of z-score"),
        ({"kind": "ct-percentiles", "clip_hu": (0, 1), "mean": 0.0}, "needs clip_hu, mean and std"),
        ({"kind": "ct-percentiles", "clip_hu": (0, 1), "mean": 0.0, "std": 0.0}, "std above 0"),
    ],
)
def test_wrong_settings_fail_on_construction(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Intensity(**wrong)


def test_a_window_beside_another_kind_is_refused():
    with pytest.raises(ValueError, match="beside an intensity of kind z-score"):
        PrepareConfig((1.0, 1.0, 1.0), Intensity("z-score"), window_hu=(-400, 400))
