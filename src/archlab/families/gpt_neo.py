"""Configs and weights of GPT-Neo (GPTNeoForCausalLM in transformers)."""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.gpt2 import LAYER, LAYER_NORM, PRE_NORMS, PlainMLP
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Key
from archlab.hf.weight_map import Row, linear

GLOBAL, LOCAL = "global", "local"


@dataclass(frozen=True)
class AttentionTypes:
    """The keys for the attention type of each layer (global, or local with a sliding window) and for the window.

    `attention_types` is [[["global", "local"], 12]] if 24 layers alternate. `attention_layers` contains the same types
    as a list with one entry per layer.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        runs = hf.get("attention_types", [[[GLOBAL, LOCAL], 12]])
        types = [name for names, times in runs for _ in range(times) for name in names]
        if hf.get("attention_layers", types) != types:
            raise hf.refuse("attention_layers", hf.get("attention_layers"), f"{types}, as in attention_types")
        unknown = sorted(set(types) - {GLOBAL, LOCAL})
        if unknown or len(types) != ours["n_layers"]:
            raise hf.refuse("attention_types", runs, f"{GLOBAL} or {LOCAL} for each of the {ours['n_layers']} layers")
        window = {"attention.window": hf.get("window_size", 256)}
        if GLOBAL in types and LOCAL in types:
            ours["layers"] = {GLOBAL: {}, LOCAL: window, "pattern": types}
        elif LOCAL in types:
            ours |= window

    def write(self, model: ModelConfig, hf: Raw) -> None:
        windows = [layer.multi_head.window for layer in layer_configs(model)]
        hf["attention_layers"] = [GLOBAL if window is None else LOCAL for window in windows]
        hf["attention_types"] = [[hf["attention_layers"], 1]]
        hf["window_size"] = next((window for window in windows if window is not None), 256)


FAMILY = Family(
    model_type="gpt_neo",
    architecture="GPTNeoForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_layers", "n_layers"),
        Key("max_position_embeddings", "max_seq_len", 2048),
        Always("position.kind", "learned"),
        Key("num_heads", "attention.n_heads"),
        AttentionTypes(),
        Always("attention.scale", 1.0),
        Always("attention.out_bias", True),
        PlainMLP("intermediate_size"),
        Always("mlp.bias", True),
        ActivationKey("activation_function", "gelu_new"),
        *LAYER_NORM,
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("transformer.wte.weight", "embedding.weight"),
        Row("transformer.wpe.weight", "positions.weight"),
        *linear(f"{LAYER}.attn.attention.q_proj", "layers.{i}.attention.q", bias=False),
        *linear(f"{LAYER}.attn.attention.k_proj", "layers.{i}.attention.k", bias=False),
        *linear(f"{LAYER}.attn.attention.v_proj", "layers.{i}.attention.v", bias=False),
        *linear(f"{LAYER}.attn.attention.out_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.mlp.c_fc", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.c_proj", "layers.{i}.mlp.down"),
        *PRE_NORMS,
        Row("lm_head.weight", "head.weight"),
    ],
    ignored=(".attn.attention.bias", ".attn.attention.masked_bias"),
    prefix="transformer.",
    no_effect=frozenset({"resid_dropout", "embed_dropout", "classifier_dropout"}),
    aliases={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
)
