"""Configs and weights of Marian, the translation models of OPUS-MT (MarianMTModel in transformers)."""

from dataclasses import dataclass, replace

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.bart import FAMILY as BART
from archlab.families.bart import FIELDS, weights
from archlab.families.pegasus import POSITION_TABLES, SINUSOIDS
from archlab.hf.fields import Always, ConfigReader, Key, Only


@dataclass(frozen=True)
class OneVocabulary:
    """Key `decoder_vocab_size`. archlab's encoder and decoder have the same vocabulary."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the vocabulary of the decoder has another size than that of the encoder."""
        size = hf.get("decoder_vocab_size", ours["vocab_size"])
        if size != ours["vocab_size"]:
            raise hf.refuse("decoder_vocab_size", size, f"vocab_size, {ours['vocab_size']}")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the size. Also write 0 as the first token of the decoder, because the class requires a token."""
        hf["decoder_vocab_size"], hf["decoder_start_token_id"] = model.vocab_size, 0


FAMILY = replace(
    BART,
    model_type="marian",
    architecture="MarianMTModel",
    fields=[
        *FIELDS,
        Key("vocab_size", "vocab_size", 58101),
        *SINUSOIDS,
        Always("norm.placement", "post"),
        Always("head.bias", True),
        OneVocabulary(),
        Only(
            "share_encoder_decoder_embeddings", True, "true, because in archlab encoder and decoder share the embedding"
        ),
    ],
    weights=weights("stream"),
    position_tables=POSITION_TABLES,
)
