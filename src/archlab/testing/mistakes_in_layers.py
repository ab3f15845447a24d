"""Known mistakes in hand-written layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from archlab.model.arithmetic import Same, scaled
from archlab.model.context import Context
from archlab.model.layer import Layer
from archlab.testing.planting import Mistake, Plant, swap
from archlab.testing.reference import Reference


def in_layers(change: Callable[[Layer], None]) -> Plant:
    """Return a plant that calls `change` for every layer."""

    def plant(reference: Reference) -> None:
        for layer in reference.modules():
            if isinstance(layer, Layer):
                change(layer)

    return plant


def norms_moved(before: bool = False, after: bool = False, stream: bool = False, *, is_carried: bool = False) -> Plant:
    """Return a plant that moves the one norm of every branch to another place (`BranchNorms`)."""

    def change(layer: Layer) -> None:
        for branch in (branch for stage in layer.stages for branch in stage):
            norms = getattr(layer, f"{branch.name}_norms")
            norm = next(
                (m for m in (norms.before, norms.after, norms.stream) if not isinstance(m, nn.Identity)), Same()
            )
            for slot, has_norm in (("before", before), ("after", after), ("stream", stream)):
                setattr(norms, slot, norm if has_norm else Same())
        layer.is_carried = is_carried

    return in_layers(change)


def with_residuals(*branches: str, times: float = 1.0, of_layer: bool = False) -> Plant:
    """Return a plant whose layers add another tensor than the stream to the output of these branches.

    It is the stream `times` a number, or the input of the layer with `of_layer`.
    """

    def forward(layer: Layer, x: Tensor, context: Context, states: Any = None) -> Tensor:
        layer_input = x
        for stage in layer.stages:
            first = getattr(layer, f"{stage[0].name}_norms")
            other = layer_input if of_layer else times * x
            total = other if stage[0].name in branches else x
            for branch in stage:
                norms = getattr(layer, f"{branch.name}_norms")
                read = first.before(x) if branch.shares_input else norms.before(x)
                total = total + scaled(norms.after(getattr(layer, branch.name)(read, context, None)), branch.multiplier)
            x = first.stream(total)
        return x

    return in_layers(lambda layer: layer.__dict__.update(forward=partial(forward, layer)))


def parallel(layer: Layer) -> None:
    """Make all branches of a layer read the stream at its start."""
    layer.stages = (tuple(branch for stage in layer.stages for branch in stage),)


def reverse(layer: Layer) -> None:
    """Make the MLP come before attention."""
    layer.stages = layer.stages[::-1]


def swap_norms(layer: Layer) -> None:
    """Exchange the norms of attention and MLP."""
    if hasattr(layer, "attention_norms") and hasattr(layer, "mlp_norms"):
        swap(layer, "attention_norms", "mlp_norms")


def share_norm(name: str) -> Callable[[Layer], None]:
    """Return a change of a layer after which both of its branches have the norms of this name."""

    def change(layer: Layer) -> None:
        if hasattr(layer, "attention_norms") and hasattr(layer, "mlp_norms"):
            layer.attention_norms = layer.mlp_norms = getattr(layer, name)

    return change


def without_norms(name: str) -> Callable[[Layer], None]:
    """Return a change of a layer after which the branch with the norms of this name reads the stream itself."""

    def change(layer: Layer) -> None:
        if hasattr(layer, name):
            getattr(layer, name).before = Same()

    return change


LAYERS = (
    Mistake(
        "post-norm",
        "The norms follow the addition to the stream (post-norm), which the config does not have.",
        [norms_moved(stream=True)],
    ),
    Mistake(
        "pre-norm", "The norms precede the branches (pre-norm), which the config does not have.", [norms_moved(True)]
    ),
    Mistake(
        "output-norm",
        "The norms are on the output of the branches, which the config does not have.",
        [norms_moved(after=True)],
    ),
    Mistake(
        "residual-after-norm",
        "The residual connection begins after the norm; it should begin before it.",
        [norms_moved(True, is_carried=True)],
    ),
    Mistake("no-norms", "The layer does not use its norms.", [norms_moved()]),
    Mistake(
        "branch-without-norm",
        "Attention or the MLP reads the stream without its norm.",
        [in_layers(without_norms(name)) for name in ("attention_norms", "mlp_norms")],
    ),
    Mistake(
        "no-residual",
        "A residual connection is missing: the input of a branch should be added to its output.",
        [with_residuals(*branches, times=0.0) for branches in (("attention", "mlp"), ("attention",), ("mlp",))],
    ),
    Mistake(
        "residual-twice",
        "The stream is added twice; it should be added once to the output of a branch.",
        [with_residuals(*branches, times=2.0) for branches in (("attention", "mlp"), ("attention",), ("mlp",))],
    ),
    Mistake(
        "residual-of-layer-input",
        "The MLP's output is added to the input of the layer; it should be added to the stream after attention.",
        [with_residuals("mlp", of_layer=True)],
    ),
    Mistake(
        "parallel",
        "Attention and MLP read the same stream; the MLP should read the sum.",
        [in_layers(parallel)],
    ),
    Mistake("mlp-first", "The MLP comes before attention; it should come after it.", [in_layers(reverse)]),
    Mistake("norms-swapped", "The norms of attention and MLP are swapped.", [in_layers(swap_norms)]),
    Mistake(
        "one-norm",
        "Attention and MLP share one norm; each should have its own.",
        [in_layers(share_norm("attention_norms")), in_layers(share_norm("mlp_norms"))],
    ),
)
