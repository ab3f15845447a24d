"""Configs and weights of gpt-oss (GptOssForCausalLM in transformers): attention sinks, and a mixture with clamped
experts.
"""

from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, attention_biases, kv_heads
from archlab.families.mixtral import ROUTER, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key, Only
from archlab.hf.layer_types import LayerTypes, full_every
from archlab.hf.rope import ScaledRopeKeys
from archlab.hf.weight_map import TRANSPOSE, Conversion, Row, stack

DEFAULT_SCALING = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""RoPE scaling for a config.json without one."""

INTERLEAVED = Conversion(
    lambda theirs, _: (theirs[..., 0::2].mT, theirs[..., 1::2].mT),
    lambda ours, _: stack((x.mT for x in ours), dim=-1).flatten(-2),
)
"""Conversion for a published tensor [experts, in, out] that contains two matrices. Its even columns belong to the gate
projection, its odd columns to the up projection."""

INTERLEAVED_BIAS = Conversion(
    lambda theirs, _: (theirs[..., 0::2], theirs[..., 1::2]),
    lambda ours, _: stack(ours, dim=-1).flatten(-2),
)

FAMILY = Family(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 64),
        Always("norm.kind", "rmsnorm"),
        Key("rms_norm_eps", "norm.eps", 1e-5),
        Always("attention.sinks", True),
        *attention_biases(default=True),
        Always("mlp.kind", "moe"),
        Key("num_local_experts", "mlp.experts", 128),
        Key("num_experts_per_tok", "mlp.active", 4),
        Always("mlp.bias", True),
        Always("mlp.router.bias", True),
        Always("mlp.activation", "quick_gelu"),
        Only("swiglu_alpha", 1.702, "1.702, the number in the activation quick_gelu, because archlab has no other"),
        Key("swiglu_limit", "mlp.clamp", 7.0, from_hf=float),
        Always("mlp.up_offset", 1.0),
        ScaledRopeKeys(theta=150000.0, default_scaling=DEFAULT_SCALING),
        LayerTypes(full_every(2), window=128, unused=128),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        Row("model.layers.{i}.self_attn.sinks", "layers.{i}.attention.sinks"),
        Row("model.layers.{i}.mlp.router.weight", ROUTER),
        Row("model.layers.{i}.mlp.router.bias", "layers.{i}.mlp.router.bias"),
        Row(
            "model.layers.{i}.mlp.experts.gate_up_proj",
            ("layers.{i}.mlp.experts.gate", "layers.{i}.mlp.experts.up"),
            INTERLEAVED,
        ),
        Row(
            "model.layers.{i}.mlp.experts.gate_up_proj_bias",
            ("layers.{i}.mlp.experts.gate_bias", "layers.{i}.mlp.experts.up_bias"),
            INTERLEAVED_BIAS,
        ),
        Row("model.layers.{i}.mlp.experts.down_proj", "layers.{i}.mlp.experts.down", TRANSPOSE),
        Row("model.layers.{i}.mlp.experts.down_proj_bias", "layers.{i}.mlp.experts.down_bias"),
        *PRE_NORMS,
        *AROUND,
    ],
    prefix="model.",
    no_effect=TRAINING_ONLY | {"hidden_act", "experts_per_token", "initial_context_length"},
    aliases={"num_experts": "num_local_experts"},
)
