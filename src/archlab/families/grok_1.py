"""Configs and weights of Grok-1 in the format of its PyTorch port (`Grok1ModelForCausalLM` in hpcai-tech/grok-1, which
transformers runs as remote code).
"""

from archlab.families.llama import SIZES, kv_heads
from archlab.families.mixtral import ROUTER, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Only
from archlab.hf.mixture import each_expert
from archlab.hf.weight_map import Row, linear

NORMS = {
    "model.layers.{i}.pre_attn_norm": "layers.{i}.attention_norms.before",
    "model.layers.{i}.post_attn_norm": "layers.{i}.attention_norms.after",
    "model.layers.{i}.pre_moe_norm": "layers.{i}.mlp_norms.before",
    "model.layers.{i}.post_moe_norm": "layers.{i}.mlp_norms.after",
    "model.norm": "norm",
}

FAMILY = Family(
    model_type="grok-1",
    architecture="Grok1ModelForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *(part for part in SIZES if part.field != "attention.head_dim"),
        kv_heads(32),
        Always("norm.kind", "rmsnorm"),
        Always("norm.placement", "double"),
        Key("rms_norm_eps", "norm.eps", 1e-5),
        Key("attn_output_multiplier", "attention.scale", 1.0, from_hf=float),
        Key("max_attn_value", "attention.softcap", 1.0, from_hf=float),
        Always("mlp.kind", "moe"),
        Always("mlp.activation", "gelu"),  # erf; xAI's own code has the tanh form
        Always("mlp.router.normalise", False),
        Key("num_experts", "mlp.experts", 8),
        Key("num_experts_per_tok", "mlp.active", 2),
        Always("position.kind", "rope"),
        Only("rope_theta", 10000.0, written=False),  # the published code fixes theta
        Key("embedding_multiplier_scale", "embedding.scale", 1.0, from_hf=float),
        Key("output_multiplier_scale", "head.scale", 1.0, from_hf=float),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        *(
            row
            for part, ours in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "out"))
            for row in linear(f"model.layers.{{i}}.attn.{part}", f"layers.{{i}}.attention.{ours}", bias=False)
        ),
        Row("model.layers.{i}.moe_block.gate.weight", ROUTER),
        *each_expert("model.layers.{i}.moe_block.experts", gate="linear", up="linear_v", down="linear_1"),
        *(Row(f"{theirs}.scale", f"{ours}.weight") for theirs, ours in NORMS.items()),
        Row("model.embed_tokens.weight", "embedding.weight"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="model.",
    no_effect=TRAINING_ONLY,
)
