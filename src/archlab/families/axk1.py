"""Configs and weights of A.X K1 (AXK1ForCausalLM in transformers): DeepSeek V3 with a norm on the output of each
mixture of experts.
"""

from collections.abc import Iterable

from archlab.families.deepseek_v3 import ROUTED, UNREAD_KEYS
from archlab.families.glm4_moe import EXPERTS, SIGMOID
from archlab.families.llama import AROUND, PRE_NORMS, RMS_NORM, WIDTHS
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.latent import LATENT, LATENT_WEIGHTS, LatentHeads
from archlab.hf.layer_types import layer_types
from archlab.hf.mixture import DenseLayers, is_mixture, write_mlp_types
from archlab.hf.weight_map import linear


def are_dense(hf: ConfigReader, n_layers: int) -> Iterable[bool]:
    """Return whether the MLP of each layer is dense. Without the list `mlp_layer_types`, every `moe_layer_freq`-th
    layer is a mixture, except the first ones."""
    first, step = hf.get("first_k_dense_replace", 1), hf.get("moe_layer_freq", 1)
    if step < 1:
        raise hf.refuse("moe_layer_freq", step, "1 or more")
    implied = ["sparse" if i >= first and i % step == 0 else "dense" for i in range(n_layers)]
    types = layer_types(hf, implied, {"dense", "sparse"}, n_layers, key="mlp_layer_types")
    return [kind == "dense" for kind in types]


FAMILY = Family(
    model_type="axk1",
    architecture="AXK1ForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *WIDTHS,
        *LATENT,
        Key("q_lora_rank", "attention.q_rank", 1536),
        LatentHeads(kv_heads=64),
        *RMS_NORM,
        Always("block.mlp_output_norm", True),
        *MIXTURE,
        *SIGMOID,
        Key("n_routed_experts", "mlp.experts", 192),
        *ROUTED,
        DenseLayers(are_dense, write_mlp_types, more={"block.mlp_output_norm": False}),
    ],
    weights=[
        *LATENT_WEIGHTS,
        *EXPERTS,
        *PRE_NORMS,
        *linear("model.layers.{i}.post_mlp_layernorm", "layers.{i}.mlp_norms.after", when=is_mixture),
        *AROUND,
    ],
    alternatives=[
        *FUSED_EXPERTS,
        *linear("model.layers.{i}.mlp.post_mlp_layernorm", "layers.{i}.mlp_norms.after", when=is_mixture),
    ],
    # Published files have this norm in dense layers, too, which do not use it, and no correction.
    ignored=("post_mlp_layernorm.weight",),
    has_mtp_layers=True,
    zero_if_absent=(".mlp.gate.e_score_correction_bias",),
    prefix="model.",
    no_effect=UNREAD_KEYS - {"moe_layer_freq"},
    aliases={"num_local_experts": "n_routed_experts"},
)
