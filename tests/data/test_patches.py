"""Patches: voxels of the store, drawn by seed and iteration alone."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from continual_segment.data.augment import AugmentConfig
from continual_segment.data.network_frame import NetworkFrame
from continual_segment.data.patches import PatchConfig, Patches, read_box
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import DatasetError
from continual_segment.organs import find_organ


@pytest.fixture
def all_training(prepared, tiny):
    """Every case for training, so that positions vary most."""
    splits = dict.fromkeys(tiny.cases, "train")
    return PreparedDataset(prepared.folder, prepared.name, prepared.organs, prepared.config, splits)


def patches(dataset, size=(5, 6, 7), augmentation=None, seed=0, iterations=40, **config):
    return Patches(dataset, "train", PatchConfig(size, **config), augmentation, seed, iterations)


def test_a_patch_is_a_part_of_the_store(all_training, tiny):
    scan = tiny.scan()
    for images, labels in patches(all_training):
        for image, label in zip(images[:, 0].numpy(), labels.numpy(), strict=True):
            hu = np.rint(image * 1024).astype(int)
            z, y, x = np.unravel_index(hu[0, 0, 0] + 1000, scan.shape)  # its value says where a voxel lies
            place = np.s_[z : z + 5, y : y + 6, x : x + 7]
            assert np.array_equal(hu, scan[place])
            assert any(np.array_equal(label, all_training.case(name).labels[place]) for name in tiny.cases)


def test_every_place_and_every_case_is_seen(all_training, tiny):
    batches = [batch for batch, _ in patches(all_training, foreground_share=0.0, iterations=400)]
    seen = torch.cat(batches).unique()
    assert len(seen) == tiny.side**3


def test_shapes_types_and_range(all_training):
    images, labels = patches(all_training, batch=3, augmentation=AugmentConfig())[0]
    assert images.shape == (3, 1, 5, 6, 7)
    assert labels.shape == (3, 5, 6, 7)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert images.abs().max() <= 1


def test_batches_have_one_of_several_sizes(all_training):
    sizes = [(5, 6, 7), (3, 4, 4)]
    several = patches(all_training, sizes[0], other_sizes=sizes[1:], augmentation=AugmentConfig())
    shapes = [(tuple(images.shape[2:]), tuple(labels.shape[1:])) for images, labels in several]
    assert all(image == label for image, label in shapes)
    counts = [sum(image == size for image, _ in shapes) for size in sizes]
    assert sum(counts) == len(several)
    assert min(counts) >= 10
    with pytest.raises(ValueError, match=r"three numbers of voxels \(z, y, x\), not \(3, 4\)"):
        PatchConfig((5, 6, 7), other_sizes=((3, 4),))


@pytest.mark.parametrize("augmentation", [None, AugmentConfig(rotation_share=1.0, noise_share=1.0)])
def test_an_iteration_follows_from_the_seed_alone(all_training, augmentation):
    one = patches(all_training, augmentation=augmentation)
    in_order = [one[iteration] for iteration in range(8)]
    other = pickle.loads(pickle.dumps(one))
    for iteration in (5, 2, 7, 5):
        for ours, theirs in zip(in_order[iteration], other[iteration], strict=True):
            assert torch.equal(ours, theirs)
    assert not torch.equal(patches(all_training, seed=1)[0][0], in_order[0][0])
    assert not torch.equal(in_order[0][0], in_order[1][0])


def test_loading_processes_change_nothing(all_training):
    data = patches(all_training, augmentation=AugmentConfig(rotation_share=1.0), iterations=4)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="fork")
    for (images, labels), expected in zip(loader, data, strict=True):
        assert torch.equal(images, expected[0])
        assert torch.equal(labels, expected[1])


def test_the_last_patch_of_a_batch_shows_an_organ(all_training):
    seen = set()
    for _, labels in patches(all_training, size=(3, 3, 3)):
        assert labels[-1].any()
        seen |= set(labels[-1].unique().tolist())
    assert seen == {0, 1, 2}  # the organ of one voxel as well


def test_without_a_foreground_share_patches_lie_anywhere(all_training):
    data = patches(all_training, size=(2, 2, 2), foreground_share=0.0, batch=4)
    assert any(not labels[-1].any() for _, labels in data)


def test_a_later_step_may_look_elsewhere_more_often():
    first = PatchConfig((4, 4, 4), foreground_share=1.0, later_foreground_share=0.5)
    later = first.of_later_step((8, 8, 8))
    assert (first.foreground_patches, later.foreground_patches, later.size) == (2, 1, (8, 8, 8))
    same = PatchConfig((4, 4, 4), foreground_share=1.0).of_later_step((8, 8, 8))
    assert same.foreground_patches == 2


@pytest.mark.parametrize(
    ("batch", "share", "expected"),
    [(2, 1 / 3, 1), (1, 1 / 3, 1), (4, 1 / 3, 1), (6, 1 / 3, 2), (2, 0.0, 0), (2, 1.0, 2)],
)
def test_a_share_is_a_whole_number_of_patches(batch, share, expected):
    assert PatchConfig((8, 8, 8), batch, share).foreground_patches == expected


def test_a_scan_smaller_than_the_patch_has_air_around_it(all_training, tiny):
    images, labels = patches(
        all_training, size=(tiny.side + 5, tiny.side, tiny.side - 2), foreground_share=1.0
    )[0]
    assert torch.all(images[:, :, :2] == -1)
    assert torch.all(images[:, :, -2:] == -1)
    assert not labels[:, :2].any()
    inside = np.rint(images[0, 0, 3 : 3 + tiny.side].numpy() * 1024)
    start = int(inside[0, 0, 0]) + 1000
    assert np.array_equal(inside, tiny.scan()[:, :, start : start + tiny.side - 2])


def test_a_box_beside_the_scan_is_air(all_training, tiny):
    image, labels = read_box(all_training.case(tiny.cases[0]), [tiny.side + 3, -9, 2], (4, 5, 6))
    assert np.all(image == -1)
    assert image.shape == labels.shape == (4, 5, 6)
    assert not labels.any()


def test_a_shrunk_patch_shows_what_lies_around_it(all_training):
    """Half as large: the scan goes on beyond the patch's own box, and where it ends there is air."""
    halved = replace(AugmentConfig.none(), scaling_share=1.0, scaling=(0.5, 0.5))
    for images, _ in patches(all_training, size=(6, 6, 6), foreground_share=0.0, augmentation=halved):
        repeated = images.diff(dim=-1) == 0  # neighbours in the scan never have one value
        assert torch.all(images[..., 1:][repeated] < -0.9999)


def test_an_empty_split_is_reported(prepared, tiny):
    empty = PreparedDataset(
        prepared.folder, prepared.name, prepared.organs, prepared.config, dict.fromkeys(tiny.cases, "test")
    )
    with pytest.raises(DatasetError, match="train split has no case"):
        patches(empty)


def test_iterations_end(all_training):
    data = patches(all_training, iterations=3)
    assert len(data) == 3
    assert len(list(data)) == 3
    with pytest.raises(IndexError):
        data[3]


def labelled_as(dataset, *names):
    """The same voxels; its labels are of these organs."""
    organs = tuple(map(find_organ, names))
    return PreparedDataset(dataset.folder, dataset.name, organs, dataset.config, dataset.splits)


def test_mirrored_patients_have_their_organs_on_the_other_side(all_training):
    kidneys = labelled_as(all_training, "kidney_left", "kidney_right")
    plain, mirrored = (
        patches(kidneys, batch=1, augmentation=replace(AugmentConfig.none(), mirror_share=share))
        for share in (0.0, 1.0)
    )
    assert {*torch.cat([labels.ravel() for _, labels in plain]).unique().tolist()} == {0, 1, 2}
    swapped = torch.tensor([0, 2, 1])
    for (images, labels), (images_mirrored, labels_mirrored) in zip(plain, mirrored, strict=True):
        assert torch.equal(images_mirrored, images.flip(-1))
        assert torch.equal(labels_mirrored, swapped[labels.flip(-1)])


def test_left_and_right_are_found_in_the_axes_of_another_network(all_training, monkeypatch):
    frame = NetworkFrame((2, 1, 0))
    opened = PreparedDataset.case
    monkeypatch.setattr(PreparedDataset, "case", lambda *of: replace(opened(*of), frame=frame))
    plain, mirrored = (
        patches(all_training, batch=1, augmentation=replace(AugmentConfig.none(), mirror_share=share))
        for share in (0.0, 1.0)
    )
    for (images, labels), (images_mirrored, labels_mirrored) in zip(plain, mirrored, strict=True):
        assert torch.equal(images_mirrored, images.flip(2))
        assert torch.equal(labels_mirrored, labels.flip(1))  # liver and spleen have no side


def test_an_organ_of_one_side_alone_is_not_mirrored(all_training):
    one_side = labelled_as(all_training, "kidney_left", "liver")
    with pytest.raises(DatasetError, match="kidney_left on one side only"):
        patches(one_side, augmentation=replace(AugmentConfig.none(), mirror_share=0.5))
    patches(one_side, augmentation=AugmentConfig())
