"""One-line formulas of topics, evaluated as they are written and compared with the code."""

import math
import re

import pytest
import torch

from archlab.config.components.activation import Activation
from archlab.config.core.registry import kinds
from archlab.config.schema import TrainConfig
from archlab.evidence.topics import topics
from archlab.model.activations import function_named
from archlab.model.positions import slopes
from archlab.training.schedule import learning_rate

TOPICS = dict(topics())
KNOWN = {
    **{name: getattr(math, name) for name in ("exp", "erf", "tanh", "cos", "sqrt")},
    "ln": math.log, "max": max, "σ": lambda z: 1 / (1 + math.exp(-z)), "Φ": lambda z: (1 + math.erf(z / 2**0.5)) / 2,
}  # fmt: skip
SIGNS = {"−": "-", "·": "*", "²": "**2", "³": "**3", "^": "**", ", else ": " else "}
TOKEN = re.compile(r"\d+\.?\d*|\w+|\*\*|[^\s\w]")


def computed(formula: str, **values: float) -> list[float]:
    """Return the right side of each equals sign or arrow in the first column of a formula's first line."""
    line = re.split(r" {3,}", formula.splitlines()[0])[0]
    _, *sides = re.split(r" [=←] ", line) if re.search(r" [=←] ", line) else ["", line]
    return [eval(python(side), {**KNOWN, "π": math.pi, **values}) for side in sides]


def python(side: str) -> str:
    """Add the signs of implicit products and the brackets of roots."""
    side = re.sub(r"√(\d+)", r"sqrt(\1)", side).replace("√", "sqrt")
    for sign, meaning in SIGNS.items():
        side = side.replace(sign, meaning)
    tokens, out = TOKEN.findall(side), list[str]()
    for token in tokens:
        before = out[-1] if out else ""
        ends = before == ")" or (re.fullmatch(r"[\d.]+|\w+", before) and before not in (*KNOWN, "if", "else"))
        begins = token == "(" or (re.fullmatch(r"[\d.]+|\w+", token) and token not in ("if", "else"))
        out += ["*", token] if ends and begins else [token]
    return " ".join(out)


OF_ACTIVATIONS = {
    "relu": "relu", "relu-squared": "relu_squared", "gelu": "gelu", "gelu-tanh": "gelu_tanh", "silu": "silu",
    "quick-gelu": "quick_gelu", "elu": "elu", "selu": "selu", "sigmoid": "sigmoid", "softplus": "softplus",
    "identity": "identity",
}  # fmt: skip


@pytest.mark.parametrize(("topic", "name"), OF_ACTIVATIONS.items())
@pytest.mark.parametrize("z", [-3.0, -0.4, 0.0, 0.7, 2.5])
def test_an_activation_is_as_written(topic: str, name: str, z: float):
    """Constants in formulas have at least four digits."""
    expected = function_named(name)(torch.tensor(z, dtype=torch.float64)).item()
    assert computed(TOPICS[topic].formula, z=z) == pytest.approx([expected] * (2 if topic == "gelu" else 1), rel=1e-4)


def test_the_table_has_every_activation_function():
    assert set(OF_ACTIVATIONS.values()) == {name for name, kind in kinds(Activation).items() if not kind.n_parameters}


@pytest.mark.parametrize("h", [1, 3, 8])
def test_slopes_of_alibi_are_as_written(h: int):
    written = TOPICS["alibi"].formula.split("   ")[1].splitlines()[0]
    assert computed(written, h=h, H=8) == pytest.approx([slopes(8, max_bias=8.0)[h - 1]])


@pytest.mark.parametrize("t", [0.0, 0.25, 1.0])
def test_the_cosine_is_as_written(t: float):
    train = TrainConfig.model_construct(
        tokens=40, batch_tokens=1, warmup=0, lr=2.0, schedule="cosine", final_lr=0.1, decay=0.0
    )
    assert computed(TOPICS["cosine"].formula, t=t, end=0.2, peak=2.0) == pytest.approx(
        [learning_rate(train, round(40 * t))]
    )
