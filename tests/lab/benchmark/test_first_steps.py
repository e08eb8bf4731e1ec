"""Results of different first steps are not compared in one table."""

import json

import pytest

from continual_segment.config import load_preset
from continual_segment.errors import ConfigError
from continual_segment.evaluation import Evaluation, ScoreRow
from continual_segment.lab.benchmark.paths import BenchmarkPaths
from continual_segment.lab.benchmark.plan import Plan, make_orders
from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.benchmark.tables import make_tables
from continual_segment.lab.benchmark.write import write_results

ONE, OTHER = "1" * 64, "2" * 64
ORGANS = {"body": "liver", "neck": "brainstem", "chest": "heart"}


@pytest.fixture
def paths(tmp_path):
    """Scores of all steps of two methods in an order, as a benchmark stores them."""

    def make(first_steps, orders=("A",)):
        plan = Plan(
            load_preset("tiny"), dict.fromkeys(ORGANS), make_orders(list(ORGANS), orders), tuple(first_steps)
        )
        made = BenchmarkPaths(tmp_path / "out", plan)
        for method, first_step in first_steps.items():
            for order, names in plan.orders.items():
                for number in range(1, len(names) + 1):
                    for dataset in names[:number]:
                        of_order = first_step[order] if isinstance(first_step, dict) else first_step
                        write(made.scores(order, method, number, dataset), dataset, of_order)
        return made

    def write(folder, dataset, first_step):
        row = ScoreRow("case", ORGANS[dataset], 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, float("nan"))
        Evaluation.from_rows([row], first_step=first_step).write(folder)

    return make


def test_networks_that_read_the_first_step_are_not_shared_by_orders_with_another(paths):
    made = paths({"upper-bound": "", "upper-bound:start=first encoder": ONE}, orders=("A", "213"))
    alone, reading = "upper-bound", "upper-bound:start=first encoder"
    assert made.model("A", alone, 3) == made.model("213", alone, 3)
    assert made.model("A", reading, 3) != made.model("213", reading, 3)


def test_one_first_step_needs_no_note(paths):
    made = paths({"mib": ONE, "ilt": ONE})
    tables = list(make_tables(Results(made)))
    assert tables
    assert not any("not recorded" in table.note for table in tables)
    write_results(made)
    data = json.loads((made.folder / "results.json").read_text())
    assert {step["first_step"] for step in data["steps"]} == {ONE}


def test_two_first_steps_are_refused_with_both_fingerprints_and_files(paths):
    made = paths({"mib": ONE, "ilt": ONE})
    strange = made.scores("A", "ilt", 3, "neck")
    Evaluation.read(strange)  # is there
    data = json.loads((strange / "evaluation.json").read_text()) | {"first_step": OTHER}
    (strange / "evaluation.json").write_text(json.dumps(data))
    for build in (lambda: list(make_tables(Results(made))), lambda: write_results(made)):
        with pytest.raises(ConfigError) as refused:
            build()
        sentence = str(refused.value)
        assert ONE in sentence
        assert f"{OTHER}: {strange / 'evaluation.json'}" in sentence
        assert str(made.scores("A", "mib", 1, "body") / "evaluation.json") in sentence
    assert not (made.folder / "results.json").exists()


def test_results_of_an_earlier_version_are_noted_in_every_table(paths):
    made = paths({"mib": "", "ilt": ONE})
    # both methods share the files of step 1, which `ilt` wrote last
    tables = list(make_tables(Results(made)))
    assert tables
    assert all(table.note.endswith("First step not recorded: mib.") for table in tables)
    write_results(made)
    text = (made.folder / "tables" / "steps_A.md").read_text()
    assert "First step not recorded: mib." in text


def test_orders_that_begin_with_different_datasets_have_a_first_step_each(paths):
    made = paths({"mib": {"A": ONE, "213": OTHER}, "upper-bound": ONE}, orders=("A", "213"))
    for dataset in ("body", "neck"):  # step 1 is shared by all methods
        step = made.first(dataset) / "scores" / dataset
        data = json.loads((step / "evaluation.json").read_text())
        data["first_step"] = ONE if dataset == "body" else OTHER
        (step / "evaluation.json").write_text(json.dumps(data))
    assert list(make_tables(Results(made)))
