"""Positions compared with formulas in float64 NumPy, and with transformers 5.23."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, XLNetConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xlnet.modeling_xlnet import XLNetModel

from archlab.config.components import position as position_schema
from archlab.config.components import rope_scaling as scaling_schema
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import Alibi, Rope
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.model.context import ForwardPass
from archlab.model.decoder import Decoder
from archlab.model.positions import (
    AlibiBias,
    LearnedPositions,
    ShawBias,
    SinusoidalPositions,
    T5Bias,
    TransformerXLBias,
    bucket,
    slopes,
    with_content_bias,
)
from archlab.model.rope_scaling import frequencies
from archlab.model.rotary import rotation
from archlab.model.state import Cache

RNG = np.random.default_rng(0)


# --- on the embedding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [8, 7])
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("offset", [0, 2])
def test_sinusoidal(d_model: int, layout: Any, offset: int) -> None:
    positions = torch.tensor([[0, 1, 2, 3], [5, 6, 7, 80]])
    config = position_schema.Sinusoidal(theta=500.0, layout=layout, offset=offset)
    table = SinusoidalPositions(config, d_model, 100)(positions, torch.float64)
    assert table.shape == (2, 4, d_model)
    for row, column in np.ndindex(2, 4):
        for i in range(d_model):
            half = (d_model + 1) // 2
            pair, is_cos = (i // 2, i % 2) if layout == "interleaved" else (i % half, i // half)
            angle = (positions[row, column].item() + offset) / 500.0 ** (2 * pair / d_model)
            expected = math.cos(angle) if is_cos else math.sin(angle)
            assert table[row, column, i].item() == pytest.approx(expected, abs=1e-12)


def test_learned_positions_begin_after_the_offset_and_end() -> None:
    learned = LearnedPositions(position_schema.Learned(offset=2), 3, 5)
    torch.nn.init.normal_(learned.weight)
    assert learned.weight.shape == (7, 3)
    assert torch.equal(learned(torch.tensor([[0, 4]]), torch.float32)[0], learned.weight[[2, 6]])


@torch.no_grad()
def test_learned_positions_end_with_the_longest_text() -> None:
    model = Decoder(load_config("tiny-llama", "model.position={kind: learned}", "model.max_seq_len=5").model)
    tokens = torch.zeros(2, 6, dtype=torch.int64)
    ending = "6 tokens, but learned positions end at max_seq_len = 5"
    with pytest.raises(UserError, match=ending):
        model(tokens)
    assert model(tokens[:, :5]).isfinite().all()
    for padding, fits in (([2, 1], 6), ([0, 3], 5)):  # the row with the shortest padding is the longest text
        cache = Cache(model.config, 2, 8, padding=padding)
        assert model(tokens[:, :fits], cache=cache).isfinite().all()
        with pytest.raises(UserError, match=ending):
            model(tokens[:, :1], cache=cache)


# --- on the scores ------------------------------------------------------------------------------------------


def test_shaw() -> None:
    """q_i . a_(i-j) times the scale, with clipped distances."""
    shaw, q = (
        ShawBias(position_schema.Shaw(max_distance=3), MultiHead(n_heads=5, head_dim=4, scale=0.3)).double(),
        RNG.normal(size=(2, 5, 6, 4)),
    )
    a = RNG.normal(size=(4, 4))
    shaw.load_state_dict({"weight": torch.from_numpy(a)})
    at = torch.arange(6)
    got = shaw((at[:, None] - at)[None], torch.from_numpy(q)).detach().numpy()
    for b, h, i in np.ndindex(2, 5, 6):
        for j in range(i + 1):
            assert got[b, h, i, j] == pytest.approx(0.3 * q[b, h, i] @ a[min(i - j, 3)], rel=1e-12)


HEADS = MultiHead(n_heads=3, n_kv_heads=1, head_dim=4, scale=0.3)


def drawn_transformer_xl(d_model: int) -> TransformerXLBias:
    bias = TransformerXLBias(position_schema.TransformerXL(), HEADS, d_model).double()
    for parameter in bias.parameters():
        parameter.data = torch.from_numpy(RNG.normal(size=parameter.shape))
    return bias


@pytest.mark.parametrize("d_model", [8, 7])
@pytest.mark.parametrize("n_queries", [6, 1])
@torch.no_grad()
def test_transformer_xl(d_model: int, n_queries: int) -> None:
    """(q_i + u) . k_j + (q_i + v) . (W r_(i-j)), times the scale (Dai 2019, section 3.3). One query is a decoding step.

    Two query heads and more can share keys; each has its own W, u and v.
    """
    bias, q, k = drawn_transformer_xl(d_model), RNG.normal(size=(2, 3, n_queries, 4)), RNG.normal(size=(2, 6, 4))
    u, v, W = (x.numpy() for x in (bias.content_bias, bias.distance_bias, bias.projection.weight))
    at = torch.arange(6)
    distance = (at[-n_queries:, None] - at)[None]
    terms = bias(distance, torch.from_numpy(q)).numpy()
    shifted = with_content_bias(torch.from_numpy(q), bias).numpy()
    frequency = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    for b, h, i in np.ndindex(2, 3, n_queries):
        position = 6 - n_queries + i
        for j in range(position + 1):
            angles = (position - j) * frequency
            r = np.concatenate((np.sin(angles), np.cos(angles)))[:d_model]
            by_content, by_distance = (q[b, h, i] + u[h]) @ k[b, j], (q[b, h, i] + v[h]) @ (W[4 * h : 4 * h + 4] @ r)
            got = 0.3 * shifted[b, h, i] @ k[b, j] + terms[b, h, i, j]
            assert got == pytest.approx(0.3 * (by_content + by_distance), rel=1e-11, abs=1e-12)


@torch.no_grad()
def test_transformer_xl_is_the_attention_of_xlnet() -> None:
    """XLNet's causal form has the same scores, computed by its own relative shift."""
    D, H, T = 12, 3, 9
    config = XLNetConfig(vocab_size=8, d_model=D, n_layer=1, n_head=H, d_inner=4, attn_type="uni")
    model: Any = XLNetModel(config).double().eval()
    theirs = model.layer[0].rel_attn
    theirs.layer_norm = torch.nn.Identity()
    for parameter in theirs.parameters():
        parameter.data = torch.from_numpy(RNG.normal(size=parameter.shape)) / 3
    layer = load_config(
        "tiny-llama",
        f"model.d_model={D}",
        f"model.attention={{n_heads: {H}, n_kv_heads: {H}}}",
        "model.position=transformer_xl",
    ).model
    ours: Any = Decoder(layer).layers[0].attention
    ours.double().eval()
    for name, parameter in (("q", theirs.q), ("k", theirs.k), ("v", theirs.v), ("position_bias.projection", theirs.r)):
        ours.get_submodule(name).weight.data = parameter.flatten(1).T.clone()
    ours.out.weight.data = theirs.o.flatten(1).clone()
    ours.position_bias.content_bias.data = theirs.r_w_bias.clone()
    ours.position_bias.distance_bias.data = theirs.r_r_bias.clone()
    x_BTD = torch.from_numpy(RNG.normal(size=(2, T, D)))
    r = model.relative_positional_encoding(T, T, bsz=2).double()
    hidden = torch.ones(T, T).triu(1).double()[:, :, None, None]
    expected_TBD = theirs(x_BTD.transpose(0, 1), None, hidden, None, r, None)[0] - x_BTD.transpose(0, 1)
    at = torch.arange(T)[None]
    context = ForwardPass(at, torch.full((1, 1), T), None, True, False, None, None, torch.float64).context(
        layer_configs(layer)[0]
    )
    torch.testing.assert_close(ours(x_BTD, context), expected_TBD.transpose(0, 1), rtol=1e-5, atol=1e-6)


def bucket_by_hand(distance: int, buckets: int, max_distance: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return min(exact + int(share * (buckets - exact)), buckets - 1)


@pytest.mark.parametrize("buckets", range(3, 50))
def test_t5_buckets_are_those_of_transformers(buckets: int) -> None:
    """At (17, 27), a sum that is rounded before truncation would differ at distance 18."""
    distance = torch.arange(300)
    for max_distance in range(buckets // 2 + 1, 150):
        theirs = T5Attention._relative_position_bucket(-distance, False, buckets, max_distance)
        assert torch.equal(bucket(distance, buckets, max_distance), theirs), max_distance


@pytest.mark.parametrize("visibility", ["prefix", "two_sided"])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (4, 2), (6, 12), (34, 27)])
def test_later_keys_have_the_buckets_of_transformers(visibility: str, buckets: int, max_distance: int) -> None:
    heads = MultiHead(n_heads=1, visibility=visibility)
    bias = T5Bias(position_schema.T5(buckets=buckets, max_distance=max_distance), heads)
    bias.weight.data = torch.arange(buckets)[:, None].float()
    distance = torch.arange(-200, 200)[None, None]
    theirs = T5Attention._relative_position_bucket(-distance, True, buckets, max_distance)
    assert torch.equal(bias(distance)[:, 0].long(), theirs)


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (6, 12), (3, 2), (17, 27), (16, 1000)])
def test_t5_buckets(buckets: int, max_distance: int) -> None:
    got = bucket(torch.arange(300), buckets, max_distance)
    # if the logarithm is an integer, float32 and float64 may round to different sides
    by_hand = np.array([bucket_by_hand(d, buckets, max_distance) for d in range(300)])
    assert (got.numpy() != by_hand).mean() < 0.01
    assert np.abs(got.numpy() - by_hand).max() <= 1


def test_t5_gives_each_head_its_number_of_the_bucket() -> None:
    t5 = T5Bias(position_schema.T5(buckets=4, max_distance=8), MultiHead(n_heads=3))
    torch.nn.init.normal_(t5.weight)
    got = t5(torch.tensor([[[0, -1], [7, 1]]]), torch.zeros(1, 3, 2, 4))
    assert got.shape == (1, 3, 2, 2)
    assert torch.equal(got[0, :, 1, 0], t5.weight[3])
    assert torch.equal(got[0, :, 1, 1], t5.weight[1])


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2**-8]),
        (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
        (8, [2.0**-i for i in range(1, 9)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (3, [2**-4, 2**-8, 2**-2]),
    ],
)
def test_alibi_slopes(heads: int, expected: list[float]) -> None:
    assert slopes(heads, 8.0) == pytest.approx(expected)


@pytest.mark.parametrize("heads", range(1, 41))
@pytest.mark.parametrize("max_bias", [8.0, 6.0])
def test_alibi_slopes_as_mpt_takes_them(heads: int, max_bias: float) -> None:
    """MPT's form of the rule: slopes of the next higher power, first those at odd places, then at even ones."""
    higher = 2 ** math.ceil(math.log2(heads))
    series = [2 ** (-max_bias * i / higher) for i in range(1, higher + 1)]
    expected = series if higher == heads else (series[1::2] + series[0::2])[:heads]
    assert slopes(heads, max_bias) == pytest.approx(expected)


def test_alibi_falls_with_the_distance() -> None:
    heads = layer_configs(load_config("tiny-llama", "model.attention={n_heads: 2, n_kv_heads: 2}").model)[0].attention
    got = AlibiBias(Alibi(), heads)(torch.tensor([[[0, 3], [5, 9]]]), torch.zeros(1, 2, 2, 4))
    np.testing.assert_allclose(got[0, 0], -np.array([[0, 3], [5, 9]]) / 16)
    np.testing.assert_allclose(got[0, 1], -np.array([[0, 3], [5, 9]]) / 256)


# --- rope ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rope_is_a_complex_rotation(pairing: Any, fraction: float) -> None:
    config = Rope(theta=100.0, fraction=fraction, pairing=pairing)
    x = RNG.normal(size=(2, 3, 6, 8))
    positions = np.stack((np.arange(6), np.arange(6) + 100))
    turn = rotation(config, 8, torch.from_numpy(positions), torch.tensor([[6], [106]]), torch.float64).rotate
    turning = int(8 * fraction)
    expected = x.copy()
    for row, t in np.ndindex(2, 6):
        for i in range(turning // 2):
            a, b = (i, i + turning // 2) if pairing == "half" else (2 * i, 2 * i + 1)
            angle = positions[row, t] * 100.0 ** (-2 * i / turning)
            z = (x[row, :, t, a] + 1j * x[row, :, t, b]) * np.exp(1j * angle)
            expected[row, :, t, a], expected[row, :, t, b] = z.real, z.imag
    np.testing.assert_allclose(turn(torch.from_numpy(x)), expected, rtol=1e-12, atol=1e-12)


SHORT, LONG = tuple(1 + 0.1 * i for i in range(16)), tuple(2 + 0.5 * i for i in range(16))
SCALINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (scaling_schema.LinearScaling(factor=4.0), {"factor": 4.0}),
    "dynamic": (scaling_schema.DynamicNTK(factor=2.0, original_max_seq_len=256), {"factor": 2.0}),
    "llama3": (
        scaling_schema.Llama3Scaling(factor=8.0, original_max_seq_len=256),
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
    ),
    "llama3, other bands": (
        scaling_schema.Llama3Scaling(factor=32.0, low_freq_factor=2.0, high_freq_factor=7.0, original_max_seq_len=256),
        {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 7.0, "original_max_position_embeddings": 256},
    ),
    "yarn": (
        scaling_schema.Yarn(factor=4.0, original_max_seq_len=256),
        {"factor": 4.0, "original_max_position_embeddings": 256},
    ),
    "yarn, beyond the last pair": (
        scaling_schema.Yarn(factor=4.0, original_max_seq_len=256, beta_slow=0.001),
        {"factor": 4.0, "original_max_position_embeddings": 256, "beta_slow": 0.001},
    ),
    "yarn, all given": (
        scaling_schema.Yarn(
            factor=4.0, original_max_seq_len=256, beta_fast=9.0, beta_slow=2.0, truncate=False, attention_factor=1.3
        ),
        {
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "beta_fast": 9.0,
            "beta_slow": 2.0,
            "truncate": False,
            "attention_factor": 1.3,
        },
    ),
    "longrope": (
        scaling_schema.Longrope(original_max_seq_len=256, short_factor=SHORT, long_factor=LONG, factor=4.0),
        {"original_max_position_embeddings": 256, "short_factor": SHORT, "long_factor": LONG, "factor": 4.0},
    ),
    "longrope, attention factor": (
        scaling_schema.Longrope(
            original_max_seq_len=256, short_factor=SHORT, long_factor=LONG, factor=4.0, attention_factor=0.9
        ),
        {
            "original_max_position_embeddings": 256,
            "short_factor": SHORT,
            "long_factor": LONG,
            "factor": 4.0,
            "attention_factor": 0.9,
        },
    ),
    "proportional": (scaling_schema.Proportional(turning=0.3), {"partial_rotary_factor": 0.3}),
}


def ours(scaling: Any, length: int, n: int = 32) -> tuple[np.ndarray, float]:
    pairs = torch.arange(n // 2, dtype=torch.float64)
    got = frequencies(Rope(theta=5000.0, scaling=scaling), n, torch.tensor([[[length]]]), pairs)
    return got.per_token.broadcast_to(1, 1, n // 2)[0, 0].numpy(), got.amplitude


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [100, 256, 257, 900])
def test_scaling_as_transformers_computes_it(name: str, length: int) -> None:
    scaling, theirs = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={"rope_type": scaling.kind, "rope_theta": 5000.0, **theirs},
    )
    inv_freq, amplitude = ROPE_INIT_FUNCTIONS[scaling.kind](config, "cpu", seq_len=length)
    per_token, ours_amplitude = ours(scaling, length)
    # transformers computes in float32
    np.testing.assert_allclose(per_token, inv_freq, rtol=3e-6)
    assert ours_amplitude == pytest.approx(amplitude, rel=1e-12)


IDLE: dict[str, Any] = {
    "linear": scaling_schema.LinearScaling(factor=1.0),
    "llama3": scaling_schema.Llama3Scaling(factor=1.0, original_max_seq_len=256),
    "yarn": scaling_schema.Yarn(factor=1.0, original_max_seq_len=256),
    "yarn, factor 1": scaling_schema.Yarn(factor=1.0, original_max_seq_len=256, attention_factor=1.0),
    "proportional": scaling_schema.Proportional(turning=1.0),
}


@pytest.mark.parametrize("name", IDLE)
@pytest.mark.parametrize("length", [100, 900])
def test_a_scaling_by_1_equals_no_scaling_bit_for_bit(name: str, length: int) -> None:
    """transformers agrees up to rounding in float32."""
    scaling = IDLE[name]
    (expected, _), (found, amplitude) = ours(scaling_schema.NoScaling(), length), ours(scaling, length)
    assert np.array_equal(found, expected)
    assert amplitude == 1
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": scaling.kind,
            "rope_theta": 5000.0,
            "original_max_position_embeddings": 256,
            "partial_rotary_factor": 1.0,
            **scaling.model_dump(exclude={"kind", "original_max_seq_len", "turning"}, exclude_none=True),
        },
    )
    inv_freq, amplitude = ROPE_INIT_FUNCTIONS[scaling.kind](config, "cpu", seq_len=length)
    np.testing.assert_allclose(expected, inv_freq, rtol=3e-6)
    assert amplitude == 1


@pytest.mark.parametrize(
    "scaling",
    [
        scaling_schema.NoScaling(),
        *IDLE.values(),
        *(scaling for scaling, _ in SCALINGS.values()),
        scaling_schema.DynamicNTK(factor=1.0, original_max_seq_len=256),
        scaling_schema.Yarn(factor=1.0, original_max_seq_len=256, attention_factor=1.2),
    ],
    ids=repr,
)
def test_an_idle_scaling_changes_no_frequency(scaling: Any) -> None:
    frequencies, amplitude = ours(scaling, 900)
    assert scaling.is_idle == (amplitude == 1 and np.allclose(frequencies, PLAIN, rtol=1e-12))


PLAIN = 5000.0 ** (-np.arange(16) / 16)


def llama3_by_hand(factor: float, low: float, high: float, original: int) -> np.ndarray:
    out = np.empty(16)
    for i, f in enumerate(PLAIN):
        wavelength = 2 * math.pi / f
        if wavelength < original / high:
            out[i] = f
        elif wavelength > original / low:
            out[i] = f / factor
        else:
            smooth = (original / wavelength - low) / (high - low)
            out[i] = (1 - smooth) * f / factor + smooth * f
    return out


def yarn_by_hand(factor: float, original: int, fast: float, slow: float, truncate: bool) -> np.ndarray:
    """Compute from the dimension at which a pair makes a number of rotations within the original length."""
    low, high = (32 * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(5000.0)) for turns in (fast, slow))
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    ramp = np.clip((np.arange(16) - max(low, 0)) / (min(high, 31) - max(low, 0)), 0, 1)
    return PLAIN / factor * ramp + PLAIN * (1 - ramp)


def dynamic_by_hand(length: int) -> np.ndarray:
    theta = 5000.0 * (2 * max(length, 256) / 256 - 1) ** (32 / 30)
    return theta ** (-np.arange(16) / 16)


@pytest.mark.parametrize("length", [100, 256, 257, 900])
def test_scaling_by_hand(length: int) -> None:
    turning = np.arange(16) < 4
    expected = {
        "linear": PLAIN / 4,
        "dynamic": dynamic_by_hand(length),
        "llama3": llama3_by_hand(8, 1, 4, 256),
        "llama3, other bands": llama3_by_hand(32, 2, 7, 256),
        "yarn": yarn_by_hand(4, 256, 32, 1, True),
        "yarn, beyond the last pair": yarn_by_hand(4, 256, 32, 0.001, True),
        "yarn, all given": yarn_by_hand(4, 256, 9, 2, False),
        "longrope": PLAIN / np.array(LONG if length > 256 else SHORT),
        "longrope, attention factor": PLAIN / np.array(LONG if length > 256 else SHORT),
        "proportional": PLAIN * turning,
    }
    amplitude = {
        "yarn": 0.1 * math.log(4) + 1,
        "yarn, beyond the last pair": 0.1 * math.log(4) + 1,
        "yarn, all given": 1.3,
        "longrope": math.sqrt(1 + math.log(4) / math.log(256)),
        "longrope, attention factor": 0.9,
    }
    assert set(expected) == set(SCALINGS)
    for name, (scaling, _) in SCALINGS.items():
        got, got_amplitude = ours(scaling, length)
        np.testing.assert_allclose(got, expected[name], rtol=1e-12, err_msg=name)
        assert got_amplitude == pytest.approx(amplitude.get(name, 1.0), rel=1e-12), name


def test_the_amplitude_multiplies_cos_and_sin() -> None:
    scaling = scaling_schema.Yarn(factor=1.0, original_max_seq_len=8, attention_factor=1.5)
    where = torch.tensor([[3, 4]]), torch.tensor([[5]])
    plain, louder = (rotation(Rope(scaling=s), 8, *where, torch.float64) for s in (scaling_schema.NoScaling(), scaling))
    torch.testing.assert_close(louder.cos, 1.5 * plain.cos)
    torch.testing.assert_close(louder.sin, 1.5 * plain.sin)


REFUSED = {
    "dynamic with one pair": ["attention={n_heads: 4, head_dim: 2}", "position.scaling={kind: dynamic, factor: 2, original_max_seq_len: 4}"],
    "no pair turns": ["attention={n_heads: 4, head_dim: 4}", "position.scaling={kind: proportional, turning: 0.3}"],
    "a list too short": ["position.scaling={kind: longrope, factor: 2, original_max_seq_len: 4, short_factor: [1], long_factor: [1]}"],
    "bands the wrong way round": ["position.scaling={kind: llama3, factor: 2, low_freq_factor: 4, high_freq_factor: 1}"],
    "betas the wrong way round": ["position.scaling={kind: yarn, factor: 2, original_max_seq_len: 4, beta_fast: 1, beta_slow: 2}"],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_scalings_that_cannot_be_are_refused(name: str) -> None:
    raw = {"vocab_size": 7, "d_model": 32, "n_layers": 1, "attention": {"n_heads": 4}}
    with pytest.raises(UserError, match=r"model.position.scaling"):
        build_config({"model": raw}, [f"model.{o}" for o in REFUSED[name]])
