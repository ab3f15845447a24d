"""What a model's folder holds: family, choices, what is unusual about them, and whether it would load."""

from pathlib import Path

from archlab.atlas import words
from archlab.atlas.tricks import tricks
from archlab.config.core.base import Base
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.configs import read_model_config, read_raw_config
from archlab.exchange.load import check_hf
from archlab.families.registry import FAMILIES
from archlab.hf.folder import CONFIG, read_json
from archlab.pricing.params import parameters

_SEES = {
    "full": "everything before",
    "state": "what a state has kept",
    "state+full": "everything before, or what a state has kept",
    words.NOTHING: "the token itself",
}
"""Of layers without windows."""


class Inspection(Base):
    """The findings; what could not be read stays empty, and `problems` says why."""

    model_type: str | None
    architecture: str | None
    """The transformers class; null for a family that archlab does not know."""
    choices: dict[str, str]
    """In the field's words."""
    unusual: list[str]
    """All that a plain pre-norm Transformer of its kind does not have."""
    problems: list[str]
    """Every reason why it would not load."""
    trained: str | None = None
    """How far a run is, in words; null for a published folder."""

    @property
    def loads(self) -> bool:
        """Whether archlab loads it."""
        return not self.problems


def inspect(folder: Path) -> Inspection:
    """Read the config and the headers of the weights, not the weights."""
    values = read_json(folder / CONFIG)
    model_type = values.get("model_type")
    known = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    found = Inspection(
        model_type=None if model_type is None else str(model_type),
        architecture=known.architecture if known else None,
        choices={},
        unusual=[],
        problems=[],
    )
    try:
        _, model = read_model_config(folder)
    except UserError as error:
        return found.model_copy(update={"problems": [str(error)]})
    config = build_config(read_raw_config(folder), (), str(folder))
    return found.model_copy(
        update={
            "choices": choices(model),
            "unusual": tricks(config),
            "problems": check_hf(folder),
        }
    )


def choices(model: ModelConfig) -> dict[str, str]:
    """A model's choices in the field's words; of parts that it has."""
    layers = layer_configs(model)
    counted = parameters(model)
    active = f", {counted.active:,} of them active" if counted.idle else ""
    found = {
        "size": f"{counted.total:,} parameters{active}: {model.n_layers} layers of {model.d_model}",
        "vocabulary": f"{model.vocab_size:,}, head {'tied' if model.head.tied else 'of its own'}",
        "longest text": f"{model.max_seq_len:,} tokens",
        "norm": f"{words.norm(layers)}, {words.placement(layers)}",
        "block": words.block(layers),
        "attention": words.attention(layers),
        "recurrent mixer": ", ".join(words.recurrent(layers)) or words.NOTHING,
        "sees": words.ratio(layers) or _SEES[words.reach(layers)],
        "position": words.position(layers),
        "MLP": words.mlp(layers),
        "biases": words.biases(layers),
    }
    return {name: text for name, text in found.items() if text != words.NOTHING}
