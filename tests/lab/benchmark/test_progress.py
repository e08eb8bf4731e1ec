"""How much is done and left."""

from types import SimpleNamespace

from continual_segment.lab.benchmark.progress import Progress, minutes


def task(title, kind, size, done=False):
    return SimpleNamespace(title=title, kind=kind, size=size, is_done=lambda: done)


def test_the_rest_is_estimated_from_tasks_of_the_same_kind(tmp_path):
    tasks = [
        task("one", "train mib", 10, done=True),
        task("two", "train mib", 30),
        task("three", "score", 4),
    ]
    progress = Progress(tmp_path / "progress.json", tasks)
    assert progress.left(tasks) is None
    progress.add(tasks[0], 120.0)
    assert progress.left(tasks[:2]) == 360
    assert progress.left(tasks) is None  # scoring has not been measured
    assert progress.sentence(tasks[:2]) == "1 of 2 tasks done in 2 min, about 6 min left"


def test_a_method_not_yet_measured_is_taken_to_be_as_slow_as_others(tmp_path):
    tasks = [task("one", "train mib", 10, done=True), task("two", "train plop", 5)]
    progress = Progress(tmp_path / "progress.json", tasks)
    progress.add(tasks[0], 20.0)
    assert progress.left(tasks) == 10


def test_a_run_that_resumes_knows_what_was_measured_before(tmp_path):
    tasks = [task("one", "score", 2, done=True), task("two", "score", 4)]
    Progress(tmp_path / "progress.json", tasks).add(tasks[0], 3.0)
    assert Progress(tmp_path / "progress.json", tasks).left(tasks) == 6


def test_two_runs_side_by_side_keep_what_either_measured(tmp_path):
    tasks = [task("one", "train mib", 2, done=True), task("two", "train plop", 4, done=True)]
    runs = [Progress(tmp_path / "progress.json", [each]) for each in tasks]
    for run, each in zip(runs, tasks, strict=True):
        run.add(each, 3.0)
    assert Progress(tmp_path / "progress.json", tasks).seconds == {"one": 3.0, "two": 3.0}


def test_times_read_well():
    assert minutes(59 * 60) == "59 min"
    assert minutes(2 * 3600 + 5 * 60) == "2 h 5 min"
