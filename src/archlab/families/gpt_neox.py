"""Configs and weights of GPT-NeoX and Pythia (GPTNeoXForCausalLM in transformers)."""

from archlab.families.llama import attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import QKV, QKV_PER_HEAD, Row, linear

LAYER = "gpt_neox.layers.{i}"

FAMILY = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    default_max_seq_len=2048,
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("max_position_embeddings", "max_seq_len"),
        Key("num_attention_heads", "attention.n_heads"),
        *attention_biases(default=True),
        Key("intermediate_size", "mlp.d_ff"),
        Always("mlp.kind", "plain"),
        ActivationKey("hidden_act", "gelu"),
        Always("mlp.bias", True),
        Always("norm.kind", "layernorm"),
        Key("layer_norm_eps", "norm.eps", 1e-5),
        Key(
            "use_parallel_residual", "block.parallel", True,
            lambda parallel: "separate" if parallel else "none", lambda ours: ours == "separate",
        ),
        RopeKeys(fraction=0.25, theta_key="rotary_emb_base", fraction_key="rotary_pct"),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        Row("gpt_neox.embed_in.weight", "embedding.weight"),
        *linear(f"{LAYER}.attention.query_key_value", QKV, QKV_PER_HEAD),
        *linear(f"{LAYER}.attention.dense", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.mlp.dense_h_to_4h", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.dense_4h_to_h", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.post_attention_layernorm", "layers.{i}.mlp_norms.before"),
        *linear("gpt_neox.final_layer_norm", "norm"),
        Row("embed_out.weight", "head.weight"),
    ],
    ignored=(".attention.bias", ".attention.masked_bias"),
    prefix="gpt_neox.",
    no_effect=frozenset({"classifier_dropout"}),
)  # fmt: skip
