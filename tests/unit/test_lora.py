"""LoRA (Hu 2021): what it computes, what it trains, and what it costs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.work import Pass, matrix_flops
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.config.lora import Lora
from archlab.config.problems import ConfigError
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.model.lora import LoraProjection, add_lora, initialize_lora, is_added
from archlab.model.projection import Projection
from archlab.pricing.hardware import load_hardware
from archlab.pricing.lora import added_parameters
from archlab.pricing.memory import training_memory_of
from archlab.pricing.partition import Parallel
from archlab.pricing.summary import cost
from archlab.pricing.training_plan import plan_training
from archlab.pricing.work import computed_training_flops, forward, forward_and_backward
from archlab.training.checks import loss_depends_on_micro_batches
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.shard import sharded
from archlab.training.step import update
from archlab.training.world import ALONE
from tests.shared.tiny import config

CPU = Device("cpu", torch.float32)
TOKENS = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(0))
ALL = "train.lora={}"
MODELS = {
    "dense": (),
    "windows": ("model.attention.window=4", "model.attention.gate={per: head}", "model.attention.out_bias=true"),
    "plain": ("model.mlp={kind: plain, bias: true}", "model.norm.kind=layernorm", "model.position.kind=learned"),
    "parallel": ("model.block.parallel=shared", "model.attention.sub_norm=true"),
    "latent": ("model.attention={kind: latent, n_heads: 4, kv_rank: 16, q_rank: 16, nope_dim: 8, rope_dim: 4}",),
    "experts": ("model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16, shared: {gate: true}}",),
    "experts in a latent space": ("model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16, latent: {width: 8}}",),
    "encoder": ("model.encoder={n_layers: 2}", "train.objective.kind=span_corruption", "data.reserve=[sentinels:9]"),
    **{
        kind: ("model.attention.kind=none", "model.position=none", f"model.mixer={{kind: {kind}}}")
        for kind in ("mamba", "mamba2", "gated_delta", "kimi_delta", "rglru", "short_conv")
    },
}


def with_lora(settings: Config, seed: int = 0) -> Decoder:
    return sharded(settings.model, settings.train.model_copy(update={"seed": seed}), "cpu", ALONE)


def changed(model: Decoder) -> dict[str, LoraProjection]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraProjection)}


def after_updates(settings: Config, steps: int = 3) -> Decoder:
    """Return the model with LoRA after a few updates on random tokens."""
    train, model = resolve_train(settings), with_lora(settings)
    optimizer, draw = make_optimizer(model, train), np.random.default_rng(0)
    for step in range(steps):
        windows = Windows(draw.integers(0, 60, (train.rows, train.seq_len + 1)))
        assert update(model, optimizer, random_batch(settings, windows), train, step, CPU).updated
    return model


# --- the model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_component_states_the_projections_of_its_module(name):
    model = Decoder(config(*MODELS[name]).model, seed=None)
    for stack in model.stacks:
        for layer, stated in zip(stack.layers, stack.layer_configs, strict=True):
            made = {path: m for path, m in layer.named_modules() if isinstance(m, Projection)}
            shapes = {path: (shape.d_out, shape.d_in) for path, shape in stated.projections().items()}
            assert shapes == {path: tuple(projection.weight.shape) for path, projection in made.items()}


def test_output_and_gradients_are_those_of_the_changed_matrix():
    draw = torch.Generator().manual_seed(0)
    frozen = Projection(5, 7, bias=True, role="input")
    x, w, bias, a, b, seen = (
        torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 5), (7, 5), (7,), (2, 5), (7, 2), (3, 7))
    )
    ours = LoraProjection(frozen, Lora(rank=2, alpha=3.0)).double()
    for name, value in (("weight", w), ("bias", bias), ("lora_a", a), ("lora_b", b)):
        setattr(ours, name, torch.nn.Parameter(value.detach().clone()))
    y = F.linear(x, w + 3.0 / 2 * b @ a, bias)
    torch.testing.assert_close(ours(x), y)
    expected = torch.autograd.grad((y * seen).sum(), (x, a, b))
    found = torch.autograd.grad((ours(x) * seen).sum(), (x, ours.lora_a, ours.lora_b))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", MODELS)
def test_at_first_the_logits_are_exactly_those_without_lora(name):
    settings = config(*MODELS[name], ALL)
    plain, model = Decoder(settings.model, seed=0).eval(), with_lora(settings).eval()
    source = {"source": TOKENS} if settings.model.encoder else {}
    torch.testing.assert_close(model(TOKENS, **source), plain(TOKENS, **source), rtol=0, atol=0)
    assert changed(model)


def test_the_matrices_have_their_own_random_streams():
    one, other = (changed(with_lora(config(f"train.lora.modules=[{names}]"))) for names in ("q", "q, down"))
    assert one.keys() < other.keys()
    for name, projection in one.items():
        torch.testing.assert_close(projection.lora_a, other[name].lora_a, rtol=0, atol=0)
        assert not projection.lora_b.any()
    a = torch.cat([p.lora_a.flatten() for p in other.values() if p.in_features == 32])
    assert a.std().item() == pytest.approx(32**-0.5, rel=0.1)
    again = changed(with_lora(config("train.lora.modules=[q]"), seed=1))
    assert all(not torch.equal(again[name].lora_a, one[name].lora_a) for name in one)


@pytest.mark.parametrize(
    ("modules", "paths"),
    [
        ("[q, v]", {"attention.q", "attention.v"}),
        ("[mlp]", {"mlp.up", "mlp.gate", "mlp.down"}),
        ("[attention.out, down]", {"attention.out", "mlp.down"}),
    ],
)
def test_names_choose_the_projections(modules, paths):
    model = with_lora(config(f"train.lora.modules={modules}"))
    assert set(changed(model)) == {f"layers.{i}.{path}" for i in range(2) for path in paths}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_the_added_matrices_change(name, optimizer):
    settings = config(*MODELS[name], ALL, f"train.optimizer.kind={optimizer}", "train.batch_tokens=64")
    before, after = with_lora(settings).state_dict(), after_updates(settings).state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == set(filter(is_added, before))


def test_the_bias_of_a_router_stays():
    settings = config(*MODELS["experts"], "model.mlp.router.correction={rate: 0.1}", ALL)
    model = after_updates(settings)
    assert not any(buffer.any() for name, buffer in model.named_buffers() if name.endswith("correction"))


def test_dropout_drops_only_the_input_of_a():
    draw = torch.Generator().manual_seed(0)
    frozen = Projection(64, 8, bias=False, role="input")
    frozen.weight.data.normal_(generator=draw)
    x = torch.randn(4, 64, generator=draw)
    ours = LoraProjection(frozen, Lora(dropout=0.5))
    ours.lora_a.data.normal_(generator=draw)
    ours.lora_b.data.zero_()
    torch.testing.assert_close(ours.train()(x), frozen(x), rtol=0, atol=0)
    ours.lora_b.data.normal_(generator=draw)
    assert not torch.equal(ours.train()(x), ours.eval()(x))
    torch.testing.assert_close(ours.eval()(x), frozen(x) + x @ ours.lora_a.T @ ours.lora_b.T * 2)


def test_a_loss_with_dropout_of_lora_depends_on_micro_batches():
    assert not loss_depends_on_micro_batches(config(ALL))
    assert loss_depends_on_micro_batches(config("train.lora.dropout=0.1"))


def test_weight_decay_and_rates_follow_the_role_of_the_matrix():
    settings = config(ALL, "train.lr_multipliers.output=0.5", "train.weight_decay=0.3")
    model = with_lora(settings)
    groups = make_optimizer(model, settings.train).param_groups
    rates = {p: group["lr_multiplier"] for group in groups for p in group["params"]}
    assert {group["weight_decay"] for group in groups} == {0.3}
    assert rates.keys() == {p for p in model.parameters() if p.requires_grad}
    for name, projection in changed(model).items():
        expected = 0.5 if name.endswith(("out", "down")) else 1.0
        assert rates[projection.lora_a] == rates[projection.lora_b] == expected


@pytest.mark.parametrize("seed", [0, 1])
def test_micro_batches_and_recomputation_make_the_same_updates(seed):
    whole = after_updates(config(ALL, f"train.seed={seed}")).state_dict()
    parts = after_updates(config(ALL, f"train.seed={seed}", "train.micro_batch_tokens=16")).state_dict()
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)  # sums in another order


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.lora.modules=[atention]",), r"atention is not a projection .*did you mean attention\?"),
        (("train.lora.modules=[embedding]",), "allowed: attention, q, k, v, out, mlp, up, gate, down"),
        ((*MODELS["experts"], "train.lora.modules=[mlp.experts]"), r"mlp\.experts is not a projection"),
        (("train.lora.modules=[]",), "train.lora.modules"),
        (("train.lora.rank=0",), "train.lora.rank"),
        (("model.mup={base_width: 16, base_head_dim: 8}", ALL), "muP prescribes no learning rates"),
        (("parallel.tensor=2", ALL), "2; allowed with train.lora: 1"),
        (("parallel.expert=2", ALL), "2; allowed with train.lora: 1"),
        (("train.decay_embeddings=true", ALL), "leaves embeddings as they are"),
        (("train.lr_multipliers.constant=2", ALL), "2 has no effect, because train.lora"),
        (("train.optimizer={kind: muon, adam_lr: 0.01}", ALL), "Muon updates all matrices of train.lora"),
        (
            ("model.attention.kind=none", "model.position=none", "model.mlp={kind: moe, experts: 4, d_ff: 16}", ALL),
            "no projections that LoRA could change",
        ),
    ],
)
def test_what_lora_cannot_do_is_refused_by_name(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


# --- cost -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_memory_is_that_of_the_tensors(name, optimizer):
    settings = config(*MODELS[name], ALL, f"train.optimizer.kind={optimizer}")
    model, train = with_lora(settings), resolve_train(settings)
    state = make_optimizer(model, train)
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    state.step()
    averages = sum(x.nbytes for of in state.state.values() for x in of.values() if x.ndim)
    found = training_memory_of(settings)
    assert added_parameters(settings.model, settings.train.lora) == sum(p.numel() for p in trained)
    assert found.weights == sum(p.nbytes for p in model.parameters())
    assert (found.gradients, found.optimizer) == (sum(p.nbytes for p in trained), averages)
    assert cost(settings).training_memory == found


LENGTH = 16


def windows(settings: Config) -> Pass:
    return Pass(2, LENGTH, counting="computed", source=LENGTH if settings.model.encoder else 0)


def flops_of_a_step(settings: Config) -> int:
    """Return the FLOPs of matrix products of a forward and a backward pass, as torch counts them."""
    model = Decoder(settings.model, kernel="reference")
    assert settings.train.lora
    add_lora(model, settings.train.lora)
    initialize_lora(model, 0)
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(tokens, **({"source": tokens} if settings.model.encoder else {})).sum().backward()
    return counter.get_total_flops()


def our_flops(settings: Config) -> float:
    """Return the same number from the config. The reference kernel multiplies every query with every key, so the
    products of queries and keys are those of whole squares."""
    model = settings.model
    ours = matrix_flops(forward_and_backward(model, windows(settings), settings.train.lora))
    scores = matrix_flops(forward(model, windows(settings)))["scores"]
    attention = [layer.attention for layer in layer_configs(model) if isinstance(layer.attention, AnyAttention)]
    whole = sum(4 * LENGTH**2 * one.n_heads * (one.query_width + one.v_dim) for one in attention)
    return ours.total() + (ours["scores"] * (whole / scores - 1) if scores else 0)


@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize("name", ["dense", "windows", "plain", "parallel", "latent", "experts"])
def test_flops_are_those_that_torch_counts(name, rank):
    settings = config(*MODELS[name], f"train.lora.rank={rank}")
    assert our_flops(settings) == pytest.approx(flops_of_a_step(settings), rel=1e-9)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "gated_delta", "kimi_delta", "rglru", "short_conv", "encoder"])
def test_a_rank_adds_the_flops_that_torch_counts(name):
    """The rest is counted by conventions that LoRA does not change: scans, and pairs of cross-attention."""
    one, five = (config(*MODELS[name], f"train.lora.rank={rank}") for rank in (1, 5))
    assert our_flops(five) - our_flops(one) == pytest.approx(flops_of_a_step(five) - flops_of_a_step(one))


@pytest.mark.parametrize("modules", ["[q]", "[k, v]", "[mlp]", "[attention]", "[out]", "[down]", "[q, v]"])
def test_with_some_modules_only_the_first_layer_may_be_counted_too_high(modules):
    settings = config(f"train.lora.modules={modules}", "model.n_layers=3")
    one_layer = our_flops(settings) - our_flops(with_layers(settings, 2))
    assert flops_of_a_step(settings) <= our_flops(settings) <= flops_of_a_step(settings) + one_layer / 3
    assert flops_of_a_step(settings) - flops_of_a_step(with_layers(settings, 2)) == pytest.approx(one_layer)


def test_training_flops_per_token_are_those_of_a_window():
    settings = config(ALL)
    window = Pass(1, LENGTH, counting="computed")
    total = matrix_flops(forward_and_backward(settings.model, window, settings.train.lora)).total()
    assert computed_training_flops(settings) == pytest.approx(total / LENGTH)
    assert 0.6 < computed_training_flops(settings) / computed_training_flops(config()) < 1


def with_layers(settings: Config, n: int) -> Config:
    return build_config(settings.model_dump(mode="json"), [f"model.n_layers={n}"], "tiny")


def test_a_plan_for_several_devices_is_refused():
    with pytest.raises(UserError, match=r"train\.lora: training with LoRA is not planned"):
        plan_training(config(ALL), Parallel(), load_hardware("h100"))
