"""Pictures that explain topics, keyed by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import altair as alt
import torch

from archlab.config.components.activation import activation_named
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import T5, Alibi, Rope
from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.evidence.topics import topics
from archlab.exchange.configs import load_config
from archlab.infer.probe import probe_starts, rope_products
from archlab.model.activations import make_activation
from archlab.model.context import Collected
from archlab.model.decoder import Decoder
from archlab.model.positions import AlibiBias, bucket
from archlab.model.rotary import rotation
from archlab.model.router import collected_loads
from archlab.pricing.summary import cost
from archlab.pricing.work import matrix_flops_per_byte
from archlab.report.charts.marks import DASHED, HEIGHT, ON_A_PHONE, chart_of, crosshair, dash_turns, layered
from archlab.report.drawings.attention import CYCLES, cycle_visibility, encoder_visibility, head_sharing
from archlab.report.drawings.block import block_diagram
from archlab.report.drawings.svg import Svg

Picture = Svg | alt.LayerChart
"""A chart or an SVG. A chart takes its colors from the page's theme (`html.render_page`). An SVG contains the colors of
both light and dark mode."""


def pictures() -> Mapping[str, Callable[[], Picture]]:
    """Map the name of each picture to the function that draws it. A picture is computed only when its function is
    called."""
    placements = ("pre", "post", "double", "output", "carried")
    blocks = {
        **{f"{placement}-norm": f"model.norm.placement={placement}" for placement in placements},
        **{f"parallel-{kind}": f"model.block.parallel={kind}" for kind in ("shared", "separate")},
    }
    titles = {picture: topic.title for _, topic in topics() for picture in topic.pictures}
    return {
        **{name: partial(_block, titles[name], override) for name, override in blocks.items()},
        **{f"mask-{name}": partial(cycle_visibility, name) for name in CYCLES},
        "mask-encoder": encoder_visibility,
        "activations": activation_curves,
        "rotation": rotations,
        "rotation-products": rotated_products,
        "alibi": alibi_biases,
        "t5": t5_buckets,
        "head-sharing": head_sharing,
        "decoding-intensity": decoding_intensity,
        "start-gradients": start_gradients,
        "router-loads": router_loads,
    }


def _block(title: str, override: str) -> Svg:
    return block_diagram(load_config("tiny-llama", override), title)


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


_REACH, _STEP = 4.0, 0.1
SHOWN_ACTIVATIONS = ("gelu", "silu", "relu_squared", "sigmoid", "elu", "softplus", "xielu", "relu")
"""Activations that are drawn. Every other activation looks almost like one of these. ReLU is dotted and comes last,
because other lines run along it."""


def activation_points(names: Iterable[str]) -> list[dict[str, float | str]]:
    """Return points (x, y) on the curve of each activation function. Learned parameters have their initial values."""
    x = torch.arange(-_REACH, _REACH + _STEP / 2, _STEP, dtype=torch.float64)
    return [
        {"line": name, "x": round(at, 2), "y": y}
        for name in names
        for at, y in zip(x.tolist(), _applied(name, x).tolist(), strict=True)
    ]


@torch.no_grad()
def _applied(name: str, x: torch.Tensor) -> torch.Tensor:
    module = make_activation(name)
    for parameter, value in getattr(module, "constants", {}).items():
        getattr(module, parameter).fill_(value)
    return module(x)


def activation_curves() -> alt.LayerChart:
    """Draw the activations in SHOWN_ACTIVATIONS."""
    x = alt.X("x:Q").axis(title="x", tickCount=8, grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[-1.5, 4])).axis(title="activation of x", tickCount=6)
    points = [
        {**point, "line": activation_named(str(point["line"])).display_name}
        for point in activation_points(SHOWN_ACTIVATIONS)
    ]
    return lines(points, x, y, "Activation functions. The learned constants of xIELU have their initial values.")


_ROTATED_WIDTH, _POSITIONS, _PAIRS_SHOWN = 64, 128, 6
_THETAS = (1e4, 5e5)
_FARTHEST = 8192


def rotation_points(rope: Rope, width: int = _ROTATED_WIDTH, length: int = _POSITIONS) -> list[dict[str, float | str]]:
    """Return the cosine of RoPE's rotation angle at every position, for a few pairs of dimensions. The pair that
    rotates fastest comes first."""
    positions_1T = torch.arange(length)[None]
    rotated = rotation(rope, width, positions_1T, torch.tensor([[length]]), torch.float64)
    step = 2 if rope.pairing == "interleaved" else 1
    cos_TP = rotated.cos[0, 0, :, ::step][:, : rotated.cos.shape[-1] // 2]
    n_pairs = cos_TP.shape[-1]
    pairs = sorted({round(i * (n_pairs - 1) / (_PAIRS_SHOWN - 1)) for i in range(_PAIRS_SHOWN)})
    return [
        {"line": f"pair {pair}", "x": t, "y": value}
        for pair in pairs
        for t, value in enumerate(cos_TP[:, pair].tolist())
    ]


def product_points() -> list[dict[str, float | str]]:
    """Return the mean dot product of a query and an identical key at each distance under RoPE, for a few values of
    theta."""
    return [
        {"line": f"theta {theta:,.0f}", "x": distance, "y": product}
        for theta in _THETAS
        for curve in [rope_products("layer", Rope(theta=theta), _ROTATED_WIDTH, _FARTHEST, seed=0)]
        for distance, product in zip(curve.distances, curve.products, strict=True)
        if distance
    ]


def rotations() -> alt.LayerChart:
    """Draw RoPE's rotations in an attention head with 64 dimensions."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="position", grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[-1.1, 1.1], nice=False)).axis(title="cosine of the angle", tickCount=5)
    description = (
        f"Cosine of the angle by which RoPE turns a few of the {_ROTATED_WIDTH // 2} pairs of a head with "
        f"{_ROTATED_WIDTH} dimensions, with theta {Rope().theta:,.0f}. Pair 0 is the fastest."
    )
    return lines(rotation_points(Rope()), x, y, description)


def rotated_products() -> alt.LayerChart:
    """Draw the mean dot product of a query and an identical key over their distance. The product falls more slowly if
    theta is larger."""
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False)).axis(title="distance in tokens", format="~s", tickCount=5)
    y = alt.Y("y:Q").axis(title="q·k as a share of that at distance 0", tickCount=5)
    description = (
        "Mean product of a random query and an identical key under RoPE over their distance, in a head with "
        f"{_ROTATED_WIDTH} dimensions."
    )
    return lines(product_points(), x, y, description)


_HEADS, _ALIBI_LENGTH, _T5_LENGTH = 8, 64, 256


def alibi_points(
    alibi: Alibi | None = None, n_heads: int = _HEADS, length: int = _ALIBI_LENGTH
) -> list[dict[str, float | str]]:
    """Return the ALiBi bias of every head at every distance."""
    heads = MultiHead(n_heads=n_heads).resolve(n_heads * 8)
    distances_11S = torch.arange(length)[None, None]
    bias_HS = AlibiBias(alibi or Alibi(), heads)(distances_11S, torch.zeros(1, n_heads, 1, 8))[0, :, 0]
    return [
        {"line": f"head {head + 1}", "x": distance, "y": value}
        for head, head_values in enumerate(bias_HS.tolist())
        for distance, value in enumerate(head_values)
    ]


def t5_points(t5: T5 | None = None, length: int = _T5_LENGTH) -> list[dict[str, float | str]]:
    """Return the number of T5's bucket for every distance. Each head learns one bias per bucket."""
    t5 = t5 or T5()
    buckets = bucket(torch.arange(length), t5.buckets, t5.max_distance)
    return [{"line": "bucket", "x": distance, "y": value} for distance, value in enumerate(buckets.tolist())]


def alibi_biases() -> alt.LayerChart:
    """Draw ALiBi's biases, with one line per head."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="distance in tokens", grid=False)
    y = alt.Y("y:Q").axis(title="added to the score", tickCount=5)
    return lines(alibi_points(), x, y, f"ALiBi's bias of each of {_HEADS} heads over the distance.")


def t5_buckets() -> alt.LayerChart:
    """Draw T5's buckets. The first buckets hold one distance each, and later buckets hold more and more distances."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="distance in tokens", grid=False)
    y = alt.Y("y:Q").axis(title="bucket", tickCount=5)
    description = "T5's bucket for each distance. Each head learns one bias per bucket."
    return lines(t5_points(), x, y, description, interpolate="step-after")


_SERVED = "llama-3-8b"
_BATCHES, _CONTEXTS = tuple(2**n for n in range(0, 11, 2)), (1024, 8192, 65536)


def intensity_points(
    config: Config, batches: Sequence[int] = _BATCHES, contexts: Sequence[int] = _CONTEXTS
) -> list[dict[str, float | str]]:
    """Return the FLOPs per byte of decoding in bfloat16, for each context and batch size."""
    return [
        {"line": f"{context:,} tokens", "x": batch, "y": matrix_flops_per_byte(priced.work["decoding"])}
        for context in contexts
        for batch in batches
        for priced in [cost(config, batch, context)]
    ]


def decoding_intensity() -> alt.LayerChart:
    """Draw the arithmetic intensity of decoding with Llama 3 8B."""
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False)).axis(title="batch (sequences)", values=list(_BATCHES))
    y = alt.Y("y:Q", scale=alt.Scale(type="log")).axis(title="FLOPs per byte moved", tickCount=4, format="~s")
    points = intensity_points(load_config(_SERVED))
    description = f"FLOPs per byte that {_SERVED} moves for each generated token in bfloat16, by batch and context."
    return lines(points, x, y, description, legend="context")


_LAYERS, _CONTEXT = 12, 64
_DEEP = {
    "vocab_size": 512,
    "d_model": 64,
    "n_layers": _LAYERS,
    "max_seq_len": _CONTEXT,
    "attention": {"n_heads": 4},
    "norm": {"kind": "layernorm"},
    "mlp": {"kind": "plain", "activation": "relu"},
}


def gradient_points(placements: tuple[str, ...] = ("pre", "post")) -> list[dict[str, float | str]]:
    """Return the norm of the gradient of each layer's weights, with one line per placement of the normalization
    layers."""
    base = {"model": _DEEP, "train": {"device": "cpu"}}
    configs = {f"{p}-norm": build_config(base, (f"model.norm.placement={p}",)) for p in placements}
    return [
        {"line": name, "x": layer, "y": value}
        for name, start in probe_starts(configs, _CONTEXT).items()
        for layer, value in enumerate(start.probed.layer_values["gradient"], 1)
        if value is not None
    ]


def start_gradients() -> alt.LayerChart:
    """Draw the gradient norm in each layer of an untrained transformer with 12 layers."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="layer", format="d", grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(type="log")).axis(title="norm of the gradient", tickCount=4, format="~g")
    description = (
        f"Norm of each layer's gradient before the first update, in a model with {_LAYERS} layers, LayerNorm and a "
        "ReLU MLP. Weights and tokens are random."
    )
    return lines(gradient_points(), x, y, description)


_EXPERTS, _ACTIVE, _TOKENS = 8, 2, 512
_MIXTURE = {
    "vocab_size": 512,
    "d_model": 64,
    "n_layers": 1,
    "max_seq_len": _TOKENS,
    "attention": {"n_heads": 4},
    "mlp": {"kind": "moe", "experts": _EXPERTS, "active": _ACTIVE, "d_ff": 32},
}


def tiny_mixture() -> Config:
    """Return a config with one layer of eight experts, two of which process each token."""
    return build_config({"model": _MIXTURE})


@torch.no_grad()
def load_points(config: Config, seed: int = 0) -> list[dict[str, float]]:
    """Return the fraction of the tokens that each expert processes in the first layer with a router. The weights and
    tokens are random."""
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(config.model.vocab_size, (1, _TOKENS), generator=generator)
    collected = Collected()
    Decoder(config.model, seed=seed).eval()(tokens_BT, collected=collected)
    load = collected_loads(collected)[0]
    return [{"expert": i, "share": share} for i, share in enumerate((load.chosen_E / load.tokens).tolist(), 1)]


def router_loads() -> alt.LayerChart:
    """Draw one bar per expert for its fraction of the tokens. A dashed line shows the fraction for evenly distributed
    tokens."""
    bars = chart_of(load_points(tiny_mixture())).mark_bar(style="dots", cornerRadius=1)
    x = alt.X("expert:O").axis(title="expert", labelAngle=0)
    y = alt.Y("share:Q").axis(title="share of the tokens", format="%", tickCount=5)
    even = chart_of([{"share": _ACTIVE / _EXPERTS}])
    layers = [bars.encode(x=x, y=y), even.mark_rule(strokeDash=DASHED, style="notch").encode(y="share:Q")]
    description = (
        f"Share of {_TOKENS} tokens that each of {_EXPERTS} experts receives if {_ACTIVE} process each token. Weights "
        "and tokens are random. The dashed line is an equal share."
    )
    return layered(layers, description)
