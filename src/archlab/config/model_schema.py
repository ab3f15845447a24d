"""Architecture of the model: each choice is one field here.

A field left at `null` is derived from others. `layers.py` says how, and all other code reads the result.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from archlab.config.components.component import MLP, Attention, Mixer, NoMixer, expect
from archlab.config.components.dense import Dense, GatedMLP
from archlab.config.components.dropout import Dropout, DropoutPlaces
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.mup import MuP
from archlab.config.components.norm import BlockNorm, RMSNorm
from archlab.config.components.position import Position, Rope
from archlab.config.core.base import (
    DERIVED,
    MOST_KINDS,
    MOST_LAYERS,
    Depth,
    Derived,
    Length,
    Overrides,
    Positive,
    Settings,
    Width,
)


class Block(Settings):
    """Arrangement of the branches of a layer."""

    parallel: Literal["none", "shared", "separate"] = "none"
    """Branches that read the stream at the same point. `none`: attention and mixer first, then the MLP. `shared`: all
    of them, behind one norm (GPT-J, PaLM). `separate`: all of them, the MLP behind its own norm (NeoX)."""
    attention_multiplier: Positive = 1.0
    """Factor on the output of attention before it is added to the stream (Granite's residual multiplier)."""
    mixer_multiplier: Positive = 1.0
    """Factor on the output of the recurrent mixer before it is added to the stream."""
    mlp_multiplier: Positive = 1.0
    """Factor on the output of the MLP before it is added to the stream."""


class Embedding(Settings):
    """Token embedding."""

    width: Width | None = None
    """Width of a narrower embedding matrix (Lan 2019; OPT-350m). A projection widens its rows to d_model, and another
    narrows the stream again before the head. null: d_model, without projections."""
    scale: Positive | Literal["sqrt_d_model"] = 1.0
    """Factor on the embedding before positions are added. `sqrt_d_model`: the root of d_model, as in Vaswani 2017 and
    Gemma; with model.mup, the root of its base_width."""
    round_scale: bool = False
    """Whether the scale is first rounded to the dtype of the weights, as in Gemma's code. In bfloat16 this changes it
    by at most 0.2%."""
    norm: bool = False
    """Whether a norm of the model's kind follows the embedding (BLOOM)."""

    def resolve(self, base_width: int) -> Self:
        """Return the same embedding with the scale as a number. Resolving twice changes nothing."""
        scale = math.sqrt(base_width) if self.scale == "sqrt_d_model" else self.scale
        return self.model_copy(update={"scale": scale})


class Head(Settings):
    """Output head, from the last hidden state to the logits."""

    tied: bool = False
    """Whether the head uses the embedding matrix as its own."""
    bias: bool = False
    """Whether a learned bias is added to the logits."""
    scale: Derived[Positive] = DERIVED
    """Factor on the logits (Cohere; Granite divides by its value). null: 1, or base_width / d_model with model.mup."""
    softcap: Positive | None = None
    """Soft limit c on the logits z: they become c tanh(z / c), after the scale (Gemma 2). null: no limit."""


class Init(Settings):
    """Standard deviations of initial values, by role. Norms start at weight 1 and bias 0, and biases at 0. With
    model.mup, the deviations are those at its base_width."""

    embedding: Positive | None = None
    """Standard deviation of token and position embeddings. null: 1 / sqrt(d_model), or 1 / sqrt(base_width) with
    model.mup."""
    input: Positive | None = None
    """Standard deviation of projections that read the stream (q, k, v, up, gate). null: 1 / sqrt(fan-in)."""
    output: Positive | None = None
    """Standard deviation of projections that write to the stream (attention output, MLP down). null: 1 /
    sqrt(fan-in)."""
    head: Positive | None = None
    """Standard deviation of the untied head. null: the same as the embedding."""
    depth_scaled: bool = False
    """Whether the deviation of output projections is divided by the root of the number of branches. There are 2
    n_layers branches if each layer has attention and an MLP (GPT-2)."""


class Layers(Settings):
    """Layer kinds by name, each a set of overrides of `model`, and the pattern in which they repeat."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Overrides] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    pattern: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_LAYERS, strict=False)]
    """Names of layer kinds in order, repeated until there are n_layers."""

    @model_validator(mode="before")
    @classmethod
    def _not_too_many(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and len(raw) - 1 > MOST_KINDS:
            raise ValueError(f"{len(raw) - 1:,} layer kinds; allowed: up to {MOST_KINDS}")
        return raw

    @property
    def kinds(self) -> dict[str, Overrides]:
        """Overrides of `model` for each layer kind."""
        return dict(self.__pydantic_extra__)


class ModelConfig(Settings):
    """One decoder-only language model."""

    vocab_size: Width
    """Number of rows of the embedding and the head."""
    d_model: Width
    """Width of the residual stream."""
    n_layers: Depth
    """Number of layers. Each has attention, a mixer and an MLP, or some of them."""
    max_seq_len: Length = 1024
    """Longest sequence in tokens that the model is built and trained for. Learned positions end here."""
    norm: BlockNorm = RMSNorm()
    """Kind and placement of the norms."""
    block: Block = Block()
    """Arrangement of the branches: one after the other, or in parallel."""
    attention: Attention
    """Attention: heads, widths, window, biases."""
    mixer: Mixer = NoMixer()
    """Recurrent mixer next to attention, or instead of it."""
    position: Position = Rope()
    """Encoding of the position of tokens."""
    mlp: MLP = GatedMLP()
    """MLP: plain, gated or a mixture of experts; activation and width."""
    embedding: Embedding = Embedding()
    """Token embedding: its width and scale."""
    head: Head = Head()
    """Output head: tied or not, bias, scale."""
    dropout: DropoutPlaces = Dropout()
    """Probability of dropout at each place; one number sets all places."""
    init: Init = Init()
    """Standard deviations of initial values, by role."""
    layers: Layers | None = None
    """Layer kinds and their pattern, for layers that differ from each other. null: all layers are alike."""
    mup: MuP | None = None
    """Parametrization in which learning rates tuned at a small width hold at a larger one (muP). null: the standard
    parametrization, in which only initial deviations depend on the width, through the fan-in."""

    @property
    def base_width(self) -> int:
        """Width that initial deviations and scales of embedding tables refer to: that of muP, otherwise d_model."""
        return self.mup.base_width if self.mup else self.d_model

    @property
    def readout(self) -> Head:
        """Head with its scale filled in."""
        scale = self.head.scale or self.base_width / self.d_model
        return self.head.model_copy(update={"scale": scale})

    @property
    def multi_head(self) -> MultiHead:
        """Attention of the layers, if it must be multi-head. Raise UserError if it is of another kind."""
        return expect(self.attention, MultiHead, "attention", "model", "multihead")

    @property
    def dense(self) -> Dense:
        """MLP of the layers, if it must be plain or gated. Raise UserError if it is of another kind."""
        return expect(self.mlp, Dense, "mlp", "model", "plain, gated")
