"""How much is done and left."""

from types import SimpleNamespace

from continual_segment.lab.benchmark.progress import Progress, minutes


def piece(title, kind, size, done=False):
    return SimpleNamespace(title=title, kind=kind, size=size, is_done=lambda: done)


def test_the_rest_is_estimated_from_pieces_of_the_same_kind(tmp_path):
    pieces = [
        piece("one", "train mib", 10, done=True),
        piece("two", "train mib", 30),
        piece("three", "score", 4),
    ]
    progress = Progress(tmp_path / "progress.json", pieces)
    assert progress.left(pieces) is None
    progress.add(pieces[0], 120.0)
    assert progress.left(pieces[:2]) == 360
    assert progress.left(pieces) is None  # scoring has not been measured
    assert progress.sentence(pieces[:2]) == "1 of 2 pieces done in 2 min, about 6 min left"


def test_a_method_not_yet_measured_is_taken_to_be_as_slow_as_others(tmp_path):
    pieces = [piece("one", "train mib", 10, done=True), piece("two", "train plop", 5)]
    progress = Progress(tmp_path / "progress.json", pieces)
    progress.add(pieces[0], 20.0)
    assert progress.left(pieces) == 10


def test_a_run_that_goes_on_knows_what_was_measured_before(tmp_path):
    pieces = [piece("one", "score", 2, done=True), piece("two", "score", 4)]
    Progress(tmp_path / "progress.json", pieces).add(pieces[0], 3.0)
    assert Progress(tmp_path / "progress.json", pieces).left(pieces) == 6


def test_two_runs_side_by_side_keep_what_either_measured(tmp_path):
    pieces = [piece("one", "train mib", 2, done=True), piece("two", "train plop", 4, done=True)]
    runs = [Progress(tmp_path / "progress.json", [each]) for each in pieces]
    for run, each in zip(runs, pieces, strict=True):
        run.add(each, 3.0)
    assert Progress(tmp_path / "progress.json", pieces).seconds == {"one": 3.0, "two": 3.0}


def test_times_read_well():
    assert minutes(59 * 60) == "59 min"
    assert minutes(2 * 3600 + 5 * 60) == "2 h 5 min"
