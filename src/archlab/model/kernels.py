"""The ways to compute attention. What each cannot do, and which is taken, says `config/components/kernel_choice.py`.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C width of queries and keys, V of values. All give
the same numbers but for rounding; tests hold them to it.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Site
from archlab.config.components.kernel_choice import KernelName, KernelNeeds, kernel_for
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


KERNELS: dict[KernelName, Kernel] = {
    "flex": flex,
    "blocked": blocked,
    "products": products,
    "sdpa": sdpa,
    "reference": reference,
}


def choose_kernel(name: str, needs: KernelNeeds) -> Kernel:
    """The kernel of that name, or the one that `auto` takes; UserError if it cannot do what is needed."""
    return KERNELS[kernel_for(name, needs)]


def in_call(
    needs: KernelNeeds,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    *,
    mask: Mask | None,
    is_cached: bool,
) -> KernelNeeds:
    """What a layer needs, with what the tensors at hand ask for, too."""
    given = (x for x in (q, k, v, bias, sinks) if x is not None)
    return KernelNeeds(
        needs.softcap,
        needs.dropout,
        needs.bias,
        masked=mask is not None,
        is_cut=isinstance(mask, Visible) and mask.is_worth_cutting,
        sinks=sinks is not None,
        is_cached=is_cached,
        width=max(q.shape[-1], v.shape[-1]),
        on_cuda=q.is_cuda,
        float64=q.dtype is torch.float64,
        gradients=torch.is_grad_enabled() and any(x.requires_grad for x in given),
        queries=q.shape[-2],
        products_up_to=needs.products_up_to,
    )


def prefer_products(model: nn.Module, up_to: int) -> None:
    """Have training take `products` for texts of so many tokens where `auto` may: faster on some machines only, which
    the caller knows."""
    for module in model.modules():
        attend = getattr(module, "attend", None)
        if isinstance(attend, Attend):
            attend.needs = replace(attend.needs, products_up_to=up_to)


class Attend:
    """softmax(scale q k^T + bias) v as a layer's config asks for it, by the kernel that its site names."""

    def __init__(self, config: AnyAttention, site: Site) -> None:
        self.scale, self.softcap, self.dropout = config.scale, config.softcap, site.dropout.attention
        self.kernel = site.kernel
        self.needs = config.kernel_needs(site)
        choose_kernel(self.kernel, self.needs)  # refuses at once what it can

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
        needs = in_call(self.needs, q_BHTC, k_BKSC, v_BKSV, bias_BHTS, sinks_H, mask=mask_BTS, is_cached=is_cached)
        softmax = Softmax(self.scale, self.softcap, self.dropout if training else 0.0, sinks_H)
        return choose_kernel(self.kernel, needs)(q_BHTC, k_BKSC, v_BKSV, mask_BTS, bias_BHTS, softmax)
