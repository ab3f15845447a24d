"""FLOPs of matrix products and convolutions, per token; a multiplication and an addition are two.

Work is counted in two ways, named apart: *visible* is what the architecture asks for, *computed* is what training's
kernels multiply, needed or not.
"""

from collections import Counter

from pydantic import ConfigDict, Field, computed_field

from archlab.config.base import Base
from archlab.config.component import Counting
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.config.training import resolve_train

BACKWARD = 2
"""The backward pass in forward passes: one product for the inputs' gradient and one for the weights'."""


class Flops(Base):
    """FLOPs per token, averaged over the positions of one sequence: those of the parts that components name, and of
    `head`, from the last hidden state to logits, the same whether tied or not."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @computed_field
    @property
    def total(self) -> float:
        """All of them."""
        return sum(dict(self).values())


def forward_flops(model: ModelConfig, seq_len: int, counting: Counting = "visible") -> Flops:
    """FLOPs per token of a forward pass over a sequence of `seq_len` tokens."""
    parts = Counter[str]()
    for layer in layer_configs(model):
        for component in layer.components:
            parts.update(component.flops(layer.site, seq_len, counting))  # pyright: ignore[reportArgumentType] - floats
    per_token = {name: n / seq_len for name, n in parts.items()}
    width, vocab = model.embedding.width, model.vocab_size
    # A narrow embedding has two projections, too.
    head = 2.0 * (model.d_model * vocab if width is None else width * (vocab + 2 * model.d_model))
    return Flops(**per_token, head=head)  # pyright: ignore[reportCallIssue] - parts are as components name them


def training_flops(model: ModelConfig, seq_len: int, counting: Counting = "visible") -> float:
    """FLOPs per token, forward and backward: 3 times the forward pass; nothing is recomputed."""
    return (1 + BACKWARD) * forward_flops(model, seq_len, counting).total


def computed_training_flops(config: Config) -> float:
    """FLOPs per token that training spends, hidden pairs that are multiplied all the same included."""
    train = resolve_train(config)
    return training_flops(config.model, train.seq_len, "packed" if train.document_mask else "computed")
