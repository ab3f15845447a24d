"""Latent attention from multi-head attention: exact where theory says so, errors as stated, and refusals by name."""

import math

import pytest
import torch

import archlab.transplant.to_latent as latent_module
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.transplant.low_rank import factors
from tests.shared.tiny import config
from transplants import TOKENS, received, trained

EXACT = {"rtol": 1e-7, "atol": 1e-7}
NO_EPS = "model.norm.eps=1e-14"
D, C = 32, 8


def latent(kv_rank: int = D, nope: int = C, rope: int = 4, v: int = C, **more: object) -> str:
    fields = {"n_heads": 4, "kv_rank": kv_rank, "nope_dim": nope, "rope_dim": rope, "v_dim": v, "norm_eps": 1e-14}
    text = ", ".join(f"{name}: {value}" for name, value in (fields | more).items())
    return f"model.attention={{kind: latent, {text}}}"


def multi_head(n_kv_heads: int = 2, *fields: str) -> str:
    return f"model.attention={{n_heads: 4, n_kv_heads: {n_kv_heads}, {', '.join(('head_dim: 8', *fields))}}}"


def check_exact(old: Decoder, *overrides: str) -> None:
    new, made = received(old, config(NO_EPS, *overrides))
    assert not made.initialized
    torch.testing.assert_close(new(TOKENS), old(TOKENS), **EXACT)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("q_rank", ["null", D])
@pytest.mark.parametrize(
    "position",
    [
        "model.position.kind=none",
        "model.position.kind=learned",
        "model.position.kind=alibi",
        "model.position={kind: t5, shared: false}",
    ],
)
def test_without_a_rotation_the_full_rank_is_exact(position, q_rank, n_kv_heads):
    old = trained(config(NO_EPS, position, multi_head(n_kv_heads)))
    check_exact(old, position, latent(q_rank=q_rank))


@pytest.mark.parametrize(
    "norm",
    [
        "model.norm={kind: layernorm, bias: false}",
        "model.norm={kind: rmsnorm, unit_offset: true}",
        "model.norm={kind: rmsnorm, weight: false}",
        "model.norm={kind: layernorm, bias: false, placement: double}",
    ],
)
def test_every_norm_before_attention_is_exact_at_the_full_rank(norm):
    old = trained(config(norm, NO_EPS, "model.position.kind=none", multi_head()))
    check_exact(old, norm, "model.position.kind=none", latent())


def test_fields_with_a_counterpart_stay():
    fields = ("window: 5", "softcap: 3.0", "out_bias: true", "scale: 0.7")
    old = trained(config(NO_EPS, "model.position.kind=none", multi_head(2, *fields, "v_dim: 6")))
    check_exact(old, "model.position.kind=none", latent(v=6, window=5, softcap=3.0, out_bias="true"))


@pytest.mark.parametrize(
    ("before", "after", "shape"),
    [
        ("kind: rope", "kind: rope", {"nope": 8, "rope": 8}),
        ("pairing: interleaved", "pairing: interleaved", {"nope": 8, "rope": 8}),
        ("pairing: interleaved", "pairing: half", {"nope": 8, "rope": 8}),
        ("pairing: half", "pairing: interleaved", {"nope": 8, "rope": 8}),
        ("fraction: 0.5", "fraction: 1", {"nope": 4, "rope": 4}),
        ("fraction: 0.5", "fraction: 1", {"nope": 8, "rope": 4}),
        (*["scaling: {kind: yarn, factor: 4, original_max_seq_len: 64}"] * 2, {"nope": 8, "rope": 8}),
    ],
)
def test_one_key_head_whose_rotations_all_stay_is_exact(before, after, shape):
    old = trained(config(NO_EPS, f"model.position={{{before}}}", multi_head(1)))
    check_exact(old, f"model.position={{{after}}}", latent(**shape))


def test_key_heads_that_are_rotated_copies_are_exact():
    old = trained(config(NO_EPS, multi_head(2)))
    with torch.no_grad():
        for layer in old.layers:
            k = layer.attention.k.weight.unflatten(0, (2, 2, 4))  # heads, parts of pairs, pairs
            angle = torch.tensor([0.3, 1.0, 2.0, -1.0], dtype=torch.float64)[:, None]
            first, second = k[0]
            k[1, 0] = 1.5 * (first * angle.cos() - second * angle.sin())
            k[1, 1] = 1.5 * (first * angle.sin() + second * angle.cos())
    check_exact(old, latent(nope=8, rope=8))


@pytest.mark.parametrize(("theta", "kept"), [(10000.0, [0, 2]), (100.0, [0, 1])])
def test_shared_pairs_have_the_frequencies_of_the_trained_ones(theta, kept):
    """Keys outside the chosen pairs are 0: every second pair at the same theta, the fastest ones at its root."""
    old = trained(config(NO_EPS, multi_head(1)))
    with torch.no_grad():
        for layer in old.layers:
            pairs = layer.attention.k.weight.unflatten(0, (2, 4))
            pairs[:, [i for i in range(4) if i not in kept]] = 0
    check_exact(old, f"model.position.theta={theta}", latent(nope=4, rope=4))


@pytest.mark.parametrize("scaling", ["none", "yarn, factor: 4, original_max_seq_len: 64"])
def test_pairs_that_hardly_turn_can_lose_their_rotation(scaling):
    """With theta = 1e12, the last two of four pairs turn by less than 1e-4 over the text."""
    old = trained(config(NO_EPS, f"model.position={{theta: 1e12, scaling: {{kind: {scaling}}}}}", multi_head(1)))
    after = config(NO_EPS, f"model.position={{theta: 1e6, scaling: {{kind: {scaling}}}}}", latent(nope=4, rope=4))
    new, _ = received(old, after)
    torch.testing.assert_close(new(TOKENS), old(TOKENS), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("nope", "rope", "rank"), [(8, 4, 5), (4, 4, 11), (8, 8, 20)])
def test_the_step_states_the_error_of_each_matrix(nope, rope, rank):
    old = trained(config(NO_EPS, multi_head(4)))
    new, made = received(old, config(NO_EPS, latent(rank, nope, rope, q_rank=7)))
    (change,) = (change for change in made.changes if change.name == "latent attention")
    assert (change.effect, made.effect) == ("approximate", "approximate")
    shares, of_shared = [], []
    for before, after in zip(old.layers, new.layers, strict=True):
        scale = before.attention_norms.before.weight
        product = after.attention.kv_up.weight @ after.attention.kv_down.weight[:rank]
        *_, v = product.unflatten(0, (4, -1)).split((nope, C), 1)
        error = (before.attention.v.weight.unflatten(0, (4, -1)) - v) * scale
        shares.append((1 - error.square().sum() / (before.attention.v.weight * scale).square().sum()).item())
        pairs = (before.attention.k.weight * scale).unflatten(0, (4, 2, 4))[:, :, :: C // rope]  # half pairing
        squares = torch.linalg.svdvals(torch.complex(*pairs.unbind(1)).transpose(0, 1)).square()
        of_shared.append((squares[:, 0].sum() / squares.sum()).item())
    errors = change.errors()
    assert errors["values"] == pytest.approx(math.sqrt(1 - min(shares)), rel=1e-6)
    assert errors["shared rotated keys"] == pytest.approx(math.sqrt(1 - min(of_shared)), rel=1e-6)
    assert 0 < errors["queries"] < 1
    assert f"values {errors['values']:.2g}" in change.report()


def test_each_matrix_is_factored_once_for_values_and_errors(monkeypatch):
    calls = []
    monkeypatch.setattr(latent_module, "factors", lambda *args: calls.append(1) or factors(*args))
    old = trained(config(multi_head(4)))
    _, made = received(old, config(latent(6, q_rank=7)))
    assert len(calls) == 2 * 2  # in each layer, keys with values, and queries
    made.changes[0].report()
    assert len(calls) == 2 * 2


YARN = "scaling: {kind: yarn, factor: 4, original_max_seq_len: 64}, theta: 100"
DYNAMIC = "scaling: {kind: dynamic, factor: 2, original_max_seq_len: %d}"
ONES = "1, 1, 1, 1"
DIVISORS = "scaling: {kind: longrope, factor: 2, original_max_seq_len: 8, short_factor: [%s], long_factor: [%s]}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DYNAMIC % 16, DYNAMIC % 16),  # no text of the model is longer
        (DIVISORS % ("1, 2, 3, 4", "5, 6, 7, 8"), DIVISORS % ("1, 3", "5, 7")),
        ("scaling: {kind: linear, factor: 3}", "scaling: {kind: linear, factor: 3}"),
        ("scaling: {kind: llama3, factor: 8, original_max_seq_len: 64}",) * 2,
    ],
)
def test_shared_pairs_keep_the_trained_scaling(before, after):
    """One key head whose other pairs, every second one, have keys of 0."""
    old = trained(config(NO_EPS, f"model.position={{{before}}}", multi_head(1)))
    with torch.no_grad():
        for layer in old.layers:
            layer.attention.k.weight.unflatten(0, (2, 4))[:, [1, 3]] = 0
    check_exact(old, f"model.position={{{after}}}", latent(nope=4, rope=4))


@pytest.mark.parametrize(
    ("scaling", "rope", "words"),
    [
        (
            YARN,
            4,
            "model.attention.rope_dim: 4 dimensions with theta = 100 and the trained scaling, yarn, .*allowed: 2, 8 ",
        ),
        (DYNAMIC % 8, 4, "model.attention.rope_dim: 4 .* the trained scaling, dynamic, .*allowed: 8 with theta"),
    ],
)
def test_a_scaling_that_fewer_dimensions_would_change_is_refused(scaling, rope, words):
    old = trained(config(f"model.position={{{scaling}}}", multi_head(1)))
    with pytest.raises(UserError, match=words):
        received(old, config(f"model.position={{{scaling}}}", latent(nope=8, rope=rope)))


def test_factors_are_the_best_of_their_rank():
    """Keys and values of equal norm lose together what a singular value decomposition leaves out."""
    old = trained(config(NO_EPS, multi_head(4), "model.position.kind=none"))
    new, _ = received(old, config(NO_EPS, latent(6, nope=4, rope=4), "model.position.kind=none"))
    attention, scale = old.layers[0].attention, old.layers[0].attention_norms.before.weight
    heads = [x.weight.unflatten(0, (4, 8)) * scale for x in (attention.k, attention.v)]
    k, v = heads[0][:, :4].flatten(0, 1), heads[1].flatten(0, 1)
    both = torch.cat((k / k.norm(), v / v.norm()))
    lost = torch.linalg.svdvals(both)[6:].square().sum()
    product = new.layers[0].attention.kv_up.weight @ new.layers[0].attention.kv_down.weight[:6] * scale
    new_k, new_v = (x.flatten(0, 1) for x in product.unflatten(0, (4, 12)).split((4, 8), 1))
    error = ((new_k - k) / k.norm()).square().sum() + ((new_v - v) / v.norm()).square().sum()
    torch.testing.assert_close(error, lost, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("norm", ["model.norm.kind=rmsnorm", "model.norm.kind=layernorm"])
def test_narrow_vectors_have_the_scale_that_their_norm_keeps(norm):
    old = trained(config(norm, multi_head(4)))
    new, _ = received(old, config(norm, latent(12, q_rank=10)))
    layer = new.layers[1]
    features = torch.randn(20000, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = layer.attention_norms.before
    x = features * before.weight + (before.bias if "layernorm" in norm else 0)
    narrow = (layer.attention.kv_down(x)[:, :12], layer.attention.q_down(x))
    assert [y.square().mean().item() for y in narrow] == pytest.approx([1, 1], rel=0.02)


def test_a_higher_rank_changes_the_logits_less():
    old = trained(config("model.position.kind=none", multi_head(4)))
    changes = []
    for rank in (2, 8, 16, 32):
        new, _ = received(old, config("model.position.kind=none", latent(rank)))
        changes.append((new(TOKENS) - old(TOKENS)).square().mean().item())
    assert changes == sorted(changes, reverse=True)
    assert changes[-1] < 1e-3 * changes[0]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            [multi_head(2, "qkv_bias: true")],
            [latent()],
            "model.attention.kind: latent, which has no place for qkv_bias",
        ),
        ([multi_head(2, "qk_norm: {kind: rmsnorm}")], [latent()], "no place for qk_norm of the trained attention"),
        ([multi_head(2, "clip_qkv: 3.0")], [latent()], "no place for clip_qkv"),
        ([multi_head(2, "temperature: {beta: 0.1, length: 4}")], [latent()], "no place for temperature"),
        ([multi_head(2, "sinks: true", "gate: {per: head}")], [latent()], "no place for sinks, gate"),
        ([multi_head(2, "sub_norm: true")], [latent()], "no place for sub_norm"),
        ([multi_head(2, "v_norm: {}", "keys_as_values: true")], [latent()], "no place for v_norm, keys_as_values"),
        ([multi_head()], [latent(v=6)], "model.attention.v_dim: 6, and the trained attention has 8"),
        ([multi_head()], [latent(n_heads=8)], "model.attention.n_heads: 8"),
        ([multi_head()], [latent(33)], "model.attention.kv_rank: 33 exceeds d_model = 32"),
        ([multi_head()], [latent(q_rank=40)], "model.attention.q_rank: 40 exceeds d_model = 32"),
        ([multi_head()], [latent(nope=6)], "model.attention.nope_dim: 6; .* allowed: 4 or 8$"),
        ([multi_head()], [latent(rope=6)], "model.attention.rope_dim: 6 dimensions with theta = 10000 .* 2, 4, 8 with"),
        ([multi_head()], [latent(rope=8), "model.position.theta=20000"], "model.attention.rope_dim"),
        ([multi_head()], [latent(), "model.position.fraction=0.5"], "model.position.fraction: 0.5"),
        ([multi_head()], [latent(), "model.position.kind=none"], "model.position.kind: rope to none"),
        (
            *[
                [
                    x,
                    f"model.position={{{DIVISORS.replace('factor: 2', 'factor: 1, long_attention_factor: 2') % (ONES, ONES)}}}",
                ]
                for x in (multi_head(), latent(rope=8))
            ],
            "model.position.scaling: LongRoPE with long_attention_factor",
        ),
        ([multi_head(), "model.position.kind=shaw"], [latent(), "model.position.kind=shaw"], "shaw to shaw"),
        (
            [multi_head(), "model.position.kind=none"],
            [latent(rope=3), "model.position.kind=none"],
            "model.attention.rope_dim: 3",
        ),
        (*[[x, "model.norm.placement=output"] for x in (multi_head(), latent())], "model.norm: rmsnorm, placement out"),
        (*[[x, "model.norm.kind=dyt"] for x in (multi_head(), latent())], "model.norm: dyt"),
        (
            [multi_head()],
            [
                multi_head(),
                f"model.layers={{a: {{{latent(33).removeprefix('model.').replace('=', ': ')}}}, pattern: [a]}}",
            ],
            "model.layers.a.attention.kv_rank: 33",
        ),
    ],
)
def test_what_has_no_place_in_latent_attention_is_refused_by_name(before, after, words):
    old = trained(config(*before))
    with pytest.raises(UserError, match=words):
        received(old, config(*after))
