"""Configs and weights of MiMo-V2-Flash (MiMoV2FlashForCausalLM in transformers): narrow values, and layers with a
window that have sinks and twice as many key/value heads.
"""

from collections.abc import Mapping

from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.glm4_moe import EXPERTS, SIGMOID
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, kv_heads, rms_norm
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key, Only
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import GroupKeys, mlp_layer_types
from archlab.hf.repeated import RepeatedKeys
from archlab.hf.rope import scaling_kind
from archlab.hf.rope_per_type import PartialRopePerType
from archlab.hf.weight_map import Row

SINKS = "layers.{i}.attention.sinks"
FULL_THETA, SLIDING_THETA, FRACTION = 5e6, 1e4, 0.334


def types_of(_hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer. The first layer and every sixth layer have full attention."""
    return [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(n_layers)]


class Windows(LayerTypes):
    """Windows, and the key/value heads of layers with a window: twice `num_key_value_heads`."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the windows and the heads. The published files have `sliding_window_size`, which does not count the
        current token, in addition to `sliding_window`, which the published code then ignores."""
        super().read(hf, ours)
        size, n_kv_heads = hf.get("sliding_window_size", kind=int), ours["attention.n_kv_heads"]
        layers = ours.get("layers")
        sliding = layers["sliding"] if layers else ours
        if sliding.get("attention.window") is not None:
            sliding["attention.n_kv_heads"] = 2 * n_kv_heads
            if size is not None:
                sliding["attention.window"] = size + 1

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        heads = layer_configs(model)[0].multi_head
        hf["num_key_value_heads"] = heads.n_kv_heads // (1 if heads.window is None else 2)


class Rope(PartialRopePerType):
    """One RoPE for each layer type. The published files have its theta outside `rope_parameters`, where the published
    code does not read it."""

    def fraction(self, hf: ConfigReader, parameters: Raw) -> float:
        """Return the fraction of the dimensions that RoPE rotates. Its default depends on the scaling."""
        return parameters.get("partial_rotary_factor", FRACTION if scaling_kind(parameters) == "default" else 1.0)

    def nested(self, hf: ConfigReader) -> Mapping[str, Raw]:
        return hf.get("rope_parameters", self.defaults)


def repeated(hf: ConfigReader, layers: list[Raw]) -> Raw:
    """Return the right values of the keys that repeat what other keys or defaults say."""
    windows = [int(layer.get("attention.window") is not None) for layer in layers]
    thetas = {has: layer["position"]["theta"] for has, layer in zip(windows, layers, strict=True)}
    first = layers[0]
    return {
        "layernorm_epsilon": first["norm.eps"],
        "swa_num_attention_heads": first["attention.n_heads"],
        "swa_num_key_value_heads": 2 * hf.get("num_key_value_heads", 4),
        "swa_head_dim": first["attention.head_dim"],
        "swa_v_head_dim": first["attention.v_dim"],
        "rope_theta": thetas.get(0, FULL_THETA),
        "swa_rope_theta": thetas.get(1, SLIDING_THETA),
        "partial_rotary_factor": first["position"]["fraction"],
        "hybrid_layer_pattern": windows,
        "moe_layer_freq": [int(layer["mlp.kind"] == "moe") for layer in layers],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }


FAMILY = Family(
    model_type="mimo_v2_flash",
    architecture="MiMoV2FlashForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(4),
        Key("head_dim", "attention.head_dim", 192),
        Key("v_head_dim", "attention.v_dim", 128),
        Key("attention_value_scale", "block.attention_multiplier", 0.707, from_hf=float, nullable=True),
        Key("attention_bias", "attention.qkv_bias", False),
        *rms_norm(1e-5),
        *MIXTURE,
        *SIGMOID,
        Key("n_routed_experts", "mlp.experts", 256),
        Key("num_experts_per_tok", "mlp.active", 8),
        Key("moe_intermediate_size", "mlp.d_ff", 2048),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        GroupKeys(),
        Windows(types_of, window=129, sliding={"attention.sinks": True}, unused=129),
        Rope({FULL: {"rope_theta": FULL_THETA}, SLIDING: {"rope_theta": SLIDING_THETA}}),
        Key("tie_word_embeddings", "head.tied", False),
        mlp_layer_types(),
        Only("rope_scaling", None, written=False),
        Only("n_shared_experts", None, written=False),
        RepeatedKeys(repeated),
    ],
    weights=[*ATTENTION, Row("model.layers.{i}.self_attn.attention_sink_bias", SINKS), *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=[*FUSED_EXPERTS, Row("model.layers.{i}.self_attn.sinks", SINKS)],
    has_mtp_layers=True,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"attention_chunk_size", "hybrid_block_size"},
    aliases={"num_local_experts": "n_routed_experts"},
)
