"""Experts that are copies of a dense MLP compute what it computes, whatever the router chooses."""

import pytest
import torch

from archlab.errors import UserError
from transplants import gap, tiny_received, tiny_trained

MOE = ("model.mlp.kind=moe", "model.mlp.experts=4", "model.mlp.active=2", "model.mlp.d_ff=64")
SIGMOID, NO_SUM = "model.mlp.router.score=sigmoid", "model.mlp.router.normalise=false"
INPUT, ONE = "model.mlp.router.applied_to=input", "model.mlp.active=1"
FACTOR = "model.mlp.router.factor=2.5"

SOURCES = {
    "gated": (),
    "plain with biases": ("model.mlp.kind=plain", "model.mlp.bias=true", "model.norm.kind=layernorm"),
    "clamped": ("model.mlp.clamp=1.0", "model.mlp.up_offset=1.0", "model.attention.qk_norm.kind=rmsnorm"),
    "xielu, parallel": ("model.mlp.activation=xielu", "model.block.parallel=shared", "model.head.tied=true"),
}
EXACT = {
    "softmax": (),
    "sigmoid with a factor": (SIGMOID, FACTOR, "model.mlp.router.correction={}", "model.mlp.router.bias=true"),
    "all experts": (NO_SUM, "model.mlp.active=4", FACTOR),
    "groups": ("model.mlp.router.groups={n: 2, kept: 1}",),
    "one expert, weighted input": (INPUT, ONE, SIGMOID, FACTOR),
    "shared expert": ("model.mlp.shared={d_ff: 24, gate: true, bias: true}",),
}
AT_EQUAL_SCORES = {
    "softmax": (NO_SUM, FACTOR),
    "sigmoid": (NO_SUM, SIGMOID),
    "weighted input": (INPUT, FACTOR),
    "Llama 4": (INPUT, NO_SUM, SIGMOID, ONE),
}


def _experts_of(source: tuple[str, ...], *router: str) -> tuple[str, ...]:
    plain = ("model.mlp.gated=false",) if "model.mlp.kind=plain" in source else ()
    return (*source, *MOE, *plain, *router)


@pytest.mark.parametrize("router", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_logits_stay_the_same(source, router):
    old = tiny_trained(*source)
    new, made = tiny_received(old, *_experts_of(source, *router))
    assert made.effect == "exact"
    assert all(".router." in name or ".shared" in name for name in made.initialized)
    assert gap(old, new) < 1e-10


@pytest.mark.parametrize("router", AT_EQUAL_SCORES.values(), ids=AT_EQUAL_SCORES)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_without_a_fixed_sum_the_logits_stay_the_same_at_equal_scores(source, router):
    old = tiny_trained(*source)
    new, made = tiny_received(old, *_experts_of(source, *router))
    assert [change.effect for change in made.changes] == ["approximate", "new"]
    assert "equal scores" in made.changes[0].detail
    assert gap(old, new) > 1e-3
    with torch.no_grad():
        for layer in new.layers:
            layer.mlp.router.weight.zero_()
    assert gap(old, new) < 1e-10


def test_layers_that_stay_dense_are_kept():
    pattern = ("model.layers.dense={}", "model.layers.pattern=[dense, sparse]")
    old = tiny_trained()
    kind = "model.layers.sparse={mlp: {kind: moe, experts: 4, d_ff: 64}}"
    new, made = tiny_received(old, *pattern, kind)
    assert made.effect == "exact"
    assert made.changes[0].detail == "layer 1: 4 experts, 2 active"
    assert {"layers.0.mlp.up.weight", "layers.0.mlp.down.weight"} <= set(made.kept)
    assert gap(old, new) < 1e-10


def test_other_layers_and_experts_at_once():
    old = tiny_trained()
    new, made = tiny_received(old, *MOE, "model.n_layers=4", "model.d_model=64", "model.attention.n_heads=8")
    assert made.effect == "exact"
    assert gap(old, new) < 1e-10


@pytest.mark.parametrize(
    ("source", "wanted", "message"),
    [
        ((), ("model.mlp.d_ff=32",), r"model\.mlp\.d_ff: 32; .*allowed: its width, 64"),
        ((), ("model.mlp.gated=false",), r"model\.mlp\.gated: false; .*allowed: true"),
        (
            (),
            ("model.mlp.shared={}", "model.mlp.router.norm=true", "model.mlp.own_norms=true"),
            r"model\.mlp\.own_norms: true, .*allowed: false",
        ),
        (("model.mlp.sub_norm=true",), (), r"model\.mlp\.kind: moe, .*sub_norm=true.*allowed: gated"),
        ((*MOE, "model.mlp.experts=2"), (), r"model\.mlp\.experts: 4, .*allowed: 2"),
        ((), ("model.mlp.latent.width=8",), r"model\.mlp\.latent: \{bias: false, width: 8\}; .*allowed: null"),
        ((*MOE, "model.mlp.latent.width=8"), (), r"model\.mlp\.latent: null, .*allowed: \{bias: false, width: 8\}"),
        (
            (*MOE, "model.mlp.latent.width=8"),
            ("model.mlp.latent.width=6",),
            r"model\.mlp\.latent\.width: 6, .*allowed: 8",
        ),
    ],
)
def test_other_experts_are_refused_by_name(source, wanted, message):
    old = tiny_trained(*{o.partition("=")[0]: o for o in source}.values())
    with pytest.raises(UserError, match=message):
        tiny_received(old, *MOE, *wanted)
