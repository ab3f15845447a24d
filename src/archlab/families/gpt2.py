"""Configs and weights of GPT-2 (GPT2LMHeadModel in transformers)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.hf.family import Family
from archlab.hf.fields import NO_CROSS_ATTENTION, ActivationKey, Always, ConfigReader, Key
from archlab.hf.weight_map import QKV, QKV_BLOCKS, TRANSPOSE, Row, linear, then

LAYER = "transformer.h.{i}"

ALIASES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}  # fmt: skip

SIZES = (
    Key("vocab_size", "vocab_size"),
    Key("n_embd", "d_model"),
    Key("n_layer", "n_layers"),
    Key("n_positions", "max_seq_len"),
    Key("n_head", "attention.n_heads"),
)

LAYER_NORM = (Always("norm.kind", "layernorm"), Key("layer_norm_epsilon", "norm.eps", 1e-5))

ALWAYS_BIASED = (Always("attention.qkv_bias", True), Always("attention.out_bias", True), Always("mlp.bias", True))


@dataclass(frozen=True)
class PlainMLP:
    """MLP without a gate. Its width is 4 * d_model unless config.json contains another width."""

    hf_key: str | None = None
    """Key for the width. None if config.json has no such key in this family."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {"mlp.d_ff": self.hf_key} if self.hf_key else {}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        width = hf.get(self.hf_key, kind=int) if self.hf_key else None
        ours |= {"mlp.kind": "plain", "mlp.d_ff": width or 4 * ours["d_model"]}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if self.hf_key:
            hf[self.hf_key] = model.dense.d_ff


@dataclass(frozen=True)
class Scales:
    """Keys for the scale of attention scores.

    If `scale_attn_weights` is true, scores are divided by sqrt(head_dim). If `scale_attn_by_inverse_layer_idx` is true,
    they are also divided by the number of the layer, counted from 1.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the scale of attention scores. If each layer has a different scale, define one layer kind per layer."""
        head_dim = ours["d_model"] / ours["attention.n_heads"]
        scale = 1 / math.sqrt(head_dim) if hf.get("scale_attn_weights", True) else 1.0
        if not hf.get("scale_attn_by_inverse_layer_idx", False):
            ours["attention.scale"] = scale
            return
        kinds = {f"layer_{i}": {"attention.scale": scale / i} for i in range(1, ours["n_layers"] + 1)}
        ours["layers"] = {**kinds, "pattern": list(kinds)}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Derive both keys from the scales of the layers. `Family.hf_config` reads them back and refuses scales that
        they cannot express."""
        scales = [layer.multi_head.scale for layer in layer_configs(model)]
        hf["scale_attn_weights"] = scales[0] != 1.0
        hf["scale_attn_by_inverse_layer_idx"] = len(set(scales)) > 1


BRANCHES = [
    Row(f"{LAYER}.attn.c_attn.weight", tuple(f"{name}.weight" for name in QKV), then(TRANSPOSE, QKV_BLOCKS)),
    Row(f"{LAYER}.attn.c_attn.bias", tuple(f"{name}.bias" for name in QKV), QKV_BLOCKS),
    Row(f"{LAYER}.attn.c_proj.weight", "layers.{i}.attention.out.weight", TRANSPOSE),
    Row(f"{LAYER}.attn.c_proj.bias", "layers.{i}.attention.out.bias"),
    Row(f"{LAYER}.mlp.c_fc.weight", "layers.{i}.mlp.up.weight", TRANSPOSE),
    Row(f"{LAYER}.mlp.c_fc.bias", "layers.{i}.mlp.up.bias"),
    Row(f"{LAYER}.mlp.c_proj.weight", "layers.{i}.mlp.down.weight", TRANSPOSE),
    Row(f"{LAYER}.mlp.c_proj.bias", "layers.{i}.mlp.down.bias"),
]

PRE_NORMS = [
    *linear(f"{LAYER}.ln_1", "layers.{i}.attention_norms.before"),
    *linear(f"{LAYER}.ln_2", "layers.{i}.mlp_norms.before"),
    *linear("transformer.ln_f", "norm"),
]

IGNORED = (".attn.bias", ".attn.masked_bias")
"""Name suffixes of causal masks, which old weights files contain as tensors."""

FAMILY = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    default_max_seq_len=1024,
    fields=[
        *SIZES,
        PlainMLP("n_inner"),
        ActivationKey("activation_function", "gelu_new"),
        *LAYER_NORM,
        Always("position.kind", "learned"),
        *ALWAYS_BIASED,
        Scales(),
        Key("tie_word_embeddings", "head.tied", True),
        NO_CROSS_ATTENTION,
    ],
    weights=[
        Row("transformer.wte.weight", "embedding.weight"),
        Row("transformer.wpe.weight", "positions.weight"),
        *BRANCHES,
        *PRE_NORMS,
        Row("lm_head.weight", "head.weight"),
    ],
    ignored=IGNORED,
    prefix="transformer.",
    other_model_types=("gpt-sw3",),
    no_effect=frozenset({"n_ctx", "reorder_and_upcast_attn"}),  # archlab always computes scores in float32
    aliases=ALIASES,
)
