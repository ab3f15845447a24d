"""Attention kernels: the limits of each kernel, and how `auto` chooses one.

The costs (`any_attention.py`), the kernels themselves (`model/kernels.py`) and the record of a run
(`training/attention_kernels.py`) all use this table. This module does not import torch, so that costs can be computed
without torch.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from archlab.errors import UserError

KernelName = Literal["flex", "blocked", "products", "sdpa", "reference"]

MaskKind = Literal["causal", "none", "other"]
"""Keys that a mask hides. `causal`: exactly the keys after the query. `none`: no keys. `other`: any other keys."""


CacheKind = Literal["none", "grows", "fixed"]
"""Kind of cache from which a call reads its keys. `none`: no cache, only the tokens of the pass. `grows`: a cache from
which each call reads more keys. `fixed`: all slots of a cache, in a compiled decoding step."""


FLEX_WIDTHS = frozenset((*range(1, 129), 256))
"""Widths of a head for which `flex` runs in 16 bits on a GPU with large shared memory."""


@dataclass(frozen=True)
class KernelNeeds:
    """Features that an attention kernel must support: for all calls of a layer, or for one call with known tensors.
    Every kernel supports grouped heads and any scale."""

    softcap: bool = False
    dropout: bool = False
    bias: bool = False
    products_up_to: int = 0
    """Largest sequence length in tokens at which `products` trains faster than `sdpa` on this machine."""
    # The fields below describe a call. Before a call, the defaults are the easiest case.
    mask: MaskKind = "causal"
    """Keys that the mask hides."""
    is_cut: bool = False
    """Whether at most half of all query-key pairs are computed if the queries are divided into blocks."""
    sinks: bool = False
    cache: CacheKind = "none"
    """Source of the keys."""
    heads_per_key: int = 1
    """Number of query heads that share a key."""
    widths: tuple[int, int] = (64, 64)
    """Width of a query, and width of a value."""
    on_cuda: bool = True
    flex_widths: Collection[int] = FLEX_WIDTHS
    """Widths of a head for which `flex` runs on the GPU. Empty: it does not run there."""
    float64: bool = False
    gradients: bool = False
    queries: int = 1


@dataclass(frozen=True)
class KernelRules:
    """Limits of one attention kernel, and which query-key pairs it computes."""

    lacks: Callable[[KernelNeeds], str | None]
    """Function that returns a required feature that the kernel does not support, such as `dropout`. It returns None if
    the kernel supports all required features."""
    suits: Callable[[KernelNeeds], bool]
    """Function that returns whether `auto` may choose the kernel if the kernel supports all required features."""
    pairs: Callable[[KernelNeeds], Literal["visible", "blocks", "all"]]
    """Function that returns which query-key pairs the kernel computes: `visible` pairs only, the pairs of `blocks` of
    queries, or `all` pairs."""


def _products_lack(needs: KernelNeeds) -> str | None:
    needed = {"softcap": needs.softcap, "dropout": needs.dropout, "bias": needs.bias, "masks": needs.mask != "causal"}
    return next((name for name, is_asked in (needed | {"sinks": needs.sinks}).items() if is_asked), None)


def _products_suit(needs: KernelNeeds) -> bool:
    """Return whether `auto` may choose `products`. The choice depends on the speed of the machine, so `auto` makes it
    only in training. Evaluation results of a trained model then differ between machines by float32 rounding at most."""
    return needs.gradients and needs.queries <= needs.products_up_to


def _flex_lacks(needs: KernelNeeds) -> str | None:
    if needs.dropout:
        return "dropout"
    if needs.float64:
        return "float64"
    if needs.on_cuda:
        if not needs.flex_widths:
            return "GPUs with a compute capability below 8.0, or without a C++ compiler"
        if max(needs.widths) not in needs.flex_widths:
            return f"heads of width {max(needs.widths)} in this dtype on this GPU"
        return "heads below a width of 16 on cuda" if min(needs.widths) < 16 else None
    on_cpu = {"gradients": needs.gradients, "sinks": needs.sinks, "compiled decoding": needs.cache == "fixed"}
    return next((f"{name} on cpu" for name, is_asked in on_cpu.items() if is_asked), None)


def _flex_suits(needs: KernelNeeds) -> bool:
    """Return whether flex is worth its compile time, because torch's fused kernel lacks a feature or would compute
    masked pairs.

    With sinks, keys are wider than values, and torch's fused kernel then repeats the keys that query heads share. In a
    compiled decoding step, flex divides the keys of a head among the processors of the GPU if `heads_per_key` is a
    power of two. With a soft cap, it is chosen in any case, because the alternative is `reference`. It is not chosen
    with a cache that grows, because it compiles for every shape. It is not chosen on a CPU, where it needs a C++
    compiler. On a GPU, flex is slow with a learned bias.
    """
    is_wanted = needs.softcap or needs.sinks or needs.mask == "other"
    divides_keys = needs.heads_per_key.bit_count() == 1
    is_worth_compiling = {"none": True, "fixed": divides_keys or needs.softcap, "grows": False}
    return is_wanted and needs.on_cuda and is_worth_compiling[needs.cache] and not needs.bias


RULES: dict[KernelName, KernelRules] = {
    "flex": KernelRules(_flex_lacks, _flex_suits, pairs=lambda needs: "visible"),
    "blocked": KernelRules(
        lacks=lambda needs: "bias" if needs.bias else None,
        suits=lambda needs: needs.is_cut,
        pairs=lambda needs: "blocks" if needs.is_cut else "all",
    ),
    "products": KernelRules(_products_lack, _products_suit, pairs=lambda needs: "visible"),
    "sdpa": KernelRules(
        lacks=lambda needs: "softcap" if needs.softcap else None,
        suits=lambda needs: True,
        # Torch's fused kernel for CPUs has no dropout; the operations used instead compute the whole square.
        pairs=lambda needs: (
            "all" if needs.mask == "other" or needs.bias or (needs.dropout and not needs.on_cuda) else "visible"
        ),
    ),
    "reference": KernelRules(lacks=lambda needs: None, suits=lambda needs: True, pairs=lambda needs: "all"),
}
"""Attention kernels by name, in the order in which `auto` prefers them."""


def kernel_for(name: str, needs: KernelNeeds) -> KernelName:
    """Return the kernel called `name`. For `auto`, return the first kernel that supports all required features and
    suits them. Raise UserError if the named kernel does not support a required feature."""
    if name == "auto":
        return next(kernel for kernel, rules in RULES.items() if rules.suits(needs) and rules.lacks(needs) is None)
    if name not in RULES:
        raise UserError(f"unknown kernel {name!r}; allowed: auto, {', '.join(RULES)}")
    capable: dict[str, KernelName] = {kernel: kernel for kernel, rules in RULES.items() if rules.lacks(needs) is None}
    if name not in capable:
        lacking = RULES[name].lacks(needs)
        raise UserError(f"kernel {name} does not support {lacking}; allowed: auto, {', '.join(capable)}")
    return capable[name]


def writes_scores(needs: KernelNeeds) -> bool:
    """Return whether the CPU kernel writes all scores to memory. The kernel `reference` does, and so does torch's
    attention with dropout."""
    return RULES["sdpa"].lacks(needs) is not None or needs.dropout
