"""Orders, methods and budgets of a benchmark."""

import argparse
import ast
import re
from pathlib import Path

import pytest

from continual_segment.cli.benchmark import _methods, add_parser, chosen
from continual_segment.cli.main import main
from continual_segment.cli.options import kinds_by_name
from continual_segment.config import load_preset
from continual_segment.errors import ConfigError
from continual_segment.lab import benchmark
from continual_segment.lab.baselines import METHODS
from continual_segment.lab.baselines.budgets import stage_shares
from continual_segment.lab.baselines.mib import MiB
from continual_segment.lab.benchmark.plan import Plan, make_method, make_orders, with_seeds
from continual_segment.lab.benchmark.sources import raw_datasets
from continual_segment.lab.methods import METHODS as ENTRIES

CLASSES = {type(method).__name__ for method in METHODS.values()}
NAMES = ["totalseg", "chest", "headneck", "esophagus"]


def test_orders_are_the_papers_or_any_by_number():
    orders = make_orders(NAMES, ["A", "B", "2134"])
    assert orders["A"] == tuple(NAMES)
    assert orders["B"] == ("totalseg", "headneck", "chest", "esophagus")
    assert orders["2134"] == ("chest", "totalseg", "headneck", "esophagus")


def test_more_datasets_than_digits_are_refused():
    assert len(make_orders([f"d{number}" for number in range(9)], ["A"])["A"]) == 9
    with pytest.raises(ConfigError, match="at most 9 datasets, not 10"):
        make_orders([f"d{number}" for number in range(10)], ["A"])


@pytest.mark.parametrize("wrong", ["C", "123", "1233", "12345"])
def test_an_order_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="each of the 4 datasets once"):
        make_orders(NAMES, [wrong])


def test_diseases_of_a_users_datasets_are_named_on_the_command_line(raw_folders):
    kinds = kinds_by_name(["chest=lung tumour", "chest=pneumonia, left = right"])
    found = raw_datasets(list(raw_folders.values()), kinds)
    assert found["chest"].anomalies == ("lung tumour", "pneumonia, left = right")
    assert found["totalseg"].anomalies == ()
    with pytest.raises(ConfigError, match=r"'liver'.*datasets: "):
        raw_datasets(list(raw_folders.values()), {"liver": ("tumour",)})
    with pytest.raises(ConfigError, match="expected NAME=KIND"):
        kinds_by_name(["tumour"])


def test_a_disease_of_no_dataset_is_refused(tmp_path, capsys):
    command = ["benchmark", "--anomaly", "chest=tumour", "--preset", "tiny", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "goes with --datasets" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_method_is_told_before_anything_is_written(tmp_path, capsys):
    assert (
        main(["benchmark", "--methods", "ours,mab", "--preset", "tiny", "--out", str(tmp_path / "out")]) == 2
    )
    assert "no method 'mab'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_names_and_describes_every_method(capsys):
    with pytest.raises(SystemExit):
        main(["benchmark", "--help"])
    text = capsys.readouterr().out
    for name, entry in ENTRIES.items():
        assert re.search(rf"^ +{name} +{re.escape(entry.summary)}$", text, re.MULTILINE)
    assert list(ENTRIES) == list(METHODS)
    assert arguments().methods == list(METHODS)


def test_no_file_of_the_benchmark_names_a_method():
    """What differs between methods is declared by them."""
    for path in Path(benchmark.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Constant) and node.value in METHODS), (
                f"{path.name}:{node.lineno}"
            )
            assert not (isinstance(node, ast.Name) and node.id in CLASSES), f"{path.name}:{node.lineno}"


def test_a_method_takes_settings():
    assert make_method("mib:kd_weight=100:kd_mean_over_classes=false") == MiB(100.0, False)
    assert make_method("plop:scales=1,2").scales == (1, 2)
    assert _methods("ours,plop:scales=1,2,mib") == ["ours", "plop:scales=1,2", "mib"]


def test_seeds_change_the_later_steps_and_nothing_else():
    config = load_preset("laptop")
    methods = with_seeds(["ours", "mib:kd_weight=100"], 3)
    plan = Plan(config, {}, {}, tuple(methods))
    assert methods[:2] == ["ours", "mib:kd_weight=100"]
    assert methods[-1] == "mib:kd_weight=100:seed=2"
    assert make_method("mib:kd_weight=100:seed=2") == make_method("mib:kd_weight=100")
    for method, seed in zip(methods, (0, 0, 1, 1, 2, 2), strict=True):
        assert plan.training(method).seed == plan.config_of(method).later.seed == seed
        assert plan.config_of(method).first == config.first


def test_a_method_may_learn_its_later_steps_at_another_rate():
    plan = Plan(load_preset("tiny"), {}, {}, ("mib", "mib:rate=0.5:seed=1"))
    usual, slower = map(plan.training, plan.methods)
    assert slower.learning_rate == usual.learning_rate / 2
    assert plan.config_of("mib:rate=0.5").first == plan.config.first
    assert make_method("mib:kd_weight=100:rate=0.5") == make_method("mib:kd_weight=100")
    assert [row.repeats for row in plan.rows.values()] == ["mib", "mib:rate=0.5"]


def test_rows_of_several_seeds_are_one():
    plan = Plan(load_preset("tiny"), {}, {}, tuple(with_seeds(["ours", "mib"], 2)))
    assert plan.repeated == {
        "ours": ["ours", "ours:seed=1"],
        "ours, own pack": ["ours, own pack", "ours:seed=1, own pack"],
        "mib": ["mib", "mib:seed=1"],
    }
    assert plan.methods_with("run time") == ["ours"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mib:seed=-1", "seed is one whole number from 0, not '-1'"),
        ("mib:rate=fast", "rate is one number above 0, not 'fast'"),
        ("mib:rate=0", "rate is one number above 0, not '0'"),
        ("mib:rate=nan", "rate is one number above 0, not 'nan'"),
        ("mib:rate=1:rate=2", "rate is one number above 0, not '1' and '2'"),
        ("mib:seed=1:seed=2", "seed is one whole number from 0, not '1' and '2'"),
        ("mab", "There is no method 'mab'"),
        ("mib:weight=1", "'mib' has no setting 'weight'"),
        ("mib:kd_weight=much", "kd_weight is like 10.0, not 'much'"),
        ("plop:entropy=normalized", "entropy is .*normalised.*, not 'normalized'"),
        ("upper-bound:start=../x", "start is scratch or first encoder, not '../x'"),
    ],
)
def test_a_wrong_method_is_named(text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_method(text)


def test_equal_budgets_count_all_of_our_stages():
    small = load_preset("laptop").with_stages(("train", "search", "prune"))
    plain = load_preset("laptop")
    assert stage_shares(plain) == 1
    assert stage_shares(small) > 2
    for config in (plain, small):
        plan = Plan(config, {}, {}, ("mib",))
        assert plan.training("mib").iterations == round(config.later.iterations * stage_shares(config))
        assert plan.training("mib").learning_rate == config.later.learning_rate


def test_the_papers_budgets_are_500_and_1000_epochs():
    plan = Plan(load_preset("paper"), {}, {}, ("mib",), budgets="paper")
    assert plan.training("mib").iterations == 500 * 250
    assert plan.training("mib").learning_rate == 0.005
    assert plan.training("ours").iterations > 3 * plan.training("mib").iterations
    assert plan.training("upper-bound").iterations == 1000 * 250
    assert plan.training("upper-bound").learning_rate == 0.01


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mib", "mib:seed=0"),
        ("mib:seed=1", "mib:seed=01"),
        ("mib:seed=1:kd_weight=100", "mib:kd_weight=100:seed=1"),
    ],
)
def test_one_training_does_not_count_as_two(one, other):
    with pytest.raises(ConfigError, match="are the same training"):
        Plan(load_preset("tiny"), {}, {}, (one, other))


def test_seeds_of_a_method_that_has_one_are_refused():
    with pytest.raises(ConfigError, match="'mib:seed=5' has a seed"):
        with_seeds(["ours", "mib:seed=5"], 2)
    assert with_seeds(["mib:seed=5"], 1) == ["mib:seed=5"]


def test_a_benchmark_without_a_seed_or_a_method_is_refused():
    with pytest.raises(ConfigError, match="at least one seed, not 0"):
        with_seeds(["ours"], 0)
    with pytest.raises(ConfigError, match="compares at least one method"):
        with_seeds([], 1)


@pytest.mark.parametrize("held_out", [0, -1])
def test_a_benchmark_without_a_scan_is_refused(held_out):
    with pytest.raises(ConfigError, match=f"At least one scan.*not {held_out}"):
        Plan(load_preset("tiny"), {}, {}, ("ours",), held_out=held_out)


def arguments(*words):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["benchmark", "--out", "out", *words])


def test_updates_device_and_overlap_of_the_command_line_hold_for_every_method():
    options = ("--iterations", "7", "--device", "cuda:1", "--overlap", "0.2")
    config = chosen(arguments(*options), load_preset("laptop"))
    plan = Plan(config, {}, {}, ("mib",))
    assert [plan.training(method).iterations for method in ("ours", "mib", "upper-bound")] == [7, 7, 7]
    assert config.first.iterations == load_preset("laptop").first.iterations
    assert {config.first.device, config.later.device, config.segment.device} == {"cuda:1"}
    assert config.segment.overlap == 0.2
    assert chosen(arguments(), load_preset("laptop")) == load_preset("laptop")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--updates", "9", "--budgets", "paper"), "leave --iterations out"),
        (("--overlap", "1.5"), "overlap is a share from 0 to below 1, not 1.5"),
    ],
)
def test_what_no_benchmark_can_do_is_refused(option, sentence):
    with pytest.raises(ConfigError, match=sentence):
        chosen(arguments(*option), load_preset("laptop"))
