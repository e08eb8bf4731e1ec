"""What the viewer shows of files: cases, statistics, places, comparison, bounds."""

from __future__ import annotations

import json
import re
import signal
import webbrowser
from math import prod

import numpy as np
import pytest
from made_views import HU, made_grid, made_labels, made_scan

from continual_segment.cli.main import main
from continual_segment.errors import ConfigError, ContinualSegmentError, DatasetError, ScanError
from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import (
    read_labels,
    read_scan,
    write_json,
    write_labels,
    write_scan,
    write_segments,
)
from continual_segment.model.pieces import OrganPieces
from continual_segment.organs import find_organ
from continual_segment.segmentation.nested import layers
from continual_segment.viewer.bounds import bounded
from continual_segment.viewer.cases import find_cases
from continual_segment.viewer.comparison import compare
from continual_segment.viewer.prepared_view import prepare_view
from continual_segment.viewer.site import CaseStore
from continual_segment.viewer.view import find_shown, open_browser, open_server
from continual_segment.volume import Grid, LabelMap


def test_cases_that_failed_come_first_then_those_with_warnings(case_folder):
    cases = find_cases([case_folder / "scans", case_folder / "results"])
    assert [(case.name, case.status) for case in cases] == [("case_b", "failed"), ("case_a", "warning")]
    assert "The scan seems to be cropped." in cases[1].notes


def test_results_alone_are_shown_without_their_scans(case_folder, tmp_path):
    (case,) = find_cases([case_folder / "results"])
    assert (case.name, case.scan, len(case.labels)) == ("case_a", None, 1)
    data = prepare_view(case, tmp_path / "view").data
    assert data["has_scan"] is False
    assert {row["mean_hu"] for row in data["maps"][0]["organs"].values()} == {None}


def test_a_folder_of_scans_beside_label_maps_is_a_comparison(case_folder):
    (case_folder / "results" / "manifest" / "case_a.json").unlink()
    cases = find_cases([case_folder])
    assert {case.name: [labels.title for labels in case.labels] for case in cases} == {
        "case_a": ["truth", "results"],
        "case_b": ["truth"],
    }


def test_a_label_map_for_several_scans_is_refused(case_folder):
    with pytest.raises(DatasetError, match=r"case_a\.nii\.gz"):
        find_cases([case_folder / "scans", case_folder / "truth" / "case_a.nii.gz"])


def test_paths_that_do_not_exist_are_named(case_folder, tmp_path):
    with pytest.raises(ScanError, match="nowhere"):
        find_cases([tmp_path / "nowhere"])
    with pytest.raises(ContinualSegmentError, match="nowhere"):
        find_cases([case_folder / "scans", tmp_path / "nowhere"])
    with pytest.raises(ConfigError):
        open_server([], None, tmp_path)


def test_a_damaged_manifest_is_a_warning(case_folder):
    (case_folder / "results" / "manifest" / "case_a.json").write_text('{"input": 3}')
    case = find_cases([case_folder / "scans", case_folder / "results"])[1]
    assert (case.name, case.status) == ("case_a", "warning")
    assert "case_a.json" in case.notes[0]


def test_the_page_gets_statistics_values_and_places_of_every_organ(case_folder, tmp_path):
    case = find_cases([case_folder / "scans" / "case_a.nii.gz", case_folder / "truth"])[0]
    view = prepare_view(case, tmp_path / "view")
    labels, scan = read_labels(view.files["labels0.nii"]), read_scan(view.files["scan.nii"])
    shown, truth = view.data["maps"][0], made_labels()
    np.testing.assert_array_equal(scan.voxels, made_scan().voxels)
    for organ in view.data["organs"]:
        number = organ["number"]
        value = shown["values"][number]
        np.testing.assert_array_equal(labels.voxels == number, truth.voxels == value)
        assert shown["organs"][number]["mean_hu"] == HU[value]
        assert shown["organs"][number]["volume_ml"] == pytest.approx(
            (truth.voxels == value).sum() * 24 / 1000
        )
        place = np.linalg.inv(made_grid().affine) @ [*shown["middles"][number], 1]
        x, y, z = np.rint(place[:3]).astype(int)
        assert truth.voxels[z, y, x] == value


def test_dice_of_two_label_maps_is_that_of_evaluate(case_folder):
    case = find_cases(
        [case_folder / "scans" / "case_a.nii.gz", case_folder / "truth", case_folder / "results"]
    )[0]
    expected = {row.organ: row.dice for row in score_case("", made_labels(moved=2), made_labels())}
    scores = compare(case, 0, 1)["organs"]
    organs = {
        organ["number"]: organ["name"] for organ in prepare_view(case, case_folder / "view").data["organs"]
    }
    assert {organs[number]: row["dice"] for number, row in scores.items()} == pytest.approx(
        expected, abs=1e-4
    )
    assert expected["spleen"] == 1 > expected["liver"] > 0.5


def test_labels_without_names_are_shown_by_their_numbers(tmp_path):
    write_scan(tmp_path / "ct.nii.gz", made_scan())
    write_labels(tmp_path / "labels.nii.gz", LabelMap(made_labels().voxels, made_grid()))
    (case,) = find_cases([tmp_path / "ct.nii.gz", tmp_path / "labels.nii.gz"])
    data = prepare_view(case, tmp_path / "view").data
    assert {organ["shown"] for organ in data["organs"]} == {"label 1", "label 5"}


@pytest.mark.parametrize("shape", [(800, 512, 512), (2000, 64, 64), (30, 900, 900), (40, 50, 60)])
def test_what_the_browser_gets_is_bounded(shape):
    grid = Grid(shape, np.diag([0.8, 0.8, 1.5, 1]))
    small = bounded(grid, 4_000_000)
    assert prod(small.shape) <= 4_000_000
    assert max(small.shape) <= 1024
    assert np.multiply(small.shape, small.spacing_mm) == pytest.approx(np.multiply(shape, grid.spacing_mm))
    assert (small is grid) == (prod(shape) <= 4_000_000 and max(shape) <= 1024)
    assert prod(small.shape) > 2_000_000 or max(shape) > 1024 or small is grid


def test_a_large_scan_is_reduced_and_said_to_be_but_measured_whole(case_folder, tmp_path):
    case = find_cases([case_folder / "scans" / "case_a.nii.gz", case_folder / "truth"])[0]
    whole, small = prepare_view(case, tmp_path / "whole"), prepare_view(case, tmp_path / "small", 8000)
    assert (whole.data["reduced"], small.data["reduced"]) == (False, True)
    assert prod(small.data["shape"]) <= 8000
    assert "40" in small.data["size"]
    assert small.data["maps"][0]["organs"] == whole.data["maps"][0]["organs"]
    assert read_labels(small.files["labels0.nii"]).grid.shape == tuple(small.data["shape"][::-1])


def test_only_the_last_cases_keep_their_files(case_folder, tmp_path):
    (case,) = find_cases([case_folder / "scans" / "case_a.nii.gz", case_folder / "truth"])
    store = CaseStore(tmp_path / "store")
    for key in "abcde":
        store.data(key, case)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["c", "d", "e"]


def test_a_scan_is_segmented_with_reasons_where_a_model_is_given(scan_path, shared_model_folder, tmp_path):
    (case,) = find_shown([scan_path], shared_model_folder, tmp_path / "out")
    data = prepare_view(case, tmp_path / "view").data
    (shown,) = data["maps"]
    assert set(shown["packs"].values()) == {"totalseg", "chest"}
    assert (shown["rule"], shown["scores_file"]) == ("weighted", "scores0.bin")


def test_two_results_of_one_scan_have_reasons_and_flags_of_their_own(case_folder, tmp_path):
    for name, pack in (("results", "one"), ("later", "other")):
        folder, labels = case_folder / name, made_labels()
        write_labels(folder / "case_a.nii.gz", labels)
        packs = LabelMap((labels.voxels > 0).astype(np.uint8), labels.grid, {1: pack})
        write_labels(folder / "packs" / "case_a.nii.gz", packs)
        islands = [{"organ": "liver", "ml": 500.0, "pieces": 2}] if name == "later" else []
        files = ["case_a.nii.gz", "packs/case_a.nii.gz"]
        manifest = {"input": {}, "removed_islands": islands, "files": files}
        write_json(folder / "manifest" / "case_a.json", manifest)
    paths = [case_folder / "scans" / "case_a.nii.gz", case_folder / "results", case_folder / "later"]
    (case,) = find_cases(paths)
    maps = prepare_view(case, tmp_path / "view").data["maps"]
    assert [shown["packs"] for shown in maps] == [{1: "one"}, {1: "other"}]
    flags = [[flag["name"] for row in shown["organs"].values() for flag in row["flags"]] for shown in maps]
    assert flags == [[], ["islands"]]


def test_files_that_the_manifest_does_not_list_are_of_another_run(case_folder, tmp_path):
    results, labels = case_folder / "results", made_labels()
    packs = LabelMap((labels.voxels > 0).astype(np.uint8), labels.grid, {1: "earlier"})
    write_labels(results / "packs" / "case_a.nii.gz", packs)
    write_scan(results / "scores" / "case_a.nii.gz", made_scan())
    write_json(results / "quality" / "case_a.json", {"rule": "earlier", "organs": []})
    write_segments(results / "case_a.seg.nrrd", [made_labels(moved=3)])

    def shown(**manifest):
        write_json(results / "manifest" / "case_a.json", manifest)
        (case,) = find_cases([case_folder / "scans" / "case_a.nii.gz", results])
        return case, prepare_view(case, tmp_path / "view").data["maps"][0]

    listed = ["case_a.seg.nrrd", "quality/case_a.json"]
    case, of_listed = shown(files=listed)
    np.testing.assert_array_equal(case.labels[0].read().voxels, made_labels(moved=3).voxels)
    assert (of_listed["rule"], of_listed["packs"], of_listed["scores_file"]) == ("earlier", {}, "")
    case, unknown = shown(input={})  # no list: the label map alone
    assert (unknown["rule"], unknown["packs"], unknown["scores_file"]) == ("", {}, "")
    write_json(results / "manifest" / "case_a.json", {"files": ["case_a.rtstruct.dcm"]})
    (case,) = find_cases([case_folder / "scans" / "case_a.nii.gz", results])
    assert (case.status, case.labels) == ("failed", ())


def test_a_label_map_without_a_manifest_is_shown_with_a_warning(case_folder):
    """As after a kill while a result was replaced."""
    write_labels(case_folder / "results" / "case_b.nii.gz", made_labels())
    case = next(
        case for case in find_cases([case_folder / "scans", case_folder / "results"]) if case.name == "case_b"
    )
    assert (case.status, len(case.labels)) == ("warning", 1)
    assert "no manifest" in case.notes[0]


def test_the_page_gets_the_numbers_of_many_packs(many_packs, tmp_path):
    (case,) = find_cases([many_packs / "scans" / "case_a.nii.gz", many_packs / "results"])
    view = prepare_view(case, tmp_path / "view")
    numbers = np.fromfile(view.files["packs0.bin"], "<u2").reshape(made_labels().voxels.shape)
    labels = made_labels().voxels
    assert [view.data["maps"][0]["packs"][number] for number in (44, 300)] == ["pack 44", "pack 300"]
    assert (numbers[labels == 5] == 300).all()
    assert (numbers[labels == 1] == 44).all()


def test_volumes_are_flagged_by_what_the_packs_of_the_model_saw(case_folder, tmp_path):
    (case,) = find_cases([case_folder / "scans" / "case_a.nii.gz", case_folder / "truth"])
    whole = prepare_view(case, tmp_path / "view").data["maps"][0]["organs"]
    (liver, spleen) = (find_organ(name).id for name in ("liver", "spleen"))
    seen = {
        liver: OrganPieces(3, (3,), (1.0, 5.0), (1.0, 1.0), 0.0),
        spleen: OrganPieces(3, (3,), (100.0, 200.0), (1.0, 1.0), 0.0),
    }
    shown = prepare_view(case, tmp_path / "again", trained=seen).data
    flags = {
        organ["name"]: [flag["name"] for flag in shown["maps"][0]["organs"][organ["number"]]["flags"]]
        for organ in shown["organs"]
    }
    assert flags == {"liver": ["large"], "spleen": ["small"]}
    assert not any(row["flags"] for row in whole.values())
    assert {"large", "small"} < shown["flags"].keys()


def test_the_inputs_stay_as_they_are(case_folder, contents, tmp_path):
    before = contents(case_folder)
    for case in find_cases([case_folder / "scans", case_folder / "truth", case_folder / "results"]):
        prepare_view(case, tmp_path / "elsewhere" / case.name)
        if len(case.labels) > 1:
            json.dumps(compare(case, 0, 1), allow_nan=False)
    after = {name: data for name, data in contents(case_folder).items() if not name.startswith("elsewhere")}
    assert after == before


def test_the_command_names_what_is_wrong(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["view"]) == 2
    assert "--model" in capsys.readouterr().err


def test_the_command_prints_its_address_and_stops_on_ctrl_c(case_folder, python):
    paths = [case_folder / "scans", case_folder / "truth"]
    process = python("-m", "continual_segment.cli.main", "view", *paths, "--no-browser")
    assert re.match(r"Viewer: http://127\.0\.0\.1:\d+/[\w-]+/ ", process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)
    assert process.returncode == 0
    assert process.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_viewer_that_is_ended_leaves_no_files(case_folder, python, tmp_path, monkeypatch, number):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    process = python("-m", "continual_segment.cli.main", "view", case_folder / "scans", "--no-browser")
    assert process.stdout.readline().startswith("Viewer: ")
    assert list((tmp_path / "temporary").iterdir())
    process.send_signal(number)
    process.wait(timeout=20)
    assert not list((tmp_path / "temporary").iterdir())


def test_a_browser_in_the_terminal_is_not_opened(monkeypatch):
    opened = []
    for kind in (webbrowser.GenericBrowser, webbrowser.BackgroundBrowser):
        browser = kind("browser")
        browser.open = lambda address, kind=kind: opened.append(kind)
        monkeypatch.setattr(webbrowser, "get", lambda browser=browser: browser)
        open_browser("http://127.0.0.1/")
    assert opened == [webbrowser.BackgroundBrowser]


def test_an_organ_of_ones_own_that_was_not_found_is_named_nevertheless(tmp_path):
    """Its id is larger than the numbers of voxels, which are stored in eight bits."""
    voxels = np.zeros((6, 7, 8), np.uint8)
    voxels[2:4, 2:4, 2:4] = 5
    grid = Grid(voxels.shape, np.eye(4))
    divided = layers(LabelMap(voxels, grid, {5: "liver", 38047: "my_organ"}))
    assert set(divided[0].names.values()) == {"liver", "my_organ"}
    assert (divided[0].voxels == voxels).all()
