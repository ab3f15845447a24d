"""FLOPs of matrix products and convolutions, per token; a multiplication and an addition are two.

Work is counted in two ways, named apart: *visible* is what the architecture asks for, *computed* is what training's
kernels multiply, needed or not.
"""

from pydantic import ConfigDict, Field, computed_field

from archlab.config.components.work import Counting, Pass, matrix_flops
from archlab.config.core.base import Base
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.pricing.work import BACKWARD, forward


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
    parts = matrix_flops(forward(model, Pass(1, seq_len, counting=counting)))
    head = parts.pop("head")
    per_token = {part: n / seq_len for part, n in parts.items()}
    return Flops(**per_token, head=head / seq_len)  # pyright: ignore[reportCallIssue] - parts are as components name them


def training_flops(model: ModelConfig, seq_len: int, counting: Counting = "visible") -> float:
    """FLOPs per token, forward and backward: 3 times the forward pass; nothing is recomputed."""
    return (1 + BACKWARD) * forward_flops(model, seq_len, counting).total


def computed_training_flops(config: Config) -> float:
    """FLOPs per token that training spends, hidden pairs that are multiplied all the same included."""
    train = resolve_train(config)
    return training_flops(config.model, train.seq_len, "packed" if train.document_mask else "computed")
