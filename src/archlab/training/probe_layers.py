"""What layers do in one pass, noted by hooks that are gone after it; the model knows nothing of them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from archlab.model.decoder import Decoder
from archlab.model.kernels import Attend
from archlab.model.mlp import MLP
from archlab.training.probe_attention import WatchedAttend

NEARLY_ZERO = 0.01
"""Of the RMS of a layer's activations: what never exceeds it is dead."""


@dataclass
class LayerNotes:
    """Of one layer and one pass."""

    found: dict[str, Tensor] = field(default_factory=dict)
    """Numbers by name."""
    stream_BTD: Tensor | None = None
    """What the layer gave, in autograd's graph."""


@contextmanager
def watched(model: Decoder) -> Iterator[list[LayerNotes]]:
    """Notes of every layer, filled by the passes within. Layers must run uncompiled, or their parts call no hooks.

    Attention is noted of the first window of a batch, the stream and the MLP of all.
    """
    notes = [LayerNotes() for _ in model.layers]
    with ExitStack() as stack:
        for layer, own in zip(model.layers, notes, strict=True):
            stack.callback(layer.register_forward_hook(partial(_note_stream, own)).remove)
            if isinstance(mlp := getattr(layer, "mlp", None), MLP):
                stack.callback(mlp.activation.register_forward_hook(partial(_note_units, own)).remove)
            attention = getattr(layer, "attention", None)
            if isinstance(attend := getattr(attention, "attend", None), Attend):
                stack.callback(setattr, attention, "attend", attend)  # no module, so that it has no hooks
                setattr(attention, "attend", WatchedAttend(attend, own.found))  # noqa: B010
        yield notes


def rms(x: Tensor) -> Tensor:
    """Root of the mean square of all numbers, in float32."""
    return x.detach().float().square().mean().sqrt()


def dead_units(activations_BTF: Tensor) -> Tensor:
    """Share of hidden units that no token makes use of.

    A unit is dead where the size of its activation (what relu, silu or gelu gives, before a gate's product) is for
    every token at most 1% of the RMS over all units and tokens. For relu that is zero for all tokens, or as good as
    that; silu and gelu are never zero for all of a text, and a unit whose inputs are all far below zero counts.
    """
    sizes_NF = activations_BTF.detach().float().flatten(0, -2).abs()
    return (sizes_NF.amax(0) <= NEARLY_ZERO * rms(sizes_NF)).float().mean()


def _note_stream(notes: LayerNotes, _: nn.Module, given: tuple[Any, ...], x_BTD: Tensor) -> None:
    notes.stream_BTD = x_BTD
    notes.found |= {"input_rms": rms(given[0]), "stream_rms": rms(x_BTD)}
    notes.found["drift"] = rms(x_BTD - given[0]) / notes.found["input_rms"]


def _note_units(notes: LayerNotes, _module: nn.Module, _given: tuple[Any, ...], activations_BTF: Tensor) -> None:
    notes.found["dead_units"] = dead_units(activations_BTF)
