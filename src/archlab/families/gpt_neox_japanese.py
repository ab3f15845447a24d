"""Configs and weights of GPT-NeoX Japanese (GPTNeoXJapaneseForCausalLM in transformers): only the last layer has a
bias, after attention.
"""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import QKV, QKV_PER_HEAD, Row, linear

LAYER = "gpt_neox_japanese.layers.{i}"


@dataclass(frozen=True)
class Multiple:
    """Key `intermediate_multiple_size`, the width of the MLP divided by d_model."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours["mlp.d_ff"] = ours["d_model"] * hf.get("intermediate_multiple_size", 4)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the quotient, rounded down. `Family.hf_config` reads it back and refuses a width that is no
        multiple."""
        hf["intermediate_multiple_size"] = model.dense.d_ff // model.d_model


@dataclass(frozen=True)
class LastBias:
    """Bias after attention in the last layer. config.json has no key for it."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        others = ours["n_layers"] - 1
        ours["attention.out_bias"] = not others
        if others:
            pattern = ["inner"] * others + ["last"]
            ours["layers"] = {"inner": {}, "last": {"attention.out_bias": True}, "pattern": pattern}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key. `Family.hf_config` reads the config back and refuses a model with other biases."""


FAMILY = Family(
    model_type="gpt_neox_japanese",
    architecture="GPTNeoXJapaneseForCausalLM",
    default_max_seq_len=2048,
    fields=[
        Key("vocab_size", "vocab_size", 32000),
        Key("hidden_size", "d_model", 2560),
        Key("num_hidden_layers", "n_layers", 32),
        Key("max_position_embeddings", "max_seq_len"),
        Key("num_attention_heads", "attention.n_heads", 32),
        Multiple(),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "gelu"),
        Always("norm.kind", "layernorm"),
        Key("layer_norm_eps", "norm.eps", 1e-5),
        RopeKeys(partial=True, theta_key="rotary_emb_base", fraction_key="rotary_pct"),
        Key("tie_word_embeddings", "head.tied", True),
        LastBias(),
    ],
    weights=[
        Row("gpt_neox_japanese.embed_in.weight", "embedding.weight"),
        *linear(f"{LAYER}.attention.query_key_value", QKV, QKV_PER_HEAD),
        Row(f"{LAYER}.attention.dense.weight", "layers.{i}.attention.out.weight"),
        Row(f"{LAYER}.attention.dense_bias", "layers.{i}.attention.out.bias"),
        *linear(f"{LAYER}.mlp.dense_h_to_4h", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.dense_4h_to_h", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.post_attention_layernorm", "layers.{i}.mlp_norms.before"),
        *linear("gpt_neox_japanese.final_layer_norm", "norm"),
        Row("embed_out.weight", "head.weight"),
    ],
    ignored=(".attention.bias", ".attention.masked_bias"),
    prefix="gpt_neox_japanese.",
)
