"""Every method of the benchmark learns a phantom dataset after the first step."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from continual_segment.errors import ConfigError
from continual_segment.lab.baselines import (
    METHODS,
    FirstStep,
    LaterStep,
    NetworkMethod,
    StepSettings,
    learn_step,
)
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.distillation_pass import (
    DistillationPass,
    forward_both,
    forward_both_tapped,
)
from continual_segment.lab.baselines.first_step import first_step_of
from continual_segment.lab.baselines.ilt import ILT
from continual_segment.lab.baselines.lismo import LISMO
from continual_segment.lab.baselines.marginal import labelled_logits, old_logits
from continual_segment.lab.baselines.mib import MiB
from continual_segment.lab.baselines.plop import PLOP
from continual_segment.lab.baselines.pooled import channel_distance, cube_distance
from continual_segment.lab.baselines.rcil import RCIL
from continual_segment.lab.baselines.state import read_state
from continual_segment.lab.baselines.step import LearningStep, largest_pack, training_batches
from continual_segment.model import Model, OrganPack, verify
from continual_segment.model.model import encoder_fingerprint
from continual_segment.networks import Decoder, DecoderPlan
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.training import history
from continual_segment.training.loss import CustomLoss, LossConfig


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")


@pytest.fixture
def settings(preset):
    train = replace(preset.later, iterations=4, report_every=2)
    return StepSettings(preset.patches, preset.augment, train)


@pytest.fixture
def learn_chest(base_model_folder, datasets, settings, tmp_path):
    def learn(method, folder="model", **known):
        return learn_step(
            method, base_model_folder, datasets["chest"], tmp_path / folder, settings, "chest", **known
        )

    return learn


def test_clean_up_knows_the_organs_of_all_steps_of_a_network(learn_chest, base_model_folder):
    """As it knows those of packs: islands are removed for all methods alike."""
    (pack,) = (learned.pack(name) for learned in [learn_chest(MiB())] for name in learned.pack_names)
    (first,) = (base.pack(name) for base in [Model.open(base_model_folder)] for name in base.pack_names)
    assert first.pieces
    assert pack.pieces.keys() > first.pieces.keys()
    for organ in ("esophagus", "trachea"):  # in both datasets
        assert pack.pieces[organ].scans > first.pieces[organ].scans


@pytest.fixture
def residual_model(datasets, preset, tmp_path):
    """A first step whose residual encoder never learned."""
    network, dataset = replace(preset.network, encoder="residual"), datasets["totalseg"]
    torch.manual_seed(0)
    encoder, decoder = (
        network.build_encoder(),
        Decoder(network, DecoderPlan.nnunet(network), len(dataset.organs)),
    )
    fingerprint = encoder_fingerprint(encoder, dataset.config)
    pack = OrganPack.of("totalseg", dataset.organs, encoder, decoder, fingerprint)
    return Model.create(tmp_path / "first", encoder, dataset.config, preset.patches.size, pack).folder


@pytest.mark.parametrize("name", ["mib", "plop", "rcil", "upper-bound"])
def test_methods_learn_on_residual_encoders(name, residual_model, datasets, settings, tmp_path):
    folder = tmp_path / "model"
    model = learn_step(METHODS[name], residual_model, datasets["chest"], folder, settings, "chest")
    assert model.network == Model.open(residual_model).network
    assert verify(folder).good


@pytest.fixture
def make_step(base_model_folder, datasets, settings):
    """The step a method is given."""

    def make():
        model = Model.open(base_model_folder)
        pack = largest_pack(model)
        teacher = SegmentationNetwork(model.load_encoder(), pack.decoder()).freeze()
        classes = StepClasses.of(pack.organs, datasets["chest"].organs)
        return LearningStep(teacher, classes, datasets["chest"], settings)

    return make


def losses(step, method, count=2):
    learner = method.begin(step)
    batches = step.training_batches()
    return [learner.loss(*batches[number]) for number in range(count)], learner


@pytest.fixture
def learn_later(base_model_folder, datasets, preset, tmp_path):
    """The second step of any method, as the benchmark asks for it."""
    config = preset.on(iterations=4, report_every=2)

    def learn(method):
        grows = method.keeps == "one pack per dataset"
        folder, state = tmp_path / "after" / "model", tmp_path / "state"
        adopted = folder if grows else base_model_folder
        data = datasets["totalseg"]
        first = FirstStep(base_model_folder, base_model_folder, data, config, config.later, adopted, state)
        folder.parent.mkdir()
        if not method.has_adopted(first):
            method.adopt(first)
        assert method.has_adopted(first)
        method.learn(LaterStep("chest", datasets["chest"], adopted, state, folder, config, config.later))
        return Model.open(folder)

    return learn


@pytest.mark.parametrize("name", METHODS)
def test_a_step_leaves_a_model_that_knows_what_the_method_promises(
    name, learn_later, base_model_folder, datasets
):
    method = METHODS[name]
    model = learn_later(method)
    chest = {organ.name for organ in datasets["chest"].organs}
    broad = {organ.name for organ in datasets["totalseg"].organs}
    organs = {pack: {organ.name for organ in model.pack(pack).organs} for pack in model.pack_names}
    assert (
        organs
        == {
            "one network": {"chest": broad | chest},
            "old decoders": {"chest": chest, "totalseg": broad},
            "one network per dataset": {"chest": chest},
            "one pack per dataset": {"chest": chest, "totalseg": broad},
        }[method.keeps]
    )
    assert verify(model.folder).good
    frozen = model.encoder_fingerprint == Model.open(base_model_folder).encoder_fingerprint
    assert frozen == (name in ("ilt", "ours"))
    assert first_step_of(model) == Model.open(base_model_folder).encoder_fingerprint
    if isinstance(method, NetworkMethod):
        assert model.pack("chest").card["method"]["name"] == type(method).__name__


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_one_main_view_and_rows_of_different_names_and_folders(name):
    views = METHODS[name].views
    assert [view.label for view in views].count("") == 1
    assert not views[0].label
    assert len({view.label for view in views}) == len({view.suffix for view in views}) == len(views)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_in_the_tables_of_encoders_segments_each_dataset_by_its_own_decoder(name):
    method = METHODS[name]
    assert bool(method.encoder) <= any(view.packs == "own" for view in method.views)
    if "encoders" in method.extras:  # that table has both
        assert {view.packs for view in method.views} == {"all", "own"}


@pytest.mark.parametrize("name", METHODS)
def test_decoders_are_counted_as_the_method_keeps_them(name, base_model_folder, preset):
    pack = Model.open(base_model_folder).pack("totalseg")
    one, three = (METHODS[name].decoder_parameters(preset.network, count, [pack] * count) for count in (1, 3))
    assert three == one * (1 if METHODS[name].keeps == "one network" else 3)


@pytest.mark.parametrize("name", ["mib", "plop", "lismo", "rcil"])
def test_a_stopped_step_ends_with_the_same_weights(name, learn_chest, monkeypatch):
    expected = learn_chest(METHODS[name], "unstopped").pack("chest").fingerprint

    def stop(path, log):
        if "\n2," in log:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("continual_segment.training.history.write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        learn_chest(METHODS[name], "stopped")
    monkeypatch.undo()
    assert learn_chest(METHODS[name], "stopped").pack("chest").fingerprint == expected


def test_a_finished_step_is_not_repeated(learn_chest, monkeypatch):
    learned = learn_chest(METHODS["mib"]).pack("chest").fingerprint
    monkeypatch.setattr("continual_segment.lab.baselines.step.train", None)
    assert learn_chest(METHODS["mib"]).pack("chest").fingerprint == learned


def test_at_the_start_all_methods_answer_as_the_teacher_on_old_organs(make_step):
    images = torch.randn(2, 1, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    for method in (MiB(), PLOP(), LISMO(), RCIL()):
        step = make_step()
        student = method.begin(step).network.eval()
        taught, answer = step.previous(images).softmax(1), student(images).softmax(1)
        old = step.previous.decoder.organs
        torch.testing.assert_close(answer[:, 1 : old + 1], taught[:, 1:], rtol=0, atol=1e-5)


def test_without_distillation_mib_is_fine_tuning_with_joined_background(make_step):  # T08
    step = make_step()
    (found,), learner = losses(step, MiB(kd_weight=0.0), 1)
    images, labels = step.training_batches()[0]
    outputs = learner.network.decoder.forward_supervised(learner.network.encoder(images))
    joined = [labelled_logits(output, step.classes) for output in outputs]
    expected = step.train.loss.build()(joined, labels)
    torch.testing.assert_close(found, expected)


def test_ilt_that_does_not_freeze_is_mib_to_the_bit(learn_chest):  # T09
    one, other = learn_chest(ILT(freeze_encoder=False), "ilt"), learn_chest(MiB(), "mib")
    assert one.pack("chest").fingerprint == other.pack("chest").fingerprint
    assert one.encoder_fingerprint == other.encoder_fingerprint


def test_a_frozen_encoder_gets_no_gradient(make_step):  # T09
    (loss,), learner = losses(make_step(), ILT(), 1)
    loss.backward()
    assert all(parameter.grad is None for parameter in learner.network.encoder.parameters())
    assert all(parameter.grad is not None for parameter in learner.network.decoder.stages.parameters())


def with_weights(step, *deep_supervision):
    train = replace(step.train, loss=LossConfig(deep_supervision=deep_supervision))
    return replace(step, settings=replace(step.settings, train=train))


@pytest.mark.parametrize("name", ["fine-tuning", "mib", "plop", "lismo", "rcil"])
def test_outputs_are_weighted_as_the_loss_is_set(make_step, name):
    for weights, coarse_counts in (((1.0, 0.5), True), ((1.0, 0.0), False)):
        (loss,), learner = losses(with_weights(make_step(), *weights), METHODS[name], 1)
        loss.backward()
        coarse = learner.network.decoder.seg_layers[0].weight.grad
        assert (coarse is not None and bool(coarse.any())) == coarse_counts


def test_distilled_outputs_have_the_weights_of_the_loss(make_step):
    def distilled(*weights):
        step = with_weights(make_step(), *weights)
        student = step.grown_network()
        with torch.no_grad():
            for head in student.decoder.seg_layers[:1]:  # the coarse one alone forgets
                head.weight.zero_()
            images, labels = step.training_batches()[0]
            passed = forward_both(student, step.previous, images)
            with_teacher, without = (
                MiB(kd_weight=weight).loss(passed, labels, step.classes, step.train) for weight in (1.0, 0.0)
            )
        return float(with_teacher - without)

    fine, both = distilled(1.0, 0.0), distilled(1.0, 1.0)
    assert abs(fine - both) > 1e-3 * abs(fine)


def test_plop_refuses_a_loss_that_it_would_not_use(make_step):
    step = make_step()
    train = replace(step.train, loss=CustomLoss(function=lambda outputs, labels: outputs[0].mean()))
    with pytest.raises(ConfigError, match="PLOP"):
        PLOP().begin(replace(step, settings=replace(step.settings, train=train)))


def test_lismo_without_its_three_terms_is_mib(make_step):  # T17
    plain = LISMO(matching_weight=0, attraction_weight=0, repulsion_weight=0)
    for one, other in zip(losses(make_step(), plain)[0], losses(make_step(), MiB())[0], strict=True):
        assert torch.equal(one, other)


def test_lismo_remembers_the_first_dataset_and_keeps_its_memory_of_old_organs(
    make_step, learn_chest, datasets, settings
):
    step = make_step()
    first = StepClasses.of((), datasets["totalseg"].organs)
    memory = LISMO().after_first_step(step.previous, first, training_batches(datasets["totalseg"], settings))
    assert memory["seen"].nonzero().numel() > 0
    model = learn_chest(LISMO(), state=memory)
    after = read_state(model.folder)
    for channel in step.classes.old_only:
        assert torch.equal(after["vectors"][channel], memory["vectors"][channel])
    assert len(after["vectors"]) == step.classes.channels


def test_at_the_start_plops_and_rcils_features_have_moved_nowhere(make_step):  # T12
    """The student is the teacher then, so nothing but the segmentation and distillation is left."""
    images = torch.randn(2, 1, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    step = make_step()
    passed = forward_both_tapped(step.grown_network(), step.previous, images)
    assert len(passed.inner) == 5  # three stages, two blocks
    for distance in (PLOP().pod, RCIL().cubes):
        assert distance(passed, step.classes) < 1e-5


def test_plop_without_the_ratio_of_classes_counts_distances_as_they_are(disjoint):
    inner = [(torch.ones(2, 3, 4, 4, 4), torch.zeros(2, 3, 4, 4, 4))]
    logits = torch.zeros(2, 5, 4, 4, 4)
    passed = DistillationPass([], [logits], [old_logits(logits, disjoint)], inner)
    with_ratio, without = (PLOP(class_ratio=ratio).pod(passed, disjoint) for ratio in (True, False))
    torch.testing.assert_close(with_ratio, disjoint.class_ratio * without)
    assert without > 0


def test_rcils_last_layer_counts_as_little_in_channels_as_the_logits_do_in_space(disjoint):
    """As in the published code; all distances in the size of 32 x 32 voxels."""
    shape = (2, 3, 4, 4, 4)
    inner = [(torch.full(shape, value), torch.zeros(shape)) for value in (1.0, 2.0)]
    logits = torch.zeros(2, 5, 4, 4, 4)
    passed = DistillationPass([], [logits], [old_logits(logits, disjoint)], inner)
    shallow, deep = (channel_distance(*pair) * (32 * 32 / 64) ** 0.5 for pair in inner)
    method = RCIL(cube_factor=0.3, logit_factor=0.02, windows=(0.01,))
    in_space = cube_distance(*inner[0], (0.01,)) + cube_distance(*inner[1], (0.01,))
    expected = 0.3 * in_space * (32 * 32 / 64) ** 0.5 / 3 + (0.3 * shallow + 0.02 * deep) / 2
    torch.testing.assert_close(method.cubes(passed, disjoint), disjoint.class_ratio * expected)


def test_in_a_step_without_a_new_class_distances_count_as_they_are(esophagus_again, disjoint):
    assert disjoint.class_ratio == (5 / 2) ** 0.5
    assert esophagus_again.class_ratio == 1


def test_rcil_compares_features_after_their_activation(disjoint):
    """So what is negative before it hardly counts."""
    logits = torch.zeros(2, 5, 4, 4, 4)

    def cubes_of(value):
        inner = [(torch.full((2, 3, 4, 4, 4), value), torch.zeros(2, 3, 4, 4, 4))]
        return RCIL().cubes(DistillationPass([], [logits], [old_logits(logits, disjoint)], inner), disjoint)

    assert 0 < cubes_of(-1.0) < 1e-3 * cubes_of(1.0)


def test_a_network_is_not_watched_any_more_after_the_pass(make_step):
    """Else every copy of it, the next step's student, would fill memory with its passes."""
    step = make_step()
    student = step.grown_network()
    forward_both_tapped(student, step.previous, torch.randn(2, 1, 8, 16, 16))
    for network in (student, step.previous):
        assert not any(module._forward_hooks for module in network.modules())


def test_rcil_may_continue_with_the_branch_of_the_step_before(learn_chest):  # T15
    model = learn_chest(RCIL(boundary="keep"))
    memory = read_state(model.folder)
    conv = model.load_encoder().stages[0][0].convs[0].conv
    assert not torch.equal(memory["encoder.stages.0.0.convs.0.weight"], conv.weight)
    assert not read_state(learn_chest(RCIL(), "copy").folder)
