"""Configs and weights of RoBERTa (RobertaForMaskedLM in transformers)."""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.bert import FIELDS, HeadDense, encoder, head_bias
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Field, Key, lookup
from archlab.hf.weight_map import Row, linear


@dataclass(frozen=True)
class PositionsAfterPadding:
    """Positions that begin after the id of the padding token, whose rows of the table stay unused.

    archlab counts all tokens of a text. transformers counts only those that are not the padding token, and gives the
    padding token the position of its id. The logits differ if a text contains the padding token, which tokenizers
    write only after a text. Padding after a text has no effect, because `lengths` says where it begins.
    """

    rows: int = 512
    """Default of `max_position_embeddings`, the number of rows of the table."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the offset and the length of the table."""
        padding, rows = hf.get("pad_token_id", 1), hf.get("max_position_embeddings", self.rows)
        if not 0 <= padding < rows - 1:
            raise hf.refuse("pad_token_id", padding, f"0 to {rows - 2}, because positions begin after it")
        ours["position.offset"], ours["max_seq_len"] = padding + 1, rows - padding - 1

    def write(self, model: ModelConfig, hf: Raw) -> None:
        offset = lookup(model, "position.offset")
        if isinstance(offset, int):
            hf["pad_token_id"], hf["max_position_embeddings"] = offset - 1, model.max_seq_len + offset


HEAD_ROWS = [
    *linear("lm_head.dense", "head.transform.dense"),
    *linear("lm_head.layer_norm", "head.transform.norm"),
    Row("lm_head.decoder.weight", "head.weight"),
    *head_bias("lm_head"),
]


def weights(prefix: str) -> list[Row]:
    """Return the rows of the encoder, whose name in the file is `prefix`, and of the head."""
    return [*encoder(prefix), *HEAD_ROWS]


FIELDS_OF_SUCCESSORS: list[Field] = [*FIELDS, PositionsAfterPadding(), HeadDense("gelu")]
"""Fields of RoBERTa and its successors. The successors have the default of BERT for the size of the vocabulary."""

VOCABULARY = Key("vocab_size", "vocab_size", 50265)

FAMILY = Family(
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    fields=[*FIELDS_OF_SUCCESSORS, VOCABULARY],
    weights=weights("roberta"),
    ignored=(
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "lm_head.bias",
        "lm_head.decoder.bias",
    ),
    prefix="roberta.",
    other_architectures=("XLMRobertaForMaskedLM",),
    other_model_types=("xlm-roberta",),
)
