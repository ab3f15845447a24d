"""The ways to compute attention, and a table of what each can do.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C head_dim. All give the same numbers; a test
holds them to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.config.attention import ResolvedMultiHead
from archlab.config.layers import LayerConfig
from archlab.config.position import BIASED
from archlab.errors import UserError
from archlab.model.arithmetic import at_least_float32, without_autocast


@dataclass(frozen=True)
class Scores:
    """How a query and a key become a weight."""

    scale: float
    softcap: float | None
    dropout: float
    """0 outside training."""


Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Scores], Tensor]
"""(q [B, H, Q, C], k and v [B, K, S, C], mask [B or 1, Q, S] or None for plain causal, bias [B or 1, H, Q, S] or None
for none, scoring) -> [B, H, Q, C]."""


def reference(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSC: Tensor, mask_BQS: Tensor | None, bias_BHQS: Tensor | None, scores: Scores
) -> Tensor:
    """dropout(softmax(mask(cap(scale q k^T + bias)))) v written out; the scores in at least float32."""
    group = q_BHQC.shape[1] // k_BKSC.shape[1]
    k_BHSC, v_BHSC = (x.repeat_interleave(group, dim=1) for x in (k_BKSC, v_BKSC))
    with without_autocast(q_BHQC):
        scores_BHQS = at_least_float32(q_BHQC) @ at_least_float32(k_BHSC).transpose(-1, -2) * scores.scale
    if bias_BHQS is not None:
        scores_BHQS = scores_BHQS + bias_BHQS
    if scores.softcap is not None:
        scores_BHQS = scores.softcap * torch.tanh(scores_BHQS / scores.softcap)
    if mask_BQS is None:
        mask_BQS = torch.ones(scores_BHQS.shape[-2:], dtype=torch.bool, device=scores_BHQS.device).tril()[None]
    weights_BHQS = scores_BHQS.masked_fill(~mask_BQS[:, None], float("-inf")).softmax(-1).to(v_BHSC.dtype)
    return F.dropout(weights_BHQS, scores.dropout) @ v_BHSC


def sdpa(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSC: Tensor, mask_BQS: Tensor | None, bias_BHQS: Tensor | None, scores: Scores
) -> Tensor:
    """torch's fused attention."""
    dtype = q_BHQC.dtype
    if q_BHQC.device.type == "cpu" or bias_BHQS is not None:
        # On CPU its bfloat16 backward is two to three times slower than float32's; a bias must have the format of q,
        # and in bfloat16 far keys' biases would lose their differences.
        q_BHQC, k_BKSC, v_BKSC = (at_least_float32(x) for x in (q_BHQC, k_BKSC, v_BKSC))
    mask = None if mask_BQS is None else mask_BQS[:, None]
    if bias_BHQS is not None:
        causal = torch.ones(bias_BHQS.shape[-2:], dtype=torch.bool, device=bias_BHQS.device).tril()
        mask = bias_BHQS.to(q_BHQC.dtype).masked_fill(~(causal if mask is None else mask), float("-inf"))
    grouped = q_BHQC.shape[1] != k_BKSC.shape[1]
    with without_autocast(q_BHQC):
        mixed_BHQC = F.scaled_dot_product_attention(
            q_BHQC, k_BKSC, v_BKSC, mask, scores.dropout, is_causal=mask is None, scale=scores.scale, enable_gqa=grouped
        )
    return mixed_BHQC.to(dtype)


@torch.compiler.disable(reason="a mask that is made within a compiled graph does not compile on CPU")
def flex(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSC: Tensor, mask_BQS: Tensor | None, bias_BHQS: Tensor | None, scores: Scores
) -> Tensor:
    """Compiled flex_attention, anew for each shape; after eight of them torch goes on with its unfused form."""
    from torch.nn.attention.flex_attention import create_block_mask

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if bias_BHQS is not None:
            s = s + bias_BHQS[b if len(bias_BHQS) > 1 else 0, h, q, k]
        return s if scores.softcap is None else scores.softcap * torch.tanh(s / scores.softcap)

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q if mask_BQS is None else mask_BQS[b if len(mask_BQS) > 1 else 0, q, k]

    B, _, Q, _ = q_BHQC.shape
    blocks = create_block_mask(seen, B, None, Q, k_BKSC.shape[2], device=q_BHQC.device.type)
    grouped = q_BHQC.shape[1] != k_BKSC.shape[1]
    return _compiled_flex()(q_BHQC, k_BKSC, v_BKSC, score, blocks, scores.scale, grouped)


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)  # with dynamic shapes its CPU code does not compile


@dataclass(frozen=True)
class Ability:
    """A kernel, and which needs of a layer or of a call it meets."""

    kernel: Kernel
    can: frozenset[str]
    only_if_named: frozenset[str] = frozenset()
    """Those of them that `auto` leaves to another kernel."""


EVERY_KERNEL = frozenset({"bias", "cache", "unusual heads", "other devices than cuda"})
"""Needs that each meets; unusual heads are those narrower than 16 or wider than 128."""

KERNELS = {
    "sdpa": Ability(sdpa, EVERY_KERNEL | {"dropout", "float64", "gradients on cpu"}),
    # It compiles for every shape, and a cache's shapes grow; on a CPU that needs a C++ compiler; on a GPU heads must
    # be 16 wide, wide ones may not fit, and the gradients of a bias are added up one by one.
    "flex": Ability(flex, EVERY_KERNEL | {"softcap"}, only_if_named=EVERY_KERNEL),
    "reference": Ability(reference, EVERY_KERNEL | {"softcap", "dropout", "float64", "gradients on cpu"}),
}
"""In the order in which `auto` prefers them. Every kernel does masks, grouped heads and any scale."""


def needs_of_layer(config: ResolvedMultiHead, layer: LayerConfig) -> frozenset[str]:
    """What the layer asks of a kernel."""
    return _named(
        softcap=config.softcap is not None,
        dropout=layer.dropout.attention > 0,
        bias=layer.position.kind in BIASED,
        unusual_heads=not 16 <= config.head_dim <= 128,
    )


def needs_of_call(is_cached: bool, *tensors: Tensor | None) -> frozenset[str]:
    """What the tensors at hand ask of a kernel."""
    given = [x for x in tensors if x is not None]
    return _named(
        cache=is_cached,
        other_devices_than_cuda=any(not x.is_cuda for x in given),
        float64=any(x.dtype is torch.float64 for x in given),
        gradients_on_cpu=torch.is_grad_enabled() and any(x.requires_grad and x.is_cpu for x in given),
    )


def _named(**wanted: bool) -> frozenset[str]:
    return frozenset(need.replace("_", " ") for need, is_wanted in wanted.items() if is_wanted)


def choose_kernel(name: str, wanted: frozenset[str]) -> Kernel:
    """The named kernel, or for `auto` the best that can do what is wanted; UserError when the named one cannot."""
    able = {k: ability for k, ability in KERNELS.items() if wanted <= ability.can}
    if name == "auto":
        return next(ability.kernel for ability in able.values() if not wanted & ability.only_if_named)
    if name not in KERNELS:
        raise UserError(f"kernel {name!r}; allowed: auto, {', '.join(KERNELS)}")
    if missing := wanted - KERNELS[name].can:
        raise UserError(f"kernel {name} cannot do {', '.join(sorted(missing))}; allowed: auto, {', '.join(able)}")
    return KERNELS[name].kernel
