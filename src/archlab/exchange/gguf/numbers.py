"""Parameters that a GGUF file contains as keys: one number for each layer, instead of a tensor."""

from collections.abc import Mapping
from math import isclose
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archlab.config.core.yaml_text import to_yaml_line
from archlab.errors import UserError

if TYPE_CHECKING:
    from gguf import GGUFWriter

Numbers = Mapping[str, str | float]
"""Names of the parameters of a layer, by key of the file. A number instead of a name is fixed in archlab's code."""

XIELU: Numbers = {
    "xielu.alpha_p": "layers.{i}.mlp.activation.alpha_p", "xielu.alpha_n": "layers.{i}.mlp.activation.alpha_n",
    "xielu.beta": 0.5, "xielu.eps": -1e-6,
}  # fmt: skip


def parameter_names(numbers: Numbers, n_layers: int) -> set[str]:
    """Return the names of the parameters that a file contains as keys."""
    names = (name for name in numbers.values() if isinstance(name, str))
    return {name.format(i=i) for name in names for i in range(n_layers)}


def add_numbers(writer: "GGUFWriter", numbers: Numbers, state: Mapping[str, Tensor], n_layers: int) -> None:
    for key, name in numbers.items():
        layers = range(n_layers)
        writer.add_array(key, [float(state[name.format(i=i)]) if isinstance(name, str) else name for i in layers])


def read_numbers(numbers: Numbers, values: Mapping[str, Any], n_layers: int, where: str) -> dict[str, Tensor]:
    """Return the parameters from the values of a file. Raise UserError if a key is missing, or if a fixed number
    differs."""
    state = dict[str, Tensor]()
    for key, name in numbers.items():
        value = values.get(key)
        listed = [
            number for number in (value if isinstance(value, list) else [value] * n_layers) if isinstance(number, float)
        ]
        if value is None:
            raise UserError(f"{where}: {key} missing")
        if len(listed) != n_layers:
            shown = to_yaml_line(value)
            raise UserError(f"{where}: {key} is {shown}; allowed: a number for each of the {n_layers} layers")
        if isinstance(name, str):
            state |= {name.format(i=i): torch.tensor([number]) for i, number in enumerate(listed)}
        elif odd := [number for number in listed if not isclose(number, name, rel_tol=2**-8)]:  # rounded to bfloat16
            raise UserError(f"{where}: {key} is {odd[0]}; archlab imports only {name}")
    return state
