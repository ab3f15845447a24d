"""Configs and weights of MPT (MptForCausalLM in transformers)."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.families.gpt2 import LAYER_NORM, PlainMLP
from archlab.hf.family import NO_EFFECT, Family
from archlab.hf.fields import Always, ConfigReader, Field, Key, Only, all_limits
from archlab.hf.weight_map import QKV, QKV_BLOCKS, Row, linear

LAYER = "transformer.blocks.{i}"


@dataclass(frozen=True)
class Nested:
    """Fields whose keys are in an object inside config.json, such as `attn_config`."""

    hf_key: str
    fields: Sequence[Field]
    no_effect: Set[str]

    @property
    def limits(self) -> Mapping[str, str]:
        return {f"{self.hf_key}.{key}": values for key, values in all_limits(self.fields).items()}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Read the fields. Raise UserError if the inner object contains unknown keys."""
        inner = ConfigReader(hf.get(self.hf_key, {}), f"{hf.where}: {self.hf_key}")
        for part in self.fields:
            part.read(inner, ours)
        unknown = {k: v for k, v in inner.unread().items() if k not in self.no_effect and v is not None}
        if unknown:
            listed = ", ".join(f"{key} = {value!r}" for key, value in unknown.items())
            raise UserError(f"{inner.where}: archlab does not know these keys: {listed}")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf[self.hf_key] = {}
        for part in self.fields:
            part.write(model, hf[self.hf_key])


def _ignored(hf_key: str, value: object) -> Only:
    """Return the step for a key that the original code reads and that transformers ignores. With other values, the two
    would differ."""
    return Only(hf_key, value, f"{json.dumps(value)}, because transformers ignores the key")


ATTENTION = Nested(
    "attn_config",
    [
        Key("clip_qkv", "attention.clip_qkv", None, lambda clip: clip or None),
        Key("softmax_scale", "attention.scale", None),
        _ignored("alibi", True),
        _ignored("alibi_bias_max", 8),
        _ignored("qk_ln", False),
        _ignored("prefix_lm", False),
        _ignored("attn_type", "multihead_attention"),
        _ignored("attn_uses_sequence_id", False),
    ],
    NO_EFFECT | {"attn_impl"},
)

FAMILY = Family(
    model_type="mpt",
    architecture="MptForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("d_model", "d_model"),
        Key("n_layers", "n_layers"),
        Key("max_seq_len", "max_seq_len", 2048),
        Key("n_heads", "attention.n_heads"),
        ATTENTION,
        Always("position.kind", "alibi"),
        PlainMLP(),
        _ignored("expansion_ratio", 4),
        Only("norm_type", "low_precision_layernorm", written=False),
        Only("learned_pos_emb", True, written=False),
        Always("mlp.activation", "gelu"),
        *LAYER_NORM,
        Always("norm.bias", False),
        _ignored("no_bias", True),
        _ignored("logit_scale", None),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("transformer.wte.weight", "embedding.weight"),
        *linear(f"{LAYER}.attn.Wqkv", QKV, QKV_BLOCKS),
        *linear(f"{LAYER}.attn.out_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.ffn.up_proj", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.ffn.down_proj", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.norm_1", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.norm_2", "layers.{i}.mlp_norms.before"),
        *linear("transformer.norm_f", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="transformer.",
    no_effect=frozenset({
        "init_device", "init_config", "emb_pdrop", "embedding_fraction",
        "tokenizer_name", "verbose",
    }),
    aliases={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
)  # fmt: skip
