"""New gates on the output of attention (Qiu 2025), which first multiply by a constant."""

from functools import partial

import torch
from torch import Tensor

from archlab.config.components.multi_head import MultiHead
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import Architecture, LazyTensor, Weights, constant, numbered, with_fields


def _gates(weights: Weights, target: Architecture) -> Weights:
    for place in ("attention", "cross"):
        weights = _at(weights, target, place)
    return weights


def _at(weights: Weights, target: Architecture, place: str) -> Weights:
    tensors, layers = dict[str, LazyTensor](), {}
    for name, own, wanted in weights.pairs(target):
        attention, new = getattr(own, place), getattr(wanted, place)
        if not (isinstance(attention, MultiHead) and isinstance(new, MultiHead)) or attention.gate or not new.gate:
            continue
        layers[name] = with_fields(own, place, gate=new.gate)
        module, width = f"{name}.{place}", getattr(layers[name], place).gate_width
        shapes = {"weight": (width, own.d_model), **({"bias": (width,)} if new.gate.bias else {})}
        tensors |= {f"{module}.gate.{part}": constant(NEW_GATE.name, shape, 0.0) for part, shape in shapes.items()}
        out = weights.tensors[f"{module}.out.weight"]
        divide = partial(_divided, activation=make_activation(new.gate.activation))
        tensors[f"{module}.out.weight"] = out.then(NEW_GATE.name, divide, out.shape)
    if not layers:
        return weights
    return weights.changed(NEW_GATE.change(f"{place} of {numbered(list(layers))}"), tensors=tensors, layers=layers)


def _divided(matrix: Tensor, *, activation: torch.nn.Module) -> Tensor:
    """Return the output projection divided by the factor of a gate whose input is 0."""
    wide = at_least_float32(matrix)
    return wide / activation(torch.zeros((), dtype=wide.dtype))


NEW_GATE = Transformation(
    name="new output gate",
    effect="exact",
    fields=("model.attention.gate", "model.encoder.cross.gate"),
    rule="The matrix and the bias of the gate are 0, so its factor is 1/2 (sigmoid) or ln 2 (softplus) for all tokens. "
    "The output projection is divided by this factor, so the logits stay the same.",
    paper="Qiu 2025, arXiv 2505.06708",
    apply=_gates,
)
