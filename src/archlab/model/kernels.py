"""Kernels: the ways to compute attention.

`config/components/kernel_choice.py` chooses a kernel and lists the limits of each kernel. Tests check that the outputs
of all kernels are equal up to rounding.

Shapes: B batch, H query heads, K key/value heads, Q queries, S keys, C width of queries and keys, V width of values.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Site
from archlab.config.components.kernel_choice import FLEX_WIDTHS, KernelName, KernelNeeds, kernel_for
from archlab.model.arithmetic import at_least_float32, without_autocast
from archlab.model.blocked import in_documents, in_stretches
from archlab.model.flex import flex
from archlab.model.graphs import outside_graphs
from archlab.model.masks import Mask, Visible, as_added, dense, hides_nothing, mask_kind
from archlab.model.products import causal_products
from archlab.model.softmax import Softmax
from archlab.model.state import is_compiled_step
from archlab.model.torch_private import has_compiler

Kernel = Callable[[Tensor, Tensor, Tensor, Mask | None, Tensor | None, Softmax], Tensor]
"""Function of (q, k, v, mask, bias, softmax) that returns the attention output, [B, H, Q, V].

Shapes are [B, H, Q, C] for q, [B, K, S, C] for k and [B, K, S, V] for v. The mask is [B or 1, Q, S], or None for a
plain causal mask. The bias is [B or 1, H, Q, S], or None for no bias.
"""


def reference(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Unfused attention: dropout(softmax(mask(cap(scale q k^T + bias)))) v, with scores in at least float32."""
    group = q_BHQC.shape[1] // k_BKSC.shape[1]
    k_BHSC, v_BHSV = (x.repeat_interleave(group, dim=1) for x in (k_BKSC, v_BKSV))
    with without_autocast(q_BHQC):
        scores_BHQS = at_least_float32(q_BHQC) @ at_least_float32(k_BHSC).transpose(-1, -2) * softmax.scale
    if bias_BHQS is not None:
        scores_BHQS = scores_BHQS + bias_BHQS
    if softmax.softcap is not None:
        scores_BHQS = softmax.softcap * torch.tanh(scores_BHQS / softmax.softcap)
    if not hides_nothing(mask_BQS):
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
    """torch's fused attention. It runs in at least float32 if that is faster or more accurate."""
    if not _is_better_wide(q_BHQC, bias_BHQS):
        return _fused(q_BHQC, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, softmax)
    q_BHQC_wide, k_BKSC, v_BKSV = (at_least_float32(x) for x in (q_BHQC, k_BKSC, v_BKSV))
    return _fused(q_BHQC_wide, k_BKSC, v_BKSV, mask_BQS, bias_BHQS, softmax).to(q_BHQC.dtype)


def _is_better_wide(q_BHQC: Tensor, bias_BHQS: Tensor | None) -> bool:
    """Return whether to convert the tensors to float32 first.

    On CPUs, torch's fused attention takes two to three times as long in bfloat16 as in float32. In a decoding step,
    converting the whole cache would cost more than it saves. A bias also needs float32. torch requires the bias in the
    dtype of q, and in bfloat16 the biases of distant keys would be rounded to the same value.
    """
    return (q_BHQC.device.type == "cpu" and q_BHQC.shape[2] > 1) or bias_BHQS is not None


def _fuses_equal_widths_only(q_BHQC: Tensor) -> bool:
    """Return whether torch's fused attention requires values of the same width as the queries, as on CPUs.

    For values of another width, torch would materialize the whole score matrix.
    """
    return q_BHQC.device.type == "cpu"


def _fuses_groups(q_BHQC: Tensor, v_BKSV: Tensor, mask: Tensor | None) -> bool:
    """Return whether torch's fused attention is fast if query heads share keys.

    On a CPU it is fast, except for a single query with a mask, for which it would read each key once per query head. On
    a GPU, only flash attention supports shared keys. It has no masks, and needs 16-bit tensors of one width up to 256,
    and a compute capability of 8.0. Otherwise, torch would materialize the whole score matrix.
    """
    if q_BHQC.device.type == "cpu":
        return mask is None or q_BHQC.shape[2] > 1
    has_flash = q_BHQC.dtype.itemsize == 2 and not is_before_ampere(q_BHQC.device)
    return mask is None and has_flash and q_BHQC.shape[-1] == v_BKSV.shape[-1] <= 256


def is_before_ampere(device: torch.device) -> bool:
    """Return whether the device is a GPU with a compute capability below 8.0, which torch's flash attention refuses."""
    return _is_gpu(device) and torch.cuda.get_device_properties(device).major < 8


def flex_widths(device: torch.device, dtype: torch.dtype) -> Collection[int]:
    """Return the widths of a head for which flex_attention runs on the device. Empty: it does not run there.

    Its tiles must fit into the shared memory of a block of threads. torch has settings for powers of two, made for an
    A100 (163 KiB). Between them, it rounds the width up and takes settings that need more. Consumer GPUs have 99 KiB,
    where wide heads end with an error (pytorch issue 180278). These limits follow from torch's settings, forward and
    backward, and were not measured. torch tests flex from a compute capability of 8.0 on. Triton needs a C++ compiler.
    """
    if not _is_gpu(device):
        return FLEX_WIDTHS
    if is_before_ampere(device) or not (torch.compiler.is_compiling() or _can_compile()):
        return ()
    is_large = torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= _LARGE_SHARED_MEMORY
    width = 256 // dtype.itemsize
    return range(1, width + 1) if not is_large else FLEX_WIDTHS if dtype.itemsize == 2 else (*range(1, width + 1), 128)


@cache
def _can_compile() -> bool:
    """Return `has_compiler()`. Looking for a compiler in each call would take half a millisecond."""
    return has_compiler()


_LARGE_SHARED_MEMORY = 160 * 1024


def _is_gpu(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_available()


def _is_grouped(q_BHQC: Tensor, k_BKSC: Tensor) -> bool:
    return q_BHQC.shape[1] != k_BKSC.shape[1]


def _fused(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    n_queries, v_dim = q_BHQC.shape[2], v_BKSV.shape[-1]
    if bias_BHQS is not None:
        seen_BQS = dense(mask_BQS)
        causal = torch.ones(bias_BHQS.shape[-2:], dtype=torch.bool, device=bias_BHQS.device).tril()
        is_seen = causal if seen_BQS is None else seen_BQS[:, None]
        mask = bias_BHQS.to(q_BHQC.dtype).masked_fill(~is_seen, float("-inf"))
    else:
        mask = None if mask_BQS is None or hides_nothing(mask_BQS) else as_added(mask_BQS, q_BHQC)[:, None]
    is_causal = mask is None and mask_BQS is None
    if softmax.sinks_H is not None:
        q_BHQC, k_BKSC, v_BKSV, mask = _with_sinks(
            q_BHQC, k_BKSC, v_BKSV, mask, at_least_float32(softmax.sinks_H) / softmax.scale, is_causal=is_causal
        )
    is_padded = _fuses_equal_widths_only(q_BHQC) and q_BHQC.shape[-1] != v_BKSV.shape[-1]
    if is_padded:
        width = max(q_BHQC.shape[-1], v_dim)
        q_BHQC, k_BKSC, v_BKSV = (F.pad(x, (0, width - x.shape[-1])) for x in (q_BHQC, k_BKSC, v_BKSV))
    group, is_folded = q_BHQC.shape[1] // k_BKSC.shape[1], False
    if _is_grouped(q_BHQC, k_BKSC) and not _fuses_groups(q_BHQC, v_BKSV, mask):
        if is_causal:
            k_BKSC, v_BKSV = (x.repeat_interleave(group, dim=1) for x in (k_BKSC, v_BKSV))
        else:
            is_folded = True
            q_BHQC, mask = _with_groups_as_queries(q_BHQC, mask, group)
    with without_autocast(q_BHQC):
        mixed_BHQV = F.scaled_dot_product_attention(
            q_BHQC,
            k_BKSC,
            v_BKSV,
            attn_mask=mask,
            dropout_p=softmax.dropout,
            is_causal=is_causal,
            scale=softmax.scale,
            enable_gqa=_is_grouped(q_BHQC, k_BKSC),
        )
    mixed_BHQV = mixed_BHQV.unflatten(2, (group, -1)).flatten(1, 2) if is_folded else mixed_BHQV
    mixed_BHQV = mixed_BHQV[..., :v_dim] if is_padded else mixed_BHQV
    return mixed_BHQV if softmax.sinks_H is None else mixed_BHQV[:, :, -n_queries:]


def _with_groups_as_queries(q_BHQC: Tensor, mask: Tensor | None, group: int) -> tuple[Tensor, Tensor | None]:
    """Turn the query heads that share a key head into additional queries of one head.

    Return the queries, [B, K, group * Q, C], and the mask, [B or 1, K or 1, group * Q or 1, S], if there is one.
    """
    grouped = q_BHQC.unflatten(1, (-1, group)).flatten(2, 3)
    if mask is None or mask.shape[1] == mask.shape[2] == 1:  # the same for all heads and queries
        return grouped, mask
    of_groups = mask.unflatten(1, (-1, group)) if mask.shape[1] > 1 else mask[:, :, None].expand(-1, -1, group, -1, -1)
    return grouped, of_groups.flatten(2, 3)


def _with_sinks(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask: Tensor | None, sinks_H: Tensor, *, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Prepend a key whose value is zero and whose product with each query is the head's sink.

    The sink is stored in an additional dimension of the queries, in which the new key is 1. Fused kernels need
    multiples of 8 dimensions, so 7 more are added. Under a plain causal mask, a query is prepended as well, so that the
    mask stays plain causal.
    """
    width = q_BHQC.shape[-1]
    in_front = int(is_causal)
    sinks_H8 = F.pad(sinks_H[:, None], (0, 7)).to(q_BHQC.dtype)
    q_BHQC = torch.cat((q_BHQC, sinks_H8[:, None].expand(*q_BHQC.shape[:3], 8)), -1)
    k_BKSC = F.pad(k_BKSC, (0, 8, 1, 0))
    k_BKSC[:, :, 0, width] = 1
    mask = None if mask is None else F.pad(mask, (1, 0), value=mask.dtype is torch.bool)
    return F.pad(q_BHQC, (0, 0, in_front, 0)), k_BKSC, F.pad(v_BKSV, (0, 0, 1, 0)), mask


def blocked(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Attention in blocks of queries, or of all queries together if the mask cannot be cut into blocks.

    Each block uses torch's fused attention, or the reference kernel if there is a soft cap.
    """
    inner = sdpa if softmax.softcap is None else reference
    if not (isinstance(mask_BQS, Visible) and mask_BQS.can_be_cut):
        return inner(q_BHQC, k_BKSC, v_BKSV, mask_BQS, None, softmax)
    dtype = q_BHQC.dtype
    if inner is reference or _is_better_wide(q_BHQC, None):  # convert once, not in every block that sees a key
        q_BHQC, k_BKSC, v_BKSV = (at_least_float32(x) for x in (q_BHQC, k_BKSC, v_BKSV))
    if mask_BQS.starts_BQ is None:
        return in_stretches(q_BHQC, k_BKSC, v_BKSV, mask_BQS.stretches, softmax, inner).to(dtype)
    return _blocked_documents(q_BHQC, k_BKSC, v_BKSV, mask_BQS, softmax, inner).to(dtype)


@outside_graphs  # documents begin at other places in each batch, so each batch would be compiled
def _blocked_documents(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Visible, softmax: Softmax, inner: Kernel
) -> Tensor:
    return in_documents(q_BHQC, k_BKSC, v_BKSV, mask_BQS.documents, softmax, inner)


def products(
    q_BHQC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, mask_BQS: Mask | None, bias_BHQS: Tensor | None, softmax: Softmax
) -> Tensor:
    """Plain causal attention as batched matrix products. In bfloat16, scores and weights are rounded to bfloat16."""
    return causal_products(q_BHQC, k_BKSC, v_BKSV, softmax.scale)


KERNELS: dict[KernelName, Kernel] = {
    "flex": flex,
    "blocked": blocked,
    "products": products,
    "sdpa": sdpa,
    "reference": reference,
}


def choose_kernel(name: str, needs: KernelNeeds) -> Kernel:
    """Return the kernel with this name; `auto` chooses one. Raise UserError if it cannot compute this attention."""
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
    """Return the kernel requirements of one call: the layer's requirements, completed with the call's tensors."""
    tensors = (x for x in (q, k, v, bias, sinks) if x is not None)
    return KernelNeeds(
        needs.softcap,
        needs.dropout,
        needs.bias,
        mask=mask_kind(mask),
        is_cut=isinstance(mask, Visible) and mask.is_worth_cutting,
        sinks=sinks is not None,
        cache="none" if not is_cached else "fixed" if is_compiled_step(q.shape[-2]) else "grows",
        heads_per_key=q.shape[-3] // k.shape[-3],
        widths=(q.shape[-1], v.shape[-1]),
        on_cuda=q.is_cuda,
        flex_widths=flex_widths(q.device, q.dtype),
        float64=q.dtype is torch.float64,
        gradients=torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
        queries=q.shape[-2],
        products_up_to=needs.products_up_to,
    )


def prefer_products(model: nn.Module, up_to: int) -> None:
    """Let `auto` choose the kernel `products` in training, for sequences of at most `up_to` tokens.

    On some machines, `products` is slower than other kernels. Do not call this function on them.
    """
    for module in model.modules():
        attend = getattr(module, "attend", None)
        if isinstance(attend, Attend):
            attend.needs = replace(attend.needs, products_up_to=up_to)


class Attend:
    """Attention of one layer: softmax(scale q k^T + bias) v. The layer's `Site` names the kernel."""

    def __init__(self, config: AnyAttention, site: Site) -> None:
        self.scale, self.softcap, self.dropout = config.scale, config.softcap, site.dropout.attention
        self.kernel = site.kernel
        self.needs = config.kernel_needs(site)
        choose_kernel(self.kernel, self.needs)  # to raise errors early

    def check_step(self, device: torch.device) -> None:
        """Raise UserError if the kernel cannot be a part of compiled decoding steps on this device."""
        choose_kernel(self.kernel, replace(self.needs, cache="fixed", on_cuda=device.type == "cuda"))

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
        """Return the attention output, [B, H, T, V]."""
        needs = in_call(self.needs, q_BHTC, k_BKSC, v_BKSV, bias_BHTS, sinks_H, mask=mask_BTS, is_cached=is_cached)
        softmax = Softmax(self.scale, self.softcap, self.dropout if training else 0.0, sinks_H)
        return choose_kernel(self.kernel, needs)(q_BHTC, k_BKSC, v_BKSV, mask_BTS, bias_BHTS, softmax)
