"""The ways to compute attention, what each cannot do, and which is taken.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C width of queries and keys, V of values. All give
the same numbers but for rounding; tests hold them to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.position import BIASED
from archlab.config.layers import LayerConfig
from archlab.errors import UserError
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.blocked import in_documents, in_stretches
from archlab.model.flex import flex
from archlab.model.graphs import outside_graphs
from archlab.model.masks import Mask, Visible, as_added, dense
from archlab.model.products import causal_products
from archlab.model.softmax import Softmax

Kernel = Callable[[Tensor, Tensor, Tensor, Mask | None, Tensor | None, Softmax], Tensor]
"""(q [B, H, Q, C], k [B, K, S, C], v [B, K, S, V], mask [B or 1, Q, S] or None for plain causal, bias [B or 1, H, Q, S]
or None for none, softmax) -> [B, H, Q, V]."""


def reference(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
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
    seen_BQS = dense(mask_BQS)
    if seen_BQS is None:
        seen_BQS = torch.ones(scores_BHQS.shape[-2:], dtype=torch.bool, device=scores_BHQS.device).tril()[None]
    scores_BHQS = scores_BHQS.masked_fill(~seen_BQS[:, None], float("-inf"))
    if softmax.sinks_H is None:
        weights_BHQS = scores_BHQS.softmax(-1)
    else:
        sinks_BHQ1 = softmax.sinks_H.to(scores_BHQS.dtype)[:, None, None].expand(*scores_BHQS.shape[:3], 1)
        weights_BHQS = torch.cat((scores_BHQS, sinks_BHQ1), -1).softmax(-1)[..., :-1]
    return F.dropout(weights_BHQS.to(v_BHSV.dtype), softmax.dropout) @ v_BHSV


def sdpa(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """torch's fused attention."""
    if not _is_better_wide(q_BHQC, bias_BHQS):
        return _fused(q_BHQC, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, softmax)
    q_BHQC_wide, k_BKSC, v_BKSV = (at_least_float32(x) for x in (q_BHQC, k_BKSC, v_BKSV))
    return _fused(q_BHQC_wide, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, softmax).to(q_BHQC.dtype)


def _is_better_wide(q_BHQC: Tensor, bias_BHQS: Tensor | None) -> bool:
    """On CPU bfloat16 is two to three times slower than float32 over a text, but not for a decoding step, which would
    widen the whole cache; a bias must have the format of q, and in bfloat16 far keys' biases would lose their
    differences."""
    return (q_BHQC.device.type == "cpu" and q_BHQC.shape[2] > 1) or bias_BHQS is not None


def _fuses_equal_widths_only(q_BHQC: Tensor) -> bool:
    """On CPU, values as wide as queries; else torch multiplies the whole square and keeps it."""
    return q_BHQC.device.type == "cpu"


def _fuses_groups_with_masks(q_BHQC: Tensor) -> bool:
    """On CPU, for several queries; for one it would read a key again for each head that shares it. On a GPU the kernel
    that masks knows no groups, and torch would take the one that keeps the square."""
    return q_BHQC.device.type == "cpu" and q_BHQC.shape[2] > 1


def _is_grouped(q_BHQC: Tensor, k_BKSC: Tensor) -> bool:
    """Whether several query heads share a key."""
    return q_BHQC.shape[1] != k_BKSC.shape[1]


def _fused(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """By torch's fused kernel. In the format of the queries."""
    n_queries, v_dim = q_BHQC.shape[2], v_BKSV.shape[-1]
    if bias_BHQS is not None:
        seen_BQS = dense(mask_BQS)
        causal = torch.ones(bias_BHQS.shape[-2:], dtype=torch.bool, device=bias_BHQS.device).tril()
        is_seen = causal if seen_BQS is None else seen_BQS[:, None]
        mask = bias_BHQS.to(q_BHQC.dtype).masked_fill(~is_seen, float("-inf"))
    else:
        mask = None if mask_BQS is None else as_added(mask_BQS, q_BHQC)[:, None]
    if softmax.sinks_H is not None:
        q_BHQC, k_BKSC, v_BKSV, mask = _with_sinks(
            q_BHQC, k_BKSC, v_BKSV, mask, at_least_float32(softmax.sinks_H) / softmax.scale
        )
    is_padded = _fuses_equal_widths_only(q_BHQC) and q_BHQC.shape[-1] != v_BKSV.shape[-1]
    if is_padded:
        width = max(q_BHQC.shape[-1], v_dim)
        q_BHQC, k_BKSC, v_BKSV = (F.pad(x, (0, width - x.shape[-1])) for x in (q_BHQC, k_BKSC, v_BKSV))
    group, is_folded = q_BHQC.shape[1] // k_BKSC.shape[1], False
    if mask is not None and _is_grouped(q_BHQC, k_BKSC) and not _fuses_groups_with_masks(q_BHQC):
        is_folded = True
        q_BHQC, mask = _with_groups_as_queries(q_BHQC, mask, group)
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
    mixed_BHQV = mixed_BHQV.unflatten(2, (group, -1)).flatten(1, 2) if is_folded else mixed_BHQV
    mixed_BHQV = mixed_BHQV[..., :v_dim] if is_padded else mixed_BHQV
    return mixed_BHQV if softmax.sinks_H is None else mixed_BHQV[:, :, -n_queries:]


def _with_groups_as_queries(q_BHQC: Tensor, mask: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """[B, K, group * Q, C] and [B or 1, K or 1, group * Q or 1, S]: to share a key, heads become further queries."""
    grouped = q_BHQC.unflatten(1, (-1, group)).flatten(2, 3)
    if mask.shape[1] == mask.shape[2] == 1:  # the same for all of them
        return grouped, mask
    of_groups = mask.unflatten(1, (-1, group)) if mask.shape[1] > 1 else mask[:, :, None].expand(-1, -1, group, -1, -1)
    return grouped, of_groups.flatten(2, 3)


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


def blocked(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """In blocks of queries, each by torch's fused attention, or written out where that lacks something; as a whole
    where the mask has no blocks."""
    inner = sdpa if softmax.softcap is None else reference
    if not (isinstance(mask_BQS, Visible) and mask_BQS.can_be_cut):
        return inner(q_BHQC, k_BKSC, v_BKSV, mask_BQS, None, softmax)
    dtype = q_BHQC.dtype
    if inner is reference or _is_better_wide(q_BHQC, None):  # once, and not for each block that sees a key
        q_BHQC, k_BKSC, v_BKSV = (at_least_float32(x) for x in (q_BHQC, k_BKSC, v_BKSV))
    if mask_BQS.starts_BQ is None:
        return in_stretches(q_BHQC, k_BKSC, v_BKSV, mask_BQS.stretches, softmax, inner).to(dtype)
    return _blocked_documents(q_BHQC, k_BKSC, v_BKSV, mask_BQS, softmax, inner).to(dtype)


@outside_graphs  # where documents begin is data: each batch would be compiled anew
def _blocked_documents(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Visible, softmax: Softmax, inner: Kernel
) -> Tensor:
    return in_documents(q_BHQC, k_BKSC, v_BKSV, mask_BQS.documents, softmax, inner)


def products(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """As batched products; plain causal. In bfloat16 scores are rounded to it, as the weights are."""
    return causal_products(q_BHQC, k_BKSC, v_BKSV, softmax.scale)


@dataclass(frozen=True)
class Needs:
    """What a layer, and then a call, ask of a kernel. Every kernel does grouped heads and any scale."""

    softcap: bool = False
    dropout: bool = False
    bias: bool = False
    products_up_to: int = 0
    """Tokens of a text up to which `products` trains faster than `sdpa` on this machine; see `prefer_products`."""
    # From here on of a call; before it they stand for the easiest.
    masked: bool = False
    """By more than plain causality."""
    is_cut: bool = False
    """Whether blocks of queries compute at most half of the square."""
    sinks: bool = False
    is_cached: bool = False
    width: int = 64
    """Of a query or a value, the wider of them."""
    on_cuda: bool = True
    float64: bool = False
    gradients: bool = False
    queries: int = 1

    def in_call(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        *,
        mask: Mask | None,
        is_cached: bool,
    ) -> "Needs":
        """With what the tensors at hand ask for, too."""
        given = (x for x in (q, k, v, bias, sinks) if x is not None)
        return Needs(
            self.softcap,
            self.dropout,
            self.bias,
            masked=mask is not None,
            is_cut=isinstance(mask, Visible) and mask.is_worth_cutting,
            sinks=sinks is not None,
            is_cached=is_cached,
            width=max(q.shape[-1], v.shape[-1]),
            on_cuda=q.is_cuda,
            float64=q.dtype is torch.float64,
            gradients=torch.is_grad_enabled() and any(x.requires_grad for x in given),
            queries=q.shape[-2],
            products_up_to=self.products_up_to,
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


def _blocked_lacks(needs: Needs) -> str | None:
    return "bias" if needs.bias else None


def _products_lack(needs: Needs) -> str | None:
    asked = {"softcap": needs.softcap, "dropout": needs.dropout, "bias": needs.bias, "masks": needs.masked}
    return next((name for name, is_asked in (asked | {"sinks": needs.sinks}).items() if is_asked), None)


def _products_suit(needs: Needs) -> bool:
    """In training alone, so that a model's scores are the same on all machines but for rounding in float32."""
    return needs.gradients and needs.queries <= needs.products_up_to


def _flex_lacks(needs: Needs) -> str | None:
    if needs.dropout:
        return "dropout"
    if needs.float64:
        return "float64"
    if needs.on_cuda:
        return None
    return "gradients on cpu" if needs.gradients else "sinks on cpu" if needs.sinks else None


def _flex_suits(needs: Needs) -> bool:
    """Where torch's fused kernel lacks something, or computes what is masked. It compiles for every shape, and a
    cache's shapes grow; on a CPU that needs a C++ compiler; on a GPU heads must be 16 wide, wide ones may not fit, and
    the gradients of a bias are added up one by one."""
    is_wanted = needs.softcap or needs.masked
    return is_wanted and needs.on_cuda and not needs.is_cached and not needs.bias and 16 <= needs.width <= 128


KERNELS = {
    "flex": Limits(flex, _flex_lacks, _flex_suits),
    "blocked": Limits(blocked, _blocked_lacks, suits=lambda needs: needs.is_cut),
    "products": Limits(products, _products_lack, _products_suit),
    "sdpa": Limits(sdpa, _sdpa_lacks, suits=lambda needs: True),
    "reference": Limits(reference, lacks=lambda needs: None, suits=lambda needs: True),
}
"""In the order in which `auto` prefers them."""


def choose_kernel(name: str, needs: Needs) -> Kernel:
    """The named kernel, or for `auto` the first that can do what is needed; UserError when the named one cannot."""
    if name == "auto":
        kernels = KERNELS.values()
        return next(limits.kernel for limits in kernels if limits.suits(needs) and limits.lacks(needs) is None)
    if name not in KERNELS:
        raise UserError(f"kernel {name!r}; allowed: auto, {', '.join(KERNELS)}")
    able = [k for k, limits in KERNELS.items() if limits.lacks(needs) is None]
    if name not in able:
        raise UserError(f"kernel {name} cannot do {KERNELS[name].lacks(needs)}; allowed: auto, {', '.join(able)}")
    return KERNELS[name].kernel


def needs_of(config: AnyAttention, layer: LayerConfig) -> Needs:
    """Of a layer, before a call."""
    return Needs(
        softcap=config.softcap is not None, dropout=layer.dropout.attention > 0, bias=layer.position.kind in BIASED
    )


def prefer_products(model: nn.Module, up_to: int) -> None:
    """Have training take `products` for texts of so many tokens where `auto` may: faster on some machines only, which
    the caller knows."""
    for module in model.modules():
        attend = getattr(module, "attend", None)
        if isinstance(attend, Attend):
            attend.needs = replace(attend.needs, products_up_to=up_to)


class Attend:
    """softmax(scale q k^T + bias) v as a layer's config asks for it, by the kernel of that name."""

    def __init__(self, config: AnyAttention, layer: LayerConfig, kernel: str) -> None:
        self.scale, self.softcap, self.dropout = config.scale, config.softcap, layer.dropout.attention
        self.kernel = kernel
        self.needs = needs_of(config, layer)
        choose_kernel(kernel, self.needs)  # refuses at once what it can

    def __call__(
        self,
        q_BHTC: Tensor,
        k_BKSC: Tensor,
        v_BKSV: Tensor,
        mask_BTS: Mask | None,
        bias_BHTS: Tensor | None,
        *,
        sinks_H: Tensor | None = None,
        training: bool,
        is_cached: bool,
    ) -> Tensor:
        """-> [B, H, T, V]."""
        needs = self.needs.in_call(q_BHTC, k_BKSC, v_BKSV, bias_BHTS, sinks_H, mask=mask_BTS, is_cached=is_cached)
        softmax = Softmax(self.scale, self.softcap, self.dropout if training else 0.0, sinks_H)
        return choose_kernel(self.kernel, needs)(q_BHTC, k_BKSC, v_BKSV, mask_BTS, bias_BHTS, softmax)
