"""Weight maps: tables of rows between their tensor names and ours, each with a reversible conversion.

`{i}` stands for the layer's number. Ours are `Decoder` parameter names. torch is imported when weights are converted: a
config is read without it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Conversion:
    """Theirs to ours, and back; both get the layer, for its shapes (None outside the layers)."""

    split: "Callable[[Tensor, LayerConfig | None], Sequence[Tensor]]"
    join: "Callable[[Sequence[Tensor], LayerConfig | None], Tensor]"


COPY = Conversion(lambda theirs, _: [theirs], lambda ours, _: ours[0])
TRANSPOSE = Conversion(lambda theirs, _: [theirs.T], lambda ours, _: ours[0].T)
"""GPT-2's Conv1D stores [in, out]."""


def stacked(sizes: Callable[[LayerConfig], Sequence[int]]) -> Conversion:
    """Several of ours one below the other, with these numbers of rows."""
    return Conversion(
        lambda theirs, layer: theirs.split(list(sizes(_some(layer)))),
        lambda ours, _: concatenate(ours),
    )


def _some(layer: LayerConfig | None) -> LayerConfig:
    assert layer is not None, "this conversion needs a layer's shapes"
    return layer


def _qkv_rows(layer: LayerConfig) -> Sequence[int]:
    heads = layer.multi_head
    return [n * heads.head_dim for n in (heads.n_heads, heads.n_kv_heads, heads.n_kv_heads)]


QKV = tuple(f"layers.{{i}}.attention.{x}" for x in "qkv")
"""Ours of a projection that is fused in theirs."""

QKV_BLOCKS = stacked(_qkv_rows)
"""All query rows, then all key rows, then all value rows."""

HALVES = Conversion(lambda theirs, _: theirs.chunk(2), lambda ours, _: concatenate(ours))
"""Gate above up, or the like."""


def per_group(groups: Callable[[LayerConfig], int], sizes: Callable[[LayerConfig], Sequence[int]]) -> Conversion:
    """Group by group of heads: in each so many rows of the first of ours, then of the second, and so on."""

    def grouped(rows: "Tensor", layer: LayerConfig) -> "Tensor":
        return rows.unflatten(0, (groups(layer), -1))

    def split(theirs: "Tensor", layer: LayerConfig | None) -> "Sequence[Tensor]":
        layer = _some(layer)
        return [part.flatten(0, 1) for part in grouped(theirs, layer).split(list(sizes(layer)), dim=1)]

    def join(ours: "Sequence[Tensor]", layer: LayerConfig | None) -> "Tensor":
        return concatenate((grouped(part, _some(layer)) for part in ours), dim=1).flatten(0, 1)

    return Conversion(split, join)


def _rows_per_kv_head(layer: LayerConfig) -> Sequence[int]:
    heads = layer.multi_head
    return [n * heads.head_dim for n in (heads.n_heads // heads.n_kv_heads, 1, 1)]


QKV_PER_HEAD = per_group(lambda layer: layer.multi_head.n_kv_heads, _rows_per_kv_head)
"""Key/value head by key/value head: the rows of its queries, its key rows, its value rows (NeoX, BLOOM, Falcon)."""


def then(first: Conversion, second: Conversion) -> Conversion:
    """`first` on their tensor, `second` on what comes out (one tensor)."""
    return Conversion(
        lambda theirs, layer: second.split(first.split(theirs, layer)[0], layer),
        lambda ours, layer: first.join([second.join(ours, layer)], layer),
    )


@dataclass(frozen=True)
class Row:
    """One of their tensors, and the one or several of ours that it holds."""

    theirs: str
    ours: str | tuple[str, ...]
    conversion: Conversion = COPY
    when: Callable[[LayerConfig], bool] | None = None
    """Which layers have it; None: all that have ours."""
    each: Callable[[LayerConfig], int] | None = None
    """How many of theirs, numbered {h}, stacked are ours; None: it is one tensor."""

    @property
    def names(self) -> tuple[str, ...]:
        """Ours, always a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Placed:
    """A row in one layer, or outside the layers."""

    theirs: str
    ours: tuple[str, ...]
    conversion: Conversion
    layer: LayerConfig | None
    stack: tuple[str, ...] = ()
    """Their tensors whose stack it is; empty: it is one tensor, `theirs`."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Their tensors, always a tuple."""
        return self.stack or (self.theirs,)


def placed(rows: Sequence[Row], model: ModelConfig) -> Iterator[Placed]:
    """Every row of a model's table, written out layer by layer."""
    for row in rows:
        if "{i}" not in row.theirs:
            yield Placed(row.theirs, row.names, row.conversion, None)
            continue
        for i, layer in enumerate(layer_configs(model)):
            if row.when is None or row.when(layer):
                theirs = row.theirs.replace("{i}", str(i))
                stack = tuple(theirs.replace("{h}", str(h)) for h in range(row.each(layer))) if row.each else ()
                yield Placed(theirs, tuple(name.format(i=i) for name in row.names), row.conversion, layer, stack)


def written(
    rows: Sequence[Row], model: ModelConfig, ours: "Mapping[str, Tensor]", what: str
) -> "Iterator[tuple[str, Tensor]]":
    """Their tensors by name, made of ours; UserError where `what` they are has no place for one of ours."""
    left = set(ours)
    for row in placed(rows, model):
        present = [name for name in row.ours if name in ours]
        if present:
            left -= set(present)
            whole = row.conversion.join([ours[name] for name in row.ours], row.layer)
            yield from zip(row.parts, whole.unbind() if row.stack else (whole,), strict=True)
    if left:
        raise UserError(f"{what} has no place for {', '.join(sorted(left)[:8])}")


def of_further_tokens(name: str, n_layers: int) -> bool:
    """Whether their tensor belongs to what predicts tokens after the next (DeepSeek-V3's layer 61, say)."""
    numbered = re.match(r"(?:model\.)?layers\.(\d+)\.", name)
    return re.match(r"(model\.)?mtp[._]", name) is not None or (numbered is not None and int(numbered[1]) >= n_layers)


@dataclass(frozen=True)
class Constant:
    """A number per layer that their files store and our model fixes."""

    theirs: str
    value: float
    when: Callable[[LayerConfig], bool]
    """Which layers have it."""


def fixed(constants: Sequence[Constant], model: ModelConfig) -> dict[str, float]:
    """Every constant of a model by its tensor's name."""
    layers = list(enumerate(layer_configs(model)))
    return {row.theirs.format(i=i): row.value for row in constants for i, layer in layers if row.when(layer)}


def linear(
    theirs: str,
    ours: str | tuple[str, ...],
    conversion: Conversion = COPY,
    *,
    bias: bool = True,
    when: Callable[[LayerConfig], bool] | None = None,
) -> list[Row]:
    """The rows of a linear map or a norm: its weight and, where there is one, its bias."""
    names = (ours,) if isinstance(ours, str) else ours
    suffixes = ("weight", "bias") if bias else ("weight",)
    return [Row(f"{theirs}.{s}", tuple(f"{name}.{s}" for name in names), conversion, when) for s in suffixes]


def concatenate(parts: "Iterable[Tensor]", dim: int = 0) -> "Tensor":
    """Concatenate tensors along `dim`."""
    import torch

    return torch.cat(list(parts), dim)


def stack(parts: "Iterable[Tensor]", dim: int = 0) -> "Tensor":
    """Stack tensors along a new axis `dim`."""
    import torch

    return torch.stack(list(parts), dim)
