"""Configs and weights of Hunyuan A13B and similar mixtures of experts (HunYuanMoEV1ForCausalLM in transformers)."""

from dataclasses import dataclass
from typing import ClassVar

from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.hunyuan_v1_dense import FAMILY as DENSE
from archlab.families.hunyuan_v1_dense import QK_NORMS, AlphaRope
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, attention_biases, rms_norm
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, ROUTER, TRAINING_ONLY
from archlab.families.qwen3 import qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only
from archlab.hf.mixture import each_expert, shared_expert
from archlab.hf.weight_map import Row


@dataclass(frozen=True)
class TopK:
    """The key `moe_topk`: the number of experts that each token passes through, for all layers or one for each."""

    hf_keys: ClassVar = {"mlp.active": "moe_topk"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the number of experts. If it differs between layers, define a layer kind for each number."""
        numbers = hf.get("moe_topk", 1, kind=object)
        if not isinstance(numbers, list):
            ours["mlp.active"] = numbers
            return
        if len(numbers) != ours["n_layers"]:
            raise hf.refuse("moe_topk", f"{len(numbers)} numbers", f"one for each of the {ours['n_layers']} layers")
        ours["mlp.active"] = numbers[0]
        if len(set(numbers)) > 1:
            kinds = {f"top_{n}": {"mlp.active": n} if n != numbers[0] else {} for n in numbers}
            ours["layers"] = kinds | {"pattern": [f"top_{number}" for number in numbers]}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write one number, or a list if the layers differ."""
        numbers = [layer.mlp.active for layer in layer_configs(model) if isinstance(layer.mlp, MoE)]
        if numbers:
            hf["moe_topk"] = numbers[0] if len(set(numbers)) == 1 else numbers


FAMILY = Family(
    model_type="hunyuan_v1_moe",
    architecture="HunYuanMoEV1ForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *rms_norm(1e-5),
        *qk_rms_norm(1e-5),
        *MIXTURE,
        Key("num_experts", "mlp.experts", 1),
        TopK(),
        Key("intermediate_size", "mlp.shared.d_ff"),
        AlphaRope(),
        Always("position.order", "before_qk_norm"),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
        Only("use_qk_norm", True, written=False),
        Only("use_cla", False, written=False),
        Only("mlp_bias", False, written=False),
        Only("norm_type", "rms", written=False),
        Only("use_rotary_pos_emb", True, written=False),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        Row("model.layers.{i}.mlp.gate.wg.weight", ROUTER),
        *each_expert("model.layers.{i}.mlp.experts"),
        *shared_expert("model.layers.{i}.mlp.shared_mlp"),
        *PRE_NORMS,
        *AROUND,
    ],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    # The published class reads none of these keys. All experts have the width `intermediate_size`.
    no_effect=DENSE.no_effect
    | TRAINING_ONLY
    | {
        "capacity_factor", "kv_lora_rank", "moe_intermediate_size", "moe_layer_num_skipped", "n_group",
        "norm_topk_prob", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "routed_scaling_factor", "topk_group",
        "use_mixed_mlp_moe", "v_head_dim",
    },
    aliases={"num_experts_per_tok": "moe_topk", "num_local_experts": "num_experts"},
)  # fmt: skip
