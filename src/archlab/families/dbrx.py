"""Configs and weights of DBRX (DbrxForCausalLM in transformers): layer norms without biases, clipped queries, keys and
values, and a mixture of experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.families.mixtral import ROUTER
from archlab.families.mpt import LAYER, Nested
from archlab.hf.family import NO_EFFECT, Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Key, Only, lookup
from archlab.hf.mixture import n_experts
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import QKV, QKV_BLOCKS, Conversion, Row, linear


@dataclass(frozen=True)
class InnerTheta:
    """The key `attn_config.rope_theta`. The published code requires it, but uses theta outside `attn_config`."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the two values differ. RoPE must already have been read."""
        theta = ours["position"]["theta"]
        if (inner := hf.get("rope_theta", theta)) != theta:
            raise hf.refuse(
                "rope_theta", inner, f"{theta}, the value outside attn_config, which the published code uses"
            )

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.position, Rope):
            hf["rope_theta"] = model.position.theta


@dataclass(frozen=True)
class Activation(ActivationKey):
    """The object `ffn_act_fn`, which contains the name of the activation."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        inner = ConfigReader(hf.get(self.hf_key, {}), f"{hf.where}: {self.hf_key}")
        ActivationKey("name", self.default).read(inner, ours)
        if unknown := inner.unread():
            raise hf.refuse(self.hf_key, unknown, "only the key name")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf[self.hf_key] = {}
        ActivationKey("name", self.default).write(model, hf[self.hf_key])


@dataclass(frozen=True)
class ExpertWeights:
    """The key `moe_normalize_expert_weights`: 1 if weights are divided by their sum, null if they are not."""

    hf_key: str = "moe_normalize_expert_weights"

    @property
    def limits(self) -> Mapping[str, str]:
        return {self.hf_key: "1.0 or null"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError for other numbers, which mean that weights are divided by another norm."""
        if (power := hf.or_null(self.hf_key, 1.0)) not in (1.0, None):
            raise hf.refuse(self.hf_key, power, "1.0, null, because archlab divides weights by their sum only")
        ours["mlp.router.normalise"] = power is not None

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf[self.hf_key] = 1.0 if lookup(model, "mlp.router.normalise") is True else None


def _experts(layer: LayerConfig | None) -> int:
    assert layer is not None
    return n_experts(layer)


EXPERT_ROWS = Conversion(
    lambda theirs, layer: [theirs.unflatten(0, (_experts(layer), -1))],
    lambda ours, _: ours[0].flatten(0, 1),
)
"""Conversion between a published tensor [experts * d_ff, d_model] and a parameter [experts, d_ff, d_model]."""

EXPERT_COLUMNS = Conversion(
    lambda theirs, layer: [theirs.unflatten(0, (_experts(layer), -1)).mT],
    lambda ours, _: ours[0].mT.flatten(0, 1),
)
"""Conversion between a published tensor [experts * d_ff, d_model] and a parameter [experts, d_model, d_ff]."""

ATTENTION = Nested(
    "attn_config",
    [
        Key("kv_n_heads", "attention.n_kv_heads", 1),
        Key("clip_qkv", "attention.clip_qkv"),
        InnerTheta(),
    ],
    NO_EFFECT,
)

FFN = Nested(
    "ffn_config",
    [
        Activation("ffn_act_fn", "silu"),
        Key("ffn_hidden_size", "mlp.d_ff", 3584),
        Key("moe_num_experts", "mlp.experts", 4),
        Key("moe_top_k", "mlp.active", 1),
        ExpertWeights(),
    ],
    # The published code replaces hidden_size by d_model, and reads the other two keys only in training.
    NO_EFFECT | {"hidden_size", "moe_jitter_eps", "moe_loss_weight"},
)

FAMILY = Family(
    model_type="dbrx",
    architecture="DbrxForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("d_model", "d_model"),
        Key("n_layers", "n_layers"),
        Key("max_seq_len", "max_seq_len", 2048),
        Key("n_heads", "attention.n_heads"),
        Always("norm.kind", "layernorm"),
        Always("norm.bias", False),
        Always("norm.eps", 1e-5),
        RopeKeys(),
        ATTENTION,
        Always("mlp.kind", "moe"),
        FFN,
        Only("tie_word_embeddings", False, "false, because the published class refuses true"),
        Always("head.tied", False),
    ],
    weights=[
        Row("transformer.wte.weight", "embedding.weight"),
        *linear(f"{LAYER}.norm_attn_norm.norm_1", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.norm_attn_norm.attn.Wqkv", QKV, QKV_BLOCKS),
        *linear(f"{LAYER}.norm_attn_norm.attn.out_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.norm_attn_norm.norm_2", "layers.{i}.mlp_norms.before"),
        Row(f"{LAYER}.ffn.router.layer.weight", ROUTER),
        Row(f"{LAYER}.ffn.experts.mlp.w1", "layers.{i}.mlp.experts.gate", EXPERT_ROWS),
        Row(f"{LAYER}.ffn.experts.mlp.v1", "layers.{i}.mlp.experts.up", EXPERT_ROWS),
        Row(f"{LAYER}.ffn.experts.mlp.w2", "layers.{i}.mlp.experts.down", EXPERT_COLUMNS),
        *linear("transformer.norm_f", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="transformer.",
    no_effect=frozenset({"output_router_logits", "emb_pdrop", "num_key_value_heads"}),
    aliases={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
)
