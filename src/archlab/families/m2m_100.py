"""Configs and weights of M2M-100 and NLLB-200 (M2M100ForConditionalGeneration in transformers)."""

from dataclasses import dataclass, replace

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.bart import FAMILY as BART
from archlab.families.bart import FIELDS, weights
from archlab.families.xglm import SCALED_EMBEDDING, sinusoids
from archlab.hf.fields import ActivationKey, ConfigReader, Key, lookup


@dataclass(frozen=True)
class SinusoidsAfterPadding:
    """Sinusoidal positions that begin after the id of the padding token. config.json has no other key for them."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the positions. Raise UserError if the id of the padding token is negative."""
        padding = hf.get("pad_token_id", 1)
        if padding < 0:
            raise hf.refuse("pad_token_id", padding, "0 or more, because positions begin after it")
        ours["position"] = sinusoids(hf, ours, padding + 1)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        offset = lookup(model, "position.offset")
        if isinstance(offset, int):
            hf["pad_token_id"] = offset - 1


FAMILY = replace(
    BART,
    model_type="m2m_100",
    architecture="M2M100ForConditionalGeneration",
    fields=[
        *FIELDS,
        Key("vocab_size", "vocab_size", 128112),
        ActivationKey("activation_function", "relu"),
        SCALED_EMBEDDING,
        SinusoidsAfterPadding(),
    ],
    weights=weights("before"),
    ignored=("embed_positions.weights",),
    zero_if_absent=(),
)
