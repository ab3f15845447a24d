"""Known mistakes in hand-written MLPs."""

from collections.abc import Callable

from torch import Tensor, nn

from archlab.model.activations import make_activation
from archlab.model.mlp import MLP
from archlab.testing.planting import Mistake, Plant, add_input, swap
from archlab.testing.reference import Reference


def in_mlps(change: Callable[[MLP], None]) -> Plant:
    """Return a plant that calls `change` for every plain or gated MLP."""

    def plant(reference: Reference) -> None:
        for mlp in reference.modules():
            if isinstance(mlp, MLP):
                change(mlp)

    return plant


def activated(name: str) -> Plant:
    """Return a plant that replaces the activation of MLPs."""

    def change(mlp: MLP) -> None:
        mlp.activation = make_activation(name)

    return in_mlps(change)


def gated(combine: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Plant:
    """Return a plant in which gated MLPs combine the activation, the gate and the up projection in another way."""

    def change(mlp: MLP) -> None:
        if mlp.gate is not None:
            gate, up, down = mlp.gate, mlp.up, mlp.down
            mlp.__dict__["forward"] = lambda x, context=None, state=None: down(combine(mlp.activation, gate(x), up(x)))

    return in_mlps(change)


MLPS = (
    Mistake(
        "gate-and-up-swapped",
        "The gate and the up projection are swapped: the activation belongs to the gate.",
        [in_mlps(lambda mlp: swap(mlp, "gate", "up") if mlp.gate is not None else None)],
    ),
    *(
        Mistake(f"activation-{name}", f"The activation is {name}; the config has another.", [activated(name)])
        for name in ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "quick_gelu")
    ),
    Mistake(
        "activation-of-product",
        "The activation follows the product of gate and up; it belongs to the gate alone.",
        [gated(lambda activation, gate, up: activation(gate * up))],
    ),
    Mistake(
        "activation-of-both",
        "The activation is applied to gate and up; it belongs to the gate alone.",
        [gated(lambda activation, gate, up: activation(gate) * activation(up))],
    ),
    Mistake(
        "no-up-projection",
        "The MLP leaves out the up projection: its gate should be multiplied by it.",
        [gated(lambda activation, gate, up: activation(gate))],
    ),
    Mistake(
        "gate-added",
        "Gate and up are added; they should be multiplied.",
        [gated(lambda activation, gate, up: activation(gate) + up)],
    ),
    Mistake(
        "mlp-adds-input",
        "The MLP adds its input to its output; the layer adds the stream.",
        [in_mlps(add_input)],
    ),
)
