"""Configs and weights of BART (BartForConditionalGeneration in transformers)."""

from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Field, Key, Only
from archlab.hf.weight_map import FROM_ROW, Row, linear

FIELDS: list[Field] = [
    Key("vocab_size", "vocab_size", 50265),
    Key("d_model", "d_model", 1024),
    Key("encoder_layers", "encoder.n_layers", 12),
    Key("decoder_layers", "n_layers", 12),
    Key("max_position_embeddings", "max_seq_len", 1024),
    Key("decoder_attention_heads", "attention.n_heads", 16),
    Key("encoder_attention_heads", "encoder.attention.n_heads", 16),
    Always("attention.qkv_bias", True),
    Always("attention.out_bias", True),
    Key("decoder_ffn_dim", "mlp.d_ff", 4096),
    Key("encoder_ffn_dim", "encoder.mlp.d_ff", 4096),
    Always("mlp.kind", "plain"),
    Always("mlp.bias", True),
    ActivationKey("activation_function", "gelu"),
    Always("norm.kind", "layernorm"),
    Always("norm.eps", 1e-5),
    Key(
        "scale_embedding", "embedding.scale", False,
        lambda on: "sqrt_d_model" if on else 1.0, lambda scale: scale != 1.0,
    ),
    Always("head.tied", True),
    Only("tie_word_embeddings", True, "true, because otherwise encoder, decoder and head have matrices of their own"),
]  # fmt: skip
"""Fields of BART and its successors. Each family adds the placement of the norms, the positions and the bias of the
logits."""

LEARNED_POSITIONS: list[Field] = [
    Always("position.kind", "learned"),
    Always("position.offset", 2),
    Always("embedding.norm", "sum"),
]


def _attention(theirs: str, ours: str) -> list[Row]:
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "out"}
    return [row for name, own in names.items() for row in linear(f"{theirs}.{name}", f"{ours}.{own}")]


def _stack(side: str, prefix: str, norm: str) -> list[Row]:
    """Return the rows of one stack, apart from those of cross-attention. `norm` is the place of the norms in a
    layer."""
    theirs, ours = f"model.{side}.layers.{{i}}", f"{prefix}layers.{{i}}"
    return [
        Row(f"model.{side}.embed_positions.weight", f"{prefix}positions.weight"),
        *linear(f"model.{side}.layernorm_embedding", f"{prefix}summed.norm"),
        *_attention(f"{theirs}.self_attn", f"{ours}.attention"),
        *linear(f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norms.{norm}"),
        *linear(f"{theirs}.fc1", f"{ours}.mlp.up"),
        *linear(f"{theirs}.fc2", f"{ours}.mlp.down"),
        *linear(f"{theirs}.final_layer_norm", f"{ours}.mlp_norms.{norm}"),
        *linear(f"model.{side}.layer_norm", f"{prefix}norm"),
    ]


LOGITS_BIAS = "final_logits_bias"


def weights(norm: str) -> list[Row]:
    """Return the rows of BART and its successors. `norm` is the place of the norms in a layer: `before` or `stream`."""
    return [
        Row("model.shared.weight", "embedding.weight"),
        *_stack("decoder", "", norm),
        *_attention("model.decoder.layers.{i}.encoder_attn", "layers.{i}.cross"),
        *linear("model.decoder.layers.{i}.encoder_attn_layer_norm", f"layers.{{i}}.cross_norms.{norm}"),
        *_stack("encoder", "encoder.", norm),
        Row("lm_head.weight", "head.weight"),
        Row(LOGITS_BIAS, "head.bias", FROM_ROW),
    ]


COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
NO_EFFECT = frozenset({
    "encoder_layerdrop", "decoder_layerdrop", "classifier_dropout", "classif_dropout",
    # keys of older files, whose values the class does not read
    "normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits", "static_position_embeddings",
    "extra_pos_embeddings", "force_bos_token_to_be_generated", "_num_labels", "save_step", "replacing_rate",
    "student_encoder_layers", "student_decoder_layers",
})  # fmt: skip
ALIASES = {
    "hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers",
}  # fmt: skip

FAMILY = Family(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    fields=[*FIELDS, *LEARNED_POSITIONS, Always("norm.placement", "post"), Always("head.bias", True)],
    weights=weights("stream"),
    prefix="model.",
    has_encoder=True,
    copies=COPIES,
    zero_if_absent=(LOGITS_BIAS,),
    no_effect=NO_EFFECT,
    aliases=ALIASES,
)
