"""Configs and weights of nanochat (NanoChatForCausalLM in transformers)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.families.llama import AROUND, SIZES, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Field, Key
from archlab.hf.rope import RopeKeys, before_bare_qk_norm
from archlab.hf.weight_map import Conversion, linear

if TYPE_CHECKING:
    from torch import Tensor


class RopeBeforeNorm(RopeKeys):
    """RoPE that is applied before the norm of queries and keys, which has no weight."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        super().read(hf, ours)
        ours[self.field] = before_bare_qk_norm(ours[self.field])


def bare_rms_norm(field: str) -> tuple[Field, ...]:
    """Return the fields of an RMSNorm without a weight. Its epsilon is the key `rms_norm_eps`, which all norms
    share."""
    return (
        Always(f"{field}.kind", "rmsnorm"),
        Always(f"{field}.weight", False),
        Key("rms_norm_eps", f"{field}.eps", 1e-6),
    )


def _swapped(rows: "Tensor", layer: LayerConfig | None) -> "Tensor":
    """Swap the first and the second half of the rows of each head.

    The published code rotates queries and keys in the opposite direction. With swapped halves, archlab's rotation gives
    the same attention scores.
    """
    assert layer is not None
    return rows.unflatten(0, (-1, 2, layer.multi_head.head_dim // 2)).flip(1).flatten(0, 2)


def _split(theirs: "Tensor", layer: LayerConfig | None) -> "Sequence[Tensor]":
    return [_swapped(theirs, layer)]


def _join(ours: "Sequence[Tensor]", layer: LayerConfig | None) -> "Tensor":
    return _swapped(ours[0], layer)


SWAPPED_HALVES = Conversion(_split, _join)

FAMILY = Family(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *bare_rms_norm("norm"),
        *bare_rms_norm("attention.qk_norm"),
        Always("embedding.norm", True),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "relu2"),
        RopeBeforeNorm(),
        *attention_biases(),
        Key("final_logit_softcapping", "head.softcap", 15.0, nullable=True),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *linear("model.layers.{i}.self_attn.q_proj", "layers.{i}.attention.q", SWAPPED_HALVES),
        *linear("model.layers.{i}.self_attn.k_proj", "layers.{i}.attention.k", SWAPPED_HALVES),
        *linear("model.layers.{i}.self_attn.v_proj", "layers.{i}.attention.v"),
        *linear("model.layers.{i}.self_attn.o_proj", "layers.{i}.attention.out"),
        *linear("model.layers.{i}.mlp.fc1", "layers.{i}.mlp.up"),
        *linear("model.layers.{i}.mlp.fc2", "layers.{i}.mlp.down"),
        *AROUND,
    ],
    prefix="model.",
)
