"""Pictures that explain topics, keyed by name, and the parameters that readers can change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import altair as alt

from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.evidence.topics import Topic, topics
from archlab.exchange.configs import load_config
from archlab.pricing.summary import cost
from archlab.pricing.work import matrix_flops_per_byte
from archlab.report.drawings import curves
from archlab.report.drawings.attention import (
    encoder_visibility,
    head_sharing,
    hybrid_visibility,
    one_visibility,
    sparse_visibility,
    window_visibility,
)
from archlab.report.drawings.block import block_diagram
from archlab.report.drawings.knobs import Knob, Number, Word
from archlab.report.drawings.numbers import ACTIVATIONS
from archlab.report.drawings.svg import Svg

Picture = Svg | alt.LayerChart
"""A chart or an SVG. A chart takes its colors from the page's theme (`html.render_page`). An SVG contains the colors of
both light and dark mode."""


@dataclass(frozen=True)
class Drawing:
    """Function that draws a picture, and its parameters. Without arguments, each parameter has its default."""

    draw: Callable[..., Picture]
    knobs: tuple[Knob, ...] = ()
    is_static: bool = False
    """Whether the picture needs torch, so that only static pages show it."""

    def __call__(self, **values: Any) -> Picture:
        return self.draw(**{knob.name: knob.default for knob in self.knobs} | values)


def _norms_with(parameter: str) -> Mapping[str, Sequence[str]]:
    return {"norm": [kind for kind, parameters in curves.NORMS.items() if parameter in parameters]}


_REACH = Number("reach", "Range of x", 4, 1, 10)
_ACTIVATION = Word("activation", "Activation", "silu", tuple(ACTIVATIONS), field="model.mlp.activation")
_MLP = Word("mlp", "MLP", "plain", ("plain", "gated"), field="model.mlp.kind")
_CLAMP = Number("clamp", "Limit of the inputs (0: none)", 0, 0, 10, 0.5, "model.mlp.clamp", {"mlp": ("gated",)})
_OFFSET = Number("up_offset", "Offset of V x", 0, 0, 2, 0.1, "model.mlp.up_offset", {"mlp": ("gated",)})

_NORM: tuple[Knob, ...] = (
    Word("norm", "Norm", "layernorm", tuple(curves.NORMS), "model.norm.kind"),
    Number("mean", "Mean of the features", 1, -5, 5, 0.1),
    Number("spread", "Standard deviation of the features", 2, 0.001, 10, 0),
    Number("largest", "Added to one feature", 6, 0, 50, 0.5),
    Number("eps", "Epsilon", 1e-5, 1e-12, 1, 0, "model.norm.eps", _norms_with("eps")),
    Number("share", "Share in the mean square", 0.0625, 0.01, 0.99, 0.01, "model.norm.share", _norms_with("share")),
    Number("alpha", "Alpha", 0.5, 0.05, 2, 0.05, "model.norm.alpha", _norms_with("alpha")),
)

_POSITION = "model.position"
_SCALINGS = ("none", "linear", "dynamic", "llama3", "yarn", "proportional")
_SCALED, _STRETCHED, _PARTIAL = ({"scaling": kinds} for kinds in (_SCALINGS[1:5], _SCALINGS[2:5], _SCALINGS[5:]))
_ROPE: tuple[Knob, ...] = (
    Number("theta", "Theta", 10_000, 100, 100_000_000, 0, f"{_POSITION}.theta"),
    Number("head_dim", "Head dimension", 64, 8, 256, 2, "model.attention.head_dim"),
    Number("fraction", "Share of turned dimensions", 1.0, 0.0625, 1, 0.0625, f"{_POSITION}.fraction"),
    Word("scaling", "Scaling", "none", _SCALINGS, f"{_POSITION}.scaling.kind"),
    Number("factor", "Factor of the scaling", 4.0, 1, 64, 0.5, f"{_POSITION}.scaling.factor", _SCALED),
    Number(
        "original", "Original context", 8192, 128, 131_072, 128, f"{_POSITION}.scaling.original_max_seq_len", _STRETCHED
    ),
    Number("turning", "Share of turned pairs", 0.75, 0.05, 0.95, 0.05, f"{_POSITION}.scaling.turning", _PARTIAL),
)
_TOKENS = Number("tokens", "Positions shown", 128, 16, 4096, 16)
_FARTHEST = Number("farthest", "Longest distance", 8192, 64, 1_048_576, 0)
_TIMES = Number("times", "Second theta, as a multiple of theta", 50, 0.01, 1000, 0)

_N_HEADS = Number("n_heads", "Query heads", 8, 1, 128, 1, "model.attention.n_heads")
_FEW_HEADS = _N_HEADS._replace(label="Heads", high=16)
_MAX_BIAS = Number("max_bias", "Maximum bias", 8.0, 1, 16, 0.5, f"{_POSITION}.max_bias")
_DISTANCE = Number("distance", "Longest distance", 64, 16, 1024, 16)

_HEADS = (
    _N_HEADS,
    Number("n_kv_heads", "KV heads of grouped-query attention", 2, 1, 128, 1, "model.attention.n_kv_heads"),
    Number("head_dim", "Head dimension", 64, 8, 256, 2, "model.attention.head_dim"),
    Number("kv_rank", "Rank of latent attention", 128, 16, 1024, 16, "model.attention.kv_rank"),
)
_T5 = (
    Number("buckets", "Buckets", 32, 4, 128, 2, f"{_POSITION}.buckets"),
    Number("max_distance", "Maximum distance", 128, 8, 1024, 8, f"{_POSITION}.max_distance"),
    Number("distance", "Longest distance", 256, 16, 2048, 16),
)

_LENGTH = Number("length", "Tokens", 16, 8, 32)
_VISIBILITY = Word("visibility", "Direction", "causal", ("causal", "prefix", "two_sided"), "model.attention.visibility")
_WINDOW = Number("window", "Window (0: none)", 0, 0, 32, 1, "model.attention.window", if_larger=4)
_NARROW = Number("window", "Window", 4, 1, 32)
_STRIDE = Number("stride", "Stride", 4, 2, 16)
_WINDOWED = {"window": range(1, 33)}
_NO_STRIDE = Number(
    "stride", "Stride beyond the window (0: none)", 0, 0, 16, 2, "model.attention.stride", _WINDOWED, if_larger=4
)
_GLOBALS = Number("global_tokens", "Global tokens", 0, 0, 8, 1, "model.attention.global_tokens", _WINDOWED)
_BLOCK = Number("size", "Size of a block", 4, 1, 16)
_SUMMARY = Number("summary", "Keys of earlier blocks", 1, 0, 8)

_ROUTER: tuple[Knob, ...] = (
    Number("experts", "Experts", 8, 2, 64, 1, "model.mlp.experts"),
    Number("active", "Active experts", 2, 1, 16, 1, "model.mlp.active"),
    Number("skew", "What all tokens have in common", 0.3, 0, 2, 0.1),
    Number("seed", "Seed", 0, 0, 99),
    Number("capacity", "Capacity in equal shares (0: none)", 0, 0, 4, 0.25),
)


@cache
def pictures() -> Mapping[str, Drawing]:
    """Map the name of each picture to its drawing. A picture is computed only when its drawing is called."""
    placements = ("pre", "post", "double", "output", "carried")
    blocks = {
        **{f"{placement}-norm": f"model.norm.placement={placement}" for placement in placements},
        **{f"parallel-{kind}": f"model.block.parallel={kind}" for kind in ("shared", "separate")},
    }
    titles = {picture: topic.title for _, topic in topics() for picture in topic.pictures}
    return {
        **{name: Drawing(partial(_block, titles[name], override)) for name, override in blocks.items()},
        "mask": Drawing(one_visibility, (_VISIBILITY, _WINDOW, _NO_STRIDE, _GLOBALS, _LENGTH)),
        "mask-window": Drawing(window_visibility, (_NARROW, _LENGTH)),
        "mask-sparse": Drawing(sparse_visibility, (_NARROW, _STRIDE, _BLOCK, _SUMMARY, _LENGTH)),
        "mask-hybrid": Drawing(hybrid_visibility, (_LENGTH,)),
        "mask-encoder": Drawing(encoder_visibility, (_LENGTH,)),
        "activations": Drawing(curves.activation_curves, (_REACH,)),
        "activation": Drawing(curves.one_activation, (_ACTIVATION, _MLP, _CLAMP, _OFFSET, _REACH)),
        "norm": Drawing(curves.one_norm, _NORM),
        "rotation": Drawing(curves.rotations, (*_ROPE, _TOKENS)),
        "rotation-products": Drawing(curves.rotated_products, (*_ROPE, _FARTHEST, _TIMES)),
        "alibi": Drawing(curves.alibi_biases, (_FEW_HEADS, _MAX_BIAS, _DISTANCE)),
        "t5": Drawing(curves.t5_bias_buckets, _T5),
        "head-sharing": Drawing(head_sharing, _HEADS),
        "decoding-intensity": Drawing(decoding_intensity),
        "start-gradients": Drawing(start_gradients, is_static=True),
        "router-loads": Drawing(curves.router_loads, _ROUTER),
    }


def pictures_of(topic: Topic) -> dict[str, Drawing]:
    """Return the pictures that a topic names. If it names none, return those in which most of its fields are
    parameters."""
    if topic.pictures:
        return {name: pictures()[name] for name in topic.pictures}
    shown = {name: _n_shown(drawing, topic.fields) for name, drawing in pictures().items()}
    most = max(shown.values())
    return {name: pictures()[name] for name, n in shown.items() if n == most > 0}


def _n_shown(drawing: Drawing, fields: Mapping[str, Any]) -> int:
    """Return how many of the fields are parameters of the drawing. Return 0 if it cannot show the value of one."""
    knobs = [knob for knob in drawing.knobs if knob.field in fields]
    return len(knobs) if all(knob.can_show(fields[knob.field]) for knob in knobs) else 0


def _block(title: str, override: str) -> Svg:
    return block_diagram(load_config("tiny-llama", override), title)


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
    return curves.lines(points, x, y, description, legend="context")


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


def gradient_points() -> list[dict[str, float | str]]:
    """Return the norm of the gradient of each layer's weights, with one line per placement of the normalization
    layers."""
    from archlab.measuring.probe import probe  # loads torch

    placements = ("pre", "post")
    base = {"model": _DEEP, "train": {"device": "cpu"}}
    configs = [build_config(base, (f"model.norm.placement={placement}",)) for placement in placements]
    return [
        {"line": f"{placement}-norm", "x": layer, "y": value}
        for placement, start in zip(placements, probe(*configs, context=_CONTEXT), strict=True)
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
    return curves.lines(gradient_points(), x, y, description)
