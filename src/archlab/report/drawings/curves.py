"""Charts that explain activations, positions and routers. Each has parameters, and all numbers come from `numbers`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import altair as alt
import numpy as np

from archlab.config.components.activation import activation_named, name_of_mlp
from archlab.config.components.norm import BlockNorm
from archlab.config.components.position import T5, Alibi, Rope
from archlab.config.core.registry import kinds
from archlab.errors import UserError
from archlab.report.charts.marks import DASHED, HEIGHT, ON_A_PHONE, chart_of, crosshair, dash_turns, layered
from archlab.report.drawings.numbers import (
    ACTIVATIONS,
    alibi_slopes,
    chosen_experts,
    frequencies,
    mean_products,
    normalized,
    t5_buckets,
)
from archlab.spacing import evenly_spaced

Points = Sequence[Mapping[str, Any]]


def lines(
    points: Points,
    x: alt.X,
    y: alt.Y,
    description: str,
    *,
    legend: str | None = None,
    interpolate: Literal["linear", "step-after"] = "linear",
) -> alt.LayerChart:
    """Return a chart with one line per value of `line`, in the order in which these values occur in `points`.

    Each line has its own color and dashes. Several lines have a legend. Nothing is drawn beyond the axes.
    `description` is the caption on the page.
    """
    names = list(dict.fromkeys(point["line"] for point in points))
    dash_patterns = dash_turns(len(names))
    columns: Any = alt.ExprRef(f"{ON_A_PHONE} ? 2 : 4")
    key = alt.Legend(title=legend, orient="bottom", columns=columns, symbolType="stroke", symbolSize=500)
    legend_of_lines = key if len(names) > 1 else None
    color = alt.Color("line:N", scale=alt.Scale(domain=names, range="category"), sort=None, legend=legend_of_lines)
    dashed = alt.StrokeDash(
        "line:N", scale=alt.Scale(domain=names, range=dash_patterns), sort=None, legend=legend_of_lines
    )
    chart = chart_of(points)
    line = chart.mark_line(strokeWidth=2, clip=True, interpolate=interpolate)
    titles = [cast(dict[str, Any], encoding.to_dict())["axis"]["title"] for encoding in (x, y)]
    shown = [alt.Tooltip(f"{field}:Q", title=title, format=".4~g") for field, title in zip("xy", titles, strict=True)]
    named = [alt.Tooltip("line:N", title=legend or "curve")] if len(names) > 1 else []
    pointed = chart.encode(x=x, color=color, tooltip=[*named, *shown])
    drawn = [line.encode(x=x, y=y, color=color, strokeDash=dashed), *crosshair(pointed, "x", y, "line")]
    return layered(drawn, description, HEIGHT)


SHOWN_ACTIVATIONS = ("gelu", "silu", "relu_squared", "sigmoid", "elu", "softplus", "xielu", "relu")
"""Activations that are drawn. Every other activation looks almost like one of these. ReLU is dotted and comes last,
because other lines run along it."""

_POINTS = 80


def _x(title: str) -> alt.X:
    return alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title=title, tickCount=8, grid=False)


def activation_points(names: Iterable[str], reach: float = 4) -> list[dict[str, float | str]]:
    """Return points (x, y) on the curve of each activation function. Learned parameters have their initial values."""
    x = np.linspace(-reach, reach, _POINTS + 1)
    return [point for name in names for point in _curve(name, x, ACTIVATIONS[name](x))]


def _curve(name: str, x: np.ndarray, y: np.ndarray) -> list[dict[str, float | str]]:
    return [{"line": name, "x": round(float(at), 6), "y": float(value)} for at, value in zip(x, y, strict=True)]


def activation_curves(reach: float) -> alt.LayerChart:
    """Draw the activations in SHOWN_ACTIVATIONS from -reach to reach."""
    y = alt.Y("y:Q", scale=alt.Scale(domain=[-1.5, max(reach, 2)])).axis(title="activation of x", tickCount=6)
    points = [
        {**point, "line": activation_named(str(point["line"])).display_name}
        for point in activation_points(SHOWN_ACTIVATIONS, reach)
    ]
    return lines(points, _x("x"), y, "Activation functions. The learned constants of xIELU have their initial values.")


_UPS = (2.0, 1.0, -1.0, -2.0)
"""Values of the second input of a gated MLP for which its output is drawn."""


def one_activation(activation: str, mlp: str, reach: float, clamp: float = 0, up_offset: float = 0) -> alt.LayerChart:
    """Draw one activation of the MLP `plain` or `gated`.

    A plain MLP has one input: its curve, its slope and ReLU are drawn. A gated MLP has two, so there is a curve for
    each of a few values of the second one. `clamp` limits both inputs, and 0 is no limit.
    """
    x = np.linspace(-reach, reach, _POINTS + 1)
    function, name = ACTIVATIONS[activation], activation_named(activation).display_name
    if mlp == "plain":
        y = function(x)
        others = [] if activation == "relu" else _curve("ReLU", x, ACTIVATIONS["relu"](x))
        points = [*_curve(name, x, y), *_curve(f"slope of {name}", x, np.gradient(y, x)), *others]
        vertical = alt.Y("y:Q").axis(title="activation of x", tickCount=6)
        return lines(points, _x("x"), vertical, f"{name}, and its slope.")
    gate = np.minimum(x, clamp) if clamp else x
    ups = [min(max(up, -clamp), clamp) if clamp else up for up in _UPS]
    points = [
        point
        for up, limited in zip(_UPS, ups, strict=True)
        for point in _curve(f"V x = {up:g}", x, function(gate) * (limited + up_offset))
    ]
    vertical = alt.Y("y:Q").axis(title="output before W₂", tickCount=6)
    offset = f" + {up_offset:g}" if up_offset else ""
    limits = f" Both inputs are limited to {clamp:g}." if clamp else ""
    description = (
        f"{name_of_mlp(activation, is_gated=True)}: {name}(W₁ x) · (V x{offset}), for a few values of V x.{limits}"
    )
    return lines(points, _x("W₁ x"), vertical, description)


NORMS: Mapping[str, Sequence[str]] = {
    "layernorm": ("eps",),
    "rmsnorm": ("eps",),
    "prmsnorm": ("eps", "share"),
    "scalenorm": (),
    "dyt": ("alpha",),
}
"""Kinds of norms that are drawn, with their parameters in the picture."""

_N_FEATURES = 32


def norm_points(norm: BlockNorm, mean: float, spread: float, largest: float) -> list[dict[str, float | str]]:
    """Return the features of a vector before and after a norm.

    The features are random numbers with the given mean and standard deviation. `largest` is added to one of them.
    """
    x = np.random.default_rng(0).standard_normal(_N_FEATURES)
    x = mean + spread * (x - x.mean()) / x.std()
    x[_N_FEATURES // 3] += largest
    at = np.arange(1, _N_FEATURES + 1)
    return [*_curve("before", at, x), *_curve(f"after {norm.display_name}", at, normalized(norm, x))]


def one_norm(norm: str, mean: float, spread: float, largest: float, **settings: float) -> alt.LayerChart:
    """Draw the features of one vector before and after the norm of the kind `norm`."""
    made = kinds(BlockNorm)[norm].model_validate({name: settings[name] for name in NORMS[norm]})
    points = norm_points(made, mean, spread, largest)
    after = np.array([point["y"] for point in points[_N_FEATURES:]], float)
    mean_after = round(float(after.mean()), 2) + 0.0  # not -0.00
    description = (
        f"A vector of {_N_FEATURES} features before and after {made.display_name}, whose learned parameters have their "
        f"initial values. After it, the mean is {mean_after:.2f} and the RMS {np.sqrt(np.mean(after**2)):.2f}."
    )
    return lines(points, _x("feature"), alt.Y("y:Q").axis(title="value", tickCount=6), description)


_PAIRS_SHOWN = 6


def rope_of(
    theta: float,
    fraction: float = 1.0,
    scaling: str = "none",
    factor: float = 1.0,
    original: int = 8192,
    turning: float = 0.5,
) -> Rope:
    """Return the position of a config with these values. A scaling ignores those that it does not have."""
    values = {"factor": factor, "original_max_seq_len": original, "turning": turning}
    of_kind = {
        "none": (),
        "linear": ("factor",),
        "dynamic": ("factor", "original_max_seq_len"),
        "llama3": ("factor", "original_max_seq_len"),
        "yarn": ("factor", "original_max_seq_len"),
        "proportional": ("turning",),
    }
    scaled = {"kind": scaling, **{name: values[name] for name in of_kind[scaling]}}
    return Rope.model_validate({"theta": theta, "fraction": fraction, "scaling": scaled})


def _in_words(rope: Rope, width: int) -> str:
    """Return a phrase such as `theta 10,000, yarn × 4, 16 of 64 turned`."""
    scaling: Any = rope.scaling
    by = f" × {scaling.factor:g}" if hasattr(scaling, "factor") else ""
    by = f" of {scaling.turning:.0%}" if hasattr(scaling, "turning") else by
    words = [f"theta {rope.theta:,.0f}", "" if scaling.kind == "none" else f"{scaling.kind}{by}"]
    words.append("" if rope.fraction == 1 else f"{_n_turned(rope, width)} of {width} turned")
    return ", ".join(filter(None, words))


def _n_turned(rope: Rope, width: int) -> int:
    n = int(width * rope.fraction)
    if n % 2 or n < 4:
        raise UserError(
            f"fraction is {rope.fraction:g}, which turns {n} of {width} dimensions; allowed: an even number, at least 4"
        )
    return n


def rotation_points(rope: Rope, width: int, length: int) -> list[dict[str, float | str]]:
    """Return the cosine of RoPE's rotation angle at every position, for a few pairs of dimensions. The pair that
    rotates fastest comes first."""
    per_token, amplitude = frequencies(rope, width, length)
    pairs = evenly_spaced(range(len(per_token)), _PAIRS_SHOWN)
    at = np.unique(np.linspace(0, length - 1, min(length, 4 * _POINTS)).round())
    return [point for pair in pairs for point in _curve(f"pair {pair}", at, amplitude * np.cos(at * per_token[pair]))]


def rotations(head_dim: int, tokens: int, **settings: Any) -> alt.LayerChart:
    """Draw RoPE's rotations in a head with `head_dim` dimensions. `settings` are those of `rope_of`."""
    rope = rope_of(**settings)
    n = _n_turned(rope, head_dim)
    points = rotation_points(rope, head_dim, tokens)
    high = 1.1 * max(1.0, *(abs(cast(float, point["y"])) for point in points))
    y = alt.Y("y:Q", scale=alt.Scale(domain=[-high, high], nice=False)).axis(title="cosine of the angle", tickCount=5)
    description = (
        f"Cosine of the angle by which RoPE turns a few of the {n // 2} pairs of a head with {head_dim} dimensions, "
        f"with {_in_words(rope, head_dim)}. Pair 0 is the fastest."
    )
    _, amplitude = frequencies(rope, head_dim, tokens)
    if amplitude != 1:
        description += f" The scaling multiplies all cosines by {amplitude:.3g}."
    return lines(points, _x("position"), y, description)


def product_points(ropes: Mapping[str, Rope], width: int, farthest: int) -> list[dict[str, float | str]]:
    """Return the mean product of a query and an identical key over their distance, as a share of that at distance 0,
    for each named position."""
    at = np.unique(np.geomspace(1, farthest, 2 * _POINTS).round())
    return [
        point for name, rope in ropes.items() for point in _curve(name, at, mean_products(rope, width, at, farthest))
    ]


def rotated_products(head_dim: int, farthest: int, times: float, **settings: Any) -> alt.LayerChart:
    """Draw the mean product of a query and an identical key over their distance. It falls more slowly if theta is
    larger.

    A second curve has theta multiplied by `times`. `settings` are those of `rope_of`.
    """
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False)).axis(title="distance in tokens", format="~s", tickCount=5)
    y = alt.Y("y:Q").axis(title="q·k as a share of that at distance 0", tickCount=5)
    rope = rope_of(**settings)
    _n_turned(rope, head_dim)
    ropes = [rope, rope_of(rope.theta), rope_of(times * rope.theta)]
    named = {_in_words(one, head_dim): one for one in ropes}
    description = (
        "Expected product of a random query and an identical key under RoPE over their distance, in a head with "
        f"{head_dim} dimensions."
    )
    return lines(product_points(named, head_dim, farthest), x, y, description)


def alibi_points(alibi: Alibi, n_heads: int, length: int) -> list[dict[str, float | str]]:
    """Return the ALiBi bias of every head at every distance."""
    at = np.arange(length)
    slopes = alibi_slopes(alibi, n_heads)
    return [point for head, slope in enumerate(slopes, 1) for point in _curve(f"head {head}", at, -slope * at)]


def t5_points(t5: T5, length: int) -> list[dict[str, float | str]]:
    """Return the number of T5's bucket for every distance. Each head learns one bias per bucket."""
    at = np.arange(length)
    return _curve("bucket", at, t5_buckets(at, t5.buckets, t5.max_distance))


def alibi_biases(n_heads: int, max_bias: float, distance: int) -> alt.LayerChart:
    """Draw ALiBi's biases up to a distance, with one line per head."""
    y = alt.Y("y:Q").axis(title="added to the score", tickCount=5)
    points = alibi_points(Alibi(max_bias=max_bias), n_heads, distance)
    return lines(points, _x("distance in tokens"), y, f"ALiBi's bias of each of {n_heads} heads over the distance.")


def t5_bias_buckets(buckets: int, max_distance: int, distance: int) -> alt.LayerChart:
    """Draw T5's buckets. The first buckets hold one distance each, and later buckets hold more and more distances."""
    if max_distance <= buckets // 2:
        raise UserError(f"max_distance is {max_distance}; allowed: more than half of the {buckets} buckets")
    y = alt.Y("y:Q").axis(title="bucket", tickCount=5)
    description = f"T5's bucket for each distance. Each head learns one bias for each of the {buckets} buckets."
    points = t5_points(T5(buckets=buckets, max_distance=max_distance), distance)
    return lines(points, _x("distance in tokens"), y, description, interpolate="step-after")


ROUTED_TOKENS = 512
_ROUTED_WIDTH = 64


def routed(experts: int, skew: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random tokens and a random router: [N, D] and [E, D].

    A token is a vector that all tokens share, times `skew`, plus a vector of its own. Without skew, all experts are
    equally likely.
    """
    random = np.random.default_rng(seed)
    own_ND, shared_D = random.standard_normal((ROUTED_TOKENS, _ROUTED_WIDTH)), random.standard_normal(_ROUTED_WIDTH)
    router_ED = random.standard_normal((experts, _ROUTED_WIDTH)) / _ROUTED_WIDTH**0.5
    return own_ND + skew * shared_D, router_ED


def load_points(experts: int, active: int, skew: float, seed: int) -> list[dict[str, float]]:
    """Return the fraction of the tokens that each expert processes."""
    x_ND, router_ED = routed(experts, skew, seed)
    chosen_NK = chosen_experts(x_ND @ router_ED.T, active)
    counts_E = np.bincount(chosen_NK.ravel(), minlength=experts)
    return [{"expert": i, "share": n / ROUTED_TOKENS} for i, n in enumerate(counts_E.tolist(), 1)]


def router_loads(experts: int, active: int, skew: float, seed: int, capacity: float) -> alt.LayerChart:
    """Draw one bar per expert for its fraction of the tokens. A dashed line shows the fraction for evenly distributed
    tokens.

    `capacity` is the largest load of an expert as a multiple of the equal share, and 0 is no limit. The part of a bar
    beyond it is pale.
    """
    if active > experts:
        raise UserError(f"active is {active}; allowed: at most {experts}, the number of experts")
    equal = active / experts
    most = capacity * equal if capacity else 1.0
    points = [{**point, "kept": min(point["share"], most)} for point in load_points(experts, active, skew, seed)]
    x = alt.X("expert:O").axis(title="expert", labelAngle=0, labelOverlap=True)
    y = alt.Y("kept:Q").axis(title="share of the tokens", format="%", tickCount=5)
    base = chart_of(points).encode(x=x, tooltip=[alt.Tooltip("expert:O"), alt.Tooltip("share:Q", format=".1%")])
    even = chart_of([{"kept": equal}]).mark_rule(strokeDash=DASHED, style="notch").encode(y="kept:Q")
    layers = [base.mark_bar(style="dots", cornerRadius=1).encode(y=y), even]
    description = (
        f"Share of {ROUTED_TOKENS} tokens that each of {experts} experts receives if {active} process each token. "
        "Weights and tokens are random. The dashed line is an equal share."
    )
    if capacity:
        beyond = base.mark_bar(style="dots", opacity=0.35).encode(y=y, y2="share:Q")
        layers += [beyond, chart_of([{"kept": most}]).mark_rule(style="median").encode(y="kept:Q")]
        dropped = sum(point["share"] - point["kept"] for point in points) / active
        description += (
            f" With a capacity of {capacity:g} equal shares (solid line), {dropped:.1%} of the choices would be "
            "dropped. archlab drops none."
        )
    return layered(layers, description)
