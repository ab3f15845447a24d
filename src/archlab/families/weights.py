"""Weight maps: tables of rows between their tensor names and ours, each with a reversible step.

`{i}` stands for the layer's number. Ours are `Decoder` parameter names.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig


@dataclass(frozen=True)
class Step:
    """Theirs to ours, and back; both get the layer, for its shapes (None outside the layers)."""

    split: Callable[[Tensor, LayerConfig | None], Sequence[Tensor]]
    join: Callable[[Sequence[Tensor], LayerConfig | None], Tensor]


COPY = Step(lambda theirs, _: [theirs], lambda ours, _: ours[0])
TRANSPOSE = Step(lambda theirs, _: [theirs.T], lambda ours, _: ours[0].T)
"""GPT-2's Conv1D stores [in, out]."""


def stacked(sizes: Callable[[LayerConfig], Sequence[int]]) -> Step:
    """Several of ours one below the other, with these numbers of rows."""
    return Step(
        lambda theirs, layer: theirs.split(list(sizes(_some(layer)))),
        lambda ours, _: torch.cat(list(ours)),
    )


def _some(layer: LayerConfig | None) -> LayerConfig:
    assert layer is not None, "this step needs a layer's shapes"
    return layer


def _qkv_rows(layer: LayerConfig) -> Sequence[int]:
    heads = layer.attention
    return [n * heads.head_dim for n in (heads.n_heads, heads.n_kv_heads, heads.n_kv_heads)]


QKV_BLOCKS = stacked(_qkv_rows)
"""All query rows, then all key rows, then all value rows."""

HALVES = Step(lambda theirs, _: theirs.chunk(2), lambda ours, _: torch.cat(list(ours)))
"""Gate above up, or the like."""

QKV_PER_HEAD = Step(
    lambda theirs, layer: [
        part.flatten(0, 1) for part in theirs.unflatten(0, (_some(layer).attention.n_heads, 3, -1)).unbind(1)
    ],
    lambda ours, layer: torch.stack(
        [x.unflatten(0, (_some(layer).attention.n_heads, -1)) for x in ours], 1
    ).flatten(0, 2),
)
"""Head by head: its query rows, its key rows, its value rows (NeoX, BLOOM)."""


def then(first: Step, second: Step) -> Step:
    """`first` on their tensor, `second` on what comes out (one tensor)."""
    return Step(
        lambda theirs, layer: second.split(first.split(theirs, layer)[0], layer),
        lambda ours, layer: first.join([second.join(ours, layer)], layer),
    )


@dataclass(frozen=True)
class Row:
    """One of their tensors, and the one or several of ours that it holds."""

    theirs: str
    ours: str | tuple[str, ...]
    step: Step = COPY

    @property
    def names(self) -> tuple[str, ...]:
        """Ours, always a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Placed:
    """A row in one layer, or outside the layers."""

    theirs: str
    ours: tuple[str, ...]
    step: Step
    layer: LayerConfig | None


def placed(rows: Sequence[Row], model: ModelConfig) -> Iterator[Placed]:
    """Every row of a model's table, written out layer by layer."""
    for row in rows:
        if "{i}" not in row.theirs:
            yield Placed(row.theirs, row.names, row.step, None)
            continue
        for i, layer in enumerate(layer_configs(model)):
            yield Placed(row.theirs.format(i=i), tuple(name.format(i=i) for name in row.names), row.step, layer)


def linear(theirs: str, ours: str | tuple[str, ...], step: Step = COPY, *, bias: bool = True) -> list[Row]:
    """The rows of a linear map or a norm: its weight and, where there is one, its bias."""
    names = (ours,) if isinstance(ours, str) else ours
    suffixes = ("weight", "bias") if bias else ("weight",)
    return [Row(f"{theirs}.{s}", tuple(f"{name}.{s}" for name in names), step) for s in suffixes]
