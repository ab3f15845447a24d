"""GPT-2. (transformers: GPT2LMHeadModel)"""

from archlab.families.family import Family
from archlab.families.fields import ActivationKey, Always, Key, Only
from archlab.families.weights import QKV_BLOCKS, TRANSPOSE, Row, linear, then

FAMILY = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("n_embd", "d_model"),
        Key("n_layer", "n_layers"),
        Key("n_positions", "max_seq_len"),
        Key("n_head", "attention.n_heads"),
        Key("n_inner", "mlp.d_ff", None),
        Always("mlp.kind", "plain"),
        ActivationKey("activation_function", "gelu_new"),
        Always("norm.kind", "layernorm"),
        Key("layer_norm_epsilon", "norm.eps", 1e-5),
        Always("position.kind", "learned"),
        Always("attention.qkv_bias", True),
        Always("attention.out_bias", True),
        Always("mlp.bias", True),
        Key("tie_word_embeddings", "head.tied", True),
        Only("scale_attn_weights", True),
        Only("scale_attn_by_inverse_layer_idx", False),
        Only("add_cross_attention", False),
    ],
    weights=[
        Row("transformer.wte.weight", "embedding.weight"),
        Row("transformer.wpe.weight", "positions.weight"),
        Row(
            "transformer.h.{i}.attn.c_attn.weight",
            tuple(f"layers.{{i}}.attention.{x}.weight" for x in "qkv"),
            then(TRANSPOSE, QKV_BLOCKS),
        ),
        Row("transformer.h.{i}.attn.c_attn.bias", tuple(f"layers.{{i}}.attention.{x}.bias" for x in "qkv"), QKV_BLOCKS),
        Row("transformer.h.{i}.attn.c_proj.weight", "layers.{i}.attention.out.weight", TRANSPOSE),
        Row("transformer.h.{i}.attn.c_proj.bias", "layers.{i}.attention.out.bias"),
        Row("transformer.h.{i}.mlp.c_fc.weight", "layers.{i}.mlp.up.weight", TRANSPOSE),
        Row("transformer.h.{i}.mlp.c_fc.bias", "layers.{i}.mlp.up.bias"),
        Row("transformer.h.{i}.mlp.c_proj.weight", "layers.{i}.mlp.down.weight", TRANSPOSE),
        Row("transformer.h.{i}.mlp.c_proj.bias", "layers.{i}.mlp.down.bias"),
        *linear("transformer.h.{i}.ln_1", "layers.{i}.attention_norms.before"),
        *linear("transformer.h.{i}.ln_2", "layers.{i}.mlp_norms.before"),
        *linear("transformer.ln_f", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    buffers=("attn.bias", "attn.masked_bias"),
    prefix="transformer.",
    no_effect=frozenset({"reorder_and_upcast_attn", "n_ctx"}),
)
