"""Configs and weights of Phi 1 and 2 (PhiForCausalLM in transformers)."""

from archlab.families.llama import SIZES
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key, Switch
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row, linear

LAYER = "model.layers.{i}"

FAMILY = Family(
    model_type="phi",
    architecture="PhiForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        Always("norm.kind", "layernorm"),
        Key("layer_norm_eps", "norm.eps", 1e-5),
        Always("block.parallel", "shared"),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "gelu_new"),
        Always("mlp.bias", True),
        Always("attention.qkv_bias", True),
        Always("attention.out_bias", True),
        Switch("qk_layernorm", "attention.qk_norm.kind", False, "layernorm", more=[
            Key("layer_norm_eps", "attention.qk_norm.eps", 1e-5),
        ]),
        RopeKeys(fraction=0.5),
        Always("head.bias", True),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        Row("model.embed_tokens.weight", "embedding.weight"),
        *linear(f"{LAYER}.self_attn.q_proj", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.self_attn.k_proj", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.self_attn.v_proj", "layers.{i}.attention.v"),
        *linear(f"{LAYER}.self_attn.dense", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.self_attn.q_layernorm", "layers.{i}.attention.q_norm.norm"),
        *linear(f"{LAYER}.self_attn.k_layernorm", "layers.{i}.attention.k_norm.norm"),
        *linear(f"{LAYER}.mlp.fc1", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.fc2", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before"),
        *linear("model.final_layernorm", "norm"),
        *linear("lm_head", "head"),
    ],
    prefix="model.",
)  # fmt: skip
