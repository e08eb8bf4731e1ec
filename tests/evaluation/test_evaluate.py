import csv
import json
import subprocess
import sys
from math import isnan, sqrt

import numpy as np
import pytest

from continual_segment.errors import DatasetError
from continual_segment.evaluation import Evaluation, ScoreRow, evaluate, score_case
from continual_segment.files import write_labels, write_scan
from continual_segment.volume import Grid, LabelMap, Volume

SHAPE = (6, 8, 10)
SPACING_MM = (5.0, 2.0, 1.0)
DIAGONAL_MM = sqrt(30**2 + 16**2 + 10**2)
TRUTH_NAMES = {1: "liver", 2: "spleen", 3: "kidney_left"}
MODEL_NAMES = {5: "Liver", 90: "heart", 3: "left kidney", 1: "spleen"}
"""As a model writes them: other numbers, other spellings, more organs."""


def grid(shift_mm=0.0, shape=SHAPE, spacing_mm=SPACING_MM):
    affine = np.diag([*spacing_mm[::-1], 1.0])
    affine[0, 3] = shift_mm
    return Grid(shape, affine)


def label_map(boxes, names, where=None):
    """A map with the given slices filled: {label: (z, y, x) slices}."""
    voxels = np.zeros(SHAPE, np.uint8)
    for label, box in boxes.items():
        voxels[box] = label
    return LabelMap(voxels, where or grid(), names)


LIVER = np.s_[0:2, 0:4, 0:5]
SPLEEN = np.s_[3:5, 2:6, 5:9]
KIDNEY = np.s_[5:6, 0:2, 0:2]
HEART = np.s_[0:2, 6:8, 6:10]


def perfect_truth():
    return label_map({1: LIVER, 2: SPLEEN}, TRUTH_NAMES)


def perfect_prediction():
    return label_map({5: LIVER, 1: SPLEEN, 90: HEART}, MODEL_NAMES)


@pytest.fixture
def folders(tmp_path):
    """Two cases: a perfect one, and one with the spleen missed and a kidney that is not there."""
    predictions, truth = tmp_path / "predictions", tmp_path / "truth"
    write_labels(predictions / "good.nii.gz", perfect_prediction())
    write_labels(truth / "good.nii.gz", perfect_truth())
    write_labels(predictions / "poor.nii.gz", label_map({5: LIVER, 3: KIDNEY}, MODEL_NAMES))
    write_labels(truth / "poor.nii.gz", perfect_truth())
    return predictions, truth


def by_organ(evaluation):
    return {mean.name: mean for mean in evaluation.organs}


def test_organs_are_matched_by_name_whatever_their_numbers_and_spelling():
    rows = {row.organ: row for row in score_case("good", perfect_prediction(), perfect_truth())}
    assert set(rows) == {"liver", "spleen", "kidney_left"}  # the heart is the model's alone
    assert (rows["liver"].dice, rows["spleen"].dice) == (1, 1)
    assert isnan(rows["kidney_left"].dice)
    assert rows["liver"].truth_ml == pytest.approx(40 * 10 / 1000)


def test_distances_use_the_spacing_of_the_grid():
    truth = label_map({1: np.s_[2:3, :, :]}, {1: "liver"})
    prediction = label_map({1: np.s_[4:5, :, :]}, {1: "liver"})
    (row,) = score_case("sheet", prediction, truth)
    assert (row.hd95_mm, row.asd_mm) == pytest.approx((10.0, 10.0))


def test_a_missed_organ_is_excluded_from_one_mean_and_costs_the_diagonal_in_the_other(folders):
    spleen = by_organ(evaluate(*folders, workers=1))["spleen"]
    assert (spleen.scored, spleen.excluded) == (2, 1)
    assert spleen.dice == pytest.approx(0.5)
    assert spleen.hd95_mm == 0
    assert spleen.hd95_penalised_mm == pytest.approx(DIAGONAL_MM / 2)
    assert spleen.asd_penalised_mm == pytest.approx(DIAGONAL_MM / 2)


def test_volume_predicted_where_the_truth_has_none_is_reported_and_not_scored(folders):
    kidney = by_organ(evaluate(*folders, workers=1))["kidney_left"]
    assert (kidney.scored, kidney.absent) == (0, 2)
    assert kidney.false_positive_ml == pytest.approx((4 * 10 / 1000 + 0) / 2)
    assert isnan(kidney.dice)


def test_the_dataset_mean_weighs_every_organ_the_same():
    def row(case, organ, dice):
        return ScoreRow(case, organ, dice, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, float("nan"))

    rows = [row("a", "liver", 0.9), row("b", "liver", 0.7), row("c", "liver", 0.8), row("a", "spleen", 0.4)]
    evaluation = Evaluation.from_rows(rows)
    assert evaluation.mean.dice == pytest.approx((0.8 + 0.4) / 2)
    assert evaluation.mean.scored == 4


def test_groups_gather_organs_of_one_kind():
    names = {1: "rib_left_1", 2: "rib_left_2", 3: "liver"}
    labels = label_map({1: LIVER, 2: SPLEEN, 3: KIDNEY}, names)
    groups = {g.name: g for g in Evaluation.from_rows(score_case("ribs", labels, labels)).groups}
    assert sorted(g.scored for g in groups.values()) == [1, 2]


def test_a_pool_of_processes_gives_the_same_as_one(folders):
    assert evaluate(*folders, workers=2, progress=False).to_json() == evaluate(*folders, workers=1).to_json()


def test_organs_may_be_narrowed(folders):
    assert [mean.name for mean in evaluate(*folders, workers=1, organs=["Liver"]).organs] == ["liver"]


def test_an_organ_the_truth_does_not_label_is_named(folders):
    with pytest.raises(DatasetError, match="does not label livre"):
        evaluate(*folders, workers=1, organs=["liver", "livre"])


def test_cases_without_a_partner_are_listed(folders):
    predictions, truth = folders
    (predictions / "poor.nii.gz").rename(predictions / "other.nii.gz")
    evaluation = evaluate(predictions, truth, workers=1)
    assert evaluation.cases == ("good",)
    assert evaluation.without_prediction == ("poor",)
    assert evaluation.without_truth == ("other",)


def test_no_case_in_common_is_a_sentence_with_both_folders(folders):
    predictions, truth = folders
    for path in list(predictions.iterdir()):
        path.rename(path.with_name(f"scan_{path.name}"))
    with pytest.raises(DatasetError, match=r"scan_good, scan_poor.*good, poor"):
        evaluate(predictions, truth, workers=1)


def test_a_prediction_may_bear_the_channel_number_of_its_scan(folders):
    predictions, truth = folders
    (predictions / "poor.nii.gz").rename(predictions / "poor_0000.nii.gz")
    evaluation = evaluate(predictions, truth, workers=1)
    assert evaluation.cases == ("good", "poor")
    assert evaluation.without_truth == ()


@pytest.mark.parametrize(
    "other_grid", [grid(shift_mm=1.0), grid(spacing_mm=(5.0, 2.0, 1.1))], ids=["shifted", "spaced"]
)
def test_a_case_on_another_grid_is_told_and_the_others_are_scored(folders, other_grid):
    predictions, truth = folders
    write_labels(predictions / "poor.nii.gz", label_map({5: LIVER}, MODEL_NAMES, other_grid))
    evaluation = evaluate(predictions, truth, workers=1)
    assert evaluation.cases == ("good",)
    (sentence,) = evaluation.failures
    assert sentence.startswith("poor: ")
    assert "6 x 8 x 10 voxels" in sentence


def test_a_failure_without_words_is_told_with_its_case(folders, monkeypatch):
    predictions, truth = folders

    def read(path):
        raise MemoryError

    monkeypatch.setattr("continual_segment.evaluation.label_source.read_labels", read)
    with pytest.raises(DatasetError, match="good: MemoryError\npoor: MemoryError"):
        evaluate(predictions, truth, workers=1)


def test_when_no_case_can_be_scored_every_reason_is_given(folders):
    predictions, truth = folders
    for path in predictions.iterdir():
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DatasetError, match=r"(?s)No case could be scored.*good.*poor"):
        evaluate(predictions, truth, workers=1)


@pytest.mark.parametrize("names", [{1: "liver"}, {1: "liver", 7: "--"}])
def test_a_label_without_a_name_is_refused(names):
    truth = label_map({1: LIVER, 7: SPLEEN}, names)
    with pytest.raises(DatasetError, match=r"case: .*\b7\."):
        score_case("case", perfect_prediction(), truth)


@pytest.mark.parametrize(
    "labels",
    [{"background": 0, "liver": 1, "spleen": 2}, {"0": "background", "1": "liver", "2": "spleen"}],
    ids=["name first", "number first"],
)
@pytest.mark.parametrize("place", [".", ".."])
def test_names_of_a_plain_folder_may_stand_in_a_dataset_json_beside_or_above(folders, labels, place):
    predictions, truth = folders
    for case in ("good", "poor"):
        write_labels(truth / f"{case}.nii.gz", label_map({1: LIVER, 2: SPLEEN}, {}))
    (truth / place / "dataset.json").write_text(json.dumps({"labels": labels}))
    assert by_organ(evaluate(predictions, truth, workers=1))["liver"].dice == 1


def test_a_plain_folder_without_any_names_says_what_to_add(folders):
    predictions, truth = folders
    for case in ("good", "poor"):
        write_labels(truth / f"{case}.nii.gz", label_map({1: LIVER, 2: SPLEEN}, {}))
    with pytest.raises(DatasetError, match=r"Add a dataset\.json"):
        evaluate(predictions, truth, workers=1)


def test_a_dataset_json_that_cannot_be_is_reported(folders):
    predictions, truth = folders
    (truth / "dataset.json").write_text('{"labels": {"background": 0, "liver": [1, 2]}}')
    with pytest.raises(DatasetError, match=r"dataset\.json: .*region"):
        evaluate(predictions, truth, workers=1)
    (truth / "dataset.json").write_text("[]")
    with pytest.raises(DatasetError, match="cannot be read"):
        evaluate(predictions, truth, workers=1)


def test_a_missing_folder_is_reported(folders, tmp_path):
    with pytest.raises(DatasetError, match="there is no such folder"):
        evaluate(tmp_path / "nowhere", folders[1])


def write_scans(folder, names):
    noise = np.random.default_rng(0).integers(-1000, 1000, SHAPE).astype(np.int16)
    for name in names:
        write_scan(folder / name, Volume(noise, grid()))


def test_the_truth_may_be_a_raw_nnunet_dataset(folders, tmp_path):
    raw = tmp_path / "Dataset001_Test"
    write_scans(raw / "imagesTr", ["good_0000.nii.gz", "poor_0000.nii.gz"])
    for case in ("good", "poor"):
        # Numbers with gaps: the raw dataset renumbers them.
        write_labels(raw / "labelsTr" / f"{case}.nii.gz", label_map({4: LIVER, 9: SPLEEN}, {}))
    description = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 4, "spleen": 9}}
    (raw / "dataset.json").write_text(json.dumps(description | {"numTraining": 2, "file_ending": ".nii.gz"}))
    means = by_organ(evaluate(folders[0], raw, workers=2, progress=False))
    assert (means["liver"].dice, means["spleen"].dice) == (1, 0.5)


def test_scoring_does_not_open_the_scans_and_allows_the_rounding_that_prepare_allows(folders, tmp_path):
    raw = tmp_path / "Dataset001_Test"
    (raw / "imagesTr").mkdir(parents=True)
    for case in ("good", "poor"):
        (raw / "imagesTr" / f"{case}_0000.nii.gz").write_text("no scan")
        write_labels(raw / "labelsTr" / f"{case}.nii.gz", label_map({1: LIVER}, {}, grid(shift_mm=0.04)))
    (raw / "dataset.json").write_text('{"labels": {"background": 0, "liver": 1}}')
    assert by_organ(evaluate(folders[0], raw, workers=1))["liver"].dice == 1


def test_the_truth_may_be_a_totalsegmentator_dataset(folders, tmp_path):
    raw = tmp_path / "total"
    for case in ("good", "poor"):
        write_scans(raw / case, ["ct.nii.gz"])
        for organ, box in (("liver", LIVER), ("spleen", SPLEEN)):
            write_labels(raw / case / "segmentations" / f"{organ}.nii.gz", label_map({1: box}, {}))
    means = by_organ(evaluate(folders[0], raw, workers=1))
    assert (means["liver"].dice, means["spleen"].dice) == (1, 0.5)


def test_what_is_written_reads_back_the_same(folders, tmp_path):
    evaluation = evaluate(*folders, workers=1)
    evaluation.write(tmp_path / "out")
    assert Evaluation.read(tmp_path / "out").to_json() == evaluation.to_json()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "scores.csv",
        "organs.csv",
        "evaluation.json",
    }


def test_the_csv_has_a_line_per_case_and_organ_and_empty_cells_for_the_undefined(folders, tmp_path):
    evaluate(*folders, workers=1).write(tmp_path)
    lines = list(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))
    assert [(line["case"], line["organ"]) for line in lines] == [
        (case, organ) for case in ("good", "poor") for organ in ("kidney_left", "liver", "spleen")
    ]
    missed = lines[-1]
    assert (float(missed["dice"]), missed["hd95_mm"]) == (0, "")
    assert float(missed["hd95_penalised_mm"]) == pytest.approx(DIAGONAL_MM)
    means = list(csv.DictReader((tmp_path / "organs.csv").read_text().splitlines()))
    assert means[-1]["kind"] == "dataset"
    assert float(means[-1]["dice"]) == pytest.approx(0.75)


def test_the_json_is_strict_json_with_null_for_the_undefined(folders):
    data = json.loads(evaluate(*folders, workers=1).to_json(), parse_constant=pytest.fail)
    kidney = next(organ for organ in data["organs"] if organ["name"] == "kidney_left")
    assert kidney["dice"] is None
    assert data["mean"]["dice"] == pytest.approx(0.75)


def test_reading_what_is_no_evaluation_is_reported(tmp_path):
    with pytest.raises(DatasetError, match="not an evaluation"):
        Evaluation.read(tmp_path)
    (tmp_path / "evaluation.json").write_text('{"rows": [{"case": 1}]}')
    with pytest.raises(DatasetError, match="not an evaluation"):
        Evaluation.read(tmp_path)


def test_the_table_is_aligned_with_organs_by_name_and_the_mean_last(folders):
    lines = evaluate(*folders, workers=1).table().splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.split()[0] for line in lines if not line.startswith("-")] == [
        "organ",
        "kidney_left",
        "liver",
        "spleen",
        "mean",
    ]
    spleen = lines[-3].split()
    assert spleen[:4] == ["spleen", "2", "0.5000", "0.00"]


def test_scoring_needs_no_torch():
    code = "import sys, continual_segment.evaluation; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
