"""Configs and weights of DistilBERT (DistilBertForMaskedLM in transformers)."""

from archlab.families.bert import POST_NORM_ENCODER, HeadDense
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, Key
from archlab.hf.weight_map import Row, linear

LAYER = "distilbert.transformer.layer.{i}"

FAMILY = Family(
    model_type="distilbert",
    architecture="DistilBertForMaskedLM",
    fields=[
        *POST_NORM_ENCODER,
        Key("vocab_size", "vocab_size", 30522),
        Key("dim", "d_model", 768),
        Key("n_layers", "n_layers", 6),
        Key("n_heads", "attention.n_heads", 12),
        Key("hidden_dim", "mlp.d_ff", 3072),
        ActivationKey("activation", "gelu"),
        Key("max_position_embeddings", "max_seq_len", 512),
        Always("norm.eps", 1e-12),
        HeadDense(),
    ],
    weights=[
        Row("distilbert.embeddings.word_embeddings.weight", "embedding.weight"),
        Row("distilbert.embeddings.position_embeddings.weight", "positions.weight"),
        *linear("distilbert.embeddings.LayerNorm", "summed.norm"),
        *linear(f"{LAYER}.attention.q_lin", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.attention.k_lin", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.attention.v_lin", "layers.{i}.attention.v"),
        *linear(f"{LAYER}.attention.out_lin", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.sa_layer_norm", "layers.{i}.attention_norms.stream"),
        *linear(f"{LAYER}.ffn.lin1", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.ffn.lin2", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.output_layer_norm", "layers.{i}.mlp_norms.stream"),
        *linear("vocab_transform", "head.transform.dense"),
        *linear("vocab_layer_norm", "head.transform.norm"),
        Row("vocab_projector.weight", "head.weight"),
        Row("vocab_projector.bias", "head.bias"),
    ],
    ignored=("embeddings.position_ids",),
    aliases={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    prefix="distilbert.",
    # The last one only decides the initial values of the position table.
    no_effect=frozenset({"qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds"}),
)
