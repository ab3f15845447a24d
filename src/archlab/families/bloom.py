"""Configs and weights of BLOOM (BloomForCausalLM in transformers)."""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.gpt2 import ALWAYS_BIASED, LAYER, LAYER_NORM, PlainMLP
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.weight_map import QKV, QKV_PER_HEAD, Row, linear


@dataclass(frozen=True)
class Slices:
    """The keys `pretraining_tp` and `slow_but_exact`.

    If `slow_but_exact` is true and `pretraining_tp` is not 1, the published code computes two matrix products in slices
    and omits their biases. archlab cannot do that.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the keys have values with which the published code omits biases."""
        sliced, exact = hf.get("pretraining_tp", 1), hf.get("slow_but_exact", False)
        if exact and sliced != 1:
            raise hf.refuse("slow_but_exact", exact, f"false, because true omits biases if pretraining_tp is {sliced}")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key to config.json, because the published code keeps the biases by default."""


FAMILY = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("n_layer", "n_layers"),
        Key("seq_length", "max_seq_len", 2048),
        Key("n_head", "attention.n_heads"),
        PlainMLP(),
        Always("mlp.activation", "gelu_tanh"),
        *ALWAYS_BIASED,
        *LAYER_NORM,
        Key(
            "apply_residual_connection_post_layernorm", "norm.placement", False,
            lambda normed: "carried" if normed else "pre", lambda ours: ours == "carried",
        ),
        Always("embedding.norm", True),
        Always("position.kind", "alibi"),
        Key("tie_word_embeddings", "head.tied", True),
        Slices(),
    ],
    weights=[
        Row("transformer.word_embeddings.weight", "embedding.weight"),
        *linear("transformer.word_embeddings_layernorm", "embedding.norm"),
        *linear(f"{LAYER}.self_attention.query_key_value", QKV, QKV_PER_HEAD),
        *linear(f"{LAYER}.self_attention.dense", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.mlp.dense_h_to_4h", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.dense_4h_to_h", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.post_attention_layernorm", "layers.{i}.mlp_norms.before"),
        *linear("transformer.ln_f", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="transformer.",
    no_effect=frozenset({
        "masked_softmax_fusion", "bias_dropout_fusion", "attention_softmax_in_fp32", "offset_alibi",
        "skip_bias_add", "skip_bias_add_qkv", "unk_token_id", "n_inner",
    }),
    aliases={"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
)  # fmt: skip
