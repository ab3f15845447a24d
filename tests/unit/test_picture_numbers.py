"""Numbers of pictures: the formulas in NumPy are those of the model."""

from typing import Any

import altair as alt
import numpy as np
import pytest
import torch

from archlab.config.components.activation import Activation
from archlab.config.components.component import Site
from archlab.config.components.dense import GatedMLP
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import BlockNorm, RMSNorm
from archlab.config.components.position import Alibi, NoPosition, Rope
from archlab.config.core.registry import kinds
from archlab.errors import UserError
from archlab.model.activations import make_activation
from archlab.model.mlp import inner
from archlab.model.norms import make_norm
from archlab.model.positions import AlibiBias, bucket
from archlab.model.rotary import rotation
from archlab.model.router import Router
from archlab.report.drawings.curves import NORMS, load_points, norm_points, routed
from archlab.report.drawings.knobs import Number, Word, read, starting_at
from archlab.report.drawings.numbers import (
    ACTIVATIONS,
    alibi_slopes,
    chosen_experts,
    frequencies,
    mean_products,
    t5_buckets,
)
from archlab.report.drawings.pictures import pictures

X = np.linspace(-20, 20, 801)


def at_start(module: Any) -> Any:
    """Return the module in float64, with the initial values of its parameters."""
    with torch.no_grad():
        for parameter, value in getattr(module, "constants", {}).items():
            getattr(module, parameter).fill_(value)
    return module.double()


@pytest.mark.parametrize("name", [*kinds(Activation)])
def test_an_activation_is_that_of_the_model(name: str):
    expected = at_start(make_activation(name))(torch.from_numpy(X)).detach().numpy()
    # xIELU's constants are stored in float32.
    np.testing.assert_allclose(ACTIVATIONS[name](X), expected, rtol=1e-6 if name == "xielu" else 1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_is_that_of_the_model(kind: str):
    settings = {"eps": 0.01, "share": 0.3, "alpha": 0.7}
    norm = kinds(BlockNorm)[kind].model_validate({name: settings[name] for name in NORMS[kind]})
    points = norm_points(norm, mean=0.4, spread=0.5, largest=3)
    before, after = ([point["y"] for point in points if str(point["line"]).startswith(w)] for w in ("before", "after"))
    expected = at_start(make_norm(norm, len(before)))(torch.tensor(before, dtype=torch.float64)).detach().numpy()
    np.testing.assert_allclose(
        after, expected, rtol=1e-6 if kind in ("dyt", "scalenorm") else 1e-12
    )  # float32 parameters


def data_of(chart: Any) -> list[dict[str, Any]]:
    assert isinstance(chart, alt.LayerChart)
    return next(iter(chart.to_dict()["datasets"].values()))


def test_a_gated_mlp_is_that_of_the_model():
    config = GatedMLP(activation="silu", clamp=1.5, up_offset=1.0)
    drawn = data_of(pictures()["activation"](mlp="gated", clamp=1.5, up_offset=1.0))
    assert {point["line"] for point in drawn} == {f"V x = {up}" for up in (2, 1, -1, -2)}
    for point in drawn:
        gate, up = (
            torch.tensor(float(value), dtype=torch.float64) for value in (point["x"], point["line"].split()[-1])
        )
        assert point["y"] == pytest.approx(float(inner(config, make_activation("silu"), gate, up)), rel=1e-9)


SCALINGS: list[dict[str, Any]] = [
    {"kind": "none"},
    {"kind": "linear", "factor": 4.0},
    {"kind": "dynamic", "factor": 2.0, "original_max_seq_len": 64},
    {"kind": "llama3", "factor": 8.0, "original_max_seq_len": 128},
    {"kind": "yarn", "factor": 4.0, "original_max_seq_len": 64},
    {"kind": "yarn", "factor": 4.0, "original_max_seq_len": 64, "truncate": False},
    {"kind": "longrope", "factor": 4.0, "original_max_seq_len": 64, "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
    {"kind": "longrope", "factor": 1.0, "original_max_seq_len": 64, "short_factor": [1.0] * 16,
     "long_factor": [2.0] * 16, "long_attention_factor": 1.6},
    {"kind": "proportional", "turning": 0.6},
]  # fmt: skip
WIDTH, LENGTH = 32, 300


def rope_with(scaling: dict[str, Any], **fields: Any) -> Rope:
    return Rope.model_validate({"scaling": scaling, **fields})


@pytest.mark.parametrize("scaling", SCALINGS)
def test_angles_are_those_of_the_model(scaling: dict[str, Any]):
    rope = rope_with(scaling, theta=5000.0)
    model = rotation(rope, WIDTH, torch.arange(LENGTH)[None], torch.tensor([[LENGTH]]), torch.float64)
    per_token, amplitude = frequencies(rope, WIDTH, LENGTH)
    drawn = amplitude * np.cos(np.multiply.outer(np.arange(LENGTH), per_token))
    np.testing.assert_allclose(drawn, model.cos[0, 0, :, : WIDTH // 2], atol=1e-9)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_products_are_the_mean_over_all_directions_of_the_models_rotation(scaling: dict[str, Any], fraction: float):
    """Random vectors without a favored dimension have the mean product of the unit vectors."""
    if scaling["kind"] == "longrope" and fraction < 1:
        scaling = {**scaling, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope = rope_with(scaling, fraction=fraction)
    at = np.array([0, 1, 5, 50, 299])
    model = rotation(rope, WIDTH, torch.from_numpy(at)[None], torch.tensor([[LENGTH]]), torch.float64)
    units = torch.eye(WIDTH, dtype=torch.float64)[None, :, None].expand(-1, -1, len(at), -1)
    turned = model.rotate(units)
    products = (turned * turned[:, :, :1]).sum((0, 1, 3))
    np.testing.assert_allclose(mean_products(rope, WIDTH, at, LENGTH), products / products[0], atol=1e-9)


@pytest.mark.parametrize("n_heads", [1, 6, 8, 12])
def test_slopes_are_those_of_the_model(n_heads: int):
    bias = AlibiBias(Alibi(max_bias=4.0), MultiHead(n_heads=n_heads).resolve(n_heads * 8))
    assert alibi_slopes(Alibi(max_bias=4.0), n_heads) == bias.slopes


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 1000), (6, 8)])
def test_buckets_are_those_of_the_model(buckets: int, max_distance: int):
    at = np.arange(3000)
    expected = bucket(torch.from_numpy(at), buckets, max_distance)
    assert t5_buckets(at, buckets, max_distance).tolist() == expected.tolist()


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_experts_are_those_that_the_models_router_chooses(score: str):
    x_ND, router_ED = routed(experts=8, skew=0.7, seed=3)
    config = MoE.model_validate({"experts": 8, "active": 3, "router": {"score": score}})
    site = Site(x_ND.shape[1], RMSNorm(), NoPosition())
    router = Router(config, site).double()
    with torch.no_grad():
        router.weight.copy_(torch.from_numpy(router_ED))
        chosen_NK = router(torch.from_numpy(x_ND)).chosen_NK
    np.testing.assert_array_equal(chosen_experts(x_ND @ router_ED.T, 3), chosen_NK)


def test_what_tokens_have_in_common_makes_loads_uneven():
    spreads = [np.ptp([p["share"] for p in load_points(16, 2, skew, seed=1)]) for skew in (0, 0.5, 2)]
    assert spreads == sorted(spreads)
    assert spreads[2] > 4 * spreads[0]


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.5])
def test_choices_beyond_the_capacity_are_counted(capacity: float):
    chart: Any = pictures()["router-loads"](skew=1.0, capacity=capacity)
    shares = [point["share"] for point in load_points(8, 2, 1.0, 0)]
    dropped = sum(max(0, share - capacity * 2 / 8) for share in shares) / 2
    assert f"{dropped:.1%} of the choices would be dropped" in chart.to_dict()["description"]


# --- parameters -------------------------------------------------------------------------------------------------------

KNOBS = (
    Word("kind", "Kind", "a", ("a", "b"), "model.kind"),
    Number("factor", "Factor", 2.0, 1, 8, 0.5, "model.factor", {"kind": ("b",)}),
    Number("window", "Window", 0, 0, 32, 1, "model.window", if_larger=4),
)


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("window", "33", "a whole number from 0 to 32"),
        ("window", "1.5", "a whole number from 0 to 32"),
        ("factor", "nan", "a number from 1 to 8"),
        ("factor", "1e400", "a number from 1 to 8"),
        ("factor", "<b>", "a number from 1 to 8"),
        ("kind", "c", "a, b"),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_value_and_range(name: str, text: str, allowed: str):
    with pytest.raises(UserError) as error:
        read(KNOBS, {name: text})
    assert str(error.value).startswith(f"{name} is {text!r}")
    assert str(error.value).endswith(f"allowed: {allowed}")


def test_a_parameter_without_effect_keeps_its_default():
    assert read(KNOBS, {"factor": "4"}) == {"kind": "a", "factor": 2.0, "window": 0}
    assert read(KNOBS, {"factor": "4", "kind": "b"}) == {"kind": "b", "factor": 4.0, "window": 0}


def test_a_picture_starts_at_the_values_of_a_config():
    def starts(values: dict[str, Any]) -> list[Any]:
        return [knob.default for knob in starting_at(KNOBS, values)]

    assert starts({"model.kind": "b", "model.factor": 3.0}) == ["b", 3.0, 0]
    assert starts({"model.factor": 3.0}) == ["b", 3.0, 0]  # otherwise, the factor would have no effect
    assert starts({"model.window": 4096}) == ["a", 2.0, 4]
    assert starts({"model.window": 16}) == ["a", 2.0, 16]
    assert starts({"model.kind": "other", "model.window": None}) == ["a", 2.0, 0]


def test_every_parameter_changes_its_picture():
    """A parameter that a picture ignores would be a trap."""
    for name, drawing in pictures().items():
        for knob in () if drawing.is_static else drawing.knobs:
            needs = {other: allowed[-1] for other, allowed in knob.needs.items()}
            if isinstance(knob, Word):
                other = next(option for option in knob.options if option not in (knob.default, needs.get(knob.name)))
            else:
                other = changed(name, knob)
            values: dict[str, Any] = {**needs, **NEEDED.get((name, knob.name), {})}
            assert text(drawing(**values)) != text(drawing(**values, **{knob.name: other})), (name, knob.name)


NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("mask", "stride"): {"window": 4},
    ("mask", "global_tokens"): {"window": 4},
}


OTHERS = {
    ("head-sharing", "n_heads"): 4,
    ("head-sharing", "n_kv_heads"): 4,
    ("mask-sparse", "window"): 6,
    ("rotation", "original"): 512,
    ("rotation-products", "original"): 512,
}
"""Values for parameters of which the next one is not allowed or changes nothing."""


def changed(picture: str, knob: Number) -> float:
    if (picture, knob.name) in OTHERS:
        return OTHERS[picture, knob.name]
    larger = knob.default + (knob.step or knob.default)
    return larger if larger <= knob.high else knob.default - knob.step


def text(picture: Any) -> str:
    return picture if isinstance(picture, str) else picture.to_json()
