"""Configs and weights of BERT (BertForMaskedLM in transformers)."""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.hf.family import Family
from archlab.hf.fields import NO_CROSS_ATTENTION, ActivationKey, Always, ConfigReader, Field, Key, Only
from archlab.hf.weight_map import Row, linear


@dataclass(frozen=True)
class HeadDense:
    """Dense layer before the output matrix."""

    activation: str | None = None
    """Activation of the layer. None means the activation of the MLPs."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours["head.transform"] = {"activation": self.activation or ours["mlp.activation"]}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key. Reading the written config back shows whether the model has this layer."""


POST_NORM_ENCODER: list[Field] = [
    Always("attention.visibility", "two_sided"),
    Always("attention.qkv_bias", True),
    Always("attention.out_bias", True),
    Always("mlp.kind", "plain"),
    Always("mlp.bias", True),
    Always("norm.kind", "layernorm"),
    Always("norm.placement", "post"),
    Always("position.kind", "learned"),
    Always("embedding.norm", "sum"),
    Always("head.bias", True),
    Key("tie_word_embeddings", "head.tied", True),
]
"""Choices that BERT and its successors share."""

WITHOUT_SEGMENTS: list[Field] = [
    *POST_NORM_ENCODER,
    Key("vocab_size", "vocab_size", 30522),
    Key("hidden_size", "d_model", 768),
    Key("num_hidden_layers", "n_layers", 12),
    Key("num_attention_heads", "attention.n_heads", 12),
    Key("intermediate_size", "mlp.d_ff", 3072),
    ActivationKey("hidden_act", "gelu"),
    Key("max_position_embeddings", "max_seq_len", 512),
    Key("layer_norm_eps", "norm.eps", 1e-12),
    Only("position_embedding_type", "absolute", written=False),
    NO_CROSS_ATTENTION,
]

FIELDS: list[Field] = [
    *WITHOUT_SEGMENTS,
    Key("type_vocab_size", "embedding.segments", 2),
    Only("is_decoder", False, "false, because the masked tokens need both directions"),
]

PRE_NORM: list[Field] = [Always("norm.placement", "pre"), Always("embedding.norm", False)]
"""Choices of successors whose branches read a normalized stream. Put these fields after those of BERT."""


def matrices(prefix: str) -> list[Row]:
    """Return the rows of the embedding and the layers, without norms. `prefix` is the name of the encoder in the
    file."""
    embeddings, layer = f"{prefix}.embeddings", f"{prefix}.encoder.layer.{{i}}"
    return [
        Row(f"{embeddings}.word_embeddings.weight", "embedding.weight"),
        Row(f"{embeddings}.position_embeddings.weight", "positions.weight"),
        Row(f"{embeddings}.token_type_embeddings.weight", "segments.weight"),
        *linear(f"{layer}.attention.self.query", "layers.{i}.attention.q"),
        *linear(f"{layer}.attention.self.key", "layers.{i}.attention.k"),
        *linear(f"{layer}.attention.self.value", "layers.{i}.attention.v"),
        *linear(f"{layer}.attention.output.dense", "layers.{i}.attention.out"),
        *linear(f"{layer}.intermediate.dense", "layers.{i}.mlp.up"),
        *linear(f"{layer}.output.dense", "layers.{i}.mlp.down"),
    ]


def encoder(prefix: str) -> list[Row]:
    """Return the rows of the embedding and the layers. `prefix` is the name of the encoder in the file."""
    return [
        *matrices(prefix),
        *linear(f"{prefix}.embeddings.LayerNorm", "summed.norm"),
        *linear(f"{prefix}.encoder.layer.{{i}}.attention.output.LayerNorm", "layers.{i}.attention_norms.stream"),
        *linear(f"{prefix}.encoder.layer.{{i}}.output.LayerNorm", "layers.{i}.mlp_norms.stream"),
    ]


def pre_norms(attention: str, mlp: str, final: str) -> list[Row]:
    """Return the rows of the norms of successors whose branches read a normalized stream. The arguments are the names
    of the norms in the file."""
    return [
        *linear(attention, "layers.{i}.attention_norms.before"),
        *linear(mlp, "layers.{i}.mlp_norms.before"),
        *linear(final, "norm"),
    ]


def head_bias(prefix: str) -> list[Row]:
    """Return the rows of the bias on the logits, whose name depends on whether the head is tied."""
    return [Row(f"{prefix}.bias", "head.bias", tied=True), Row(f"{prefix}.decoder.bias", "head.bias", tied=False)]


HEAD = "cls.predictions.transform"


HEAD_ROWS = [
    *linear(f"{HEAD}.dense", "head.transform.dense"),
    *linear(f"{HEAD}.LayerNorm", "head.transform.norm"),
    Row("cls.predictions.decoder.weight", "head.weight"),
    *head_bias("cls.predictions"),
]


def weights(prefix: str) -> list[Row]:
    """Return the rows of the encoder, whose name in the file is `prefix`, and of the head."""
    return [*encoder(prefix), *HEAD_ROWS]


def with_gamma_and_beta(rows: list[Row]) -> list[Row]:
    """Return the rows of norms with the names of older files: `gamma` for the weight and `beta` for the bias."""
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    older = ((row, *row.theirs.rsplit(".LayerNorm.", 1)) for row in rows if ".LayerNorm." in row.theirs)
    return [
        Row(f"{start}.{names[f'LayerNorm.{last}']}", row.ours, row.conversion, row.when) for row, start, last in older
    ]


FAMILY = Family(
    model_type="bert",
    architecture="BertForMaskedLM",
    other_architectures=("BertForPreTraining",),
    fields=[*FIELDS, HeadDense()],
    weights=weights("bert"),
    alternatives=with_gamma_and_beta(weights("bert")),
    ignored=(
        "embeddings.position_ids",
        # heads for other tasks
        "pooler.dense.weight", "pooler.dense.bias",
        "cls.seq_relationship.weight", "cls.seq_relationship.bias",
        "cls.predictions.bias",  # with an untied head, the class does not use it
        "cls.predictions.decoder.bias",  # with a tied head, it is a copy of cls.predictions.bias
    ),
    prefix="bert.",
    no_effect=frozenset({"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                         "pooler_size_per_head", "pooler_type"}),
)  # fmt: skip
