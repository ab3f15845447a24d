"""The architecture: every choice about the model is one field here.

A field left at `null` is derived from others; `layers.py` says how, and everyone else reads the result.
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
    """How a layer's branches stand to each other."""

    parallel: Literal["none", "shared", "separate"] = "none"
    """none: attention and mixer, then MLP; shared: all behind one norm (GPT-J, PaLM); separate: the MLP behind its own
    (NeoX)."""
    attention_multiplier: Positive = 1.0
    """Factor on the attention branch before it is added to the stream (Granite's residual multiplier)."""
    mixer_multiplier: Positive = 1.0
    """Factor on the recurrent mixer's branch before it is added to the stream."""
    mlp_multiplier: Positive = 1.0
    """Factor on the MLP branch before it is added to the stream."""


class Embedding(Settings):
    """The token embedding."""

    width: Width | None = None
    """Of a narrower matrix, whose rows a projection widens to d_model, and to which another narrows the stream again
    before the head (Lan 2019; OPT-350m). null: d_model, without projections."""
    scale: Positive | Literal["sqrt_d_model"] = 1.0
    """Factor on the embedding before positions are added; sqrt_d_model as in 2017 and Gemma (with model.mup of its
    base_width)."""
    round_scale: bool = False
    """Round the scale to the number format of the weights first, as Gemma's code does: by 0.2% in bfloat16 at most."""
    norm: bool = False
    """A norm of the model's kind on the embedding (BLOOM)."""

    def resolve(self, base_width: int) -> Self:
        """The same with the scale as a number; resolving twice changes nothing."""
        scale = math.sqrt(base_width) if self.scale == "sqrt_d_model" else self.scale
        return self.model_copy(update={"scale": scale})


class Head(Settings):
    """From the last hidden state to the logits."""

    tied: bool = False
    """Use the embedding matrix as the head's."""
    bias: bool = False
    """Add a learned bias to the logits."""
    scale: Derived[Positive] = DERIVED
    """Factor on the logits (Cohere; Granite divides). null: 1; with model.mup its base_width / d_model."""
    softcap: Positive | None = None
    """Logits z become c tanh(z / c), after the scale (Gemma 2). null: not."""


class Init(Settings):
    """Standard deviations by role; norms start at weight 1 and bias 0, biases at 0. With model.mup those of its
    base_width."""

    embedding: Positive | None = None
    """Token and position embeddings. null: 1 / sqrt(d_model); with model.mup 1 / sqrt(its base_width)."""
    input: Positive | None = None
    """Projections that read the stream (q, k, v, up, gate). null: 1 / sqrt(fan-in)."""
    output: Positive | None = None
    """Projections that write to the stream (attention out, MLP down). null: 1 / sqrt(fan-in)."""
    head: Positive | None = None
    """The untied head. null: as embedding."""
    depth_scaled: bool = False
    """Divide the output projections' deviation by the root of the number of branches: 2 n_layers where each layer
    has attention and an MLP (GPT-2)."""


class Layers(Settings):
    """Layer kinds by name, each a set of overrides, and the cycle in which they come."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Overrides] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    pattern: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_LAYERS, strict=False)]
    """Names of layer kinds, repeated until n_layers are filled."""

    @model_validator(mode="before")
    @classmethod
    def _not_too_many(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and len(raw) - 1 > MOST_KINDS:
            raise ValueError(f"{len(raw) - 1:,} layer kinds; allowed: up to {MOST_KINDS}")
        return raw

    @property
    def kinds(self) -> dict[str, Overrides]:
        """Layer kind -> what it changes, relative to `model`."""
        return dict(self.__pydantic_extra__)


class ModelConfig(Settings):
    """One decoder-only language model."""

    vocab_size: Width
    """Rows of the embedding and the head."""
    d_model: Width
    """Width of the residual stream."""
    n_layers: Depth
    """Layers, each attention, mixer and MLP, or some of them."""
    max_seq_len: Length = 1024
    """Longest sequence it is built and trained for, in tokens; learned positions end here."""
    norm: BlockNorm = RMSNorm()
    """Which norm, and where it stands."""
    block: Block = Block()
    """Serial or parallel branches."""
    attention: Attention
    """Heads, widths, window, biases."""
    mixer: Mixer = NoMixer()
    """A recurrent mixer beside attention, or in its place."""
    position: Position = Rope()
    """How the model knows where a token stands."""
    mlp: MLP = GatedMLP()
    """Plain or gated, activation, width."""
    embedding: Embedding = Embedding()
    """Scale of the token embedding."""
    head: Head = Head()
    """Tied or not, bias."""
    dropout: DropoutPlaces = Dropout()
    """Dropout by place; a number sets all."""
    init: Init = Init()
    """Initial standard deviations by role."""
    layers: Layers | None = None
    """Layers that differ from each other: named kinds and their cycle. null: all the same."""
    mup: MuP | None = None
    """What changes with the width, so that what was tuned at a smaller one holds. null: nothing but deviations by
    fan-in (the standard parametrisation)."""

    @property
    def base_width(self) -> int:
        """By which tables start, and are scaled: muP's, or d_model."""
        return self.mup.base_width if self.mup else self.d_model

    @property
    def readout(self) -> Head:
        """The head with its factor written out."""
        scale = self.head.scale or self.base_width / self.d_model
        return self.head.model_copy(update={"scale": scale})

    @property
    def multi_head(self) -> MultiHead:
        """The layers' attention, where only multi-head attention will do; UserError where it is another."""
        return expect(self.attention, MultiHead, "attention", "model", "multihead")

    @property
    def dense(self) -> Dense:
        """The layers' MLP, where only a plain or a gated one will do; UserError where it is another."""
        return expect(self.mlp, Dense, "mlp", "model", "plain, gated")
