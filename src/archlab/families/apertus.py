"""Configs and weights of Apertus (ApertusForCausalLM in transformers)."""

from archlab.config.layers import LayerConfig
from archlab.families.llama import AROUND, ATTENTION, MLP, SIZES, attention_biases, rms_norm
from archlab.families.qwen3 import QK_NORMS, qk_rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key, Only
from archlab.hf.rope import ScaledRopeKeys
from archlab.hf.weight_map import Constant, Row, linear

DEFAULT_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
"""RoPE scaling for a config.json without one. It is the scaling of Llama 3.1."""


def _has_xielu(layer: LayerConfig) -> bool:
    return layer.dense.activation == "xielu"


FAMILY = Family(
    model_type="apertus",
    architecture="ApertusForCausalLM",
    default_max_seq_len=65536,
    fields=[
        *SIZES,
        *rms_norm(1e-5),
        *qk_rms_norm(1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "xielu"),
        ScaledRopeKeys(theta=1.2e7, default_scaling=DEFAULT_SCALING),
        Only("mlp_bias", False, written=False),
        Only("post_norm", False, written=False),
        Only("qk_norm", True, written=False),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        *QK_NORMS,
        *MLP,
        Row("model.layers.{i}.mlp.act_fn.alpha_p", "layers.{i}.mlp.activation.alpha_p"),
        Row("model.layers.{i}.mlp.act_fn.alpha_n", "layers.{i}.mlp.activation.alpha_n"),
        *linear("model.layers.{i}.attention_layernorm", "layers.{i}.attention_norms.before"),
        *linear("model.layers.{i}.feedforward_layernorm", "layers.{i}.mlp_norms.before"),
        *AROUND,
    ],
    constants=(
        Constant("model.layers.{i}.mlp.act_fn.beta", 0.5, _has_xielu),
        Constant("model.layers.{i}.mlp.act_fn.eps", -1e-6, _has_xielu),
    ),
    prefix="model.",
)
