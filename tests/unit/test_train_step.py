"""One update: decay groups, the objective, gradient accumulation, bits per byte."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from accelerator import Accelerator
from archlab.config.core.registry import kinds
from archlab.config.io import build_config
from archlab.config.optimizer import Optimizer
from archlab.config.pieces import rows_at_once
from archlab.config.training import resolve_train
from archlab.data.batch import HeldOut, next_token
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.measuring import speed
from archlab.measuring.speed import rehearse
from archlab.model import graphs
from archlab.model.decoder import Decoder
from archlab.training import compiling, loss
from archlab.training.compiling import is_compiled
from archlab.training.device import Device
from archlab.training.loss import Routers, objective
from archlab.training.optim import Treatment, groups_by_role, make_optimizer
from archlab.training.parallel import ContextGroup
from archlab.training.step import update
from archlab.training.world import ALONE
from scores import evaluate
from tiny import config

CPU = Device("cpu", torch.float32)


def given(seed=0):
    return next_token(Windows(windows(seed=seed)))


def unmasked(tokens, token_bytes):
    """Return windows that do not continue each other, and whose documents see each other."""
    text = Windows.of_text(tokens, token_bytes, (0,), continues=np.zeros(len(tokens), bool))
    return HeldOut(next_token(text), text)


def windows(rows=4, length=16, seed=0):
    return np.random.default_rng(seed).integers(0, 300, (rows, length + 1))


EVERY_PARAMETER = (
    "model.norm.kind=layernorm",
    "model.position.kind=learned",
    "model.attention.qkv_bias=true",
    "model.attention.out_bias=true",
    "model.mlp.bias=true",
    "model.head.bias=true",
)


@pytest.mark.parametrize("overrides", [(), EVERY_PARAMETER, (*EVERY_PARAMETER, "model.head.tied=true")])
@pytest.mark.parametrize("decay_embeddings", [False, True])
def test_only_projections_decay(overrides, decay_embeddings):
    model = Decoder(config(*overrides).model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    train = config(f"train.decay_embeddings={decay_embeddings}".lower(), "train.weight_decay=0.3").train
    groups = groups_by_role(model, train)
    decayed, kept = ([names[p] for p in groups[Treatment(decay, 1.0)]] for decay in (0.3, 0.0))
    assert sorted(decayed + kept) == sorted(names.values())

    def should_decay(name):
        if name.endswith("bias") or "norm" in name:
            return False
        return decay_embeddings if name.startswith(("embedding", "positions", "head")) else True

    assert {name for name in names.values() if should_decay(name)} == set(decayed)


def test_the_groups_reach_the_optimizer():
    settings = resolve_train(config("train.weight_decay=0.3", "train.lr=0.002"))
    model = Decoder(config().model)
    decayed, kept = sorted(make_optimizer(model, settings).param_groups, key=lambda g: -g["weight_decay"])
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    assert (decayed["lr"], decayed["betas"]) == (0.002, (0.9, 0.95))
    assert sum(p.numel() for g in (decayed, kept) for p in g["params"]) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("optimizer", sorted(kinds(Optimizer)))
def test_a_roles_multiplier_reaches_its_parameters_rate(optimizer):
    more = ("train.lr_multipliers.output=0.25", f"train.optimizer.kind={optimizer}")
    settings = resolve_train(config("train.lr=0.002", "train.schedule=constant", "train.warmup=0", *more))
    model = Decoder(config().model)
    optimizer = make_optimizer(model, settings)
    update(model, optimizer, given(), settings, 0, CPU)
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        is_output = name.endswith(("attention.out.weight", "mlp.down.weight"))
        assert rates[parameter] == (0.0005 if is_output else 0.002)


def test_decay_pulls_a_projection_but_not_a_norm():
    """With zero gradients, AdamW changes a weight only by weight decay: w * (1 - lr * decay)."""
    settings = resolve_train(config("train.weight_decay=0.5", "train.lr=0.1"))
    model = Decoder(config().model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, settings)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = dict(model.named_parameters())
    torch.testing.assert_close(after["layers.0.mlp.up.weight"], before["layers.0.mlp.up.weight"] * 0.95)
    for name in ("embedding.weight", "head.weight", "norm.weight"):
        assert torch.equal(after[name], before[name])


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.5])
def test_the_objective_is_cross_entropy_plus_z_loss(z_loss):
    draw = np.random.default_rng(1)
    logits, targets = draw.normal(0, 5, (2, 3, 7)), draw.integers(0, 7, (2, 3))
    log_z = np.log(np.exp(logits).sum(-1))
    cross_entropy = (log_z - np.take_along_axis(logits, targets[..., None], -1)[..., 0]).mean()
    minimized, reported = objective(torch.from_numpy(logits), torch.from_numpy(targets), z_loss)
    assert float(reported) == pytest.approx(cross_entropy, rel=1e-12)
    assert float(minimized) == pytest.approx(cross_entropy + z_loss * (log_z**2).mean(), rel=1e-12)


def test_bfloat16_logits_are_scored_in_float32():
    logits = torch.randn(1, 2, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.tensor([[3, 4]])
    for found in objective(logits, targets, 0.1):
        assert found.dtype == torch.float32
    assert torch.equal(objective(logits, targets, 0.1)[0], objective(logits.float(), targets, 0.1)[0])


def one_update(micro, *overrides, world=ALONE, compiled=False):
    settings = resolve_train(config(*overrides, *([f"train.micro_batch_tokens={micro}"] if micro else [])))
    model = Decoder(config(*overrides).model).train()
    gradients = {}
    optimizer = make_optimizer(model, settings)
    step = optimizer.step
    optimizer.step = lambda: (
        gradients.update({n: p.grad.clone() for n, p in model.named_parameters()}),
        step(),
    )
    result = update(model, optimizer, given(), settings, 3, CPU, world=world, compiled=compiled)
    return result, gradients, model


@pytest.mark.parametrize("micro", [16, 32])
@pytest.mark.parametrize("overrides", [("train.z_loss=0.01",), ("train.grad_clip=0.05",)])
def test_accumulated_gradients_are_those_of_the_whole_batch(micro, overrides):
    whole, expected, _ = one_update(None, *overrides)
    pieces, found, _ = one_update(micro, *overrides)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert pieces.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_compiled_losses_and_gradients_are_the_same(monkeypatch):
    """The last chunk is shorter than the others."""
    monkeypatch.setattr(loss, "rows_at_once", lambda vocab_size, device_type: 24)
    plain, expected, _ = one_update(None, "train.z_loss=0.01")
    fused, found, _ = one_update(None, "train.z_loss=0.01", compiled=True)
    assert fused.loss == pytest.approx(plain.loss, rel=1e-6)
    assert fused.grad_norm == pytest.approx(plain.grad_norm, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_losses_are_compiled_with_the_layers(compiled, monkeypatch):
    seen = []
    monkeypatch.setattr(loss, "compiled_once", lambda function: seen.append(function) or function)
    monkeypatch.setattr(speed, "compile_layers", lambda model: None)
    rehearse(config(f"train.compile={str(compiled).lower()}")).step()
    assert (objective in seen) == compiled


def test_a_pass_reads_one_micro_batch(monkeypatch):
    read, hidden = [], Decoder.hidden
    monkeypatch.setattr(
        Decoder, "hidden", lambda *given, **how: read.append((*given[1].shape,)) or hidden(*given, **how)
    )
    one_update(32)
    assert read == [(2, 16), (2, 16)]


@pytest.mark.parametrize("overrides", [(), ("model.head.tied=true",)])
def test_the_heads_matrix_is_converted_once_for_all_pieces(overrides, monkeypatch):
    """The gradients stay those of a conversion in each piece, and are summed in float32."""
    train, rounded = resolve_train(config(*overrides)), Device("cpu", torch.bfloat16)
    found = []
    for rows in (64, 16):
        monkeypatch.setattr(loss, "rows_at_once", lambda vocab_size, device_type, rows=rows: rows)
        model = Decoder(config(*overrides).model)
        matrix = model.embedding.weight if model.head.weight is None else model.head.weight
        hidden_ND, targets_N = torch.linspace(-1, 1, 64 * model.config.d_model).view(64, -1), torch.arange(64)
        with Conversions(matrix) as seen:
            gradient_ND, _ = loss.backward_through_head(model, hidden_ND, targets_N, train, 1.0, rounded)
        assert seen.count == 1
        found.append((gradient_ND, matrix.grad))
    for whole, in_pieces in zip(*found, strict=True):
        torch.testing.assert_close(in_pieces, whole, rtol=0.02, atol=1e-4)
    assert torch.is_autocast_enabled("cpu") is False


class Conversions(TorchDispatchMode):
    """Count how often a matrix is converted to another dtype."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix, self.count = matrix, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0] is self.matrix
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("overrides", "waits"),
    [
        ((), 1),
        (("train.objective=masked", "model.attention.visibility=two_sided"), 1),
        (("model.mlp={kind: moe, experts: 4, active: 2, d_ff: 8}",), 6),
    ],
)
def test_an_update_waits_for_a_gpu_only_to_read_its_results(overrides, waits):
    """One wait for the loss and the gradient norm, and one for the router's metrics.

    In float32, a mixture reads the sizes of its groups: here, once in each of two layers and two micro-batches.
    """
    train = resolve_train(asked := config(*overrides, "train.batch_tokens=64", "train.micro_batch_tokens=32"))
    with Accelerator() as gpu:
        model = Decoder(asked.model).to("cuda")
        optimizer = make_optimizer(model, train)
        batch = random_batch(asked, Windows(windows()))
        gpu.waits.clear()
        result = update(model, optimizer, batch, train, 0, Device("cuda", torch.float32))
    assert result.updated
    assert len(gpu.waits) == waits, gpu.waits


@pytest.fixture
def one_process():
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    destroy_process_group()


def test_one_process_that_divides_windows_by_itself_trains_as_alone(one_process):
    alone, expected, _ = one_update(32)
    result, found, _ = one_update(32, world=replace(ALONE, context_group=ContextGroup(one_process)))
    assert result.loss == pytest.approx(alone.loss, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


def test_a_process_adds_its_part_of_the_gradient(one_process):
    """Two processes that divide windows each take the mean over their tokens, and the two are averaged.

    Two processes that share components each add half of the router losses, because the two are summed.
    """
    both = SimpleNamespace(size=2, shard=ContextGroup(one_process).shard, sum=lambda loss: 2 * loss)
    mixtures = [f"model.mlp={{kind: moe, experts: 4, d_ff: 16, balance: {{loss: {loss}}}}}" for loss in (1.0, 0.5)]
    for world, own, alone in (
        (replace(ALONE, size=2, context_group=both), (), ()),
        (replace(ALONE, size=2, tensor=2), mixtures[:1], mixtures[1:]),
    ):
        result, found, _ = one_update(32, "train.grad_clip=null", *own, world=world)
        expected, gradients, _ = one_update(32, "train.grad_clip=null", *alone)
        assert result.loss == pytest.approx(expected.loss, rel=1e-6)
        for name, gradient in gradients.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


def test_clipping_scales_to_the_largest_norm_and_reports_the_norm_before():
    free, unclipped, _ = one_update(None, "train.grad_clip=null")
    result, clipped, _ = one_update(None, "train.grad_clip=0.01")
    assert result.grad_norm == free.grad_norm > 0.01
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in clipped.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert all(torch.allclose(clipped[n], g * 0.01 / free.grad_norm, rtol=1e-3) for n, g in unclipped.items())


def test_the_reported_loss_is_before_the_update_and_without_z_loss():
    result, _, _ = one_update(None, "train.z_loss=0.5")
    model, batch = Decoder(config().model), torch.from_numpy(windows())
    logits = model(batch[:, :-1]).detach().double()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert result.loss == pytest.approx(float(expected), rel=1e-6)


def test_the_rate_of_the_step_is_the_one_applied():
    settings = resolve_train(config("train.warmup=0", "train.schedule=linear", "train.final_lr=0"))
    model = Decoder(config().model).train()
    optimizer = make_optimizer(model, settings)
    result = update(model, optimizer, given(), settings, 5, CPU)
    assert result.lr == pytest.approx(settings.lr / 2)
    assert {group["lr"] for group in optimizer.param_groups} == {result.lr}


def test_dropout_depends_on_seed_and_step_only():
    """Dropout does not depend on the generator's earlier use, so that a resumed run equals an uninterrupted one."""
    torch.manual_seed(1)
    first, _, _ = one_update(None, "model.dropout=0.5")
    torch.manual_seed(2)
    second, _, _ = one_update(None, "model.dropout=0.5")
    other, _, _ = one_update(None, "model.dropout=0.5", "train.seed=1")
    assert first == second
    assert first.loss != other.loss


def test_a_nan_update_changes_nothing():
    model = Decoder(config().model).train()
    optimizer = make_optimizer(model, config().train)
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    result = update(model, optimizer, given(), resolve_train(config()), 0, CPU)
    assert not result.is_finite
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters() if n != "norm.weight")
    assert not optimizer.state


def numpy_bits_per_byte(model, held_out, token_bytes):
    bits, n_bytes = 0.0, 0
    for row in held_out:
        logits = model(torch.from_numpy(row[None, :-1]))[0].detach().double().numpy()
        for at, target in enumerate(row[1:]):
            if token_bytes[target]:
                bits += np.logaddexp.reduce(logits[at]) / np.log(2) - logits[at][target] / np.log(2)
                n_bytes += token_bytes[target]
    return bits / n_bytes


def test_bits_per_byte_is_total_bits_over_total_bytes():
    """Special tokens (0 bytes) count neither as bits nor as bytes, and the batching of windows does not matter."""
    model = Decoder(config("model.dropout=0.5").model, seed=3).train()
    held_out = windows(rows=7, seed=5)
    held_out[:, 4] = 0
    token_bytes = np.random.default_rng(2).integers(1, 9, 300).astype(np.int32)
    token_bytes[0] = 0
    scores = [evaluate(model, unmasked(held_out, token_bytes), CPU, batch_tokens=n) for n in (1, 40, 8192)]
    assert model.training
    expected = numpy_bits_per_byte(model.eval(), held_out, token_bytes)
    assert [s.bits_per_byte for s in scores] == pytest.approx([expected] * 3, rel=1e-6)
    n_text = int((token_bytes[held_out[:, 1:]] > 0).sum())
    n_bytes = int(token_bytes[held_out[:, 1:]].sum())
    assert scores[0].loss == pytest.approx(expected * math.log(2) * n_bytes / n_text, rel=1e-6)


def test_the_optimizer_is_torchs():
    """Updates are equal to the bit, and each can load the other's state, even after torch wrapped the class's methods."""
    train = resolve_train(config("train.weight_decay=0.1"))
    states = []
    for theirs in (True, False):
        model = Decoder(config().model, seed=0)
        ours = make_optimizer(model, train)
        optimizer = torch.optim.AdamW(ours.param_groups, lr=train.lr, fused=True) if theirs else ours
        for step in range(3):
            update(model, optimizer, given(seed=step), train, step, CPU)
        assert all(p.grad is None for p in model.parameters())
        again = make_optimizer(model, train)
        again.load_state_dict(optimizer.state_dict())
        update(model, again, given(seed=3), train, 3, CPU)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.head.tied=true",),
        ("model.head={softcap: 3.0, bias: true, scale: 0.7}", "train.z_loss=0.01"),
        ("model.embedding.width=8",),
        ("model.mlp={kind: moe, experts: 4, balance: {loss: 0.1, router_z_loss: 0.1}}",),
    ],
)
def test_the_head_in_pieces_gives_the_gradient_of_the_whole(overrides, monkeypatch):
    """The reference gradient uses all logits at once, and only autograd."""
    monkeypatch.setattr(loss, "rows_at_once", lambda *_: 7)  # the last piece has fewer tokens
    settings = config(*overrides).train
    model = Decoder(config(*overrides).model).train()
    routers = Routers(model, ALONE)
    collected = routers.collector()
    tokens = torch.from_numpy(windows())
    minimized, cross_entropy = objective(model(tokens[:, :-1], collected=collected), tokens[:, 1:], settings.z_loss)
    sum(routers.minimized(collected), minimized).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    result, found, _ = one_update(None, "train.grad_clip=null", *overrides)
    assert result.loss == pytest.approx(cross_entropy.item(), rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


def test_auto_compiles_long_runs_if_there_is_a_compiler(monkeypatch):
    long, short = config("train.tokens=4000M"), config()
    for asked, has, expected in (("auto", True, True), ("auto", False, False), ("false", True, False)):
        monkeypatch.setattr(compiling, "has_compiler", lambda has=has: has)
        chosen = build_config(long.model_dump(exclude_none=True), (f"train.compile={asked}",), "long")
        assert is_compiled(chosen, resolve_train(chosen), CPU) is expected
    assert not is_compiled(short, resolve_train(short), CPU)
    monkeypatch.setattr(graphs, "has_compiler", lambda: False)
    asked_for = config("train.compile=true")
    with pytest.raises(UserError, match=r"train\.compile: true: torch compiles to C\+\+"):
        is_compiled(asked_for, resolve_train(asked_for), CPU)


@pytest.mark.slow
def test_compiled_layers_are_evaluated_as_they_were_written():
    torch.compiler.reset()
    model, counter = Decoder(config().model), CompileCounter()
    for layer in model.layers:
        layer.compile(backend=counter)
    evaluate(model, unmasked(windows(), np.ones(300, dtype=int)), CPU)
    assert counter.frame_count == 0
    update(model.train(), make_optimizer(model, config().train), given(), resolve_train(config()), 0, CPU)
    assert counter.frame_count > 0


@pytest.mark.parametrize(
    ("vocab", "device", "rows"),
    [
        (2048, "cpu", 2048),  # 16 MiB
        (8192, "cpu", 512),
        (16_384, "cpu", 256),
        (32_768, "cpu", 255),  # 256 would be 32 MiB, which glibc returns to the system
        (50_304, "cpu", 166),
        (65_537, "cpu", 256),  # 127 would be too few
        (262_144, "cpu", 256),
        (32_768, "cuda", 2048),
    ],
)
def test_pieces_of_the_logits(vocab, device, rows):
    assert rows_at_once(vocab, device) == rows
