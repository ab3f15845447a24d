"""Fewer key/value heads, by the mean of neighboring heads (Ainslie 2023)."""

import torch
from torch import Tensor

from archlab.config.components.multi_head import MultiHead
from archlab.errors import UserError
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import Architecture, LazyTensor, Weights, numbered, with_fields

_OF_HEADS = ("k", "v", "k_norm")
"""Modules of attention with one part for each key/value head."""


def _fewer_heads(weights: Weights, target: Architecture) -> Weights:
    for place in ("attention", "cross"):
        weights = _pooled(weights, target, place)
    return weights


def _pooled(weights: Weights, target: Architecture, place: str) -> Weights:
    tensors, layers, counts = dict[str, LazyTensor](), {}, set[tuple[int, int]]()
    for name, own, wanted in weights.pairs(target):
        attention, new = getattr(own, place), getattr(wanted, place)
        if not (isinstance(attention, MultiHead) and isinstance(new, MultiHead)):
            continue
        before, after = attention.n_kv_heads or 0, new.n_kv_heads or 0
        if before == after or attention.n_heads != new.n_heads:
            continue
        if before % after:
            allowed = ", ".join(str(n) for n in range(1, before + 1) if before % n == 0)
            raise UserError(
                f"model.attention.n_kv_heads: {after}, which does not divide the {before} of the trained weights; "
                f"allowed: {allowed}"
            )
        counts.add((before, after))
        layers[name] = with_fields(own, place, n_kv_heads=after)
        for part, tensor in weights.under(f"{name}.{place}").items():
            if part.partition(".")[0] in _OF_HEADS and (pooled := _mean(tensor, part, attention, after)):
                tensors[f"{name}.{place}.{part}"] = pooled
    if not layers:
        return weights
    heads = ", ".join(f"{before} heads to {after}" for before, after in sorted(counts))
    step = FEWER_KV_HEADS.step(f"{place} of {numbered(list(layers))}: {heads}")
    return weights.changed(step, tensors=tensors, layers=layers)


def _mean(tensor: LazyTensor, part: str, attention: MultiHead, n_after: int) -> LazyTensor | None:
    """Return the tensor with the mean of each group of heads, or None if all heads share the tensor."""
    n_before = attention.n_kv_heads or attention.n_heads
    rows = n_before * ((attention.v_dim if part.startswith("v.") else attention.head_dim) or 0)
    if part.startswith("k_norm."):
        scope = getattr(attention.qk_norm, "scope", "head")
        rows = {"head": 0, "each_head": n_before, "width": rows}[scope]
    if not rows:
        return None

    def mean(heads: Tensor) -> Tensor:
        wide = heads.unflatten(0, (n_after, n_before // n_after, -1))
        wide = wide.to(torch.promote_types(heads.dtype, torch.float32))
        return wide.mean(1).flatten(0, 1).to(heads.dtype)

    return tensor.then(FEWER_KV_HEADS.name, mean, (rows // n_before * n_after, *tensor.shape[1:]))


FEWER_KV_HEADS = Transformation(
    name="fewer key/value heads",
    effect="approximate",
    fields=("model.attention.n_kv_heads", "model.encoder.cross.n_kv_heads"),
    rule="Each new head is the mean of a group of neighboring heads. Equal heads stay exact.",
    paper="Ainslie 2023, arXiv 2305.13245",
    apply=_fewer_heads,
)
