"""Which windows of the validation scans judge decoders."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import DatasetError
from continual_segment.learning import StageConfig, learn_dataset
from continual_segment.learning.joint import head_step
from continual_segment.learning.judge import Judge
from continual_segment.learning.validation import CoveringWindows, organs_in_windows, thinned_out
from continual_segment.segmentation.windows import covering_corners


def test_windows_cover_every_voxel_of_the_validation_scans_and_no_other_scan(datasets, preset):
    dataset = datasets["chest"]
    windows = CoveringWindows(dataset, preset.patches.size, 10_000)
    names = {case.name for case, _ in windows.places}
    assert names == set(dataset.case_names("validation"))
    for name in names:
        case = dataset.case(name)
        seen = torch.zeros(case.shape, dtype=torch.bool)
        for other, corner in windows.places:
            if other.name == name:
                box = tuple(
                    slice(max(at, 0), max(at + n, 0)) for at, n in zip(corner, windows.size, strict=True)
                )
                seen[box] = True
        assert seen.all()


def test_a_scan_smaller_than_a_window_lies_in_its_middle():
    assert covering_corners((4, 20, 8), (8, 10, 8)) == [[-2, 0, 0], [-2, 10, 0]]


def test_a_window_shows_the_organs_that_are_in_it(datasets, preset):
    case = datasets["chest"].case(datasets["chest"].case_names("validation")[0])
    shown = organs_in_windows(case, preset.patches.size)
    for corner, organs in zip(covering_corners(case.shape, preset.patches.size), shown, strict=True):
        box = tuple(slice(max(at, 0), at + n) for at, n in zip(corner, preset.patches.size, strict=True))
        assert organs <= set(case.labels[box].ravel().tolist()) - {0}
    assert set().union(*shown) == set(case.foreground_rows)


def test_a_few_windows_show_an_organ_that_is_in_one_of_a_hundred():
    shown = [set() for _ in range(100)]
    shown[41] = {1}
    assert 41 in thinned_out(shown, 4)


@given(st.lists(st.sets(st.integers(1, 5)), max_size=40), st.integers(1, 50))
def test_windows_are_thinned_out_to_the_number_and_most_of_them_show_an_organ(shown, count):
    kept = thinned_out(shown, count)
    assert kept == sorted(set(kept))
    assert len(kept) == min(count, len(shown))
    showing = sum(bool(organs) for organs in shown)
    assert sum(bool(shown[number]) for number in kept) >= min(showing, round(0.75 * len(kept)))


@given(st.lists(st.sets(st.integers(1, 3)), min_size=1, max_size=40), st.integers(4, 50))
def test_every_organ_is_among_a_few_windows(shown, count):
    found = set().union(*(shown[number] for number in thinned_out(shown, count)))
    assert found == set().union(*shown)


@pytest.mark.parametrize(
    ("organs", "scans", "count"), [(24, 10, 24), (100, 20, 60), (1, 12, 20), (3, 40, 20)]
)
def test_windows_come_from_all_scans(organs, scans, count):
    """Of 27 windows of a scan each shows a few of the organs, and some show none."""
    each = 27
    shown = [
        {1 + (organ + window) % organs for organ in range(3)} if window % each % 3 == 0 else set()
        for window in range(scans * each)
    ]
    taken = [number // each for number in thinned_out(shown, count)]
    assert max(map(taken.count, taken)) <= 3 * -(-count // scans)
    assert len(set(taken)) >= 0.6 * min(scans, count)


@pytest.fixture
def shows_nothing(datasets, monkeypatch):
    """A dataset whose validation scans show no organ."""
    dataset, case = datasets["chest"], PreparedDataset.case
    hidden = dataset.case_names("validation")

    def without_organs(self, name):
        return replace(case(self, name), foreground_rows={}) if name in hidden else case(self, name)

    monkeypatch.setattr(PreparedDataset, "case", without_organs)
    return dataset


def test_validation_scans_without_any_organ_are_refused_before_anything_is_learned(
    shows_nothing, preset, tmp_path
):
    config = replace(preset, stage=StageConfig(("train", "shrink")))
    with pytest.raises(DatasetError, match="no scan of the validation split shows"):
        learn_dataset(shows_nothing, tmp_path / "model", config)
    assert not list(tmp_path.iterdir())


def test_anomaly_heads_are_not_made_smaller_and_need_no_such_scan(shows_nothing, preset, tmp_path):
    config = replace(preset, stage=StageConfig(("train", "shrink")))
    assert head_step(shows_nothing, tmp_path / "model", config).name == shows_nothing.name


def test_a_score_on_other_windows_is_not_taken_over(phantom_step):
    judges = [Judge(phantom_step, 3), Judge(phantom_step, 3)]
    judges[1].windows.places = judges[1].windows.places[::-1]
    asked = []
    for judge in (judges[0], judges[0], judges[1]):
        judge.remember("score", {}, lambda: asked.append(None))
    assert len(asked) == 2


def test_a_score_of_other_labels_is_not_taken_over(phantom_step):
    """The scans, their windows and the weights are the same; labels were corrected."""
    corrected = copy.copy(phantom_step.source.dataset)
    corrected.fingerprint = "another"
    other = replace(phantom_step, source=replace(phantom_step.source, dataset=corrected))
    asked = []
    for step in (phantom_step, phantom_step, other):
        Judge(step, 3).remember("score", {}, lambda: asked.append(None))
    assert len(asked) == 2


def test_decoders_are_judged_in_the_precision_of_the_training(phantom_step):
    settings = replace(phantom_step.settings, precision="bfloat16")
    seen, asked = [], []

    def answers(features):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        yield None, torch.zeros(1, phantom_step.organs + 1, *features[0].shape[2:])

    for step in (phantom_step, replace(phantom_step, settings=settings)):
        judge = Judge(step, 1)
        judge.dice_of_all(answers)
        judge.remember("score", {}, lambda: asked.append(None))
    assert seen == [torch.float32, torch.bfloat16]
    assert len(asked) == 2
    assert not torch.is_autocast_enabled("cpu")
