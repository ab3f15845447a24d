"""Pictures of topics, each compared with numbers that are computed in another way."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.models.t5.modeling_t5 import T5Attention

from archlab.config.components.activation import Activation
from archlab.config.components.position import T5, Alibi, Rope
from archlab.config.core.registry import kinds
from archlab.config.io import build_config
from archlab.exchange.configs import load_config
from archlab.report.drawings.attention import visibility
from archlab.report.drawings.curves import (
    activation_points,
    alibi_points,
    load_points,
    product_points,
    rotation_points,
    t5_points,
)
from archlab.report.drawings.pictures import gradient_points, intensity_points, pictures
from tests.reference.drawn import Picture

LENGTH = 16


def cells(svg: str) -> dict[str, bool]:
    """Map the name of each small square to whether it is filled."""
    return {rect.part: kind != "blank" for rect, kind in Picture(svg).cells}


def in_lines(points: Iterable[Mapping[str, Any]]) -> dict[str, dict[float, float]]:
    found = defaultdict[str, dict[float, float]](dict)
    for point in points:
        found[point["line"]][point["x"]] = point["y"]
    return found


RULES = {
    "window: 4": (lambda q, k: 0 <= q - k < 4, 4),
    "{}": (lambda q, k: k <= q, LENGTH),
    "window: 3, stride: 5": (lambda q, k: k <= q and (q - k < 3 or (q - k) % 5 == 0), LENGTH),
    "window: 2, global_tokens: 1": (lambda q, k: k <= q and (q - k < 2 or k == 0), LENGTH),
    "blocks: {size: 4, summary: 0}": (lambda q, k: k <= q and k // 4 == q // 4, 4),
    "blocks: {size: 4, summary: 1}": (lambda q, k: k <= q and (k // 4 == q // 4 or k % 4 == 3), LENGTH),
    "visibility: prefix": (lambda q, k: k <= q or k < 4, LENGTH),
    "visibility: two_sided, window: 3": (lambda q, k: abs(q - k) < 3, 3),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_mask_is_drawn_by_its_rule(rule):
    sees, kept = RULES[rule]
    attention = f"{{n_heads: 4, {rule}}}" if rule != "{}" else "{n_heads: 4}"
    raw = {"model": {"vocab_size": 8, "d_model": 32, "n_layers": 1, "attention": {"n_heads": 4}}}
    model = build_config(raw, (f"model.attention={attention}", "model.position=none")).model
    found = cells(visibility(model, LENGTH))
    for q, k in np.ndindex(LENGTH, LENGTH):
        assert found[f"layer: query {q}, key {k}"] == sees(q, k), (q, k)
    assert [found[f"layer: kept key {k}"] for k in range(LENGTH)] == [k >= LENGTH - kept for k in range(LENGTH)]


def test_a_recurrent_layer_sees_no_keys_and_keeps_a_state():
    svg = pictures()["mask-hybrid"]()
    filled = [name for name, is_filled in cells(str(svg)).items() if is_filled]
    assert not [name for name in filled if name.startswith("recurrent")]
    # One head with keys of 128 and values of 256, and three tokens of the convolution of q, k and v.
    d_model_64 = 128 * 256 + 3 * (128 + 128 + 256)
    assert f"keeps a state of {d_model_64:,} numbers" in str(svg)


def test_each_stack_has_its_own_mask():
    """The decoder's window holds for its self-attention only."""
    raw = {"model": {"vocab_size": 8, "d_model": 32, "n_layers": 2, "attention": {"n_heads": 4, "window": 4}}}
    model = build_config(raw, ("model.encoder={n_layers: 3, attention.window: null}", "model.position=none")).model
    svg = visibility(model, LENGTH)
    found = cells(svg)
    for q, k in np.ndindex(LENGTH, LENGTH):
        assert found[f"encoder: query {q}, key {k}"]
        assert found[f"decoder cross: query {q}, key {k}"]
        assert found[f"decoder: query {q}, key {k}"] == (0 <= q - k < 4)
    kept = {name: sum(found[f"{name}: kept key {k}"] for k in range(LENGTH)) for name in STACKS}
    assert kept == {"encoder": 0, "decoder": 4, "decoder cross": LENGTH}
    assert {*STACKS.values()} <= {*Picture(svg).labels}


STACKS = {"encoder": "encoder × 3", "decoder": "decoder × 2", "decoder cross": "decoder × 2, cross-attention"}
"""Name and title of each square."""


X = torch.linspace(-4, 4, 81, dtype=torch.float64)
EXPECTED = {
    "relu": F.relu(X), "gelu": F.gelu(X), "gelu_tanh": F.gelu(X, approximate="tanh"), "silu": F.silu(X), "elu": F.elu(X),
    "selu": F.selu(X), "sigmoid": torch.sigmoid(X), "softplus": F.softplus(X), "relu_squared": X.clamp(min=0) ** 2,
    "quick_gelu": X / (1 + torch.exp(-1.702 * X)), "identity": X,
    "xielu": torch.where(X > 0, 0.8 * X**2 + X / 2, 0.8 * (torch.exp(X.clamp(max=-1e-6)) - 1 - X) + X / 2),
}  # fmt: skip


def test_activations_are_those_of_torch():
    found = in_lines(activation_points(kinds(Activation)))
    assert set(found) == set(EXPECTED)
    for name, expected in EXPECTED.items():
        np.testing.assert_allclose(list(found[name].values()), expected, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_pairs_turn_by_theta_to_minus_their_share(pairing):
    found = in_lines(rotation_points(Rope(theta=1000, pairing=pairing), width=16, length=20))
    assert next(iter(found)) == "pair 0"
    assert list(found)[-1] == "pair 7"
    for name, line in found.items():
        pair = int(name.split()[1])
        for t, value in line.items():
            assert math.isclose(value, math.cos(t * 1000 ** (-2 * pair / 16)), abs_tol=1e-9)


def test_products_are_mean_cosines():
    ropes = {str(theta): Rope(theta=theta) for theta in (1e4, 5e5)}
    for name, line in in_lines(product_points(ropes, 64, 8192)).items():
        theta = float(name)
        for distance, product in line.items():
            cosines = [math.cos(distance * theta ** (-2 * pair / 64)) for pair in range(32)]
            assert math.isclose(product, sum(cosines) / 32, abs_tol=1e-12)


def test_alibi_falls_by_a_power_of_two_per_head():
    for name, line in in_lines(alibi_points(Alibi(), n_heads=8, length=10)).items():
        slope = 2.0 ** -int(name.split()[1])
        assert line == {distance: -slope * distance for distance in range(10)}


def test_t5_buckets_are_those_of_transformers():
    points = in_lines(t5_points(T5(), 200))["bucket"]
    expected = T5Attention._relative_position_bucket(-torch.arange(200), bidirectional=False)
    assert list(points.values()) == expected.tolist()


def test_query_heads_are_wired_to_the_heads_that_they_read():
    svg = str(pictures()["head-sharing"]())
    root = ElementTree.fromstring(svg)
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    kept = [int(found[1].replace(",", "")) for t in texts if (found := re.match(r"keeps ([\d,]+) numbers", t or ""))]
    assert kept == [2 * 8 * 64, 2 * 2 * 64, 2 * 64, 128 + 32]
    drawn = cells(svg)
    for name, n in {"Multi-head": 8, "Grouped-query": 2, "Multi-query": 1, "Latent": 8}.items():
        assert sum(cell.startswith(f"{name} kv") for cell in drawn) == n
        assert sum(cell.startswith(f"{name} query") for cell in drawn) == 8
    picture = Picture(svg)
    by_name = {rect.part: rect for rect, _ in picture.cells}
    ends = [wire[1][0] for wire in picture.wires if abs(wire[0][1] - by_name["Grouped-query query 0"].bottom) < 1]
    targets = [by_name[f"Grouped-query kv {i // 4}"].middle for i in range(8)]
    assert sorted(x for x in ends if x in {round(t, 1) for t in targets}) == sorted(round(t, 1) for t in targets)


def test_intensity_grows_with_the_batch_and_less_with_long_texts():
    """A plain decoder needs two FLOPs per weight and sequence. It reads the weights once, and the cache for each sequence."""
    config = load_config("llama-3-8b")
    found = in_lines(intensity_points(config, (1, 64), (128, 65536)))
    assert 0.9 < found["128 tokens"][1] <= 1.1
    assert 40 < found["128 tokens"][64] < 64
    assert found["65,536 tokens"][64] < found["128 tokens"][64] / 5


def test_post_norm_has_its_largest_gradients_last_and_pre_norm_first():
    """Xiong 2020, at initialization."""
    found = in_lines(gradient_points())
    pre, post = ([*found[f"{name}-norm"].values()] for name in ("pre", "post"))
    assert len(pre) == len(post) == 12
    assert sum(post[-3:]) > 1.3 * sum(post[:3])
    assert sum(pre[:3]) > 1.3 * sum(pre[-3:])


def test_loads_are_shares_of_the_tokens():
    shares = [point["share"] for point in load_points(experts=8, active=2, skew=0.3, seed=0)]
    assert len(shares) == 8
    assert math.isclose(sum(shares), 2, abs_tol=1e-6)
    assert all(math.isclose(share * 512, round(share * 512), abs_tol=1e-3) for share in shares)
    assert len(set(shares)) > 1


def test_a_block_is_called_like_its_topic():
    assert ">Parallel block, one norm</text>" in str(pictures()["parallel-shared"]())


def test_lines_have_readable_names_and_a_legend_if_there_are_several():
    activations, t5 = (pictures()[name]() for name in ("activations", "t5"))
    assert isinstance(activations, alt.LayerChart)
    assert isinstance(t5, alt.LayerChart)
    color = activations.to_dict()["layer"][0]["encoding"]["color"]
    assert {"ReLU²", "xIELU", "SiLU"} <= {*color["scale"]["domain"]}
    assert color["legend"]["columns"] == {"expr": "containerSize()[0] < 560 ? 2 : 4"}, "four columns are cut on a phone"
    assert t5.to_dict()["layer"][0]["encoding"]["color"]["legend"] is None


@pytest.mark.parametrize("name", pictures())
def test_every_picture_is_drawn(name):
    picture = pictures()[name]()
    if isinstance(picture, str):
        ElementTree.fromstring(picture)
        assert "prefers-color-scheme: dark" in picture
    else:
        assert isinstance(picture, alt.LayerChart)
        assert picture.to_dict()["description"]
