"""The curves of activations, by the model's own functions."""

from typing import get_args

import altair as alt
import torch

from archlab.config.components.activation import Activation
from archlab.model.activations import make_activation
from archlab.report.drawings.line_chart import lines

_REACH, _STEP = 4.0, 0.1
SHOWN = ("relu", "gelu", "silu", "relu_squared", "sigmoid", "elu", "softplus", "xielu")
"""The others are hardly to be told from one of these."""


def activation_points(names: tuple[str, ...] = get_args(Activation)) -> list[dict[str, float | str]]:
    """(x, y) of each, as a model begins with them."""
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


def activation_curves() -> alt.Chart:
    """Those that differ at sight."""
    x = alt.X("x:Q").axis(title="x", tickCount=8, grid=False)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[-1.5, 4])).axis(title="activation of x", tickCount=6)
    return lines(activation_points(SHOWN), x, y, "Activation functions")
