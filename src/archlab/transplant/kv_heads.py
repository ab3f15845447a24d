"""Another number of key/value heads: the mean of neighboring heads (Ainslie 2023), or copies of heads."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from archlab.config.components.multi_head import MultiHead
from archlab.errors import UserError
from archlab.model.arithmetic import at_least_float32
from archlab.transplant.field_names import field_of
from archlab.transplant.transformation import Transformation
from archlab.transplant.weight_errors import largest, relative_error
from archlab.transplant.weights import Architecture, LazyTensor, Weights, numbered, with_fields

_OF_HEADS = ("k", "v", "k_norm")
"""Modules of attention with one part for each key/value head."""

_HeadFunction = Callable[[Tensor, int], Tensor]
"""Function of the parts of all heads, [heads, ...], and of the new number of heads. It returns [new heads, ...]."""


class _Pooled(NamedTuple):
    name: str
    tensor: LazyTensor
    """Tensor before pooling."""
    rows: int
    """Number of its rows that belong to one head."""
    group: int
    """Number of heads that become one."""
    offset: int
    """Number that the model adds to the stored values."""

    def error(self) -> float:
        """Return the relative error of replacing each head by the mean of its group."""
        heads = at_least_float32(self.tensor.read().unflatten(0, (-1, self.rows))) + self.offset
        return relative_error(heads, _mean(heads, len(heads) // self.group).repeat_interleave(self.group, 0))


def _fewer(weights: Weights, target: Architecture) -> Weights:
    return _of_every_place(weights, target, FEWER_KV_HEADS, _mean)


def _more(weights: Weights, target: Architecture) -> Weights:
    return _of_every_place(weights, target, MORE_KV_HEADS, _copies)


def _mean(heads: Tensor, n_after: int) -> Tensor:
    return at_least_float32(heads.unflatten(0, (n_after, -1))).mean(1)


def _copies(heads: Tensor, n_after: int) -> Tensor:
    return heads.repeat_interleave(n_after // len(heads), 0)


def with_copied_heads(tensor: LazyTensor, transformation: str, before: int, after: int) -> LazyTensor:
    """Return the tensor with the rows of each of `before` key/value heads copied, so that there are `after` heads."""
    return _changed(tensor, transformation, _copies, tensor.shape[0] // before, before, after)


def _of_every_place(
    weights: Weights,
    target: Architecture,
    transformation: Transformation,
    function: _HeadFunction,
) -> Weights:
    for place in ("attention", "cross"):
        weights = _with_other_heads(weights, target, place, transformation, function)
    return weights


def _with_other_heads(
    weights: Weights, target: Architecture, place: str, transformation: Transformation, function: _HeadFunction
) -> Weights:
    tensors, layers, counts = dict[str, LazyTensor](), {}, set[tuple[int, int]]()
    pooled = list[_Pooled]()
    is_fewer = transformation is FEWER_KV_HEADS
    for name, own, wanted in weights.pairs(target):
        attention, new = getattr(own, place), getattr(wanted, place)
        if not (isinstance(attention, MultiHead) and isinstance(new, MultiHead)):
            continue
        before, after = attention.n_kv_heads or 0, new.n_kv_heads or 0
        if attention.n_heads != new.n_heads or before == after or (before > after) != is_fewer:
            continue
        if before % after and after % before:
            allowed = ", ".join(map(str, _allowed(before, attention.n_heads)))
            raise UserError(
                f"{field_of(target, name, place, 'n_kv_heads')}: {after}, which is neither a divisor nor a multiple of "
                f"the {before} of the trained weights; allowed: {allowed}"
            )
        counts.add((before, after))
        layers[name] = with_fields(own, place, n_kv_heads=after)
        for part, tensor in weights.under(f"{name}.{place}").items():
            if part.partition(".")[0] in _OF_HEADS and (rows := _rows(part, attention)):
                tensors[f"{name}.{place}.{part}"] = _changed(tensor, transformation.name, function, rows, before, after)
                if is_fewer:
                    offset = part == "k_norm.norm.weight" and getattr(attention.qk_norm, "unit_offset", False)
                    pooled.append(_Pooled(part, tensor, rows, before // after, int(offset)))
    if not layers:
        return weights
    heads = ", ".join(f"{before} to {after} heads" for before, after in sorted(counts))
    change = transformation.change(
        f"{place} of {numbered(list(layers))}: {heads}",
        errors=lambda: largest({part.name: part.error()} for part in pooled),
    )
    return weights.changed(change, tensors=tensors, layers=layers)


def _allowed(n_kv_heads: int, n_heads: int) -> Iterable[int]:
    return (n for n in range(1, n_heads + 1) if n_heads % n == 0 and (n % n_kv_heads == 0 or n_kv_heads % n == 0))


def _rows(part: str, attention: MultiHead) -> int:
    """Return the number of rows of a tensor that belong to one key/value head. Return 0 if all heads share the
    tensor."""
    if part.startswith("v."):
        return attention.v_dim or 0
    if part.startswith("k_norm."):
        return {"head": 0, "each_head": 1, "width": attention.head_dim or 0}[
            getattr(attention.qk_norm, "scope", "head")
        ]
    return attention.head_dim or 0


def _changed(
    tensor: LazyTensor, transformation: str, function: _HeadFunction, rows: int, before: int, after: int
) -> LazyTensor:
    def changed(x: Tensor) -> Tensor:
        return function(x.unflatten(0, (before, rows)), after).flatten(0, 1)

    return tensor.then(transformation, changed, (rows * after, *tensor.shape[1:]))


_FIELDS = ("model.attention.n_kv_heads", "model.encoder.cross.n_kv_heads")

FEWER_KV_HEADS = Transformation(
    name="fewer key/value heads",
    effect="approximate",
    fields=_FIELDS,
    rule="Each new head is the mean of a group of neighboring heads. Equal heads stay exact. The report states the "
    "relative error of replacing the heads by their means.",
    paper="Ainslie 2023, arXiv 2305.13245",
    apply=_fewer,
)
MORE_KV_HEADS = Transformation(
    name="more key/value heads",
    effect="exact",
    fields=_FIELDS,
    rule="Each head is copied for its part of the query heads. The logits stay the same, up to rounding.",
    paper="inverse of grouping, Ainslie 2023, arXiv 2305.13245",
    apply=_more,
)
