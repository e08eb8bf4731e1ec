"""Datasets from strangers: whatever names and paths they hold, nothing outside is read or deleted."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from continual_segment.cli.main import main
from continual_segment.data.prepare import prepare
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.errors import DatasetError

HOSTILE_CASES = ["..", ".", "a\nb", "a\x1b[31m", "-rf", "con", "a\\b", "x" * 201]


@pytest.fixture
def decathlon(tmp_path, tiny):
    """Write three cases of a Decathlon dataset; `entries` are appended to its list."""

    def write(*entries, names=("a", "b", "c")):
        folder = tmp_path / "Task01_Tiny"
        for number, name in enumerate(names):
            tiny.write(folder / "imagesTr" / f"{name}.nii.gz", tiny.scan())
            tiny.write(folder / "labelsTr" / f"{name}.nii.gz", tiny.labels(number))
        training = [
            {"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in names
        ]
        labels = {"0": "background", "1": "liver", "2": "spleen"}
        described = {"modality": {"0": "CT"}, "labels": labels, "training": [*training, *entries]}
        (folder / "dataset.json").write_text(json.dumps(described))
        return folder

    return write


def problems(folder):
    with pytest.raises(DatasetError) as caught:
        RawDataset.open(folder, workers=1, progress=False, check=False)
    return str(caught.value).split("\n- ")[1:]


# ---- names of cases become folders


def test_a_case_named_as_the_parent_folder_leaves_the_users_files_alone(decathlon, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("five years of work")
    folder = decathlon(names=("..", "b", "c"))
    assert main(["prepare", str(folder), "-o", str(out), "--preset", "tiny", "--workers", "1"]) == 2
    assert (out / "thesis.txt").read_text() == "five years of work"
    assert "imagesTr/...nii.gz" in capsys.readouterr().err


@pytest.mark.parametrize("name", HOSTILE_CASES)
def test_a_case_whose_name_cannot_be_a_folder_is_a_problem_in_every_layout(name, raw, tmp_path, config):
    hostile = replace(raw, cases=(replace(raw.cases[0], name=name),))
    with pytest.raises(DatasetError, match="file name"):
        prepare(hostile, tmp_path / "out", config, workers=1, progress=False)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "-rf", "a\\b"])
def test_a_file_or_folder_with_a_hostile_name_is_one_printable_problem(name, tiny, tmp_path, raw_folder):
    tiny.write(raw_folder / "imagesTr" / f"{name}_0000.nii.gz", tiny.scan())
    tiny.write(raw_folder / "labelsTr" / f"{name}.nii.gz", tiny.labels(0))
    total = tmp_path / "total"
    tiny.write(total / name / "ct.nii.gz", tiny.scan())
    tiny.write(total / name / "segmentations" / "liver.nii.gz", tiny.labels(0))
    for folder in (raw_folder, total):
        (problem,) = problems(folder)
        assert "file name" in problem
        assert problem.isprintable()


def test_preparing_deletes_nothing_that_it_did_not_write(prepared, raw_folder, config, tiny):
    kept = prepared.case_folder(tiny.cases[2]) / "notes.txt"
    kept.write_text("look at the spleen")
    (kept.parent / ".unfinished-0123-scan.b2nd").touch()
    tiny.write(raw_folder / "imagesTr" / f"{tiny.cases[2]}_0000.nii.gz", tiny.scan() // 2)
    again = RawDataset.open(raw_folder, workers=1, check=False)
    prepare(again, prepared.folder, config, workers=1, progress=False)
    assert kept.read_text() == "look at the spleen"
    assert sorted(path.name for path in kept.parent.iterdir()) == [
        "case.json", "foreground.npy", "labels.b2nd", "notes.txt", "scan.b2nd",
    ]  # fmt: skip


# ---- a Decathlon dataset.json names files


@pytest.mark.parametrize(
    "path",
    [
        "/etc/x.nii.gz", "../x.nii.gz", "imagesTr/../../x.nii.gz", "", ".", 5, None, ["a.nii.gz"], {"a": 1},
        True, "imagesTr/a\0.nii.gz", "\ud800.nii.gz", "x" * 5000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["image", "label"])
def test_a_path_that_is_none_or_leaves_the_dataset_is_a_problem(path, key, decathlon, tmp_path, tiny):
    tiny.write(tmp_path / "x.nii.gz", tiny.scan())
    entry = {"image": "imagesTr/a.nii.gz", "label": "labelsTr/a.nii.gz"} | {key: path}
    (problem,) = problems(decathlon(entry, names=("b",)))
    assert f'Entry 1 of "training" in dataset.json has the {key}' in problem
    assert problem.isprintable()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"labels": {"' + "9" * 5000 + '": "liver"}, "training": []}']
)
def test_a_description_of_extreme_size_gets_a_sentence(text, decathlon):
    folder = decathlon()
    (folder / "dataset.json").write_text(text)
    with pytest.raises(DatasetError, match=r"dataset\.json|65535"):
        RawDataset.open(folder, workers=1, progress=False, check=False)


# ---- names of organs become files


@pytest.mark.parametrize("organ", ["aux", "y" * 201])
def test_an_organ_whose_name_cannot_be_a_file_is_a_problem(organ, raw_folder, tiny, tmp_path):
    described = json.loads((raw_folder / "dataset.json").read_text())
    labels = {"background": 0, organ: 1, "spleen": 2}
    (raw_folder / "dataset.json").write_text(json.dumps(described | {"labels": labels}))
    (problem,) = problems(raw_folder)
    assert "Label number 1" in problem
    tiny.write(tmp_path / "total" / "s1" / "ct.nii.gz", tiny.scan())
    tiny.write(tmp_path / "total" / "s1" / "segmentations" / "liver.nii.gz", tiny.labels(0))
    tiny.write(tmp_path / "total" / "s1" / "segmentations" / f"{organ}.nii.gz", tiny.labels(0))
    (problem,) = problems(tmp_path / "total")
    assert f"segmentations/{organ}" in problem


def test_a_mask_without_a_name_is_a_problem(tiny, tmp_path):
    tiny.write(tmp_path / "total" / "s1" / "ct.nii.gz", tiny.scan())
    tiny.write(tmp_path / "total" / "s1" / "segmentations" / "__.nii.gz", tiny.labels(0))
    assert "segmentations/__.nii.gz" in problems(tmp_path / "total")[0]


# ---- prepared datasets travel, too


def rewrite(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


ORGAN = {"name": "liver", "id": 5}


@pytest.mark.parametrize(
    "entries",
    [
        {"cases": {"..": "train"}},
        {"cases": {"../../x": "train"}},
        {"cases": {"case_0": "training"}},
        {"cases": ["case_0"]},
        {"name": "../x"},
        {"name": None},
        {"organs": [ORGAN | {"name": "../../liver"}]},
        {"organs": [ORGAN, ORGAN]},
        {"organs": [ORGAN | {"id": 0}]},
        {"organs": [ORGAN | {"id": True}]},
        {"organs": [ORGAN | {"side": "red"}]},
        {"organs": []},
        {"organs": 7},
        {"config": {"spacing_mm": "abc"}},
        {"config": None},
        {"format": 9},
        {"format": "2"},
        {"format": []},
    ],
)
def test_a_prepared_dataset_with_a_hostile_description_is_refused_with_its_file(entries, prepared):
    rewrite(prepared.folder / "dataset.json", **entries)
    with pytest.raises(DatasetError, match=r"dataset\.json: "):
        PreparedDataset.open(prepared.folder)


def test_a_wrong_field_of_a_dataset_is_named_by_its_path(prepared):
    rewrite(prepared.folder / "dataset.json", config={"spacing_mm": [1, 1, "wide"]})
    with pytest.raises(DatasetError, match=r"dataset\.json: .*\$\.config\.spacing_mm\[2\]"):
        PreparedDataset.open(prepared.folder)


AXES = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
GRID = {"shape": [9, 9, 9], "affine": AXES, "orientation": "RAS"}
FILE = ["scan.nii.gz", "0" * 64]


@pytest.mark.parametrize(
    ("entries", "path"),
    [
        ({"name": ".."}, "$.name"),
        ({"name": 5}, "$.name"),
        ({"grid": 5}, "$.grid"),
        ({"grid": GRID | {"shape": [9, 9]}}, "$.grid.shape"),
        ({"grid": GRID | {"shape": [9, 9, 0]}}, "$.grid.shape[2]"),
        ({"grid": GRID | {"shape": [9, 9, True]}}, "$.grid.shape[2]"),
        ({"grid": GRID | {"affine": AXES[:3]}}, "$.grid.affine"),
        ({"grid": GRID | {"affine": [*AXES[:3], [0, 0, 0, None]]}}, "$.grid.affine[3][3]"),
        ({"grid": GRID | {"affine": [AXES[0]] * 4}}, "$.grid"),
        ({"grid": GRID | {"affine": [[float("nan")] * 4] * 4}}, "$.grid"),
        ({"grid": GRID | {"orientation": 1}}, "$.grid.orientation"),
        ({"foreground": {"1": 5}}, "$.foreground"),
        ({"foreground": {"liver": [0, 5]}}, "$.foreground"),
        ({"foreground": {"0": [0, 5]}}, "$.foreground"),
        ({"foreground": {"3": [0, 5]}}, "$.foreground"),
        ({"origin": {}}, "$.origin"),
        ({"origin": {"files": [FILE]}}, "origin.files"),
        ({"origin": {"files": []}, "seen": []}, "seen"),
        ({"seen": []}, "seen"),
        ({"seen": [["a", 1]]}, "$.seen[0]"),
        ({"intensity": []}, "$.intensity"),
    ],
)
def test_a_wrong_field_of_a_case_is_refused_with_its_file_and_path(entries, path, prepared, tiny):
    rewrite(prepared.case_folder(tiny.cases[0]) / "case.json", **entries)
    with pytest.raises(DatasetError, match=rf"{tiny.cases[0]}/case\.json: .*{re.escape(path)}"):
        PreparedDataset.open(prepared.folder).case(tiny.cases[0])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_case_cannot_be_opened_and_is_prepared_again(content, prepared, raw, config, tiny):
    file = prepared.case_folder(tiny.cases[0]) / "case.json"
    before = file.read_bytes()
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=re.escape(str(file))):
        _ = PreparedDataset.open(prepared.folder).fingerprint
    prepare(raw, prepared.folder, config, workers=1, progress=False)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "../x"}'])
def test_a_folder_with_a_description_of_something_else_is_not_written_into(content, raw, tmp_path, config):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dataset.json").write_text(content)
    with pytest.raises(DatasetError, match=rf"{tmp_path / 'out'}: .*-o"):
        prepare(raw, tmp_path / "out", config, workers=1, progress=False)
    assert (tmp_path / "out" / "dataset.json").read_text() == content
