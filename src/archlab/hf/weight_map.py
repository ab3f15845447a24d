"""Weight maps: tables that map published tensors to archlab's parameters. Each row has a conversion that works in both
directions.

In this module, `theirs` means published tensors or their names, and `ours` means parameters of `Decoder` or their
names. In a name, `{i}` stands for the index of the layer. It counts the encoder's layers if the names in `ours` begin
with `encoder.`, otherwise the decoder's. torch is imported only when weights are converted, so that configs can be read
without it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archlab.config.layers import LayerConfig, encoder_of, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Conversion:
    """Conversion between one published tensor and the parameters that it contains. `split` returns the parameters, and
    `join` returns the published tensor.

    The second argument of both functions is the layer, or None for a tensor outside the layers.
    """

    split: "Callable[[Tensor, LayerConfig | None], Sequence[Tensor]]"
    join: "Callable[[Sequence[Tensor], LayerConfig | None], Tensor]"


COPY = Conversion(lambda theirs, _: [theirs], lambda ours, _: ours[0])
TRANSPOSE = Conversion(lambda theirs, _: [theirs.mT], lambda ours, _: ours[0].mT)
"""Conversion for matrices that are published as [in, out], such as those of Conv1D in GPT-2, or of experts."""

FROM_ROW = Conversion(lambda theirs, _: [theirs.squeeze(0)], lambda ours, _: ours[0].unsqueeze(0))
"""Conversion between a published tensor of shape [1, n] and a parameter of shape [n]."""


def stacked(sizes: Callable[[LayerConfig], Sequence[int]]) -> Conversion:
    """Return the conversion for several parameters that are stacked along the rows of one published tensor.

    `sizes` returns the number of rows of each parameter.
    """
    return Conversion(
        lambda theirs, layer: theirs.split(list(sizes(_required(layer)))),
        lambda ours, _: concatenate(ours),
    )


def _required(layer: LayerConfig | None) -> LayerConfig:
    assert layer is not None, "this conversion needs the shapes of a layer"
    return layer


def _qkv_rows(layer: LayerConfig) -> Sequence[int]:
    heads = layer.multi_head
    return [n * heads.head_dim for n in (heads.n_heads, heads.n_kv_heads, heads.n_kv_heads)]


QKV = tuple(f"layers.{{i}}.attention.{x}" for x in "qkv")
"""Names of the parameters that a fused query/key/value projection contains."""

QKV_BLOCKS = stacked(_qkv_rows)
"""Conversion for a published tensor that has all query rows first, then all key rows, then all value rows."""

HALVES = Conversion(lambda theirs, _: theirs.chunk(2), lambda ours, _: concatenate(ours))
"""Conversion for two parameters of equal size stacked along the rows, such as gate and up."""


def per_group(groups: Callable[[LayerConfig], int], sizes: Callable[[LayerConfig], Sequence[int]]) -> Conversion:
    """Return the conversion for several parameters in one published tensor whose rows are ordered by groups of heads.

    Each group has some rows of the first parameter, then some of the second, and so on. `groups` returns the number of
    groups. `sizes` returns, for each parameter, its number of rows in one group.
    """

    def grouped(rows: "Tensor", layer: LayerConfig) -> "Tensor":
        return rows.unflatten(0, (groups(layer), -1))

    def split(theirs: "Tensor", layer: LayerConfig | None) -> "Sequence[Tensor]":
        layer = _required(layer)
        return [part.flatten(0, 1) for part in grouped(theirs, layer).split(list(sizes(layer)), dim=1)]

    def join(ours: "Sequence[Tensor]", layer: LayerConfig | None) -> "Tensor":
        return concatenate((grouped(part, _required(layer)) for part in ours), dim=1).flatten(0, 1)

    return Conversion(split, join)


def _rows_per_kv_head(layer: LayerConfig) -> Sequence[int]:
    heads = layer.multi_head
    return [n * heads.head_dim for n in (heads.n_heads // heads.n_kv_heads, 1, 1)]


QKV_PER_HEAD = per_group(lambda layer: layer.multi_head.n_kv_heads, _rows_per_kv_head)
"""Conversion for NeoX, BLOOM and Falcon.

The published tensor has one block of rows for each key/value head: the rows of its query heads, then those of its keys,
then those of its values.
"""


def then(first: Conversion, second: Conversion) -> Conversion:
    """Return the conversion that applies `first` to the published tensor, and then `second` to the result."""
    return Conversion(
        lambda theirs, layer: second.split(first.split(theirs, layer)[0], layer),
        lambda ours, layer: first.join([second.join(ours, layer)], layer),
    )


@dataclass(frozen=True)
class Row:
    """Published tensor, and the archlab parameters that it contains."""

    theirs: str
    ours: str | tuple[str, ...]
    conversion: Conversion = COPY
    when: Callable[[LayerConfig], bool] | None = None
    """Function that returns whether a layer has the published tensor. None means that every layer with the parameters
    has it."""
    n_stacked: Callable[[LayerConfig], int] | None = None
    """Function that returns the number of published tensors that are stacked to form the parameter. Their names contain
    the index `{h}`.

    None means that a single published tensor contains the parameter.
    """
    pieces: Callable[[LayerConfig], Mapping[str, int]] | None = None
    """Function that returns the published tensors that are concatenated to form the parameter: the word for `{h}` in
    the name of each, and the number of its rows.

    None means that the parameter is not divided. Loading accepts other numbers of rows with the same sum, because
    transformers saves such tensors in parts of almost equal size.
    """
    tied: bool | None = None
    """Whether only files with a tied head have the tensor, or only those with an untied head. None means all files."""
    either_way: bool = False
    """Whether loading also accepts the published tensor with its last two axes exchanged. The conversion must then
    exchange them back."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @property
    def is_of_encoder(self) -> bool:
        return self.names[0].startswith("encoder.")


def multiplied(row: Row, factors: Mapping[str, float]) -> Row:
    """Return the row with a conversion that multiplies parameters by their factors, in at least float32.

    The conversion back does not divide by them, because archlab writes a factor of 1 to config.json.
    """
    own = [factors.get(name, 1.0) for name in row.names]
    if own == [1.0] * len(own):
        return row

    def split(theirs: "Tensor", layer: LayerConfig | None) -> "Sequence[Tensor]":
        wide = theirs if theirs.element_size() >= 4 else theirs.float()
        return [part * factor for part, factor in zip(row.conversion.split(wide, layer), own, strict=True)]

    return replace(row, conversion=Conversion(split, row.conversion.join))


@dataclass(frozen=True)
class Placed:
    """Row of the table, applied to one layer or to a tensor outside the layers."""

    theirs: str
    ours: tuple[str, ...]
    conversion: Conversion
    layer: LayerConfig | None
    stack: tuple[str, ...] = ()
    """Names of the published tensors that are stacked to form the parameter. Empty if the tensor `theirs` contains the
    parameters."""
    pieces: Mapping[str, int] = field(default_factory=dict)
    """Names of the published tensors that are concatenated to form the parameter, with their numbers of rows. Empty if
    there are no such tensors."""
    either_way: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        return self.stack or tuple(self.pieces) or (self.theirs,)

    def whole(self, parts: "Sequence[Tensor]") -> "Tensor":
        """Return one tensor that contains the published tensors `parts`."""
        return concatenate(parts) if self.pieces else stack(parts) if self.stack else parts[0]

    def divided(self, tensor: "Tensor") -> "Sequence[Tensor]":
        """Return the published tensors that `tensor` contains. It is the inverse of `whole`."""
        if self.pieces:
            return tensor.split(list(self.pieces.values()))
        return tensor.unbind() if self.stack else (tensor,)


def placed(rows: Sequence[Row], model: ModelConfig) -> Iterator[Placed]:
    """Apply the rows of a table to the layers of a model. A row is yielded once for each layer that has the published
    tensor."""
    encoder = encoder_of(model)
    layers_of_encoder = layer_configs(encoder) if encoder else ()
    layers = layer_configs(model)
    for row in rows:
        if row.tied not in (None, model.head.tied):
            continue
        if "{i}" not in row.theirs:
            yield Placed(row.theirs, row.names, row.conversion, None)
            continue
        for i, layer in enumerate(layers_of_encoder if row.is_of_encoder else layers):
            if row.when is None or row.when(layer):
                theirs = row.theirs.replace("{i}", str(i))
                n_stacked = row.n_stacked(layer) if row.n_stacked else 0
                stacked_names = tuple(theirs.replace("{h}", str(h)) for h in range(n_stacked))
                pieces = {theirs.replace("{h}", h): n for h, n in (row.pieces(layer) if row.pieces else {}).items()}
                ours = tuple(name.format(i=i) for name in row.names)
                yield Placed(theirs, ours, row.conversion, layer, stacked_names, pieces, row.either_way)


def published_tensors(
    rows: Sequence[Row], model: ModelConfig, ours: "Mapping[str, Tensor]", what: str
) -> "Iterator[tuple[str, Tensor]]":
    """Convert the parameters `ours`, and yield each published tensor with its name.

    Raise UserError if the table has no row for a parameter. The message begins with `what`, the name of the published
    class.
    """
    left = set(ours)
    for row in placed(rows, model):
        present = [name for name in row.ours if name in ours]
        if present:
            left -= set(present)
            tensor = row.conversion.join([ours[name] for name in row.ours], row.layer)
            yield from zip(row.parts, row.divided(tensor), strict=True)
    if left:
        raise UserError(f"{what} has no tensor for {', '.join(sorted(left)[:8])}")


def is_mtp_tensor(name: str, n_layers: int) -> bool:
    """Return whether a published tensor belongs to a layer for multi-token prediction. These layers follow the others:
    in DeepSeek-V3, it is the layer with the index 61."""
    numbered = re.match(r"(?:model\.)?layers\.(\d+)\.", name)
    return re.match(r"(model\.)?mtp[._]", name) is not None or (numbered is not None and int(numbered[1]) >= n_layers)


@dataclass(frozen=True)
class Constant:
    """Number that published files store for each layer as a tensor, and that is a constant in archlab's code."""

    theirs: str
    value: float
    when: Callable[[LayerConfig], bool]
    """Function that takes a layer and returns whether the files store `value` for it."""


def constant_values(constants: Sequence[Constant], model: ModelConfig) -> dict[str, float]:
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
    """Return the rows for a linear map or a norm: one for its weight and, if `bias` is True, one for its bias."""
    names = (ours,) if isinstance(ours, str) else ours
    suffixes = ("weight", "bias") if bias else ("weight",)
    return [Row(f"{theirs}.{s}", tuple(f"{name}.{s}" for name in names), conversion, when) for s in suffixes]


def concatenate(parts: "Iterable[Tensor]", dim: int = 0) -> "Tensor":
    import torch

    return torch.cat(list(parts), dim)


def stack(parts: "Iterable[Tensor]", dim: int = 0) -> "Tensor":
    import torch

    return torch.stack(list(parts), dim)
