"""Projections that learn to stand in for blocks."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import mse_loss

from continual_segment.learning import distil
from continual_segment.learning.distil import (
    DistilConfig,
    adapt_to_student,
    chain,
    distil_block,
    saturated,
    train_student,
)
from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig, PrunableDecoder

from .conftest import bright_below

NO_STUDENTS = (False, False, False)


@pytest.fixture
def network():
    """Three blocks."""
    return NetworkConfig((4, 4, 6, 6), ((1, 3, 3),) * 4, ((1, 1, 1), (1, 2, 2), (2, 1, 1), (1, 2, 2)))


@pytest.fixture
def step(make_step, network):
    return make_step(bright_below, network, iterations=12, report_every=3)


@pytest.fixture
def paths(network):
    torch.manual_seed(1)
    return PrunableDecoder(Decoder(network, DecoderPlan(("3d", "p3d", "2d")), 1))


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(module, before):
    return {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}


def test_a_teacher_that_is_a_projection_is_matched(make_step, pointwise):
    network = replace(pointwise, convs_per_stage=1)  # two in a row have many false bottoms
    step = make_step(network=network, iterations=500, weight_decay=0.0, learning_rate=0.03)
    torch.manual_seed(3)
    teacher = Decoder(network, DecoderPlan.nnunet(network), 1)  # by name no projection, by kernel one
    paths = PrunableDecoder(teacher)
    train_student(step, paths, 0, (False,), DistilConfig(students_share=1.0, saturation=0.0))
    features = step.features(step.source.validation(step.settings)[5][0])
    with torch.no_grad():
        read = paths.input_of(0, features, (False,))
        error = mse_loss(paths.students["0"](*read), teacher.stages[0](*read))
    assert error < 1e-4


def test_a_student_comes_nearer_to_its_teacher(step, paths):
    step = replace(step, settings=replace(step.settings, iterations=60))
    rows = train_student(step, paths, 1, NO_STUDENTS, DistilConfig(students_share=3.0, saturation=0.0))
    assert rows[-1]["validation_fit"] > rows[0]["validation_fit"] + 0.1
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_training_a_student_changes_nothing_but_the_student(step, paths):
    encoder, decoder = state(step.encoder), state(paths.decoders)
    distil_block(step, paths, 0, NO_STUDENTS, DistilConfig(adapt_share=0.0))
    first_student = state(paths.students["0"])
    train_student(step, paths, 1, (True, False, False), DistilConfig())
    assert changed(step.encoder, encoder) == set()
    assert changed(paths.decoders, decoder) == set()
    assert changed(paths.students["0"], first_student) == set()


def test_only_finer_blocks_and_heads_get_used_to_a_student_and_only_in_a_copy(step, paths):
    torch.manual_seed(0)
    paths.add_student(1)
    student, decoder = state(paths.students), state(paths.decoders["-1"])
    adapt_to_student(step, paths, 1, NO_STUDENTS, DistilConfig())
    assert changed(paths.students, student) == set()
    assert changed(paths.decoders["-1"], decoder) == set()
    moved = changed(paths.decoders["1"], decoder)
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in moved} == {
        "transpconvs.2", "stages.2", "seg_layers.1", "seg_layers.2",
    }  # fmt: skip


def test_finer_blocks_adapt_at_a_tenth_of_the_rate(step, paths, monkeypatch):
    rates = []
    monkeypatch.setattr(
        distil, "train", lambda run: rates.append(run.config.learning_rate) or [{"seconds": 1}]
    )
    distil_block(step, paths, 0, NO_STUDENTS, DistilConfig())
    assert rates == pytest.approx([0.01, 0.001])


def test_students_see_the_features_of_the_path_before_them(step, paths):
    torch.manual_seed(0)
    paths.add_student(0)
    features = step.features(step.source.training(step.settings)[0][0])
    by_teacher, by_student = (paths.input_of(1, features, (on, False, False))[0] for on in (False, True))
    assert not torch.allclose(by_teacher, by_student)
    seen = []
    student = paths.students["0"]
    student.register_forward_hook(lambda *_: seen.append(1))
    train_student(step, paths, 1, (True, False, False), DistilConfig(chain="path"))
    assert seen


def test_on_any_chain_a_student_meets_every_path_and_on_the_papers_one(paths):
    mask, config = (True, True, False), DistilConfig(chain="any")
    met = {chain(paths, 2, mask, config, iteration, seed=5) for iteration in range(50)}
    assert met == {(a, b, False) for a in (False, True) for b in (False, True)}
    assert chain(paths, 2, mask, config, 7, 5) == chain(paths, 2, mask, config, 7, 5)
    assert {chain(paths, 2, mask, DistilConfig(chain="path"), i, 5) for i in range(50)} == {mask}


def test_a_student_that_goes_on_meets_the_paths_it_would_have_met(step, paths, monkeypatch):
    met, limit = [], 5

    def noted(paths, number, mask, config, iteration, seed):
        if iteration == limit:
            raise RuntimeError("the power went")
        met.append(iteration)
        return chain(paths, number, mask, config, iteration, seed)

    monkeypatch.setattr(distil, "chain", noted)
    config = DistilConfig(students_share=2.0, saturation=0.0)
    with pytest.raises(RuntimeError, match="the power went"):
        train_student(step, paths, 0, NO_STUDENTS, config)
    limit = None
    train_student(step, paths, 0, NO_STUDENTS, config)
    assert met == list(range(8))


def test_a_student_is_done_when_its_error_hardly_falls():
    enough = saturated(0.01, reports=1)
    row = lambda fit: {"validation_fit": fit}  # noqa: E731
    assert not enough([row(0.5)])
    assert not enough([row(0.5), row(0.51)])  # an error of 0.50 fell by 2 %
    assert enough([row(0.5), row(0.504)])
    assert enough([row(0.5), row(0.49)])
    patient = saturated(0.01, reports=2)
    assert not patient([row(0.5), row(0.49)])
    assert not patient([row(0.5), row(0.49), row(0.52)])
    assert patient([row(0.5), row(0.49), row(0.504)])
    assert not saturated(0.0, reports=1)([row(0.5), row(0.4)])


def test_a_saturated_student_stops_early_and_is_not_trained_again(step, paths):
    config = DistilConfig(students_share=6.0, saturation=0.99, saturation_reports=1)
    rows = train_student(step, paths, 0, NO_STUDENTS, config)
    assert len(rows) == 2
    trained = state(paths.students["0"])
    again = train_student(step, paths, 0, NO_STUDENTS, config)
    assert again == rows
    assert changed(paths.students["0"], trained) == set()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"students_share": 0}, "above 0"),
        ({"adapt_share": -1}, "not below"),
        ({"chain": "both"}, "path, any"),
    ],
)
def test_wrong_settings_fail_on_construction(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        DistilConfig(**settings)
