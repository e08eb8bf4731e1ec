"""From a scan on disk to its label map."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from continual_segment.body_parts import Regions
from continual_segment.cli.main import main
from continual_segment.clinic.outputs import OutputConfig
from continual_segment.clinic.segment import segment
from continual_segment.data.resample import resample_scan
from continual_segment.errors import ModelError, ScanError
from continual_segment.files import read_labels, read_scan, write_scan
from continual_segment.lab.phantom import write_phantom
from continual_segment.model import Model, OrganPack
from continual_segment.networks import Decoder, DecoderPlan
from continual_segment.organs import BODY_PARTS, UNKNOWN_PART, find_organ, owned_wholes
from continual_segment.segmentation import ScanContext, SegmentConfig, Segmenter
from continual_segment.segmentation.merge import RULES
from continual_segment.segmentation.nested import Nesting
from continual_segment.segmentation.predictions import PackProfile
from continual_segment.segmentation.prepared_scan import prepare_for_windows
from continual_segment.volume import Grid, Volume

QUIET = SegmentConfig(progress=False)


@pytest.fixture(scope="module")
def model(shared_model_folder):
    return Model.open(shared_model_folder)


@pytest.fixture(scope="module")
def scan(scan_path):
    return read_scan(scan_path)


@pytest.fixture(scope="module")
def everything(model, scan):
    return Segmenter(model, config=QUIET)(scan, scores=True)


def test_the_map_is_on_the_scans_grid_and_names_every_organ(everything, scan, model):
    labels, scores = everything.labels, everything.scores
    assert labels.grid.same_place(scan.grid)
    assert labels.names == {organ.id: organ.name for organ in model.organs.values()}
    assert set(np.unique(labels.voxels)) <= {0, *labels.names}
    assert len(np.unique(labels.voxels)) > 2
    assert ((scores.voxels >= 0) & (scores.voxels <= 1)).all()


def test_segmenting_twice_gives_the_same(model, scan, everything):
    again = Segmenter(model, config=QUIET)(scan)
    assert again.scores is None
    np.testing.assert_array_equal(again.labels.voxels, everything.labels.voxels)


def test_an_explanation_comes_with_scores_and_extra_grids_with_labels(model, scan, everything):
    """A grid whose slices are shifted by two pixels: the same labels, two pixels further."""
    affine = scan.grid.affine.copy()
    affine[0, 3] += 2 * affine[0, 0]
    shifted = Grid(scan.grid.shape, affine)
    found = Segmenter(model, config=QUIET)(scan, explain=True, extra_grids=[scan.grid])
    assert_same(found, everything)
    np.testing.assert_array_equal(found.labels_on[0].voxels, found.labels.voxels)
    # without clean-up: what is joined beyond the edge of the shifted grid is an island on it
    with_islands = Segmenter(model, config=replace(QUIET, keep_islands=True))
    found = with_islands(scan, explain=True, extra_grids=[shifted])
    (beside,) = found.labels_on
    np.testing.assert_array_equal(beside.voxels[:, :, :-2], found.labels.voxels[:, :, 2:])
    assert beside.grid is shifted
    labelled = found.explanation.packs.voxels > 0
    np.testing.assert_array_equal(labelled, found.labels.voxels > 0)


@pytest.mark.parametrize("finer", [1, 2, 17 / 16])
def test_air_around_the_body_changes_nothing_and_costs_no_window(model, finer):
    """A body between air, and the same in a wider scan, as fine as the networks want it or finer."""
    body = np.full((20, 48, 64), -1000, np.int16)
    body[:, 12:36, 12:52] = np.random.default_rng(0).integers(-100, 300, (20, 24, 40))
    segmenter, windows = Segmenter(model, config=QUIET), []
    encode = segmenter.encode
    segmenter.encode = lambda cuts: windows.append(len(cuts)) or encode(cuts)

    def segmented(voxels):
        """Labels, scores and how many windows it took."""
        grid = Grid(voxels.shape, np.diag([*model.prepare.spacing_mm[::-1], 1.0]))
        shape = grid.shape[0], *(round(finer * length) for length in grid.shape[1:])
        scan = resample_scan(Volume(voxels, grid), grid.with_shape(shape), np.int16)
        windows.clear()
        found = segmenter(scan, scores=True)
        return found.labels.voxels, found.scores.voxels, sum(windows)

    labels, scores, few = segmented(body)
    among, wider, as_few = segmented(np.pad(body, ((0, 0), (64, 64), (64, 64)), constant_values=-1000))
    around = round(64 * finer)
    inside = np.s_[:, around:-around, around:-around]
    assert as_few == few
    assert len(np.unique(labels)) > 2
    assert np.mean(among[inside] == labels) > 0.999  # resampling may round a voxel the other way
    assert np.abs(wider[inside] - scores).mean() < 1e-4
    among[inside] = 0
    assert not among.any()


def test_the_order_of_packs_decides_nothing(model, scan, everything):
    turned = Segmenter(model, packs=["totalseg", "chest"], config=QUIET)(scan).labels
    np.testing.assert_array_equal(turned.voxels, everything.labels.voxels)


def test_only_the_packs_needed_are_run_and_only_the_requested_organs_are_given(model, scan):
    only_in = {
        pack: next(
            organ
            for organ in model.pack(pack).organs
            if sum(organ.name in {o.name for o in model.pack(name).organs} for name in model.pack_names) == 1
        )
        for pack in model.pack_names
    }
    for pack, organ in only_in.items():
        segmenter = Segmenter(model, organs=[organ.name], config=QUIET)
        ids = [own.id for own in model.pack(pack).organs]
        assert [each.organ_ids.tolist() for each in segmenter.packs] == [[0, *ids]]
        found = segmenter(scan, scores=True)
        labels = found.labels
        assert labels.names == {organ.id: organ.name}
        assert set(np.unique(labels.voxels)) <= {0, organ.id}
        alone = Segmenter(model, packs=[pack], config=QUIET)(scan).labels
        np.testing.assert_array_equal(labels.voxels == organ.id, alone.voxels == organ.id)
        if not labels.voxels.any():
            assert not found.scores.voxels.any()
    assert len(Segmenter(model, organs=["esophagus"], config=QUIET).packs) == 2  # both packs know it


def test_organs_are_found_by_any_spelling(model):
    assert [organ.name for organ in Segmenter(model, ["Trachea", "oesophagus"], config=QUIET).organs] == [
        organ.name
        for organ in sorted((model.organs[n] for n in ("esophagus", "trachea")), key=lambda organ: organ.id)
    ]


@pytest.mark.parametrize("name", ["unicorn", "!!!"])
def test_an_organ_no_pack_knows_gets_a_sentence(name, model):
    with pytest.raises(ModelError, match=rf"does not know {name}\. It knows .*esophagus"):
        Segmenter(model, organs=["esophagus", name])


def test_packs_are_chosen_by_name_each_once(model):
    segmenter = Segmenter(model, packs=["chest", "chest"], config=QUIET)
    assert [pack.profile.name for pack in segmenter.packs] == ["chest"]
    with pytest.raises(ModelError, match=r"has no pack x, ches\. Did you mean chest\? Its packs: chest, "):
        Segmenter(model, packs=["chest", "x", "ches"])


def test_no_organ_at_all_gets_a_sentence(model):
    with pytest.raises(ModelError, match="No organ was requested"):
        Segmenter(model, organs=[])


def test_a_model_without_packs_says_what_to_do(base_folder):
    with pytest.raises(ModelError, match=r"has no packs\. Add one with"):
        Segmenter(Model.open(base_folder).remove("totalseg"))


@pytest.mark.parametrize("orientation", ["LPS", "PLI", "SAR"])
def test_the_map_of_a_turned_scan_is_the_same_place_in_the_patient(
    orientation, scan, everything, model, tmp_path
):
    turned = Volume(scan.voxels, Grid(scan.grid.shape, scan.grid.affine, orientation))
    write_scan(tmp_path / "scan.nii.gz", turned)
    assert segment(tmp_path / "scan.nii.gz", model, tmp_path / "labels.nii.gz", config=QUIET) == {}
    import nibabel

    labels, original = (nibabel.load(tmp_path / f"{name}.nii.gz") for name in ("labels", "scan"))
    assert "".join(nibabel.aff2axcodes(labels.affine)) == orientation
    assert labels.shape == original.shape
    np.testing.assert_allclose(labels.affine, original.affine)
    expected = everything.labels
    organ = np.bincount(expected.voxels[expected.voxels > 0]).argmax()
    found = np.argwhere(np.asarray(labels.dataobj) == organ).mean(0)  # in the order of the file's axes
    truth = np.argwhere(expected.voxels == organ).mean(0)[::-1]  # x, y, z
    np.testing.assert_allclose(
        nibabel.affines.apply_affine(labels.affine, found),
        nibabel.affines.apply_affine(expected.grid.affine, truth),
        atol=1e-3,
    )


def test_a_scan_of_another_spacing_comes_back_on_its_own_grid(scan, model):
    fine = scan.grid.with_spacing((5.0, 9.0, 14.0))
    coarse = Volume(np.full(fine.shape, -1000, np.int16), fine)
    labels = Segmenter(model, config=QUIET)(coarse).labels
    assert labels.voxels.shape == fine.shape
    assert labels.grid.same_place(fine)


@pytest.fixture
def scans(tmp_path, scan_path):
    """A folder with two sound scans and, between them, a broken one."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for name in ("a_0000.nii.gz", "c.nii.gz"):
        shutil.copy(scan_path, folder / name)
    (folder / "b.nii.gz").write_bytes(scan_path.read_bytes()[:500])
    (folder / "notes.txt").touch()
    return folder


def test_one_broken_scan_does_not_stop_the_others(scans, shared_model_folder, tmp_path, capsys, everything):
    out = tmp_path / "out"
    assert main(["segment", str(scans), "-m", str(shared_model_folder), "-o", str(out)]) == 1
    assert sorted(path.name for path in out.iterdir()) == ["a.nii.gz", "c.nii.gz", "manifest"]
    shown = capsys.readouterr().err
    assert "1 failed:" in shown
    assert f"{scans / 'b.nii.gz'}: " in shown
    for name in ("a", "c"):
        labels = read_labels(out / f"{name}.nii.gz")
        np.testing.assert_array_equal(labels.voxels, everything.labels.voxels)
        assert labels.names == everything.labels.names


def test_scores_are_written_beside_the_labels(scan_path, model, tmp_path, everything):
    segment(scan_path, model, tmp_path / "x.nii.gz", config=QUIET, outputs=OutputConfig(scores=True))
    scores = read_scan(tmp_path / "scores" / "x.nii.gz")
    np.testing.assert_allclose(scores.voxels, everything.scores.voxels, atol=1e-6)


def test_two_scans_that_would_share_a_result_are_refused(scans, model, tmp_path):
    shutil.copy(scans / "c.nii.gz", scans / "c_0000.nii.gz")
    with pytest.raises(ScanError, match=r"c\.nii\.gz and .*c_0000\.nii\.gz would both be written to"):
        segment(scans, model, tmp_path / "out", config=QUIET)


def test_nothing_to_segment_gets_a_sentence(model, tmp_path):
    with pytest.raises(ScanError, match="no such file or folder"):
        segment(tmp_path / "gone", model, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScanError, match="no scan in this folder"):
        segment(tmp_path / "empty", model, tmp_path / "out")


def test_a_misspelt_organ_is_answered_with_the_likely_one(model):
    with pytest.raises(ModelError, match=r"does not know esophagos\. Did you mean esophagus\? It knows"):
        Segmenter(model, organs=["esophagos"])


def test_an_overlap_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="overlap is a share from 0 to below 1, not 1"):
        SegmentConfig(overlap=1)


@pytest.mark.parametrize("keep_islands", [False, True])
def test_one_pass_of_the_networks_serves_several_rules(model, scan, keep_islands):
    config = SegmentConfig(progress=False, keep_islands=keep_islands)
    segmenter = Segmenter(model, config=config)
    rules = {name: segmenter.single_pack_rule(name) for name in model.pack_names}
    found = segmenter.compare_rules(scan, rules | {"merged": segmenter.merge_rule()}, scores=True)
    assert_same(found.pop("merged"), Segmenter(model, config=config)(scan, scores=True))
    for name, own in found.items():
        assert_same(own, Segmenter(model, packs=[name], config=config)(scan, scores=True))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.labels.voxels, expected.labels.voxels)
    np.testing.assert_array_equal(found.scores.voxels, expected.scores.voxels)


@pytest.fixture
def nested_model(base_folder):
    """Two packs of random weights: one covers the chest alone and knows an organ and a part of it."""
    model = Model.open(base_folder)
    organs = {"heart": ("heart", "heart_atrium_left", "trachea"), "atrium": ("heart_atrium_right",)}
    for seed, (name, known) in enumerate(organs.items()):
        torch.manual_seed(seed)
        decoder = Decoder(model.network, DecoderPlan(("p3d", "2d")), len(known))
        decoder.head.weight.data *= 8  # labels that differ from voxel to voxel
        found = tuple(find_organ(organ) for organ in known)
        covered = {"coverage": {"chest": 1.0}, "anomalies": ("tumour",) if seed else ()}
        model = model.add(
            OrganPack.of(name, found, model.load_encoder(), decoder, model.encoder_fingerprint, **covered)
        )
    return model.remove("totalseg")


@pytest.mark.parametrize("rule", RULES)
def test_a_pack_by_its_own_rule_among_others_labels_as_the_only_pack_does(nested_model, scan, rule):
    """Its coverage and the nesting of its own organs count; the other packs change nothing."""
    config = SegmentConfig(progress=False, merge=rule)
    half = scan.grid.shape[0] // 2
    parts = [BODY_PARTS.index("chest")] * half + [BODY_PARTS.index("head_neck")] * half
    context = ScanContext.of(np.array([*parts, UNKNOWN_PART])[: scan.grid.shape[0]])
    segmenter, names = Segmenter(nested_model, config=config), nested_model.pack_names
    rules = {name: segmenter.single_pack_rule(name) for name in names}
    for name, found in segmenter.compare_rules(scan, rules, scores=True, context=context).items():
        alone = Segmenter(nested_model, packs=[name], config=config)
        expected = alone(scan, scores=True, context=context)
        assert expected.labels.voxels.any()
        assert_same(found, expected)


def test_packs_are_weighted_if_all_of_them_know_themselves(model, base_folder, chest_pack, scan_path):
    assert Segmenter(model).rule == "weighted"
    unknown = replace(chest_pack, assessment=None)
    segmenter = Segmenter(Model.open(base_folder).add(unknown), config=SegmentConfig(progress=False))
    assert segmenter.rule == "consensus"
    assert Segmenter(model, config=SegmentConfig(merge="ensemble")).rule == "ensemble"
    prepared = prepare_for_windows(read_scan(scan_path), segmenter.prepare, segmenter.window)
    assert segmenter.familiarity(prepared) == {}  # there is nothing to compare
    found = Segmenter(model).familiarity(prepared)
    assert found.keys() == {model.pack(name).fingerprint for name in model.pack_names}
    assert max(found.values()) == 1


def test_the_explanation_is_written_beside_the_labels(
    scan_path, shared_model_folder, model, tmp_path, everything
):
    target = tmp_path / "x.nii.gz"
    command = f"segment {scan_path} -m {shared_model_folder} -o {target} --explain"
    assert main(command.split()) == 0
    labels, packs = read_labels(target), read_labels(tmp_path / "packs" / "x.nii.gz")
    np.testing.assert_array_equal(labels.voxels, everything.labels.voxels)
    assert packs.names == {1: "chest", 2: "totalseg"}
    np.testing.assert_array_equal(packs.voxels > 0, labels.voxels > 0)
    wholes = owned_wholes(model.organs.values())
    for number, name in packs.names.items():
        known = [organ.id for organ in model.pack(name).organs]
        known += [wholes[part] for part in known if part in wholes]  # where clean-up removed a part
        assert np.isin(labels.voxels[packs.voxels == number], known).all()
    scores = read_scan(tmp_path / "scores" / "x.nii.gz")
    np.testing.assert_allclose(scores.voxels, everything.scores.voxels, atol=1e-3)
    quality = json.loads((tmp_path / "quality" / "x.json").read_text())
    assert quality["rule"] == "weighted"
    assert {row["organ"] for row in quality["organs"]} == {
        labels.names[i] for i in np.unique(labels.voxels[labels.voxels > 0])
    }
    row = quality["organs"][0]
    organ = labels.voxels == find_organ(row["organ"]).id
    assert row["volume_ml"] == pytest.approx(organ.sum() * np.prod(labels.grid.spacing_mm) / 1000, rel=1e-3)
    assert ("top" in row["touches_edge"]) == organ[-1].any()
    assert sum(row["packs"].values()) == pytest.approx(1, abs=1e-3)
    assert 0 <= row["mean_entropy_bits"] <= 1
    assert (tmp_path / "layers").is_dir()  # one pack knows the aorta, the other its parts


def test_a_given_body_part_excludes_packs_that_do_not_cover_it(model, scan):
    config = SegmentConfig(progress=False, merge="background-aware", body_parts=False)
    segmenter = Segmenter(model, config=config)
    chest, base = segmenter.packs
    chest.profile = PackProfile("chest", "", {"hip_thigh": 1.0})
    base.profile = PackProfile("totalseg", "", {"hip_thigh": 1.0})
    head = ScanContext.of(np.full(scan.grid.shape[0], BODY_PARTS.index("head_neck")))
    assert not segmenter(scan, context=head).labels.voxels.any()
    nowhere = ScanContext.of(np.full(scan.grid.shape[0], UNKNOWN_PART))
    unknown = segmenter(scan, context=nowhere)
    np.testing.assert_array_equal(unknown.labels.voxels, segmenter(scan).labels.voxels)


def test_the_models_own_regressor_is_used_unless_it_is_switched_off(model, scan):
    class InTheHead:
        def regions(self, prepared):
            return Regions(prepared.grid, np.full(prepared.grid.shape[0], BODY_PARTS.index("head_neck")))

    found = {}
    for asked in (True, False):
        config = SegmentConfig(progress=False, merge="background-aware", body_parts=asked)
        segmenter = Segmenter(model, config=config)
        assert (segmenter.regressor is not None) == asked
        segmenter.regressor = InTheHead() if asked else None
        for pack in segmenter.packs:
            pack.profile = PackProfile(pack.profile.name, "", {"hip_thigh": 1.0})
        found[asked] = segmenter(scan).labels.voxels
    assert not found[True].any()
    assert found[False].any()


@pytest.mark.parametrize("rule", ["background-aware", "threshold"])
def test_packs_that_skip_windows_outside_their_body_parts_change_no_label(rule, model, tmp_path):
    folder = write_phantom(tmp_path, "totalseg", 1, 5, (16.0, 16.0, 16.0), workers=1, progress=False)
    body = read_scan(next((folder / "imagesTr").iterdir()))
    tall = Volume(
        np.concatenate([body.voxels] * 3),
        Grid((3 * len(body.voxels), *body.grid.shape[1:]), body.grid.affine),
    )
    parts = ScanContext.of(np.arange(tall.grid.shape[0]) * len(BODY_PARTS) // tall.grid.shape[0])
    found, ran = {}, {}
    for skips in (True, False):
        segmenter = Segmenter(model, config=SegmentConfig(progress=False, merge=rule, overlap=0.25))
        chest, base = segmenter.packs
        chest.profile = PackProfile("chest", "b", {"chest": 1.0})
        base.profile = PackProfile("totalseg", "a", dict.fromkeys(BODY_PARTS, 1.0))
        ran[skips] = count_calls(chest)
        if not skips:
            chest.covers = lambda body_part, below: True
        found[skips] = segmenter(tall, context=parts).labels.voxels
    assert (found[True] == found[False]).mean() >= 0.999
    assert found[True].any()
    assert 0 < len(ran[True]) < 0.7 * len(ran[False])


def count_calls(pack):
    """A list that grows by one with every group of windows the pack decodes."""
    calls, add = [], pack.add_batch
    pack.add_batch = lambda *args: calls.append(1) or add(*args)
    return calls


def test_an_organ_asked_for_without_its_parts_has_no_holes_where_they_are(model):
    aorta, arch = find_organ("aorta"), find_organ("aorta_arch")
    segmenter = Segmenter(model, organs=["aorta"], config=SegmentConfig(progress=False, nested=True))
    segmenter.packs[0].organ_ids = torch.tensor([0, aorta.id, arch.id], dtype=torch.int32)
    segmenter.nesting = Nesting({arch.id: aorta.id})
    assert segmenter._label_of[[0, aorta.id, arch.id]].tolist() == [0, aorta.id, aorta.id]


@pytest.mark.parametrize("wrong", [{"merge": "dice"}, {"skip_below": 1.0}])
def test_a_rule_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is "):
        SegmentConfig(**wrong)


def test_a_context_is_at_the_same_place_on_the_prepared_grid():
    own = Grid((10, 12, 16), np.diag([1.0, 1.0, 1.0, 1.0]))
    prepared = own.with_spacing((2.0, 3.0, 4.0))
    anomaly = np.zeros(own.shape, np.float32)
    anomaly[6:, 6:, 8:] = 1
    found = ScanContext.of(np.arange(10), anomaly).on_grid(own, prepared)
    assert found.anomaly.shape == prepared.shape == (5, 4, 4)
    assert found.body_part.flatten().tolist() == [1, 3, 5, 7, 9]
    assert found.anomaly[4, 3, 3] == pytest.approx(1, abs=0.05)
    assert found.anomaly[0].max() == pytest.approx(0, abs=0.05)
