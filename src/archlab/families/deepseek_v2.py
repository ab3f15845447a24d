"""Configs and weights of DeepSeek V2 (DeepseekV2ForCausalLM in transformers): latent attention and a mixture of
experts.
"""

from dataclasses import dataclass
from typing import ClassVar

from archlab.config.components.moe import MoE
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.glm4_moe import EXPERTS
from archlab.families.llama import AROUND, PRE_NORMS, RMS_NORM, WIDTHS
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.latent import LATENT, LATENT_WEIGHTS, LatentHeads, LatentRope
from archlab.hf.mixture import GROUP_HF_KEYS, SharedExperts, first_dense


@dataclass(frozen=True)
class TopKMethod:
    """The keys `topk_method`, `n_group` and `topk_group`. The last two have an effect only if `topk_method` is
    group_limited_greedy."""

    hf_keys: ClassVar = GROUP_HF_KEYS

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        method, n, kept = hf.get("topk_method", "greedy"), hf.get("n_group", kind=int), hf.get("topk_group", kind=int)
        if method not in ("greedy", "group_limited_greedy"):
            raise hf.refuse("topk_method", method, "greedy, group_limited_greedy")
        limits = method == "group_limited_greedy" and hf.need("topk_group") < hf.need("n_group")
        if method == "group_limited_greedy" and kept > n:
            raise hf.refuse("topk_group", kept, f"up to n_group, {n}")
        ours["mlp.router.groups"] = {"n": n, "kept": kept, "by": "max"} if limits else None

    def write(self, model: ModelConfig, hf: Raw) -> None:
        groups = model.mlp.router.groups if isinstance(model.mlp, MoE) else None
        hf["topk_method"] = "group_limited_greedy" if groups else "greedy"
        hf["n_group"], hf["topk_group"] = (groups.n, groups.kept) if groups else (None, None)
        hf.setdefault("num_experts_per_tok", 1)  # required even if all layers are dense


FAMILY = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *WIDTHS,
        *LATENT,
        LatentHeads(),
        *RMS_NORM,
        *MIXTURE,
        Always("mlp.router.normalise", False),
        Key("n_routed_experts", "mlp.experts", 64),
        Key("num_experts_per_tok", "mlp.active"),
        Key("moe_intermediate_size", "mlp.d_ff", 1407),
        Key("routed_scaling_factor", "mlp.router.factor", 1.0, from_hf=float),
        TopKMethod(),
        SharedExperts("n_shared_experts", 2, bias_key="mlp_bias"),
        LatentRope(),
        Key("tie_word_embeddings", "head.tied", False),
        first_dense(0, bias_key="mlp_bias"),
    ],
    weights=[*LATENT_WEIGHTS, *EXPERTS, *PRE_NORMS, *AROUND],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY
    | {"qk_head_dim", "scoring_func", "norm_topk_prob", "aux_loss_alpha", "seq_aux", "moe_layer_freq", "ep_size"},
    aliases={"num_experts": "n_routed_experts"},
)
