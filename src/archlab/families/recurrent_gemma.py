"""Configs and weights of RecurrentGemma (RecurrentGemmaForCausalLM in transformers): RG-LRU in most layers, attention
with a sliding window in the others.
"""

import math
from dataclasses import dataclass

from archlab.config.components.rglru import RGLRU
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import SIZES
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only, unread
from archlab.hf.layer_types import FULL, LINEAR, MixerLayers
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import TRANSPOSE, Conversion, Row, linear


@dataclass(frozen=True)
class EmbeddingScale:
    """Factor of the embedding: the square root of d_model, rounded to bfloat16 in every dtype."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        significand, exponent = math.frexp(math.sqrt(ours["d_model"]))
        ours["embedding.scale"] = math.ldexp(round(significand * 256), exponent - 8)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key. `Family.hf_config` reads the written config back and refuses another factor."""


@dataclass(frozen=True)
class Sizes:
    """The keys `lru_width` and `num_attention_heads` in layers with RG-LRU, which has one group of channels per head
    of attention."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours["mixer.lru_width"] = hf.get("lru_width", hf.need("hidden_size"))
        ours["mixer.n_heads"] = hf.need("num_attention_heads")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.mixer, RGLRU):
            hf["lru_width"] = model.mixer.lru_width
            hf.setdefault("num_attention_heads", model.mixer.n_heads)


class BlockTypes(MixerLayers):
    """The key `block_types`: the kinds of the first layers, which all other layers repeat."""

    def types(self, hf: ConfigReader, n_layers: int) -> list[str]:
        """Return the type of each layer. Here, `full_attention` stands for the model's attention, which has a window.

        Raise UserError if no layer has attention, because the published code then has no cache.
        """
        kinds = hf.get("block_types", ["recurrent", "recurrent", "attention"])
        if unknown := set(kinds) - {"recurrent", "attention"}:
            raise hf.refuse("block_types", min(unknown, key=str), "recurrent, attention")
        types = [LINEAR if kinds[i % len(kinds)] == "recurrent" else FULL for i in range(n_layers)]
        if FULL not in types:
            raise hf.refuse("block_types", kinds, "a list with attention in at least one layer")
        return types

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        hf["block_types"] = ["recurrent" if kind == LINEAR else "attention" for kind in hf.pop("layer_types")]


LAYER = "model.layers.{i}"
BLOCK = f"{LAYER}.temporal_block"
MIXER = "layers.{i}.mixer"


def _n_groups(layer: LayerConfig | None) -> int:
    assert layer is not None
    assert isinstance(layer.mixer, RGLRU)
    return layer.mixer.n_heads


GROUPS = Conversion(
    lambda theirs, _: [theirs.flatten()],
    lambda ours, layer: ours[0].unflatten(0, (_n_groups(layer), -1)),
)
"""Conversion between a published tensor [groups, channels of a group] and a parameter [channels]."""

FAMILY = Family(
    model_type="recurrent_gemma",
    architecture="RecurrentGemmaForCausalLM",
    fields=[
        *(part for part in SIZES if part.field not in ("mlp.d_ff", "max_seq_len")),
        Key("max_position_embeddings", "max_seq_len", 8192),  # published files do not contain this key
        Always("norm.kind", "rmsnorm"),
        Always("norm.unit_offset", True),
        Key("rms_norm_eps", "norm.eps", 1e-6),
        EmbeddingScale(),
        unread("embeddings_scale_by_sqrt_dim", True),
        Always("mlp.kind", "gated"),
        Always("mlp.bias", True),
        Always("mlp.activation", "gelu_tanh"),
        Only(
            "hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh, the only activation after the gate of RG-LRU"
        ),
        Key("intermediate_size", "mlp.d_ff", 7680, from_hf=lambda width: width // 2, to_hf=lambda width: 2 * width),
        Key("attention_window_size", "attention.window", 2048),
        Key("attention_bias", "attention.qkv_bias", False),
        Always("attention.out_bias", True),
        RopeKeys(fraction=0.5),
        BlockTypes(LINEAR, (Always("mixer.kind", "rglru"), Sizes(), Key("conv1d_width", "mixer.taps", 4))),
        Key("logits_soft_cap", "head.softcap", 30.0),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        *linear(f"{LAYER}.temporal_pre_norm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.temporal_pre_norm", "layers.{i}.mixer_norms.before"),
        *linear(f"{BLOCK}.q_proj", "layers.{i}.attention.q"),
        *linear(f"{BLOCK}.k_proj", "layers.{i}.attention.k"),
        *linear(f"{BLOCK}.v_proj", "layers.{i}.attention.v"),
        *linear(f"{BLOCK}.o_proj", "layers.{i}.attention.out"),
        *linear(f"{BLOCK}.linear_y", f"{MIXER}.gate"),
        *linear(f"{BLOCK}.linear_x", f"{MIXER}.x"),
        *linear(f"{BLOCK}.linear_out", f"{MIXER}.out"),
        *linear(f"{BLOCK}.conv_1d", f"{MIXER}.conv"),
        Row(f"{BLOCK}.rg_lru.recurrent_param", f"{MIXER}.Lambda"),
        Row(f"{BLOCK}.rg_lru.input_gate_weight", f"{MIXER}.input_gate.weight", TRANSPOSE),
        Row(f"{BLOCK}.rg_lru.input_gate_bias", f"{MIXER}.input_gate.bias", GROUPS),
        Row(f"{BLOCK}.rg_lru.recurrent_gate_weight", f"{MIXER}.forget_gate.weight", TRANSPOSE),
        Row(f"{BLOCK}.rg_lru.recurrent_gate_bias", f"{MIXER}.forget_gate.bias", GROUPS),
        *linear(f"{LAYER}.channel_pre_norm", "layers.{i}.mlp_norms.before"),
        *linear(f"{LAYER}.mlp_block.gate_proj", "layers.{i}.mlp.gate"),
        *linear(f"{LAYER}.mlp_block.up_proj", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp_block.down_proj", "layers.{i}.mlp.down"),
        Row("model.embed_tokens.weight", "embedding.weight"),
        *linear("model.final_norm", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    ignored=("normalizer",),
    prefix="model.",
    # keys for the initialization of parameters
    no_effect=frozenset({"w_init_variance_scale", "final_w_init_variance_scale"}),
)
