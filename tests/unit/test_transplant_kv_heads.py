"""Another number of key/value heads: copies are exact, means are exact for equal heads, other numbers are refused."""

import pytest
import torch

from archlab.errors import UserError
from tests.shared.tiny import config
from transplants import TOKENS, received, trained

EXACT = {"rtol": 1e-10, "atol": 1e-10}

FEATURES = [
    [],
    ["model.attention.qkv_bias=true", "model.attention.v_dim=6", "model.attention.clip_qkv=0.5"],
    ["model.attention.qk_norm={kind: rmsnorm}"],
    ["model.attention.qk_norm={kind: rmsnorm, scope: each_head}"],
    ["model.attention.qk_norm={kind: rmsnorm, scope: width}"],
    ["model.attention.qk_norm={kind: layernorm, scope: width}"],
    ["model.attention.sinks=true", "model.attention.gate={per: head}", "model.attention.sub_norm=true"],
    ["model.position.pairing=interleaved", "model.position.fraction=0.5", "model.attention.softcap=5.0"],
    ["model.position={kind: t5, shared: false}"],
    ["model.position.kind=transformer_xl"],
]


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 4), (2, 4)])
def test_copied_heads_are_exact(features, before, after):
    old = trained(config(f"model.attention.n_kv_heads={before}", *features))
    new, made = received(old, config(f"model.attention.n_kv_heads={after}", *features))
    assert made.effect == "exact"
    assert [change.name for change in made.changes] == ["more key/value heads"]
    torch.testing.assert_close(new(TOKENS), old(TOKENS), **EXACT)


@pytest.mark.parametrize("features", FEATURES)
def test_the_mean_of_copied_heads_is_the_head_itself(features):
    few, many = (config(f"model.attention.n_kv_heads={n}", *features) for n in (2, 4))
    old = trained(few)
    copied, _ = received(old, many)
    pooled, made = received(copied, few)
    assert made.effect == "approximate"
    torch.testing.assert_close(pooled(TOKENS), old(TOKENS), **EXACT)


def test_a_mean_of_unequal_heads_changes_the_logits():
    old = trained(config("model.attention.n_kv_heads=4"))
    new, made = received(old, config("model.attention.n_kv_heads=2"))
    assert [change.detail for change in made.changes] == ["attention of layers 0 to 1: 4 to 2 heads"]
    assert (new(TOKENS) - old(TOKENS)).abs().max() > 1e-3


def test_heads_of_an_encoder_and_of_cross_attention_are_copied():
    encoder = ["model.encoder={n_layers: 2, attention: {n_kv_heads: 1}, cross: {n_kv_heads: 1}}"]
    old = trained(config("model.attention.n_kv_heads=2", *encoder))
    new, made = received(old, config("model.attention.n_kv_heads=4", "model.encoder={n_layers: 2}"))
    assert [(change.effect, change.detail) for change in made.changes] == [
        ("exact", "attention of layers 0 to 1 and encoder layers 0 to 1: 1 to 4 heads, 2 to 4 heads"),
        ("exact", "cross of layers 0 to 1: 1 to 4 heads"),
    ]
    source = TOKENS[:, :7]
    torch.testing.assert_close(new(TOKENS, source=source), old(TOKENS, source=source), **EXACT)


HYBRID = "model.layers={local: {attention.window: 4, attention.n_kv_heads: %s}, full: {}, pattern: [local, full]}"


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        (["model.attention.n_kv_heads=4"], ["model.attention.n_kv_heads=6"], "model.attention.n_kv_heads: 6"),
        ([HYBRID % 4], [HYBRID % 6], "model.layers.local.attention.n_kv_heads: 6"),
        (
            ["model.encoder={n_layers: 1, cross: {n_kv_heads: 4}}"],
            ["model.encoder={n_layers: 1, cross: {n_kv_heads: 6}}"],
            "model.encoder.cross.n_kv_heads: 6",
        ),
        (
            ["model.encoder={n_layers: 1, attention: {n_kv_heads: 4}}"],
            ["model.encoder={n_layers: 1, attention: {n_kv_heads: 6}}"],
            "model.encoder.attention.n_kv_heads: 6",
        ),
    ],
)
def test_a_number_that_does_not_divide_is_refused_with_its_field(before, after, field):
    heads = ["model.attention.n_heads=12", "model.attention.n_kv_heads=12"]
    with pytest.raises(UserError) as refusal:
        received(trained(config(*heads, *before)), config(*heads, *after))
    assert str(refusal.value).startswith(f"{field}, which is neither a divisor nor a multiple of the 4")
    assert str(refusal.value).endswith("allowed: 1, 2, 4, 12")
