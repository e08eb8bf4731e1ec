"""Preparing: what is stored, what is skipped, and what happens when something goes wrong."""

import json
import logging
import os
import pickle
from threading import Timer

import numpy as np
import pytest
from filelock import FileLock

from continual_segment.data import prepare as prepare_module
from continual_segment.data.prepare import (
    PrepareConfig,
    prepare,
    prepare_scan,
    stale_cases,
)
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.data.splits import split_cases
from continual_segment.errors import DatasetError
from continual_segment.volume import Grid, Volume


def stamps(folder):
    return {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    }


def prepare_again(raw_folder, prepared, config):
    raw = RawDataset.open(raw_folder, workers=1, check=False)
    return prepare(raw, prepared.folder, config, workers=1, progress=False)


def test_at_its_own_spacing_a_case_is_stored_as_it_is(prepared, tiny):
    for number, name in enumerate(tiny.cases):
        case = prepared.case(name)
        assert np.array_equal(case.scan[:], tiny.scan())
        assert np.array_equal(case.labels[:], tiny.labels(number))
        assert case.scan.dtype == np.int16
        assert case.labels.dtype == np.uint8
        np.testing.assert_allclose(case.spacing_mm, tiny.spacing_mm)


def test_another_spacing_gives_another_shape(raw, tmp_path, tiny):
    prepared = prepare(raw, tmp_path / "out", PrepareConfig((6.0, 4.0, 1.0)), workers=1, progress=False)
    case = prepared.case(tiny.cases[0])
    assert (
        case.shape == case.scan.shape == case.labels.shape == (tiny.side // 2, tiny.side // 2, tiny.side * 2)
    )
    np.testing.assert_allclose(case.spacing_mm, (6.0, 4.0, 1.0))
    assert set(np.unique(case.labels[:])) <= {0, 1, 2}


def test_values_outside_the_window_are_clipped(raw, tmp_path, tiny):
    config = PrepareConfig(tiny.spacing_mm, window_hu=(-200.0, 300.0))
    case = prepare(raw, tmp_path / "out", config, workers=1, progress=False).case(tiny.cases[0])
    assert np.array_equal(case.scan[:], np.clip(tiny.scan(), -200, 300))


def test_what_was_prepared_can_be_opened_again(prepared, raw, tiny):
    opened = PreparedDataset.open(prepared.folder)
    assert opened.name == "Dataset007_Tiny"
    assert opened.organs == raw.organs
    assert opened.config == prepared.config
    assert opened.splits == prepared.splits
    case = opened.case(tiny.cases[0])
    assert case.raw_scan == raw.cases[0].scan.resolve()


def test_two_at_once_in_one_folder_wait_for_each_other(prepared, raw_folder, config):
    other = FileLock(prepared.folder / ".lock", thread_local=False)
    other.acquire()
    Timer(0.2, other.release).start()
    assert prepare_again(raw_folder, prepared, config).splits == prepared.splits


def test_a_folder_in_which_another_process_stays_at_work_says_so(prepared, raw_folder, config, monkeypatch):
    monkeypatch.setattr(prepare_module, "PATIENCE", 0.05)
    with (
        FileLock(prepared.folder / ".lock"),
        pytest.raises(DatasetError, match="another process is preparing scans here"),
    ):
        prepare_again(raw_folder, prepared, config)


def test_foreground_positions_lie_on_their_organ(prepared, tiny):
    for name in tiny.cases:
        case = prepared.case(name)
        assert set(case.foreground) == {1, 2}
        for label, positions in case.foreground.items():
            assert set(case.labels[:][tuple(positions.T)]) == {label}
        assert len(case.foreground[1]) == 6 * 6 * 4
        assert len(case.foreground[2]) == 1


def test_no_more_foreground_positions_than_asked_for(raw, tmp_path, config, monkeypatch, tiny):
    monkeypatch.setattr(prepare_module, "FOREGROUND_POSITIONS", 10)
    case = prepare(raw, tmp_path / "out", config, workers=1, progress=False).case(tiny.cases[0])
    assert len(np.unique(case.foreground[1], axis=0)) == 10


def test_a_dataset_travels_to_another_process(prepared, tiny):
    prepared.case(tiny.cases[0]).scan[:1]
    case = pickle.loads(pickle.dumps(prepared)).case(tiny.cases[0])
    assert np.array_equal(case.scan[:], tiny.scan())


def test_what_is_up_to_date_is_left_alone(raw, prepared, config, raw_folder):
    before = stamps(prepared.folder / "cases")
    prepare_again(raw_folder, prepared, config)
    assert stamps(prepared.folder / "cases") == before


def test_only_a_changed_case_is_prepared_again(prepared, config, raw_folder, tiny):
    before = stamps(prepared.folder / "cases")
    tiny.write(raw_folder / "imagesTr" / f"{tiny.cases[2]}_0000.nii.gz", np.minimum(tiny.scan(), 50))
    again = prepare_again(raw_folder, prepared, config)
    after = stamps(prepared.folder / "cases")
    assert {path.parent.name for path in before if before[path] != after.get(path)} == {tiny.cases[2]}
    assert again.case(tiny.cases[2]).scan[:].max() == 50


def test_files_with_other_times_and_the_same_content_are_not_prepared_again(
    prepared, config, raw_folder, monkeypatch
):
    before, fingerprint = stamps(prepared.folder / "cases"), prepared.fingerprint
    for file in raw_folder.rglob("*.nii.gz"):
        os.utime(file, (1, 1))  # as a copy or a new mount does
    again = prepare_again(raw_folder, prepared, config)
    after = stamps(prepared.folder / "cases")
    assert {path.name for path in before if before[path] != after[path]} == {"case.json"}
    assert again.fingerprint == fingerprint
    monkeypatch.setattr(prepare_module, "_name_and_checksum", lambda path: pytest.fail("read again"))
    prepare_again(raw_folder, prepared, config)


def test_looking_for_cases_to_prepare_reads_files_once_and_makes_nothing(
    prepared, config, raw_folder, tmp_path, monkeypatch
):
    raw = RawDataset.open(raw_folder, workers=1, check=False)
    assert stale_cases(raw, tmp_path / "new", config) == list(raw.cases)
    assert not (tmp_path / "new").exists()
    for file in raw_folder.rglob("*.nii.gz"):
        os.utime(file, (1, 1))
    assert stale_cases(raw, prepared.folder, config) == []
    monkeypatch.setattr(prepare_module, "_name_and_checksum", lambda path: pytest.fail("read again"))
    prepare(raw, prepared.folder, config, workers=1, progress=False)


def test_a_dataset_in_another_place_is_not_prepared_again(prepared, config, raw_folder, tmp_path):
    before, fingerprint = stamps(prepared.folder / "cases"), prepared.fingerprint
    (tmp_path / "elsewhere").mkdir()
    moved = raw_folder.rename(tmp_path / "elsewhere" / raw_folder.name)
    again = prepare_again(moved, prepared, config)
    after = stamps(prepared.folder / "cases")
    assert {path.name for path in before if before[path] != after[path]} == {"case.json"}
    assert again.fingerprint == fingerprint
    assert {again.case(name).raw_scan.parent for name in again.splits} == {moved / "imagesTr"}


def test_another_content_under_the_same_size_is_seen(prepared, config, raw_folder, tiny):
    file = raw_folder / "labelsTr" / f"{tiny.cases[2]}.nii.gz"
    content = bytearray(file.read_bytes())
    content[4] ^= 1  # the time that gzip notes: no voxel changes
    file.write_bytes(content)
    os.utime(file, (1, 1))
    before = stamps(prepared.folder / "cases")
    prepare_again(raw_folder, prepared, config)
    after = stamps(prepared.folder / "cases")
    assert {path.parent.name for path in before if before[path] != after[path]} == {tiny.cases[2]}


def test_another_spacing_in_the_same_folder_prepares_all_cases_again(prepared, raw_folder, tiny):
    again = prepare_again(raw_folder, prepared, PrepareConfig((6.0, 4.0, 4.0)))
    assert {again.case(name).shape for name in tiny.cases} == {(6, 6, 6)}
    assert PreparedDataset.open(prepared.folder).config.spacing_mm == (6.0, 4.0, 4.0)


def test_the_fingerprint_changes_with_the_content_of_one_case(prepared, config, raw_folder, tiny):
    before = prepared.fingerprint
    assert PreparedDataset.open(prepared.folder).fingerprint == before
    assert prepare_again(raw_folder, prepared, config).fingerprint == before
    tiny.write(raw_folder / "imagesTr" / f"{tiny.cases[2]}_0000.nii.gz", np.minimum(tiny.scan(), 50))
    assert prepare_again(raw_folder, prepared, config).fingerprint != before


def test_a_stopped_preparation_goes_on_where_it_was(raw, tmp_path, config, monkeypatch, tiny):
    out = tmp_path / "out"
    write_foreground = prepare_module._write_foreground

    def stopped_in_the_fourth(file, labels, case_name):
        if case_name == tiny.cases[3]:
            raise KeyboardInterrupt
        return write_foreground(file, labels, case_name)

    monkeypatch.setattr(prepare_module, "_write_foreground", stopped_in_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        prepare(raw, out, config, workers=1, progress=False)
    with pytest.raises(DatasetError, match=r"not finished.*conseg prepare"):
        PreparedDataset.open(out)
    before = stamps(out / "cases")
    monkeypatch.setattr(prepare_module, "_write_foreground", write_foreground)
    prepare(raw, out, config, workers=1, progress=False)
    after = stamps(out / "cases")
    assert all(after[path] == before[path] for path in before if path.parent.name != tiny.cases[3])
    assert np.array_equal(PreparedDataset.open(out).case(tiny.cases[3]).labels[:], tiny.labels(3))


@pytest.mark.parametrize("workers", [1, 2])
def test_failing_cases_are_named_together_and_do_not_stop_the_others(raw, tmp_path, config, workers, tiny):
    broken = [raw.cases[1], raw.cases[4]]
    for case in broken:
        os.truncate(case.scan, 100)
    out = tmp_path / "out"
    with pytest.raises(DatasetError, match=f"2 of 6 cases(.|\n)*{tiny.cases[1]}(.|\n)*{tiny.cases[4]}"):
        prepare(raw, out, config, workers=workers, progress=False)
    done = {path.parent.name for path in out.rglob("case.json")}
    assert done == set(tiny.cases) - {case.name for case in broken}
    for case in broken:
        tiny.write(case.scan, tiny.scan())
    again = prepare(raw, out, config, workers=1, progress=False)
    for number, name in enumerate(tiny.cases):  # made by one process or by several: the same
        assert np.array_equal(again.case(name).scan[:], tiny.scan())
        assert np.array_equal(again.case(name).labels[:], tiny.labels(number))


def test_an_organ_that_no_training_case_shows_is_reported(raw, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        prepare(raw, tmp_path / "out", PrepareConfig((9.0, 8.0, 8.0)), workers=1, progress=False)
    assert "no training case has a voxel of spleen" in caplog.text


# Folders that are something else


def test_a_prepared_dataset_in_place_of_a_raw_one_is_reported(prepared):
    with pytest.raises(DatasetError, match="this is a prepared dataset"):
        RawDataset.open(prepared.folder)


def test_a_raw_dataset_in_place_of_a_prepared_one_is_told_how_to_go_on(raw_folder):
    with pytest.raises(DatasetError, match=f"conseg prepare {raw_folder}"):
        PreparedDataset.open(raw_folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"nowhere: there is no such folder"):
        PreparedDataset.open(tmp_path / "nowhere")


def test_the_raw_dataset_is_never_written_into(raw, config):
    before = stamps(raw.folder)
    with pytest.raises(DatasetError, match="raw dataset itself"):
        prepare(raw, raw.folder, config)
    assert stamps(raw.folder) == before


def test_another_dataset_in_the_folder_is_refused(raw, prepared, config):
    description = json.loads((prepared.folder / "dataset.json").read_text())
    (prepared.folder / "dataset.json").write_text(json.dumps(description | {"name": "Dataset001_Other"}))
    with pytest.raises(DatasetError, match=r"Dataset001_Other.*-o"):
        prepare(raw, prepared.folder, config)


def test_a_case_that_was_deleted_is_named(prepared, tiny):
    (prepared.case_folder(tiny.cases[5]) / "case.json").unlink()
    with pytest.raises(DatasetError, match=f"1 of 6 cases.*{tiny.cases[5]}"):
        PreparedDataset.open(prepared.folder)


# Splits


def test_splits_have_their_shares_and_a_case_keeps_its_own():
    names = [f"patient_{number:04d}" for number in range(2000)]
    splits = split_cases(names)
    counts = {split: list(splits.values()).count(split) / 2000 for split in ("train", "validation", "test")}
    assert counts == pytest.approx({"train": 0.64, "validation": 0.16, "test": 0.2}, abs=0.03)
    fewer = split_cases(names[::7])
    assert all(splits[name] == split for name, split in fewer.items())
    assert split_cases(reversed(names)) == splits


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_a_small_dataset_has_a_case_in_every_split(count):
    for start in range(40):
        splits = split_cases(f"case_{start + number}" for number in range(count))
        assert set(splits.values()) == {"train", "validation", "test"}


def test_one_or_two_cases_are_for_training():
    assert set(split_cases(["a", "b"]).values()) == {"train"}


# One scan


def test_a_scan_to_segment_gets_what_a_training_scan_got(prepared, config):
    voxels = np.random.default_rng(0).integers(-1500, 1500, (9, 10, 11)).astype(np.int16)
    grid = Grid(voxels.shape, np.diag([2.0, 2.0, 1.5, 1.0]))
    scan = prepare_scan(Volume(voxels, grid), config)
    assert scan.voxels.dtype == np.int16
    assert scan.voxels.min() >= -1024
    assert scan.voxels.max() <= 1024
    assert scan.grid.shape == (4, 10, 11)


@pytest.mark.parametrize("wrong", [{"spacing_mm": (1.0, 1.0)}, {"spacing_mm": (1.0, 0.0, 1.0)}])
def test_a_spacing_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="spacing_mm"):
        PrepareConfig(**wrong)
