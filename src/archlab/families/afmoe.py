"""Configs and weights of Arcee's Trinity models (AfmoeForCausalLM in transformers): gated attention between norms, and
a mixture of experts with a sigmoid router.
"""

from archlab.config.core.merge import Raw
from archlab.families.glm4_moe import SIGMOID
from archlab.families.llama import AROUND, ATTENTION, MLP, SIZES, attention_biases
from archlab.families.mixtral import CORRECTION, FUSED_EXPERTS, MIXTURE, ROUTER, TRAINING_ONLY
from archlab.families.qwen3 import QK_NORMS
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Flag, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import SharedExperts, each_expert, first_dense, shared_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row, linear


def types_of(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer. Every `global_attn_every_n_layers`-th layer (default: 4) has full attention."""
    period = hf.get("global_attn_every_n_layers", 4)
    return [SLIDING if (i + 1) % period else FULL for i in range(n_layers)]


class ScaledEmbedding(Flag):
    """The key `mup_enabled`: whether the embedding is multiplied by sqrt(d_model)."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        super().read(hf, ours)
        ours[self.field] = "sqrt_d_model" if ours[self.field] else 1.0


LAYER = "model.layers.{i}"
SHARED = f"{LAYER}.mlp.shared_experts"

FAMILY = Family(
    model_type="afmoe",
    architecture="AfmoeForCausalLM",
    default_max_seq_len=16384,
    fields=[
        *SIZES,
        Key("head_dim", "attention.head_dim", 128),
        Always("norm.kind", "rmsnorm"),
        Always("norm.cast", "after_weight"),
        Always("norm.placement", "double"),
        Key("rms_norm_eps", "norm.eps", 1e-5),
        Always("attention.qk_norm.kind", "rmsnorm"),
        Always("attention.qk_norm.cast", "after_weight"),
        Key("rms_norm_eps", "attention.qk_norm.eps", 1e-5),
        Always("attention.gate", {"per": "element"}),
        *attention_biases(),
        *MIXTURE,
        *SIGMOID,
        Key("num_experts", "mlp.experts", 64),
        Key("num_experts_per_tok", "mlp.active", 6),
        Key("moe_intermediate_size", "mlp.d_ff", 1408),
        Key("route_scale", "mlp.router.factor", 1.0, from_hf=float),
        SharedExperts("num_shared_experts", 2),
        ScaledEmbedding("mup_enabled", "embedding.scale", False, to_hf=lambda scale: scale != 1.0),
        RopeKeys(),
        LayerTypes(types_of, window=1024, full={"position": {"kind": "none"}}, unused=1024),
        Key("tie_word_embeddings", "head.tied", False),
        first_dense(1, key="num_dense_layers", width=6144),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        *linear(f"{LAYER}.self_attn.gate_proj", "layers.{i}.attention.gate"),
        Row(f"{LAYER}.mlp.router.gate.weight", ROUTER),
        Row(f"{LAYER}.mlp.expert_bias", CORRECTION),
        *each_expert(f"{LAYER}.mlp.experts"),
        *shared_expert(SHARED),
        *MLP,
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.post_attention_layernorm", "layers.{i}.attention_norms.after"),
        *linear(f"{LAYER}.pre_mlp_layernorm", "layers.{i}.mlp_norms.before"),
        *linear(f"{LAYER}.post_mlp_layernorm", "layers.{i}.mlp_norms.after"),
        *AROUND,
    ],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"global_attn_every_n_layers"},
    aliases={"num_local_experts": "num_experts"},
)
