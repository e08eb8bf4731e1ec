"""Presets and TOML files of the same form."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from continual_segment.config import PRESETS, ExperimentConfig, load_preset
from continual_segment.data.intensity import Intensity
from continual_segment.errors import ConfigError
from continual_segment.training import LossConfig

CONFIGS = sorted(map(str, (Path(__file__).parents[1] / "configs").glob("*.toml")))
GOOD = """
[prepare]
spacing_mm = [4.0, 2.0, 2.0]
[network]
features = [4, 6]
kernels = [[1, 3, 3], [3, 3, 3]]
strides = [[1, 1, 1], [2, 2, 2]]
[patches]
size = [8, 16, 16]
[first]
iterations = 10
[later]
iterations = 5
"""


@pytest.fixture
def load(tmp_path):
    """Load GOOD with one piece of text replaced."""

    def load(old="", new=""):
        assert old in GOOD
        path = tmp_path / "mine.toml"
        path.write_text(GOOD.replace(old, new, 1) if old else GOOD + new)
        return load_preset(str(path))

    return load


@pytest.mark.parametrize("name", [*PRESETS, *CONFIGS])
def test_every_preset_loads_and_its_windows_pass_its_network(name):
    config = load_preset(name)
    assert isinstance(config, ExperimentConfig)
    config.network.check_window(config.patches.size)
    assert config.learn == config


def test_the_paper_preset_has_the_papers_numbers():
    config = load_preset("paper")
    assert config.prepare.spacing_mm == (3.0, 0.75, 0.75)
    assert config.prepare.intensity == Intensity.window(-1024, 1024)
    assert config.patches.size == (64, 128, 128)
    assert (config.first.iterations, config.later.iterations) == (8000 * 250, 1000 * 250)
    assert (config.first.optimiser, config.first.learning_rate) == ("sgd", 0.01)


def test_the_complete_preset_of_the_documentation_is_read_and_has_every_table(tmp_path):
    text = (Path(__file__).parents[1] / "docs" / "presets.md").read_text()
    (complete,) = [
        block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[network]" in block
    ]
    (tmp_path / "complete.toml").write_text(complete)
    config = load_preset(tmp_path / "complete.toml")
    assert config.first.loss == LossConfig(deep_supervision=(1, 0.5, 0))
    tables = {item.metadata.get("table", item.name) for item in fields(ExperimentConfig)}
    assert tables == set(re.findall(r"^\[(\w+)\]", complete, re.MULTILINE))


def test_a_file_of_ones_own_reads_as_written(load):
    config = load()
    assert config.network.kernels == ((1, 3, 3), (3, 3, 3))  # tuples all the way down
    assert config.later.iterations == 5
    assert config.segment.overlap == 0.5  # what is left out has its usual value


def test_a_table_within_a_table_changes_what_it_names_alone(load):
    usual, config = load(), load("", "[body_parts]\nscans = 7\n[body_parts.train]\niterations = 3\n")
    assert (config.body_parts.scans, config.learn.body_parts.train.iterations) == (7, 3)
    assert config.body_parts.train.optimiser == usual.body_parts.train.optimiser == "muon"
    with pytest.raises(ConfigError, match=re.escape("[body_parts.train] has no setting 'speed'")):
        load("", "[body_parts.train]\nspeed = 3\n")


def test_a_file_that_names_a_preset_holds_only_what_differs(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('preset = "laptop"\n[later]\niterations = 7\n[body_parts.train]\niterations = 3\n')
    config, laptop = load_preset(str(path)), load_preset("laptop")
    assert (config.later.iterations, config.body_parts.train.iterations) == (7, 3)
    assert config.later == replace(laptop.later, iterations=7)
    changed = {"later": laptop.later, "body_parts": laptop.body_parts}
    assert replace(config, **changed) == laptop


def test_a_file_for_version_0_1_means_what_it_meant(load):
    config = load("[network]", "window_hu = [-400, 300]\n[network]\nconvs_per_stage = 3")
    assert config.prepare.intensity == Intensity.window(-400, 300)
    assert (config.network.encoder_depths, config.network.decoder_depths) == ((3, 3), (3,))
    config = load("[later]", "dice_over = 'present'\n[later]\nbalance = 0.5\ndice_over = 'present'")
    assert config.first.loss == LossConfig("present")
    assert config.later.loss == LossConfig("present", 0.5)
    assert load("[later]", "[auxiliary]\nbody_part_weight = 0.3\n[later]") == load("[later]", "[later]")


def test_a_file_for_version_0_1_changes_what_it_names_of_a_preset(tmp_path):
    path, demo = tmp_path / "mine.toml", load_preset("demo")
    path.write_text(
        'preset = "demo"\n[prepare]\nwindow_hu = [-200, 200]\n'
        "[network]\nconvs_per_stage = 2\n[later]\nbalance = 0.0\n"
    )
    config = load_preset(path)
    assert config.prepare == replace(demo.prepare, intensity=Intensity.window(-200, 200))
    assert config.network == replace(demo.network, convs_per_stage=2)
    assert config.later == replace(demo.later, loss=LossConfig("present", 0.0))
    assert config.first == demo.first


def test_network_loss_and_intensity_are_chosen_in_their_tables(load):
    config = load(
        "",
        '[prepare.intensity]\nkind = "ct-percentiles"\nclip_hu = [-991, 387]\nmean = -100\nstd = 310.5\n'
        "padding = 'zero'\n[first.loss]\ndeep_supervision = [1, 0]\n",
    )
    assert config.prepare.intensity == Intensity(
        "ct-percentiles", (-991, 387), mean=-100, std=310.5, padding="zero"
    )
    assert config.first.loss == LossConfig(deep_supervision=(1, 0))
    config = load("features", 'encoder = "residual"\nencoder_convs = [1, 3]\ndecoder_convs = 1\nfeatures')
    assert (config.network.encoder, config.network.encoder_depths) == ("residual", (1, 3))
    assert config.network.decoder_depths == (1,)


def test_settings_of_all_training_are_changed_at_once(load):
    config = load().on(seed=7, workers=3)
    assert (config.first.seed, config.later.seed, config.first.workers) == (7, 7, 3)
    assert config.first.iterations == 10
    with pytest.raises(ConfigError, match="at least 0"):
        config.on(seed=-1)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("", "[training]\n", "no table is called [training]. Tables: network, patches"),
        ("[later]\niterations = 5", "", "[later] is missing; it has at least iterations"),
        ("iterations = 10", "iteratons = 10", "[first] has no setting 'iteratons'. Its settings: iterations"),
        ("iterations = 10", "iterations = 0", "[first]: iterations and report_every are at least 1"),
        ("iterations = 10", "iterations = 'ten'", "[first]: Expected `int`, got `str` - at `$.iterations`"),
        ("iterations = 10", "iterations = 10\nloss = 3", "[first.loss] is a table of settings, not 3"),
        (
            "iterations = 10",
            "iterations = 10\n[first.loss]\nbalanc = 1",
            "[first.loss] has no setting 'b",
        ),
        (
            "iterations = 10",
            "iterations = 10\nbalance = 'much'",
            "got `str` - at `$.loss.balance`",
        ),
        (
            "iterations = 10",
            "iterations = 10\noptimiser = 'adam'",
            "at `$.optimiser`, which is one of sgd, adamw, muon",
        ),
        ("spacing_mm = [4.0, 2.0, 2.0]", "", "[prepare]: "),
        ("spacing_mm = [4.0, 2.0, 2.0]", "spacing_mm = [4.0, 2.0]", "of length 3, got 2 - at `$.spacing_mm`"),
        (
            "spacing_mm = [4.0, 2.0, 2.0]",
            "spacing_mm = [4, 2, 0]",
            "[prepare]: spacing_mm is three voxel",
        ),
        (
            "[network]",
            "[prepare.intensity]\nkind = 'sharp'\n[network]",
            "`$.intensity.kind`, which is one of window, ct-p",
        ),
        ("", "[learn]\nstages = ['train', 'grow']\n", "which is one of train, shrink, search, prune"),
        ("[network]", "[prepare.intensity]\nmean = 3\n[network]", "mean is a setting of ct-percentiles"),
        ("features = [4, 6]", "features = [4, 6]\ninput_channels = 2", "A CT has one input channel, not 2"),
        ("features = [4, 6]", "features = [4, 6, 8]", "[network]: features, kernels and strides need"),
        ("size = [8, 16, 16]", "size = [8, 16, 15]", "(8, 16, 15) voxels is no multiple of (2, 2, 2)"),
        ("", "[segment]\noverlap = 1.5\n", "[segment]: overlap is a share"),
        ("[prepare]", "segment = 3\n[prepare]", "[segment] is a table of settings, not 3"),
        ("iterations = 10", "iterations =", "not valid TOML"),
        ("[prepare]", "preset = 'huge'\n[prepare]", "preset is one of tiny, demo, laptop, paper, not 'huge'"),
        (
            "[prepare]",
            "preset = ['demo']\n[prepare]",
            "preset is one of tiny, demo, laptop, paper, not ['demo']",
        ),
    ],
)
def test_what_cannot_be_gets_one_sentence_that_names_file_and_table(old, new, sentence, load):
    with pytest.raises(ConfigError, match=re.escape(sentence)) as refused:
        load(old, new)
    assert "mine.toml: " in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_neither_preset_nor_file_gets_a_sentence():
    with pytest.raises(ConfigError, match=r"'huge'.*\(tiny, demo, laptop, paper\)"):
        load_preset("huge")


@pytest.mark.parametrize("budget", [(0.0, 0.0), (1.0, float("nan")), (-1.0, 1.0)])
def test_a_budget_is_two_shares_above_0(budget):
    with pytest.raises(ConfigError, match="above 0"):
        load_preset("tiny").with_stages(("train", "shrink"), budget)


def test_a_budget_without_the_stage_that_keeps_it_is_refused():
    with pytest.raises(ConfigError, match="train,shrink"):
        load_preset("tiny").with_stages(("train",), (0.5, 0.5))
