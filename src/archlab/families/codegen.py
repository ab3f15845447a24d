"""Configs and weights of CodeGen (CodeGenForCausalLM in transformers)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.families.gpt2 import ALIASES, LAYER
from archlab.families.gptj import AROUND_ATTENTION, FIELDS
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader
from archlab.hf.weight_map import QKV, Conversion, linear, stack

if TYPE_CHECKING:
    from torch import Tensor

SHARDS = 4
"""Number of TPU cores among which the heads were divided in the original training. The rows of `qkv_proj` are grouped
by core."""


def _split(theirs: "Tensor", _: LayerConfig | None) -> "Sequence[Tensor]":
    q, v, k = theirs.unflatten(0, (SHARDS, 3, -1)).unbind(1)
    return [part.flatten(0, 1) for part in (q, k, v)]


def _join(ours: "Sequence[Tensor]", _: LayerConfig | None) -> "Tensor":
    q, k, v = (part.unflatten(0, (SHARDS, -1)) for part in ours)
    return stack((q, v, k), 1).flatten(0, 2)


@dataclass(frozen=True)
class WholeHeadsPerShard:
    """Check that the number of heads is a multiple of SHARDS."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        if ours["attention.n_heads"] % SHARDS:
            raise hf.refuse("n_head", ours["attention.n_heads"], f"multiples of {SHARDS}")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key to config.json. `Family.hf_config` reads the written config back, and that runs the check."""


FAMILY = Family(
    model_type="codegen",
    architecture="CodeGenForCausalLM",
    default_max_seq_len=2048,
    fields=[*FIELDS, WholeHeadsPerShard()],
    weights=[
        *linear(f"{LAYER}.attn.qkv_proj", QKV, Conversion(_split, _join), bias=False),
        *AROUND_ATTENTION,
    ],
    ignored=(".attn.causal_mask",),
    prefix="transformer.",
    no_effect=frozenset({"n_ctx"}),
    aliases=ALIASES,
)
