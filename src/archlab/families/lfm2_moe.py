"""Configs and weights of the LFM2 mixtures of experts (Lfm2MoeForCausalLM in transformers)."""

from dataclasses import dataclass

from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw
from archlab.config.layers import resolve
from archlab.config.model_schema import ModelConfig
from archlab.families.lfm2 import LAYER, NORMS, WEIGHTS, WIDTHS, conv_layers
from archlab.families.llama import kv_heads
from archlab.families.mixtral import CORRECTION, ROUTER, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only
from archlab.hf.layer_types import all_full
from archlab.hf.mixture import all_experts, each_expert, first_dense
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row


def required(hf: ConfigReader, n_layers: int) -> list[str]:
    """Raise UserError if the file lacks `layer_types`. The published code has no default."""
    hf.need("layer_types")
    return all_full(hf, n_layers)


@dataclass(frozen=True)
class ExpertBias:
    """The key `use_expert_bias`: whether a bias per expert affects which experts are chosen."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        if hf.get("use_expert_bias", True):
            ours["mlp.router.correction.rate"] = 1e-3

    def write(self, model: ModelConfig, hf: Raw) -> None:
        mlp = resolve(model).mlp
        hf["use_expert_bias"] = isinstance(mlp, MoE) and mlp.router.correction is not None


FAMILY = Family(
    model_type="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    default_max_seq_len=128000,
    fields=[
        *WIDTHS,
        kv_heads(8),
        *NORMS,
        Always("mlp.kind", "moe"),
        Always("mlp.activation", "silu"),
        Always("mlp.router.score", "sigmoid"),
        ExpertBias(),
        Key("num_experts", "mlp.experts", 32),
        Key("num_experts_per_tok", "mlp.active", 4),
        Key("moe_intermediate_size", "mlp.d_ff", 1792),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Key("routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        RopeKeys(theta=1e6),
        Only("use_pos_enc", True, written=False),
        conv_layers(required),
        first_dense(2, key="num_dense_layers", width=7168),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        *WEIGHTS,
        Row(f"{LAYER}.feed_forward.gate.weight", ROUTER),
        Row(f"{LAYER}.feed_forward.expert_bias", CORRECTION),
        *each_expert(f"{LAYER}.feed_forward.experts", gate="w1", up="w3", down="w2"),
    ],
    alternatives=all_experts(f"{LAYER}.feed_forward.experts.gate_up_proj", f"{LAYER}.feed_forward.experts.down_proj"),
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"tie_embedding": "tie_word_embeddings", "num_local_experts": "num_experts"},
)
