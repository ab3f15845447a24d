"""Configs and weights of the generators of ELECTRA (ElectraForMaskedLM in transformers)."""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.bert import FIELDS, HeadDense, encoder
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.weight_map import Row, linear


@dataclass(frozen=True)
class NarrowSum:
    """The key `embedding_size`. If its value equals d_model, nothing is widened."""

    default: int | None = None
    """Width if the file lacks the key. None: d_model."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        width = hf.get("embedding_size", self.default or ours["d_model"])
        if width != ours["d_model"]:
            ours |= {"embedding.width": width, "embedding.widened": "sum"}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["embedding_size"] = model.embedding.width or model.d_model


FAMILY = Family(
    model_type="electra",
    architecture="ElectraForMaskedLM",
    fields=[
        *FIELDS,
        Key("hidden_size", "d_model", 256),
        Key("num_attention_heads", "attention.n_heads", 4),
        Key("intermediate_size", "mlp.d_ff", 1024),
        NarrowSum(128),
        HeadDense("gelu"),
    ],
    weights=[
        *encoder("electra"),
        *linear("electra.embeddings_project", "summed.widen"),
        *linear("generator_predictions.dense", "head.transform.dense"),
        *linear("generator_predictions.LayerNorm", "head.transform.norm"),
        Row("generator_lm_head.weight", "head.weight"),
        Row("generator_lm_head.bias", "head.bias"),
    ],
    ignored=("embeddings.position_ids",),
    prefix="electra.",
    no_effect=frozenset({"summary_last_dropout"}),
)
