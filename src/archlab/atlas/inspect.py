"""Inspection of a model folder: its family, its design choices, its unusual features, and whether archlab can load
it."""

from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from archlab.atlas import words
from archlab.atlas.tricks import tricks
from archlab.config.core.base import Base
from archlab.config.io import build_config
from archlab.config.layers import encoder_of, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.displayed import Printed
from archlab.errors import UserError
from archlab.exchange.hf_config import read_model_config, read_raw_config
from archlab.exchange.load import check_hf
from archlab.families.registry import find_family
from archlab.hf.folder import CONFIG, read_json
from archlab.hf.towers import read_text_values
from archlab.pricing.params import parameters

_SEES = {
    "full": "all earlier tokens",
    words.BOTH_SIDES: "all tokens, earlier and later",
    "state": "a recurrent state",
    "state+full": "all earlier tokens, or a recurrent state",
    words.NOTHING: "the token itself",
}


class Inspection(Printed, Base):
    """Content of a model folder. Fields that could not be read are empty, and `problems` gives the reasons."""

    printed_by: ClassVar = "folders.print_inspection"

    model_type: str | None
    architecture: str | None
    """Name of the transformers class. null if archlab does not know the family."""
    choices: dict[str, str]
    """Design choices by name, in standard terms."""
    unusual: list[str]
    """Features that a plain pre-norm Transformer does not have."""
    problems: list[str]
    """All reasons why archlab cannot load the model."""
    trained: str | None = None
    """Training progress of a run, in words. null for a published folder."""

    @property
    def loads(self) -> bool:
        """Whether archlab can load the model."""
        return not self.problems


def inspect_published(folder: Path) -> Inspection:
    """Inspect a Hugging Face folder. The content of tensors is not read, with a few exceptions (see `check_hf`)."""
    values = read_json(folder / CONFIG)
    model_type = values.get("model_type")
    known = None
    with suppress(UserError):
        known = find_family(read_text_values(folder).get("model_type"), f"{CONFIG}: model_type")
    inspection = Inspection(
        model_type=None if model_type is None else str(model_type),
        architecture=known.architecture if known else None,
        choices={},
        unusual=[],
        problems=[],
    )
    try:
        _, model = read_model_config(folder)
    except UserError as error:
        return inspection.model_copy(update={"problems": [str(error)]})
    config = build_config(read_raw_config(folder), (), str(folder))
    return inspection.model_copy(
        update={
            "choices": choices(model),
            "unusual": tricks(config),
            "problems": check_hf(folder),
        }
    )


def choices(model: ModelConfig) -> dict[str, str]:
    """Return the design choices of a model by name, in standard terms. Components that the model lacks are left out."""
    layers = layer_configs(model)
    counted = parameters(model)
    active = f", {counted.active:,} of them active" if counted.idle else ""
    depths = f"{model.encoder.n_layers} + {model.n_layers}" if model.encoder else str(model.n_layers)
    texts = {
        "size": f"{counted.total:,} parameters{active}: {depths} layers of {model.d_model}",
        "vocabulary": f"{model.vocab_size:,}, {'tied' if model.head.tied else 'untied'} head",
        "longest text": f"{model.max_seq_len:,} tokens",
        "norm": f"{words.norm(layers)}, {words.placement(layers)}",
        "block": words.block(layers),
        "encoder": _encoder(model),
        "attention": words.attention(layers),
        "recurrent mixer": ", ".join(words.recurrent(layers)) or words.NOTHING,
        "sees": words.ratio(layers) or _SEES[words.reach(layers)],
        "position": words.position(layers),
        "MLP": words.mlp(layers),
        "biases": words.biases(layers),
    }
    return {name: text for name, text in texts.items() if text != words.NOTHING}


def _encoder(model: ModelConfig) -> str:
    """Return the attention, position and MLP of the encoder, and the cross-attention that reads it."""
    encoder = encoder_of(model)
    if encoder is None:
        return words.NOTHING
    layers = layer_configs(encoder)
    crosses = [layer.model_copy(update={"attention": layer.cross}) for layer in layer_configs(model)]
    own = f"{words.attention(layers)}; {words.position(layers)}; {words.mlp(layers)}"
    return f"{own}; read by cross-attention: {words.attention(crosses)}"
