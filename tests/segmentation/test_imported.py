"""An imported nnU-Net labels scans as stock nnU-Net does.

The reference below is nnU-Net's inference on whole arrays, with scipy's resampling and PyTorch's sums.
"""

from dataclasses import replace
from itertools import combinations, product

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_nnunet import DATASET, made_checkpoint, made_plans, made_state, write_model
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform
from scipy import ndimage

from continual_segment.data.nnunet_preparation import coarse_axis, resampled_shape
from continual_segment.model.nnunet import import_nnunet
from continual_segment.organs import find_organ
from continual_segment.segmentation import ScanContext, SegmentConfig, Segmenter
from continual_segment.segmentation.nnunet_inference import nnunet_window_starts, nnunet_window_weights
from continual_segment.segmentation.pack_decoder import region_probabilities
from continual_segment.volume import Volume

LABELS = DATASET | {"labels": {"background": 0, "liver": 1, "spleen": 2}}
MANY = DATASET | {"labels": {"background": 0} | {f"organ {number}": number for number in range(1, 10)}}
REGIONS = DATASET | {
    "labels": {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "dot": 3},
    "regions_class_order": [1, 2, 3],
}
QUIET = SegmentConfig(progress=False)
SPACINGS = {"isotropic": (2.1, 1.9, 1.7), "coarse": (7.0, 1.6, 1.4), "as planned": (2.5, 1.5, 1.5)}


def model_of(folder, kind="plain", dataset=LABELS, outputs=3, orientation=None, **plans):
    """A network of random weights; without biases of the last layer, so that no organ always wins."""
    state = {
        name: torch.cat([tensor, -tensor])[:outputs] * ("bias" not in name)
        if ".seg_layers." in name
        else tensor
        for name, tensor in made_state(kind).items()
    }
    source = write_model(folder / "stock", made_plans(kind, **plans), dataset, made_checkpoint(state))
    return import_nnunet(source, folder / "model", orientation=orientation)[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {
        "plain": model_of(tmp_path_factory.mktemp("plain")),
        "residual": model_of(tmp_path_factory.mktemp("residual"), "residual"),
        "transposed": model_of(
            tmp_path_factory.mktemp("turned"), transpose_forward=[1, 2, 0], transpose_backward=[2, 0, 1]
        ),
        "reoriented": model_of(tmp_path_factory.mktemp("ras"), image_reader_writer="NibabelIOWithReorient"),
        "regions": model_of(tmp_path_factory.mktemp("regions"), dataset=REGIONS),
        "more organs": model_of(tmp_path_factory.mktemp("more"), dataset=DATASET, outputs=5),
        "many organs": model_of(tmp_path_factory.mktemp("many"), dataset=MANY, outputs=10),
    }


def made_scan(spacing_mm=SPACINGS["isotropic"], codes="LPS", shape=(26, 24, 22), seed=0):
    """Blocks of tissue in a border of zeros, which nnU-Net crops: an array (i, j, k) with its affine."""
    rng = np.random.default_rng(seed)
    blocks = ndimage.zoom(
        rng.normal(0, 150, (4, 4, 4)), np.divide(shape, 4), order=1, mode="nearest", grid_mode=True
    )
    voxels = np.pad(np.rint(blocks + rng.normal(0, 20, blocks.shape)), [(2, 1), (0, 3), (1, 0)])
    turn = ornt_transform(axcodes2ornt(codes), io_orientation(np.eye(4)))
    affine = np.zeros((4, 4))
    for axis, (target, sign) in enumerate(turn):
        affine[int(target), axis] = sign * spacing_mm[2 - axis]
    affine[:, 3] = 10, 20, 30, 1
    return voxels.astype(np.int16), affine


class StockNnunet:
    """nnU-Net's steps on whole arrays."""

    def __init__(self, model, mirror=False):
        self.model, (self.pack,) = model, [model.pack(name) for name in model.pack_names]
        self.encoder, self.decoder = model.load_encoder(), self.pack.decoder()
        axes = self.pack.mirror_axes if mirror else ()
        self.mirrored = [each for count in range(len(axes) + 1) for each in combinations(axes, count)]

    def labels(self, voxels, affine):
        """Organ ids of an array (i, j, k)."""
        nnunet, prepare = self.model.prepare.nnunet, self.model.prepare
        turn = np.stack([np.arange(3), np.ones(3)], axis=1)
        if nnunet.image_reader_writer == "NibabelIOWithReorient":
            turn = io_orientation(affine)
        array = nibabel.apply_orientation(voxels, turn).transpose(2, 1, 0).astype(np.float32)
        spacing = np.linalg.norm(affine[:3, :3], axis=0)[np.argsort(turn[:, 0])][::-1]
        array = array.transpose(nnunet.transpose_forward)
        spacing = [spacing[axis] for axis in nnunet.transpose_forward]
        inside = np.argwhere(array != 0)
        box = tuple(slice(a, b + 1) for a, b in zip(inside.min(0), inside.max(0), strict=True))
        crop = array[box]
        clip, mean, std = prepare.intensity.clip_hu, prepare.intensity.mean, prepare.intensity.std
        normal = (np.clip(crop, *clip) - np.float32(mean)) / np.float32(std)
        shape = resampled_shape(crop.shape, spacing, prepare.spacing_mm)
        network_input = zoomed(normal, shape, 3, coarse_axis(spacing, prepare.spacing_mm))
        logits = self.logits(network_input)
        back = coarse_axis(prepare.spacing_mm, spacing, nnunet.separate_z_of_logits)
        whole = np.zeros(array.shape, np.uint16)
        whole[box] = self.decide(np.stack([zoomed(one, crop.shape, 1, back) for one in logits]))
        own = whole.transpose(np.argsort(nnunet.transpose_forward)).transpose(2, 1, 0)
        return nibabel.apply_orientation(own, ornt_transform(io_orientation(np.eye(4)), turn))

    @torch.no_grad()
    def logits(self, network_input):
        window = self.model.window
        missing = [max(0, side - n) for side, n in zip(window, network_input.shape, strict=True)]
        padded = np.pad(network_input, [(gap // 2, gap - gap // 2) for gap in missing])
        weights = torch.from_numpy(nnunet_window_weights(window))
        total = torch.zeros(self.decoder.outputs, *padded.shape, dtype=torch.half)
        count = torch.zeros(padded.shape, dtype=torch.half)
        starts = [nnunet_window_starts(n, side) for n, side in zip(padded.shape, window, strict=True)]
        for corner in product(*starts):
            place = tuple(slice(at, at + side) for at, side in zip(corner, window, strict=True))
            patch = torch.from_numpy(padded[place].astype(np.float32))[None, None]
            passes = []
            for axes in self.mirrored:
                dims = [axis + 2 for axis in axes]
                passes.append(self.decoder(self.encoder(patch.flip(dims))).flip(dims))
            total[:, *place] += sum(passes)[0] / len(passes) * weights
            count[place] += weights
        before = [gap // 2 for gap in missing]
        inner = tuple(slice(at, at + n) for at, n in zip(before, network_input.shape, strict=True))
        return (total / count)[(slice(None), *inner)].float().numpy()

    def decide(self, logits):
        """Organ ids: the highest of the channels, or the last region above a probability of 0.5."""
        ids = np.array([organ.id for organ in self.pack.organs])
        logits = logits.astype(np.float16).astype(np.float32)
        if not self.pack.regions:
            return np.append(0, ids)[logits.argmax(axis=0)]
        labels = np.zeros(logits.shape[1:], int)
        for channel, organ in zip(logits, ids, strict=True):
            labels[1 / (1 + np.exp(-channel)) > 0.5] = organ
        return labels


def zoomed(array, shape, order, coarse):
    """skimage's resize, slice by slice where one axis is coarse, which repeats the nearest slice."""
    if coarse is None:
        factors = np.divide(shape, array.shape)
        out = ndimage.zoom(array.astype(float), factors, order=order, mode="nearest", grid_mode=True)
        return np.clip(out, array.min(), array.max()).astype(np.float32)
    across = [n for axis, n in enumerate(shape) if axis != coarse]
    slices = [zoomed(one, across, order, None) for one in np.moveaxis(array, coarse, 0)]
    centres = (len(slices) / shape[coarse]) * (np.arange(shape[coarse]) + 0.5) - 0.5
    nearest = np.floor(np.clip(centres, 0, len(slices) - 1) + 0.5).astype(int)
    return np.moveaxis(np.stack(slices)[nearest], 0, coarse)


def share_equal(model, voxels, affine, mirror=False):
    expected = StockNnunet(model, mirror).labels(voxels, affine)
    config = replace(QUIET, mirror=mirror)
    found = Segmenter(model, config=config)(Volume.from_array(voxels, affine)).labels.to_array()
    assert len(np.unique(expected)) > 1
    return float(np.mean(found == expected))


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("kind", ["plain", "residual", "transposed", "reoriented", "regions", "more organs"])
def test_labels_are_those_of_stock_nnunet(models, kind, spacing):
    assert share_equal(models[kind], *made_scan(SPACINGS[spacing])) > 0.9999


@pytest.mark.parametrize("codes", ["RAS", "LPS", "RSA", "PIR"])
@pytest.mark.parametrize("kind", ["plain", "transposed", "reoriented"])
def test_labels_are_those_of_stock_nnunet_in_every_orientation(models, kind, codes):
    assert share_equal(models[kind], *made_scan(codes=codes)) > 0.9999


def test_with_an_orientation_labels_do_not_depend_on_how_the_file_is_stored(models, tmp_path):
    turned = model_of(tmp_path, orientation="PLI")
    scan = nibabel.Nifti1Image(*made_scan(codes="PLI"))
    expected = segmented(models["plain"], scan)
    assert len(np.unique(expected)) > 1
    for codes in ("PLI", "RAS", "LSA"):
        stored = scan.as_reoriented(ornt_transform(io_orientation(scan.affine), axcodes2ornt(codes)))
        np.testing.assert_array_equal(segmented(turned, stored), expected)


def segmented(model, image):
    """Labels in RAS."""
    return Segmenter(model, config=QUIET)(image).labels.voxels


def test_a_scan_that_fails_between_mirrored_passes_leaves_nothing_to_the_next(models, monkeypatch):
    scan = Volume.from_array(*made_scan(shape=(20, 18, 16)))
    segmenter = Segmenter(models["plain"], config=replace(QUIET, mirror=True))
    expected = segmenter(scan).labels.voxels
    (pack,) = segmenter.packs
    decode, passes = pack.decode, iter(range(100))
    with monkeypatch.context() as patch:
        patch.setattr(pack, "decode", lambda features: decode(features) * 10 if next(passes) < 1 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            segmenter(scan)
    assert np.array_equal(segmenter(scan).labels.voxels, expected)


def test_labels_are_those_of_stock_nnunet_with_mirroring(models):
    voxels, affine = made_scan(shape=(20, 18, 16))
    assert models["plain"].pack("Made").mirror_axes == (0, 1, 2)
    assert share_equal(models["plain"], voxels, affine, mirror=True) > 0.9999
    plain, mirrored = (StockNnunet(models["plain"], each).labels(voxels, affine) for each in (False, True))
    assert np.mean(plain == mirrored) < 0.95


def test_features_of_many_organs_are_summed_instead_of_logits_which_rounds_otherwise(models):
    """So that memory does not grow with the organs; noise has nearly equal logits at many voxels."""
    decoders = {name: Segmenter(model, config=QUIET).packs[0] for name, model in models.items()}
    assert [name for name, each in decoders.items() if each.accumulates_features] == ["many organs"]
    assert 1 > share_equal(models["many organs"], *made_scan()) > 0.995


def test_a_scan_smaller_than_a_window_is_padded_with_zeros(models):
    assert share_equal(models["plain"], *made_scan(shape=(9, 10, 8))) > 0.9999


def test_scores_and_explanation_are_on_the_scan(models):
    volume = Volume.from_array(*made_scan())
    found = Segmenter(models["transposed"], config=QUIET)(volume, explain=True)
    assert found.labels.voxels.shape == volume.voxels.shape
    labelled = found.labels.voxels > 0
    assert (found.scores.voxels[labelled] > 0).all()
    assert not found.scores.voxels[~labelled].any()
    assert np.array_equal(found.explanation.packs.voxels > 0, labelled)
    assert {each.organ for each in found.explanation.quality} == set(found.labels.organs)


def test_body_parts_restrict_packs_along_the_patient_whatever_the_axes_of_the_network(models):
    """A pack that covers the chest alone finds nothing in the slices of the head."""
    model = models["transposed"]
    volume = Volume.from_array(*made_scan())
    segmenter = Segmenter(model, config=QUIET)
    free = segmenter(volume).labels.voxels
    (pack,) = segmenter.packs
    pack.profile = replace(pack.profile, coverage={"chest": 1.0})
    parts = np.where(np.arange(len(free)) < len(free) // 2, 2, 3)
    assert free[parts == 3].any()
    limited = segmenter(volume, context=ScanContext.of(parts)).labels.voxels
    head = np.array(["hip_thigh", "abdomen", "chest", "head_neck"])[parts] == "head_neck"
    assert not limited[head][1:].any()  # a slice at the border is interpolated
    assert limited[~head].any()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-20, 20, width=16), min_size=1, max_size=6))
def test_the_last_region_above_one_half_wins(values):
    logits = torch.tensor(values)
    found = region_probabilities(logits[:, None])[:, 0]
    above = [number for number, value in enumerate(logits.sigmoid().tolist(), start=1) if value > 0.5]
    winner = found[1:].argmax().item() + 1 if found[1:].max() > found[0] else 0
    assert winner == (above[-1] if above else 0)
    assert found.sum() == pytest.approx(1)


def test_organs_of_regions_have_the_names_of_the_regions(models):
    pack = models["regions"].pack("Made")
    assert pack.organs == tuple(map(find_organ, ("whole", "core", "dot")))
