"""Configs and weights of StableLM 3B and StableLM 2 (StableLmForCausalLM in transformers)."""

from archlab.families.llama import AROUND, ATTENTION, GATED, MLP, PRE_NORMS, WIDTHS
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Switch
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

FAMILY = Family(
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *WIDTHS,
        Key("num_key_value_heads", "attention.n_kv_heads", 32),
        Always("norm.kind", "layernorm"),
        Key("layer_norm_eps", "norm.eps", 1e-5),
        Key(
            "use_parallel_residual", "block.parallel", False,
            lambda parallel: "shared" if parallel else "none", lambda ours: ours == "shared",
        ),
        *GATED,
        Key("use_qkv_bias", "attention.qkv_bias", False),
        Always("attention.out_bias", False),
        Switch("qk_layernorm", "attention.qk_norm.kind", False, "layernorm", more=[
            Always("attention.qk_norm.bias", False),
            Always("attention.qk_norm.scope", "each_head"),
            Key("layer_norm_eps", "attention.qk_norm.eps", 1e-5),
        ]),
        RopeKeys(fraction=0.25),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        Row(
            "model.layers.{i}.self_attn.q_layernorm.norms.{h}.weight", "layers.{i}.attention.q_norm.norm.weight",
            n_stacked=lambda layer: layer.multi_head.n_heads,
        ),
        Row(
            "model.layers.{i}.self_attn.k_layernorm.norms.{h}.weight", "layers.{i}.attention.k_norm.norm.weight",
            n_stacked=lambda layer: layer.multi_head.n_kv_heads,
        ),
        *MLP,
        *PRE_NORMS,
        *AROUND,
    ],
    prefix="model.",
    no_effect=frozenset({"rotary_scaling_factor"}),
)  # fmt: skip
