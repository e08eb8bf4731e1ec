"""Augmentation moves and recolours, and invents nothing."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from continual_segment.data.augment import AugmentConfig, _draw_motion, _move, augment, change_values

SIZE = (12, 20, 20)
SPACING_MM = (3.0, 1.0, 1.0)
ONLY_MOVED = replace(
    AugmentConfig.none(),
    rotation_share=1.0,
    scaling_share=1.0,
    rotation_in_plane_deg=40,
    rotation_tilt_deg=30,
)
EVERYTHING = AugmentConfig(
    **{item.name: 1.0 for item in fields(AugmentConfig) if item.name.endswith("_share")}
)
MOTIONS = ("rotation_share", "scaling_share")
NOT_OF_NNUNET = ("offset_share", "mirror_share")
VALUE_CHANGES = [
    item.name
    for item in fields(AugmentConfig)
    if item.name.endswith("_share") and item.name not in (*MOTIONS, "mirror_share")
]


def offsets_mm(size):
    """Distance (z, y, x) of every voxel from the middle of its box."""
    middle = (np.array(size) - 1) / 2
    return (np.moveaxis(np.indices(size), 0, -1) - middle) * SPACING_MM


def noise(size):
    generator = np.random.default_rng(int(np.prod(size)))
    return generator.uniform(-1, 1, size).astype(np.float32), generator.integers(0, 4, size).astype(np.uint8)


def ramp(size):
    """A scan that grows evenly in a slanted direction, however large the box."""
    values = offsets_mm(size) @ np.array([0.002, 0.005, 0.011])
    return values.astype(np.float32), (values > 0).astype(np.uint8)


def ball(size):
    inside = (offsets_mm(size) ** 2).sum(axis=-1) <= 8**2
    return np.where(inside, 0.5, -0.5).astype(np.float32), inside.astype(np.uint8)


def apply(read, config, seed):
    return augment(read, SIZE, SPACING_MM, config, np.random.default_rng(seed))


def test_without_augmentation_a_patch_is_what_was_read():
    image, labels = apply(noise, AugmentConfig.none(), 0)
    assert np.array_equal(image, noise(SIZE)[0])
    assert np.array_equal(labels, noise(SIZE)[1])


def test_the_generator_alone_decides():
    first, again, other = (apply(noise, EVERYTHING, seed) for seed in (1, 1, 2))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


def test_patch_keeps_size_type_and_range():
    for seed in range(20):
        image, labels = apply(noise, EVERYTHING, seed)
        assert image.shape == labels.shape == SIZE
        assert image.dtype == np.float32
        assert labels.dtype == np.uint8
        assert image.min() >= -1
        assert image.max() <= 1


def test_a_moved_patch_has_no_invented_border():
    """A ramp stays a ramp up to the last corner; a voxel taken from an edge would bend it."""
    for seed in range(30):
        image, _ = apply(ramp, ONLY_MOVED, seed)
        for axis in range(3):
            assert np.abs(np.diff(image, 2, axis=axis)).max() < 1e-4


def test_labels_move_with_the_image():
    for seed in range(10):
        image, labels = apply(ramp, ONLY_MOVED, seed)
        assert np.mean((image > 0) == labels) > 0.95


def test_rotation_is_one_of_millimetres():
    """A ball stays a ball although slices are three times as thick as pixels."""
    config = replace(ONLY_MOVED, scaling_share=0.0, rotation_tilt_deg=90.0)
    truth = ball(SIZE)[1].astype(bool)
    for seed in range(10):
        turned = apply(ball, config, seed)[1].astype(bool)
        assert 2 * (turned & truth).sum() / (turned.sum() + truth.sum()) > 0.85


def test_scaling_above_one_makes_organs_larger():
    config = replace(AugmentConfig.none(), scaling_share=1.0, scaling=(1.2, 1.2))
    assert apply(ball, config, 0)[1].sum() / ball(SIZE)[1].sum() == pytest.approx(
        1.2**3, rel=0.2
    )  # few voxels


def test_nothing_is_mirrored_on_its_own():
    assert AugmentConfig().mirror_share == 0
    for seed in range(50):
        image, _ = apply(ramp, replace(EVERYTHING, noise=(0.0, 0.0)), seed)
        from_left_to_right = image.mean(axis=(0, 1))
        assert from_left_to_right[-1] > from_left_to_right[0]


@pytest.mark.parametrize("name", VALUE_CHANGES)
def test_every_change_of_values_does_something_and_leaves_the_input_alone(name):
    image = noise(SIZE)[0] * 0.5
    before = image.copy()
    changed = change_values(image, replace(AugmentConfig.none(), **{name: 1.0}), np.random.default_rng(0))
    assert np.abs(changed - before).max() > 0.01
    assert np.array_equal(image, before)


def test_air_stays_air_when_the_contrast_grows():
    air = np.full(SIZE, -1, np.float32)
    config = replace(EVERYTHING, noise_share=0.0, offset_share=0.0, brightness=(1.0, 1.25))
    np.testing.assert_allclose(change_values(air, config, np.random.default_rng(0)), -1, atol=1e-6)


def test_an_offset_moves_all_values_alike_up_or_down():
    config = replace(AugmentConfig.none(), offset_share=1.0, offset=(0.05, 0.1))
    found = [
        change_values(noise(SIZE)[0] * 0.5, config, np.random.default_rng(seed)) - noise(SIZE)[0] * 0.5
        for seed in range(20)
    ]
    assert max(np.ptp(moved) for moved in found) < 1e-6
    moved = np.array([each.mean() for each in found])
    assert ((abs(moved) >= 0.05) & (abs(moved) <= 0.1)).all()
    assert moved.min() < 0 < moved.max()


def test_without_an_offset_patches_are_those_of_earlier_versions():
    """One more number drawn from the generator would change every later patch of a batch."""
    generator, image = np.random.default_rng(3), noise(SIZE)[0]
    change_values(image, AugmentConfig.none(), generator)
    shares = sum(
        item.name.endswith("_share") and item.name not in NOT_OF_NNUNET for item in fields(AugmentConfig)
    )
    expected = np.random.default_rng(3)
    expected.random(shares - len(MOTIONS))
    assert generator.random() == expected.random()


@pytest.mark.parametrize(
    "wrong",
    [{"noise_share": 1.2}, {"scaling": (1.2, 0.8)}, {"gamma": (0.0, 1.0)}, {"low_resolution": (0.5, 2.0)}],
)
def test_wrong_settings_fail_on_construction(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AugmentConfig(**wrong)


def test_patches_are_moved_as_by_torch_bit_by_bit():
    """Training is reproducible across versions: a faster way has to find the same voxels."""
    rng = np.random.default_rng(5)
    size, source = (7, 12, 10), (11, 15, 17)
    image = rng.standard_normal(source).astype(np.float32)
    labels = rng.integers(0, 40_000, source).astype(np.int32)
    always = AugmentConfig(rotation_share=1.0, scaling_share=1.0)
    for _ in range(20):
        motion = _draw_motion(always, rng)
        moved, moved_labels = _move(image, labels, motion, size)
        to_unit = motion * np.array(size[::-1]) / np.array(source[::-1])[:, None]
        theta = torch.from_numpy(np.pad(to_unit, ((0, 0), (0, 1)))).float()[None]
        grid = torch.nn.functional.affine_grid(theta, [1, 1, *size], align_corners=False)
        for found, voxels, mode in ((moved, image, "bilinear"), (moved_labels, labels, "nearest")):
            wanted = torch.nn.functional.grid_sample(
                torch.from_numpy(voxels.astype(np.float32))[None, None],
                grid,
                mode=mode,
                padding_mode="border",
                align_corners=False,
            )[0, 0].numpy()
            assert np.array_equal(found, wanted)
        assert moved_labels.dtype == labels.dtype
