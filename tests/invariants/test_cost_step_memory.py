"""Peak memory of a training step, compared with torch's record of its allocations."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import archlab
from archlab.config.components.work import Pass
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.exchange.configs import load_config
from archlab.measuring.speed import rehearse
from archlab.model.inputs import Inputs
from archlab.pricing.memory import step_memory
from archlab.pricing.summary import cost
from archlab.training.compiling import recompute_layers
from archlab.training.device import choose_device
from archlab.training.loss import backward_through_head
from archlab.training.optim import make_optimizer

SIZE = (
    "train.seq_len=256",
    "train.batch_tokens=2048",
    "train.dtype=float32",
    "train.device=cpu",
    "train.compile=false",
)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    "overrides",
    [
        ("model.n_layers=2",),
        ("model.n_layers=2", "model.attention={n_heads: 4, softcap: 30}", "model.head.softcap=30"),
        ("model.n_layers=2", "model.vocab_size=40000"),
        ("model.n_layers=2", "model.mlp={kind: moe, experts: 8, active: 2, d_ff: 300}"),
        ("model.n_layers=3", "train.micro_batch_tokens=512"),
        ("model.n_layers=2", "train.lora={rank: 16}"),
        ("model.n_layers=3", "train.lora={rank: 64, dropout: 0.1}", "train.micro_batch_tokens=512"),
        ("model.n_layers=2", "model.attention.kind=none", "model.position=none", "model.mixer={kind: mamba}"),
        ("model.n_layers=2", "model.attention.kind=none", "model.position=none", "model.mixer={kind: mamba2}"),
        ("model.n_layers=2", "model.attention.kind=none", "model.position=none", "model.mixer={kind: rglru}"),
        *(("model.n_layers=4", f"model.position={kind}") for kind in ("t5", "shaw", "transformer_xl", "alibi")),
        ("model.n_layers=4", "model.norm.kind=prmsnorm", "model.mlp={kind: plain, activation: xielu}"),
        ("model.n_layers=4", "model.mlp={kind: gated, activation: quick_gelu, clamp: 7}", "model.dropout=0.1"),
        (
            "model.n_layers=2",
            "model.d_model=512",
            "train.batch_tokens=256",
        ),  # the peak is in the update, not in the activations
    ],
)
def test_the_peak_is_what_torch_allocates(overrides, recompute):
    config = load_config("tiny-llama", *SIZE, *overrides)
    run = rehearse(config)
    if recompute:
        recompute_layers(run.model)
    assert_equal_to_the_peak(config, run.model, run.step, recompute=recompute)


def assert_equal_to_the_peak(config: Config, model: nn.Module, step: Callable[[], None], *, recompute: bool) -> None:
    step()
    # AdamW's two averages are as large as the trained weights.
    fixed = sum(p.nbytes * (3 if p.requires_grad else 1) for p in model.parameters())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    allocated = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = sorted((event.start_ns(), event.nbytes()) for event in allocated)
    measured = fixed + max(accumulate(n_bytes for _, n_bytes in changes))
    said = cost(config, dtype="float32").step_memory
    assert (said.recomputed_peak if recompute else said.peak) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    "overrides",
    [
        ("model.encoder={n_layers: 2}",),
        ("model.encoder={n_layers: 6}", "model.vocab_size=64"),
        ("model.encoder={n_layers: 3, mlp.d_ff: 1024}", "model.position=t5"),
        ("model.encoder={n_layers: 2}", "train.micro_batch_tokens=512"),
        ("model.encoder={n_layers: 2, cross: {n_kv_heads: 1}}", "model.dropout=0.1"),
        ("model.encoder={n_layers: 2}", "model.d_model=512", "train.batch_tokens=256"),
    ],
)
def test_the_peak_with_an_encoder_is_what_torch_allocates(overrides, recompute):
    """The source text has as many tokens as the target. Both stacks are recomputed."""
    config = load_config("tiny-llama", *SIZE, "model.n_layers=2", *overrides)
    train, device, model = resolve_train(config), choose_device(config.train), archlab.Decoder(config.model).train()
    optimizer = make_optimizer(model, train)
    for layer in [layer for stack in model.stacks for layer in stack.layers] if recompute else []:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    tokens = torch.randint(0, config.model.vocab_size, (train.rows, train.seq_len))
    pieces = tokens.split(train.micro_batch_tokens // train.seq_len)

    def step() -> None:
        for piece in pieces:
            hidden = model.hidden(piece, Inputs(source=piece)).flatten(0, 1)
            gradient, _ = backward_through_head(model, hidden, piece.flatten(), train, 1 / len(pieces), device)
            (hidden * gradient).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    assert_equal_to_the_peak(config, model, step, recompute=recompute)


def test_recomputing_layers_never_keeps_more():
    for name in ("llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "mamba-2-2.7b", "qwen3-next-80b-a3b"):
        found = step_memory(load_config(name).model, Pass(1, 1024, counting="computed", is_training=True))
        assert 0 < found.recomputed_activations < found.activations
