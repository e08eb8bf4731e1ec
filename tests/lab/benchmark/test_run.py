"""A benchmark from raw datasets to tables: three tiny phantoms, two orders, ours and MiB."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace

import pytest

from continual_segment.data.prepare import prepare
from continual_segment.data.raw import RawDataset
from continual_segment.errors import ConfigError
from continual_segment.files.atomic import write_text
from continual_segment.lab.baselines.first_step import first_step_of
from continual_segment.lab.benchmark import Plan, make_orders, run_benchmark
from continual_segment.lab.benchmark.paths import BenchmarkPaths
from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.phantom import write_phantom
from continual_segment.lab.protocol import ProtocolDataset
from continual_segment.model import Model
from continual_segment.training import history


@pytest.fixture(scope="module")
def plan(raw_datasets, preset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    third = write_phantom(folder, "headneck", 4, 0, (16.0,) * 3, workers=1, organs="demo", progress=False)
    raws = raw_datasets | {"headneck": RawDataset.open(third, workers=1, progress=False)}
    datasets = {name: ProtocolDataset(raw) for name, raw in raws.items()}
    config = replace(
        preset.on(iterations=2, report_every=1), segment=replace(preset.segment, overlap=0.0, progress=False)
    )
    orders = make_orders(list(datasets), ["A", "B"])
    return Plan(config, datasets, orders, ("ours", "mib"), held_out=1)


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory):
    """A benchmark that was stopped in a step of MiB and resumed; and the titles of the tasks of each run."""
    folder = tmp_path_factory.mktemp("benchmark") / "out"
    for name, dataset in plan.datasets.items():  # in this process: starting others takes longer
        prepare(dataset.raw, folder / "prepared" / name, plan.config.prepare, workers=1, progress=False)
    patch = pytest.MonkeyPatch()
    patch.setattr(history, "curves_png", lambda rows: b"")
    patch.setattr(
        "continual_segment.lab.benchmark.tasks.Task.part", ""
    )  # no results on the way: drawing is slow
    done = []
    patch.setattr("continual_segment.lab.benchmark.run.Progress.add", note_in(done))

    def stop(path, log):
        write_text(path, log)
        if "mib" in str(path):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as stopping:
        stopping.setattr("continual_segment.training.history.write_text", stop)
        with pytest.raises(KeyboardInterrupt):
            run_benchmark(folder, plan)
    before, done[:] = list(done), []
    run_benchmark(folder, plan)
    patch.undo()
    return folder, before, done


def note_in(titles):
    return lambda progress, task, seconds: titles.append(task.title)


def test_what_was_finished_is_not_done_again(finished):
    _, before, after = finished
    assert "first step: totalseg" in before
    assert "order A, ours, step 3: headneck" in before
    assert after[0] == "order A, mib, step 2: chest"
    assert not set(before) & set(after)
    assert sum(title.startswith("first step") for title in before + after) == 1


def test_a_finished_benchmark_has_nothing_left_to_do(finished, plan, monkeypatch):
    monkeypatch.setattr("continual_segment.lab.benchmark.run.write_results", lambda paths: paths.folder)
    titles = []
    monkeypatch.setattr("continual_segment.lab.benchmark.run.Progress.add", note_in(titles))
    run_benchmark(finished[0], plan)
    assert titles == []


def test_ours_forgets_nothing(finished, plan):  # T51
    results = Results(BenchmarkPaths(finished[0], plan))
    for order in ("A", "B"):
        lost = results.forgetting(order, "ours, own pack")
        assert [each.step for each in lost] == [2, 3]
        assert all(value == 0 for each in lost for value in each.relative.values())
        for dataset in plan.orders[order][:2]:
            first, last = (
                results.scores[order, "ours, own pack", step, dataset].rows
                for step in (plan.orders[order].index(dataset) + 1, 3)
            )
            assert [(row.dice, row.prediction_ml) for row in first] == [
                (row.dice, row.prediction_ml) for row in last
            ]


def test_our_packs_are_the_same_to_the_bit_in_either_order(finished, plan):
    one, other = (Model.open(finished[0] / order / "ours" / "model") for order in ("A", "B"))
    for name in plan.datasets:
        assert one.pack_path(name).read_bytes() == other.pack_path(name).read_bytes()
    data = json.loads((finished[0] / "results.json").read_text())
    assert data["our_packs_do_not_depend_on_the_order"] is True


def test_the_default_rule_has_the_scores_of_ours_in_the_table_of_rules(finished, plan):
    """Under the same conditions: body parts, nested organs."""
    results = Results(BenchmarkPaths(finished[0], plan))
    last = results.last("A", "ours")
    for name in plan.datasets:
        assert results.merging("A", "ours")["weighted", name].rows == last[name].rows


def test_mib_is_one_network_that_depends_on_the_order(finished):
    models = [
        Model.open(finished[0] / "A" / "mib" / "step_3_headneck" / "model"),
        Model.open(finished[0] / "B" / "mib" / "step_3_chest" / "model"),
    ]
    assert [len(model.pack_names) for model in models] == [1, 1]
    assert set(models[0].organs) == set(models[1].organs)
    assert models[0].encoder_fingerprint != models[1].encoder_fingerprint


def test_every_result_records_the_first_step_that_it_starts_from(finished, plan):
    first = Model.open(finished[0] / "first" / "totalseg" / "network").encoder_fingerprint
    data = json.loads((finished[0] / "results.json").read_text())
    assert {step["first_step"] for step in data["steps"]} == {first}
    assert "First step not recorded" not in (finished[0] / "results.md").read_text()
    later = Model.open(finished[0] / "A" / "mib" / "step_3_headneck" / "model")
    assert later.encoder_fingerprint != first_step_of(later) == first


def test_results_are_of_the_test_split(finished, plan):
    for found in Results(BenchmarkPaths(finished[0], plan)).scores.values():
        assert found.splits.counts(found.cases) == {"train": 0, "validation": 0, "test": 1, "unknown": 0}


def test_a_replaced_first_step_is_refused_before_anything_is_learned(finished, plan, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    shutil.copytree(finished[0], folder)
    replaced = folder / "first" / "totalseg" / "network"
    shutil.rmtree(replaced)
    shutil.copytree(folder / "A" / "mib" / "step_2_chest" / "model", replaced)
    monkeypatch.setattr(
        "continual_segment.lab.benchmark.run.BenchmarkTasks.all", lambda tasks: pytest.fail("a task was made")
    )
    with pytest.raises(ConfigError, match=re.escape(str(replaced))):
        run_benchmark(folder, plan)


def test_tables_and_figures_have_the_papers_numbers_beside_ours(finished):
    folder = finished[0]
    tables = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert tables >= {
        "table1_A", "table1_B", "all_A", "steps_A", "steps_B", "table2_freezing", "table4_merging",
        "architecture", "groups", "organs_chest", "run_time", "training",
    }  # fmt: skip
    text = (folder / "results.md").read_text()
    assert "(11.7)" in text  # MiB on TotalSegmentator after three steps of order A
    assert "(7.7)" not in text  # after four, and only three are learned here
    assert "(93.0)" in text
    assert "Our packs are the same to the bit in all orders." in text
    assert (folder / "figures" / "steps_A.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((folder / "results.json").read_text())
    assert {step["method"] for step in data["steps"]} == {"ours", "ours, own pack", "mib"}
    assert len(data["steps"]) == 2 * 3 * 3


def test_another_seed_starts_from_the_first_step_and_is_shown_with_the_others(finished, plan, monkeypatch):
    titles = []
    monkeypatch.setattr("continual_segment.lab.benchmark.run.Progress.add", note_in(titles))
    seeds = replace(plan, methods=("mib", "mib:seed=1"), orders={"A": plan.orders["A"]})
    folder = shutil.copytree(finished[0], finished[0].with_name("seeds"))
    run_benchmark(folder, seeds)
    assert [title for title in titles if "score" not in title] == [
        "order A, mib:seed=1, step 2: chest",
        "order A, mib:seed=1, step 3: headneck",
    ]
    results = Results(BenchmarkPaths(folder, seeds))
    assert results.methods == ("mib",)
    assert results.seeds("A", "mib") == ["mib", "mib:seed=1"]
    models = [Model.open(folder / "A" / name / "step_3_headneck" / "model") for name in ("mib", "mib_seed_1")]
    assert models[0].encoder_fingerprint != models[1].encoder_fingerprint
    assert first_step_of(models[0]) == first_step_of(models[1])
    tables = {path.stem: path.read_text() for path in (folder / "tables").glob("*.csv")}
    for name in ("table1_A", "all_A", "steps_A", "organs_chest", "groups"):
        assert " ± " in tables[name], name
    assert {step["method"] for step in json.loads((folder / "results.json").read_text())["steps"]} == {
        "mib", "mib:seed=1"
    }  # fmt: skip


def test_clean_up_of_some_methods_alone_is_refused(finished, plan, monkeypatch):
    """Packs of earlier versions do not know in how many pieces their organs come."""
    cleaned = replace(plan, clean_up=True, methods=("mib",), orders={"A": plan.orders["A"]})
    monkeypatch.setattr("continual_segment.lab.benchmark.tasks.PIECES", "what no card has")
    folder = shutil.copytree(finished[0], finished[0].with_name("earlier"))
    with pytest.raises(ConfigError, match=r"earlier version.*Leave --clean-up out"):
        run_benchmark(folder, cleaned)


def test_clean_up_scores_again_and_trains_nothing(finished, plan, monkeypatch):
    titles = []
    monkeypatch.setattr("continual_segment.lab.benchmark.run.Progress.add", note_in(titles))
    before = (finished[0] / "results.md").read_text()
    cleaned = replace(plan, clean_up=True, methods=("mib",), orders={"A": plan.orders["A"]})
    assert run_benchmark(finished[0], cleaned) == finished[0] / "cleaned" / "results.md"
    assert len(titles) == 6
    assert all("score" in title for title in titles)
    assert "Islands were removed" in (finished[0] / "cleaned" / "results.md").read_text()
    assert (finished[0] / "results.md").read_text() == before
    results = Results(BenchmarkPaths(finished[0], cleaned))
    assert set(results.scores) == {
        key for key in Results(BenchmarkPaths(finished[0], plan)).scores if key[:2] == ("A", "mib")
    }


def test_settings_are_chosen_on_validation_scans(finished, plan):
    chosen = replace(plan, split="validation", methods=("mib",), orders={"A": plan.orders["A"]})
    assert run_benchmark(finished[0], chosen) == finished[0] / "validation" / "results.md"
    results = Results(BenchmarkPaths(finished[0], chosen))
    assert len(results.scores) == 6
    for found in results.scores.values():
        assert found.splits.counts(found.cases) == {"train": 0, "validation": 1, "test": 0, "unknown": 0}


def test_a_folder_with_another_benchmark_is_refused(finished, plan):
    with pytest.raises(ConfigError, match="holds a benchmark with another held_out"):
        run_benchmark(finished[0], replace(plan, held_out=2))
    diseased = {name: replace(dataset, anomalies=("tumour",)) for name, dataset in plan.datasets.items()}
    with pytest.raises(ConfigError, match="holds a benchmark with another anomalies"):
        run_benchmark(finished[0], replace(plan, datasets=diseased))
