"""Configs and weights of Phi 3, 3.5 and 4 mini and medium (Phi3ForCausalLM in transformers)."""

from archlab.families.llama import AROUND, GATED, PRE_NORMS, SIZES, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import Key, Only
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import HALVES, QKV, QKV_BLOCKS, linear

FAMILY = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *SIZES,
        *rms_norm(1e-5),
        *GATED,
        # Early files call LongRoPE "su", some call it "yarn".
        RopeKeys(partial=True, names={"su": "longrope", "yarn": "longrope"}, original=4096),
        Key("sliding_window", "attention.window", None),
        Key("tie_word_embeddings", "head.tied", False),
        *(
            Only(key, False, "false, because the published class has none of these biases")
            for key in ("attention_bias", "mlp_bias", "lm_head_bias")
        ),
    ],
    weights=[
        *linear("model.layers.{i}.self_attn.qkv_proj", QKV, QKV_BLOCKS),
        *linear("model.layers.{i}.self_attn.o_proj", "layers.{i}.attention.out"),
        *linear("model.layers.{i}.mlp.gate_up_proj", ("layers.{i}.mlp.gate", "layers.{i}.mlp.up"), HALVES),
        *linear("model.layers.{i}.mlp.down_proj", "layers.{i}.mlp.down"),
        *PRE_NORMS,
        *AROUND,
    ],
    prefix="model.",
    no_effect=frozenset({"full_attn_mod", "interpolate_factor"}),
)
