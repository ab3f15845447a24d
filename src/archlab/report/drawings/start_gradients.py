"""Gradients over depth before any training, pre-norm against post-norm."""

import altair as alt

from archlab.config.io import build_config
from archlab.infer.probe import probe_starts
from archlab.report.drawings.line_chart import lines

_LAYERS, _CONTEXT = 12, 64
_MODEL = {
    "vocab_size": 512,
    "d_model": 64,
    "n_layers": _LAYERS,
    "max_seq_len": _CONTEXT,
    "attention": {"n_heads": 4},
    "norm": {"kind": "layernorm"},
    "mlp": {"kind": "plain", "activation": "relu"},
}


def gradient_points(placements: tuple[str, ...] = ("pre", "post")) -> list[dict[str, float | str]]:
    """The norm of the gradient of each layer's weights, by placement."""
    base = {"model": _MODEL, "train": {"device": "cpu"}}
    configs = {f"{p}-norm": build_config(base, (f"model.norm.placement={p}",)) for p in placements}
    return [
        {"line": name, "x": layer, "y": value}
        for name, start in probe_starts(configs, _CONTEXT).items()
        for layer, value in enumerate(start.probed.of_layers["gradient"], 1)
        if value is not None
    ]


def start_gradients() -> alt.Chart:
    """Of a Transformer of 12 layers."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="layer", format="d", grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(type="log")).axis(title="gradient's norm", tickCount=4, format="~g")
    return lines(gradient_points(), x, y, "Gradient over depth at initialisation, pre-norm and post-norm")
