"""The ways to compute attention, what each cannot do, and which is taken.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C width of queries and keys, V of values. All give
the same numbers; a test holds them to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.config.any_attention import AnyResolved
from archlab.config.layers import LayerConfig
from archlab.config.position import BIASED
from archlab.errors import UserError
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.graphs import outside_graphs


@dataclass(frozen=True)
class Softmax:
    """The softmax that makes weights of scores, and what comes before and after it."""

    scale: float
    softcap: float | None = None
    dropout: float = 0.0
    """0 outside training."""
    sinks_H: Tensor | None = None
    """Per head, the score of one more key that every query sees and that has no value; None without."""


Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Softmax], Tensor]
"""(q [B, H, Q, C], k [B, K, S, C], v [B, K, S, V], mask [B or 1, Q, S] or None for plain causal, bias [B or 1, H, Q, S]
or None for none, softmax) -> [B, H, Q, V]."""


def reference(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Tensor | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Attention written out, the scores in at least float32.

    It is dropout(softmax(mask(cap(scale q k^T + bias)))) v.
    """
    group = q_BHQC.shape[1] // k_BKSC.shape[1]
    k_BHSC, v_BHSV = (x.repeat_interleave(group, dim=1) for x in (k_BKSC, v_BKSV))
    with without_autocast(q_BHQC):
        scores_BHQS = at_least_float32(q_BHQC) @ at_least_float32(k_BHSC).transpose(-1, -2) * softmax.scale
    if bias_BHQS is not None:
        scores_BHQS = scores_BHQS + bias_BHQS
    if softmax.softcap is not None:
        scores_BHQS = softmax.softcap * torch.tanh(scores_BHQS / softmax.softcap)
    if mask_BQS is None:
        mask_BQS = torch.ones(scores_BHQS.shape[-2:], dtype=torch.bool, device=scores_BHQS.device).tril()[None]
    scores_BHQS = scores_BHQS.masked_fill(~mask_BQS[:, None], float("-inf"))
    if softmax.sinks_H is None:
        weights_BHQS = scores_BHQS.softmax(-1)
    else:
        sinks_BHQ1 = softmax.sinks_H.to(scores_BHQS.dtype)[:, None, None].expand(*scores_BHQS.shape[:3], 1)
        weights_BHQS = torch.cat((scores_BHQS, sinks_BHQ1), -1).softmax(-1)[..., :-1]
    return F.dropout(weights_BHQS.to(v_BHSV.dtype), softmax.dropout) @ v_BHSV


def sdpa(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Tensor | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """torch's fused attention."""
    if not _is_better_wide(q_BHQC, bias_BHQS):
        return _fused(q_BHQC, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, softmax)
    q_BHQC_wide, k_BKSC, v_BKSV = (at_least_float32(x) for x in (q_BHQC, k_BKSC, v_BKSV))
    return _fused(q_BHQC_wide, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, softmax).to(q_BHQC.dtype)


def _is_better_wide(q_BHQC: Tensor, bias_BHQS: Tensor | None) -> bool:
    """On CPU its bfloat16 backward is two to three times slower than float32's; a bias must have the format of q, and
    in bfloat16 far keys' biases would lose their differences."""
    return q_BHQC.device.type == "cpu" or bias_BHQS is not None


def _fuses_equal_widths_only(q_BHQC: Tensor) -> bool:
    """On CPU, values as wide as queries; else torch multiplies the whole square and keeps it."""
    return q_BHQC.device.type == "cpu"


def _is_grouped(q_BHQC: Tensor, k_BKSC: Tensor) -> bool:
    """Whether several query heads share a key."""
    return q_BHQC.shape[1] != k_BKSC.shape[1]


def _fused(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Tensor | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """By torch's fused kernel. In the format of the queries."""
    n_queries, v_dim = q_BHQC.shape[2], v_BKSV.shape[-1]
    mask = None if mask_BQS is None else mask_BQS[:, None]
    if bias_BHQS is not None:
        causal = torch.ones(bias_BHQS.shape[-2:], dtype=torch.bool, device=bias_BHQS.device).tril()
        mask = bias_BHQS.to(q_BHQC.dtype).masked_fill(~(causal if mask is None else mask), float("-inf"))
    if softmax.sinks_H is not None:
        q_BHQC, k_BKSC, v_BKSV, mask = _with_sinks(
            q_BHQC, k_BKSC, v_BKSV, mask, at_least_float32(softmax.sinks_H) / softmax.scale
        )
    is_padded = _fuses_equal_widths_only(q_BHQC) and q_BHQC.shape[-1] != v_BKSV.shape[-1]
    if is_padded:
        width = max(q_BHQC.shape[-1], v_dim)
        q_BHQC, k_BKSC, v_BKSV = (F.pad(x, (0, width - x.shape[-1])) for x in (q_BHQC, k_BKSC, v_BKSV))
    with without_autocast(q_BHQC):
        mixed_BHQV = F.scaled_dot_product_attention(
            q_BHQC,
            k_BKSC,
            v_BKSV,
            attn_mask=mask,
            dropout_p=softmax.dropout,
            is_causal=mask is None,
            scale=softmax.scale,
            enable_gqa=_is_grouped(q_BHQC, k_BKSC),
        )
    mixed_BHQV = mixed_BHQV[..., :v_dim] if is_padded else mixed_BHQV
    return mixed_BHQV if softmax.sinks_H is None else mixed_BHQV[:, :, -n_queries:]


def _with_sinks(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask: Tensor | None, sinks_H: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """With one more key in front, whose product with a query is the head's sink and whose value is nothing.

    Queries and keys grow by 8 dimensions, of which the first holds it: fused kernels want multiples of 8. Where there
    is no mask, one more query in front keeps it plain causal.
    """
    width = q_BHQC.shape[-1]
    in_front = 0 if mask is not None else 1
    sinks_H8 = F.pad(sinks_H[:, None], (0, 7)).to(q_BHQC.dtype)
    q_BHQC = torch.cat((q_BHQC, sinks_H8[:, None].expand(*q_BHQC.shape[:3], 8)), -1)
    k_BKSC = F.pad(k_BKSC, (0, 8, 1, 0))
    k_BKSC[:, :, 0, width] = 1
    mask = None if mask is None else F.pad(mask, (1, 0), value=mask.dtype is torch.bool)
    return F.pad(q_BHQC, (0, 0, in_front, 0)), k_BKSC, F.pad(v_BKSV, (0, 0, 1, 0)), mask


@outside_graphs  # a mask that is made within a compiled graph does not compile on CPU
def flex(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Tensor | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Compiled flex_attention, anew for each shape; after eight of them torch goes on with its unfused form."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if bias_BHQS is not None:
            s = s + bias_BHQS[b if len(bias_BHQS) > 1 else 0, h, q, k]
        return s if softmax.softcap is None else softmax.softcap * torch.tanh(s / softmax.softcap)

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q if mask_BQS is None else mask_BQS[b if len(mask_BQS) > 1 else 0, q, k]

    B, _, Q, _ = q_BHQC.shape
    blocks = create_block_mask(seen, B, None, Q, k_BKSC.shape[2], device=q_BHQC.device.type)
    grouped = q_BHQC.shape[1] != k_BKSC.shape[1]
    inputs = (q_BHQC, k_BKSC, v_BKSV, score, blocks, softmax.scale, grouped)
    if softmax.sinks_H is None:
        return _compiled_flex()(*inputs)
    # A sink takes its share of each softmax: what is left is sum(exp s) / (sum(exp s) + exp(sink)).
    mixed_BHQV, more = _compiled_flex()(*inputs, return_aux=AuxRequest(lse=True))
    share_BHQ = torch.sigmoid(more.lse - softmax.sinks_H[:, None])
    return mixed_BHQV * share_BHQ[..., None].to(mixed_BHQV.dtype)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)  # with dynamic shapes its CPU code does not compile


@dataclass(frozen=True)
class Needs:
    """What a layer, and then a call, ask of a kernel. Every kernel does masks, grouped heads and any scale."""

    softcap: bool = False
    dropout: bool = False
    bias: bool = False
    # From here on of a call; before it they stand for the easiest.
    sinks: bool = False
    is_cached: bool = False
    width: int = 64
    """Of a query or a value, the wider of them."""
    on_cuda: bool = True
    float64: bool = False
    gradients: bool = False

    def in_call(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, *, is_cached: bool
    ) -> "Needs":
        """With what the tensors at hand ask for, too."""
        given = [x for x in (q, k, v, bias, sinks) if x is not None]
        return replace(
            self,
            sinks=sinks is not None,
            is_cached=is_cached,
            width=max(q.shape[-1], v.shape[-1]),
            on_cuda=all(x.is_cuda for x in given),
            float64=any(x.dtype is torch.float64 for x in given),
            gradients=torch.is_grad_enabled() and any(x.requires_grad for x in given),
        )


@dataclass(frozen=True)
class Limits:
    """A kernel, and where it cannot or should not be used."""

    kernel: Kernel
    lacks: Callable[[Needs], str | None]
    """What of the needs it cannot meet, in words; None when it can."""
    suits: Callable[[Needs], bool]
    """Whether `auto` may take it where it can."""


def _sdpa_lacks(needs: Needs) -> str | None:
    return "softcap" if needs.softcap else None


def _flex_lacks(needs: Needs) -> str | None:
    if needs.dropout:
        return "dropout"
    if needs.float64:
        return "float64"
    if needs.on_cuda:
        return None
    return "gradients on cpu" if needs.gradients else "sinks on cpu" if needs.sinks else None


def _flex_suits(needs: Needs) -> bool:
    """It compiles for every shape, and a cache's shapes grow; on a CPU that needs a C++ compiler; on a GPU heads must
    be 16 wide, wide ones may not fit, and the gradients of a bias are added up one by one."""
    return needs.on_cuda and not needs.is_cached and not needs.bias and 16 <= needs.width <= 128


KERNELS = {
    "sdpa": Limits(sdpa, _sdpa_lacks, suits=lambda needs: True),
    "flex": Limits(flex, _flex_lacks, _flex_suits),
    "reference": Limits(reference, lacks=lambda needs: None, suits=lambda needs: True),
}
"""In the order in which `auto` prefers them."""


def choose_kernel(name: str, needs: Needs) -> Kernel:
    """The named kernel, or for `auto` the first that can do what is needed; UserError when the named one cannot."""
    able = {k: limits for k, limits in KERNELS.items() if limits.lacks(needs) is None}
    if name == "auto":
        return next(limits.kernel for limits in able.values() if limits.suits(needs))
    if name not in KERNELS:
        raise UserError(f"kernel {name!r}; allowed: auto, {', '.join(KERNELS)}")
    if name not in able:
        raise UserError(f"kernel {name} cannot do {KERNELS[name].lacks(needs)}; allowed: auto, {', '.join(able)}")
    return KERNELS[name].kernel


class Attend:
    """softmax(scale q k^T + bias) v as a layer's config asks for it, by the kernel of that name."""

    def __init__(self, config: AnyResolved, layer: LayerConfig, kernel: str) -> None:
        self.scale, self.softcap, self.dropout = config.scale, config.softcap, layer.dropout.attention
        self.kernel = kernel
        self.needs = Needs(
            softcap=config.softcap is not None, dropout=layer.dropout.attention > 0, bias=layer.position.kind in BIASED
        )
        choose_kernel(kernel, self.needs)  # refuses at once what it can

    def __call__(
        self,
        q_BHTC: Tensor,
        k_BKSC: Tensor,
        v_BKSV: Tensor,
        mask_BTS: Tensor | None,
        bias_BHTS: Tensor | None,
        *,
        sinks_H: Tensor | None = None,
        training: bool,
        is_cached: bool,
    ) -> Tensor:
        """-> [B, H, T, V]."""
        needs = self.needs.in_call(q_BHTC, k_BKSC, v_BKSV, bias_BHTS, sinks_H, is_cached=is_cached)
        softmax = Softmax(self.scale, self.softcap, self.dropout if training else 0.0, sinks_H)
        return choose_kernel(self.kernel, needs)(q_BHTC, k_BKSC, v_BKSV, mask_BTS, bias_BHTS, softmax)
