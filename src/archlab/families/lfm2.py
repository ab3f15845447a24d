"""Configs and weights of LFM2 (Lfm2ForCausalLM in transformers)."""

from collections.abc import Callable
from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import SIZES, kv_heads
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only, lookup
from archlab.hf.layer_types import FULL, MixerLayers
from archlab.hf.repeated import RepeatedKeys
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row, linear, stacked

CONV = "conv"


@dataclass(frozen=True)
class Width:
    """Width of the MLP.

    If `block_auto_adjust_ff_dim` is true, the width is 2/3 * intermediate_size * block_ffn_dim_multiplier, rounded up
    to a multiple of `block_multiple_of`. Otherwise, it is `intermediate_size`.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        width, multiple = hf.get("intermediate_size", 12288), hf.get("block_multiple_of", 256)
        factor = hf.or_null("block_ffn_dim_multiplier", 1.0)
        if hf.get("block_auto_adjust_ff_dim", True):
            width = int(2 * width / 3)
            if factor is not None:
                width = multiple * ((int(factor * width) + multiple - 1) // multiple)
        ours["mlp.d_ff"] = width

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["intermediate_size"], hf["block_auto_adjust_ff_dim"] = lookup(model, "mlp.d_ff"), False


def repeated(_hf: ConfigReader, layers: list[Raw]) -> Raw:
    """Return the right values of the keys that repeat what other keys say."""
    first = layers[0]
    return {
        **dict.fromkeys(("block_dim", "conv_dim", "conv_dim_out"), first["d_model"]),
        "num_heads": first["attention.n_heads"],
        "block_norm_eps": first["norm.eps"],
        "theta": first["position"]["theta"],
    }


def types_of(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer.

    The layers in `full_attn_idxs` have attention. If that key is absent, all layers have attention.
    """
    full = hf.get("full_attn_idxs", list(range(n_layers)))
    return [FULL if i in full else CONV for i in range(n_layers)]


LAYER = "model.layers.{i}"
IN = tuple(f"layers.{{i}}.mixer.{name}" for name in ("input_gate", "output_gate", "x"))
THIRDS = stacked(lambda layer: [layer.d_model] * 3)

WIDTHS = tuple(part for part in SIZES if part.field not in ("mlp.d_ff", "attention.head_dim"))

NORMS = (
    Always("norm.kind", "rmsnorm"),
    Always("norm.cast", "before_weight"),
    Key("norm_eps", "norm.eps", 1e-5),
    Always("attention.qk_norm.kind", "rmsnorm"),
    Always("attention.qk_norm.cast", "before_weight"),
    Key("norm_eps", "attention.qk_norm.eps", 1e-5),
)


def conv_layers(implied: Callable[[ConfigReader, int], list[str]]) -> MixerLayers:
    """Return the translation of the layer types. `implied` returns them for a config.json without `layer_types`."""
    keys = (
        Always("mixer.kind", "short_conv"),
        Key("conv_L_cache", "mixer.taps", 3),
        Key("conv_bias", "mixer.bias", False),
    )
    return MixerLayers(CONV, keys, implied)


WEIGHTS = [
    Row("model.embed_tokens.weight", "embedding.weight"),
    *linear(f"{LAYER}.operator_norm", "layers.{i}.attention_norms.before"),
    *linear(f"{LAYER}.operator_norm", "layers.{i}.mixer_norms.before"),
    *linear(f"{LAYER}.self_attn.q_proj", "layers.{i}.attention.q"),
    *linear(f"{LAYER}.self_attn.k_proj", "layers.{i}.attention.k"),
    *linear(f"{LAYER}.self_attn.v_proj", "layers.{i}.attention.v"),
    *linear(f"{LAYER}.self_attn.out_proj", "layers.{i}.attention.out"),
    *linear(f"{LAYER}.self_attn.q_layernorm", "layers.{i}.attention.q_norm.norm"),
    *linear(f"{LAYER}.self_attn.k_layernorm", "layers.{i}.attention.k_norm.norm"),
    *linear(f"{LAYER}.conv.in_proj", IN, THIRDS),
    *linear(f"{LAYER}.conv.conv", "layers.{i}.mixer.conv"),
    *linear(f"{LAYER}.conv.out_proj", "layers.{i}.mixer.out"),
    *linear(f"{LAYER}.ffn_norm", "layers.{i}.mlp_norms.before"),
    *linear(f"{LAYER}.feed_forward.w1", "layers.{i}.mlp.gate"),
    *linear(f"{LAYER}.feed_forward.w3", "layers.{i}.mlp.up"),
    *linear(f"{LAYER}.feed_forward.w2", "layers.{i}.mlp.down"),
    *linear("model.embedding_norm", "norm"),
    Row("lm_head.weight", "head.weight"),
]

FAMILY = Family(
    model_type="lfm2",
    architecture="Lfm2ForCausalLM",
    default_max_seq_len=128000,
    fields=[
        *WIDTHS,
        kv_heads(8),
        Width(),
        *NORMS,
        Always("mlp.kind", "gated"),
        Always("mlp.activation", "silu"),
        RopeKeys(theta=1e6),
        RepeatedKeys(repeated),
        Only("block_use_swiglu", True, written=False),
        Only("use_pos_enc", True, written=False),
        conv_layers(types_of),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=WEIGHTS,
    prefix="model.",
    no_effect=frozenset({
        "block_multiple_of", "block_ffn_dim_multiplier", "full_attn_idxs",
        # keys for the initialization of parameters
        "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init",
    }),
    aliases={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
)  # fmt: skip
