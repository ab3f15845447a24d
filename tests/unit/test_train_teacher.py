"""Distillation: the divergence of logits, the distance of layers, and their gradients in an update."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from archlab.config.problems import ConfigError
from archlab.config.teacher import TeacherConfig
from archlab.config.training import resolve_train
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.model.lora import add_lora, initialize_lora
from archlab.pricing.work import forward_flops, teacher_flops, training_flops, visible_training_flops
from archlab.training import loss
from archlab.training.compiling import recompute_layers
from archlab.training.device import Device
from archlab.training.loss import kl_divergence
from archlab.training.step import StepResult, update
from archlab.training.teacher import Teacher
from archlab.training.world import ALONE
from archlab.transplant.weights import Architecture, Weights, stored
from tiny import config

CPU = Device("cpu", torch.float32)
SETTINGS = ("train.teacher.path=teacher", "train.teacher.temperature=2")
MATCHED = (*SETTINGS, "train.teacher.objective=0.5", "train.teacher.logits=0.25", "train.teacher.hidden=0.125")


def logits(seed, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (5, 11))).to(dtype)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_divergence_is_that_of_the_formula(temperature):
    """sum_i p_i ln(p_i / q_i), in float64 and without logarithms of softmaxes."""
    teacher, student = (np.exp(logits(seed).numpy() / temperature) for seed in (0, 1))
    p, q = (x / x.sum(-1, keepdims=True) for x in (teacher, student))
    wanted = (p * np.log(p / q)).sum(-1).mean()
    found = kl_divergence(logits(0), logits(1), temperature)
    assert float(found) == pytest.approx(wanted, rel=1e-12)
    in_float32 = kl_divergence(logits(0, torch.float32), logits(1, torch.float32), temperature)
    assert float(in_float32) == pytest.approx(wanted, rel=1e-5)
    assert kl_divergence(logits(0).bfloat16(), logits(1).bfloat16(), temperature).dtype == torch.float32


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_gradient_of_the_divergence(temperature):
    student = logits(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_divergence(logits(0), x, temperature), student)


def test_at_a_high_temperature_logits_are_matched():
    """Equation 4 of Hinton 2015: T^2 times the gradient approaches the difference of the centered logits, divided by the
    number of classes."""
    student, temperature = logits(1).requires_grad_(), 1e4
    (gradient,) = torch.autograd.grad(kl_divergence(logits(0), student, temperature) * temperature**2, student)
    teacher_centered, centered = (x - x.mean(-1, keepdim=True) for x in (logits(0), student.detach()))
    tokens, classes = student.shape
    torch.testing.assert_close(gradient, (centered - teacher_centered) / classes / tokens, rtol=1e-2, atol=1e-4)


def weights_of(model):
    tensors = {name: stored(name, x.shape, x.clone) for name, x in model.state_dict().items()}
    return Weights(Architecture.of(model.config), tensors)


def teacher_of(model, settings):
    return Teacher(weights_of(model), settings.teacher, CPU, ALONE, 0, compiled=False)


class Gradients:
    """Optimizer that keeps the gradients and changes nothing."""

    def __init__(self, model):
        self.model, self.param_groups = model, []

    def step(self):
        self.found = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}

    def zero_grad(self):
        self.model.zero_grad()


def batch_for(cfg):
    cfg_tokens = np.random.default_rng(5).integers(1, 280, (4, 17))
    cfg_tokens[:, 6] = 0  # begins a document
    return random_batch(cfg, Windows(cfg_tokens), 0 if cfg.train.document_mask else None)


def distilled_update(
    model, teacher, cfg, batch=None, micro=None, *, compiled=False
) -> tuple[StepResult, dict[str, torch.Tensor]]:
    settings = resolve_train(cfg).model_copy(update={"grad_clip": None})
    settings = settings.model_copy(update={"micro_batch_tokens": micro or settings.micro_batch_tokens})
    optimizer = Gradients(model)
    batch = batch or batch_for(cfg)
    result = update(model, optimizer, batch, settings, 0, CPU, teacher=teacher_of(teacher, settings), compiled=compiled)
    return result, optimizer.found


def reference(model, teacher, cfg, batch):
    """Return the losses of the whole batch at once by plain autograd, and the gradients of their weighted sum.

    The inputs of layers are noted by wrapping `forward`. The student's layers are then called one by one.
    """
    given = {
        name: torch.from_numpy(x)
        for name in ("documents", "prefix", "source", "source_lengths", "lengths")
        if (x := getattr(batch, name)) is not None
    }

    def seen(module: nn.Module):
        calls = []

        def noting(layer):
            def forward(x, context, states):
                y = type(layer).forward(layer, x, context, states)
                calls.append((x, context, states, y))
                return y

            return forward

        for layer in module.layers:
            layer.forward = noting(layer)
        result = module(torch.from_numpy(batch.tokens), **given)
        for layer in module.layers:
            del layer.forward
        return result, calls

    with torch.no_grad():
        teacher_logits, of_teacher = seen(teacher.eval())
    own, of_student = seen(model)
    settings = cfg.train.teacher
    counted = (
        torch.ones(batch.targets.shape, dtype=torch.bool) if batch.counted is None else torch.from_numpy(batch.counted)
    )
    cross_entropy = nn.functional.cross_entropy(own[counted], torch.from_numpy(batch.targets)[counted])
    t = settings.temperature
    p, log_p, log_q = (teacher_logits / t).softmax(-1), (teacher_logits / t).log_softmax(-1), (own / t).log_softmax(-1)
    divergence = (p * (log_p - log_q)).sum(-1)[counted].mean()
    total, distance = settings.objective * cross_entropy + settings.logits * t**2 * divergence, torch.zeros(())
    if settings.hidden:
        for layer, (x, _, _, y), (_, context, states, _) in zip(model.layers, of_teacher, of_student, strict=True):
            distance = distance + (layer(x, context, states) - y).square().sum(-1).sqrt()[counted].mean()
        total = total + settings.hidden * distance
    total = total + cfg.train.z_loss * own[counted].logsumexp(-1).square().mean()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    losses = [x.item() for x in (cross_entropy, divergence, distance)]
    return losses, {name: g for name, g in zip(names, gradients, strict=True) if g is not None}


ENCODER = ("model.encoder.n_layers=2", "train.objective.kind=seq2seq")
CASES = {
    "plain": MATCHED,
    "documents": (*MATCHED, "train.document_mask=true", "model.position.kind=rope"),
    "masked": (*MATCHED, "train.objective.kind=masked", "model.attention.visibility=two_sided"),
    "prefix": (*MATCHED, "train.objective.kind=prefix", "model.attention.visibility=prefix"),
    "encoder": (*SETTINGS, *ENCODER),
    "only hidden": ("train.teacher.path=teacher", "train.teacher.logits=0", "train.teacher.hidden=2"),
    "only logits": (*SETTINGS, "train.teacher.objective=0"),
    "z-loss": (*MATCHED, "train.z_loss=0.01"),
    "only logits and z-loss": (*SETTINGS, "train.teacher.objective=0", "train.z_loss=0.01"),
}


@pytest.mark.parametrize("micro", [None, 16])
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_the_weighted_losses(case, micro, monkeypatch):
    """Chunks of three tokens, and one window at a time, give the losses and gradients of the whole batch."""
    monkeypatch.setattr(loss, "rows_at_once", lambda vocab, device: 3)
    cfg = config(*CASES[case])
    model, teacher = Decoder(cfg.model, seed=1).train(), Decoder(cfg.model, seed=2)
    batch = batch_for(cfg)
    (cross_entropy, divergence, distance), wanted = reference(model, teacher, cfg, batch)
    result, found = distilled_update(model, teacher, cfg, batch, micro)
    assert result.loss == pytest.approx(cross_entropy, rel=1e-5)
    settings = cfg.train.teacher
    expected = {"teacher_kl": divergence} if settings.logits else {}
    expected |= {"teacher_distance": distance} if settings.hidden else {}
    assert dict(result.teacher) == pytest.approx(expected, rel=1e-5)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_a_teacher_with_the_models_own_weights_teaches_nothing():
    """Divergence and distance are 0, and the gradient is that of the objective. A norm at 0 has no gradient, not NaN."""
    cfg = config(*MATCHED)
    model = Decoder(cfg.model, seed=1).train()
    result, found = distilled_update(model, model, cfg)
    assert result.teacher["teacher_kl"] == pytest.approx(0, abs=1e-6)
    assert result.teacher["teacher_distance"] == 0
    alone = Gradients(model)
    settings = resolve_train(config()).model_copy(update={"grad_clip": None})
    update(model, alone, batch_for(config()), settings, 0, CPU)
    for name, gradient in alone.found.items():
        torch.testing.assert_close(found[name], gradient * cfg.train.teacher.objective, rtol=1e-4, atol=1e-6)


def test_the_teacher_has_no_dropout_and_does_not_change():
    cfg = config(*MATCHED, "model.dropout.branch=0.5", "model.dropout.embedding=0.5")
    model, trained = Decoder(cfg.model, seed=1).train(), Decoder(cfg.model, seed=2)
    settings, optimizer = resolve_train(cfg), Gradients(model)
    teacher = teacher_of(trained, settings)
    results = [update(model, optimizer, batch_for(cfg), settings, 0, CPU, teacher=teacher) for _ in range(2)]
    assert results[0] == results[1]  # the seeds of dropout belong to the step
    assert not any(p.requires_grad or p.grad is not None for p in teacher.model.parameters())
    after = teacher.model.state_dict()
    assert all(torch.equal(after[name], x) for name, x in trained.state_dict().items())
    tokens = torch.from_numpy(batch_for(cfg).tokens)
    assert torch.equal(teacher.model.hidden(tokens), trained.eval().hidden(tokens))


@pytest.mark.parametrize("change", ["recompute", "compile", "recompute and compile"])
def test_recomputed_and_compiled_layers_learn_the_same(change):
    cfg = config(*MATCHED)
    teacher = Decoder(cfg.model, seed=2)
    wanted, gradients = distilled_update(Decoder(cfg.model, seed=1).train(), teacher, cfg)
    model = Decoder(cfg.model, seed=1).train()
    torch.compiler.reset()
    compiled: list[str] = []

    def backend(graph, _):
        compiled.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    if "compile" in change:
        for layer in model.all_layers:
            layer.compile(backend=backend)
    if "recompute" in change:
        recompute_layers(model)
    result, found = distilled_update(model, teacher, cfg, compiled="compile" in change)
    # A teacher's layers are matched with hooks, which only uncompiled layers call. The model itself is compiled.
    model(torch.from_numpy(batch_for(cfg).tokens))
    assert any("linear" in name for name in compiled) == ("compile" in change)
    assert result.teacher == pytest.approx(dict(wanted.teacher), rel=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)


def test_a_teacher_may_have_another_shape():
    """Only the vocabulary must be the same if layers are not matched."""
    cfg = config(*SETTINGS)
    other = config("model.d_model=48", "model.n_layers=3", "model.position.kind=alibi").model
    result, _ = distilled_update(Decoder(cfg.model).train(), Decoder(other, seed=2), cfg)
    assert result.teacher["teacher_kl"] > 0
    assert math.isfinite(result.grad_norm)


def test_a_batch_without_a_teacher_reports_none():
    cfg = config()
    model = Decoder(cfg.model).train()
    assert update(model, Gradients(model), batch_for(cfg), resolve_train(cfg), 0, CPU).teacher == {}


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (("train.teacher.path=a", "train.teacher.logits=0"), "train.teacher.logits"),
        (
            ("train.teacher.path=a", "train.teacher.logits=0", "train.teacher.hidden=1", "train.teacher.temperature=2"),
            "train.teacher.temperature",
        ),
        (("train.teacher.path=a", "train.teacher.temperature=0"), "train.teacher.temperature"),
        (("train.teacher.path=a", "train.teacher.hidden=-1"), "train.teacher.hidden"),
    ],
)
def test_settings_without_an_effect_are_refused(overrides, field):
    with pytest.raises(ConfigError) as error:
        config(*overrides)
    assert [problem.path for problem in error.value.problems] == [field]


@pytest.mark.parametrize(("hidden", "logits"), [(0, 1), (1, 1), (1, 0)])
def test_the_flops_of_a_teacher(hidden, logits):
    """The forward pass of the teacher, and three forward passes through the model's layers if they are matched."""
    cfg = config("train.teacher.path=a", f"train.teacher.hidden={hidden}", f"train.teacher.logits={logits}")
    teacher = config("model.n_layers=4").model
    head = 2 * 32 * 300
    wanted = forward_flops(teacher, 16).total - (0 if logits else head)
    wanted += hidden * (training_flops(cfg.model, 16) - 3 * head)
    assert teacher_flops(cfg, teacher) == pytest.approx(wanted)
    assert teacher_flops(config(), teacher) == 0


LINEAR = ("model.layers={a: {attention: none}, pattern: [a, a]}", "model.vocab_size=300")


@pytest.mark.parametrize("more", [(), ("train.lora.rank=4",), ("train.lora={rank: 4, modules: [down]}",)])
def test_the_flops_of_a_step_are_those_that_torch_counts(more):
    """Half of the tokens count, as in conversations. The layers have no attention, whose kernels torch does not count."""
    cfg = config("train.teacher.path=a", "train.teacher.hidden=1", *LINEAR, *more)
    windows = np.random.default_rng(5).integers(1, 280, (4, 17))
    batch = random_batch(cfg, Windows(windows, windows[:, 1:] * 0 + np.arange(16) % 2 == 1))
    model, teacher = Decoder(cfg.model, seed=1).train(), Decoder(cfg.model, seed=2)
    if cfg.train.lora:
        add_lora(model, cfg.train.lora)
        initialize_lora(model, 0)
    with FlopCounterMode(display=False) as counter:
        distilled_update(model, teacher, cfg, batch)
    ours = visible_training_flops(cfg, 8) + teacher_flops(cfg, cfg.model, 8)
    assert counter.get_total_flops() == pytest.approx(ours * 64, rel=1e-9)


def test_the_defaults_of_a_teacher():
    assert TeacherConfig() == TeacherConfig(path=None, objective=1, logits=1, temperature=1, hidden=0)
