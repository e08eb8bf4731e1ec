"""`conseg segment` as users of other tools type it, from a DICOM folder to results of every kind."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from made_scans import write_series

from continual_segment.cli.main import main
from continual_segment.viewer.cases import find_cases

RESULTS = {
    "nifti": "series.nii.gz",
    "organs": "trachea.nii.gz",
    "seg.nrrd": "series.seg.nrrd",
    "dicom_seg": "series.seg.dcm",
    "rtstruct": "series.rtstruct.dcm",
}


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dicom") / "series"
    write_series(folder)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        "--ml --statistics --preview --fast --device cpu --roi_subset trachea esophagus",
        "-ml -s -p -f -d cpu -rs trachea esophagus",
    ],
)
def test_the_habits_of_totalsegmentator_users_work(options, series, shared_model_folder, tmp_path, capsys):
    command = f"segment -i {series} -o {tmp_path} -m {shared_model_folder} {options} -ot {','.join(RESULTS)}"
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    assert f"Results are in {tmp_path}." in printed
    _, _, *paths, option, model = shlex.split(printed.partition("To look at them: ")[2])
    assert (option, model) == ("--model", str(shared_model_folder))
    (shown,) = find_cases([Path(path) for path in paths])
    assert (shown.scan, len(shown.labels), shown.status) == (series, 1, "good")
    found = np.asarray(nib.load(tmp_path / "series.nii.gz").dataobj)
    for kind, name in RESULTS.items():  # a model this small may find nothing, which DICOM files cannot say
        assert (tmp_path / name).is_file() or (kind in ("dicom_seg", "rtstruct") and not found.any())
    statistics = json.loads((tmp_path / "statistics" / "series.json").read_text())
    assert set(statistics) == {"trachea", "esophagus"}
    with (tmp_path / "statistics" / "series.csv").open() as file:
        assert {row["organ"] for row in csv.DictReader(file)} == {"trachea", "esophagus"}
    assert (tmp_path / "preview" / "series.png").read_bytes().startswith(b"\x89PNG")
    manifest = json.loads((tmp_path / "manifest" / "series.json").read_text())
    assert set(manifest["request"]["packs"]) == {"chest", "totalseg"}
    assert manifest["request"]["settings"]["overlap"] == 0.25
    assert manifest["computed"] == {"device": "cpu", "backend": "eager"}


def test_a_label_map_of_a_dicom_series_lies_on_it(series, shared_model_folder, tmp_path):
    target = tmp_path / "labels.nii.gz"
    assert main(["segment", str(series), "-m", str(shared_model_folder), "-o", str(target), "--ml"]) == 0
    labels = nib.load(target)
    slices = [pydicom.dcmread(path) for path in series.iterdir()]
    assert labels.shape == (slices[0].Columns, slices[0].Rows, len(slices))
    lowest = min(slices, key=lambda each: each.ImagePositionPatient[2])
    np.testing.assert_allclose(
        labels.affine[:3, 3], np.array([-1, -1, 1]) * np.array(lowest.ImagePositionPatient, float), atol=1e-3
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("-i {series} {series}", "Name one scan or folder"),
        ("", "Name one scan or folder"),
        ("{series} -ot jpeg", "There is no output format 'jpeg'"),
        ("{series} -ot rtstruct --ml", "--ml means one NIfTI label map"),
        ("{series} --shard 3", "--shard is I/N, such as 2/8"),
        ("{series} --shard 3/2", "from 1 to N"),
        ("{series} --part 3/2", "from 1 to N"),
        ("{series} --device gpu:7", "'cuda:7' cannot be computed on here"),
        ("{series} --overlap 2", "overlap is a share"),
        ("{series} --pick thickest", "no rule 'thickest'"),
        ("{series} --series 2 --pick all", "either --series 2 or --pick all"),
        ("{series} -ot nifti,nifti", "each of them once"),
    ],
)
def test_options_that_cannot_be_get_a_sentence(options, sentence, series, tmp_path, capsys):
    command = f"segment {options.format(series=series)} -m {tmp_path / 'model'} -o {tmp_path / 'out'}"
    assert main(command.split()) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["labels.mha", "labels.seg.nrrd"])
def test_an_output_name_of_another_format_gets_a_sentence(
    name, series, shared_model_folder, tmp_path, capsys
):
    command = f"segment {series} -m {shared_model_folder} -o {tmp_path / name} -ot nifti"
    assert main(command.split()) == 2
    assert name in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_finished_batch_of_one_is_skipped_and_shards_share_it(scan_path, shared_model_folder, tmp_path):
    (tmp_path / "in").mkdir()
    shutil.copy(scan_path, tmp_path / "in" / "a.nii.gz")

    def run(source, *options):
        words = ["segment", source, "-m", shared_model_folder, "-o", tmp_path / "out", *options]
        assert main(list(map(str, words))) == 0
        result = tmp_path / "out" / "a.nii.gz"
        return result.stat().st_ino if result.exists() else None

    for source in (tmp_path / "in", tmp_path / "in" / "a.nii.gz"):
        assert run(source, "--shard", "2/2") is None
    first = run(tmp_path / "in", "--shard", "1/2", "--packs", "chest")
    assert run(tmp_path / "in", "--packs", "chest") == first
    manifest = json.loads((tmp_path / "out" / "manifest" / "a.json").read_text())
    assert list(manifest["request"]["packs"]) == ["chest"]
    assert run(tmp_path / "in", "--packs", "totalseg") != first


def test_a_scan_after_the_models_is_the_scan(shared_model_folder, base_model_folder, scan_path, tmp_path):
    """As it was before there could be several models."""
    models = [str(shared_model_folder), str(base_model_folder)]
    for count in (1, 2):
        out = tmp_path / str(count)
        assert main(["segment", "-m", *models[:count], str(scan_path), "-o", str(out), "-q"]) == 0
        assert len([*out.glob("*.nii.gz")]) == 1
    assert main(["segment", "-m", *models, "-o", str(tmp_path / "none")]) == 2


def test_view_opens_the_results_at_the_end(series, shared_model_folder, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("continual_segment.viewer.view.view", lambda *given: opened.append(given))
    command = f"segment {series} -o {tmp_path} -m {shared_model_folder} --organs trachea --view"
    assert main(command.split()) == 0
    assert opened == [([series, tmp_path], shared_model_folder)]
