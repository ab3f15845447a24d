"""Architecture of the model, with one field for each choice.

A field left at `null` is derived from other fields. `layers.py` derives these fields, and all other code reads the
resolved layers.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from archlab.config.components.activation import ActivationName
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
    Index,
    Length,
    Overrides,
    Positive,
    Settings,
    Width,
)
from archlab.displayed import Displayed


class Block(Settings):
    """Arrangement of the branches of a layer: attention, mixer and MLP."""

    parallel: Literal["none", "shared", "separate"] = "none"
    """Branches that read the stream at the same point. `none`: only attention and mixer, which come before the MLP.
    `shared`: all branches, through one norm (GPT-J, PaLM). `separate`: all branches, the MLP through its own norm
    (NeoX)."""
    attention_norm: bool = True
    """Whether attention has the norms that norm.placement sets. false: only the other branches have norms (ModernBERT's
    first layer, which reads a normalized embedding)."""
    mlp_output_norm: bool = False
    """Whether the MLP also has a norm on its output, with norm.placement pre (A.X K1's mixtures of experts)."""
    attention_multiplier: Positive = 1.0
    """Factor on the output of attention before the output is added to the stream (Granite's residual multiplier)."""
    mixer_multiplier: Positive = 1.0
    """Factor on the output of the recurrent mixer before the output is added to the stream."""
    mlp_multiplier: Positive = 1.0
    """Factor on the output of the MLP before the output is added to the stream."""
    stream_scale: bool = False
    """Whether the stream is multiplied by a stored number after the layer (Gemma 4's layer_scalar). The number is 1 in
    a new model, and training does not change it."""


class Embedding(Settings):
    """Token embedding."""

    width: Width | None = None
    """Width of the embedding matrix if it is narrower than the residual stream (Lan 2019; OPT-350m). A projection then
    widens the embeddings to d_model, and another projection narrows the stream before the head. null: d_model, without
    projections."""
    scale: Positive | Literal["sqrt_d_model"] = 1.0
    """Factor on the token embedding before positions are added. `sqrt_d_model`: the square root of d_model, as in
    Vaswani 2017 and Gemma. With model.mup, it is the square root of base_width."""
    round_scale: bool = False
    """Whether the scale is first rounded to the dtype of the weights, as in Gemma's code. In bfloat16 rounding
    changes the scale by at most 0.2%."""
    norm: bool | Literal["sum"] = False
    """Norm of the model's kind on the embedding. false: no norm. true: right after the token embedding (BLOOM).
    `sum`: after positions and segments are added (BERT)."""
    segments: Index = 0
    """Number of segments. Each has a learned vector that is added to the embeddings of its tokens (BERT: 2, for a
    pair of sentences). 0: no segments."""
    widened: Literal["tokens", "sum"] = "tokens"
    """Order of widening and addition if the embedding has a width of its own. `tokens`: the token embedding is widened
    to d_model, and positions and segments are added there (OPT). `sum`: token embedding, positions and segments are
    added and normalized at `width`, and a projection with a bias widens the sum (ELECTRA, ALBERT)."""

    def resolve(self, base_width: int) -> Self:
        """Return the embedding with its scale as a number. `base_width` is d_model, or the base width of muP."""
        scale = math.sqrt(base_width) if self.scale == "sqrt_d_model" else self.scale
        return self.model_copy(update={"scale": scale})


class HeadTransform(Settings):
    """Dense layer before the output matrix: activation(W x + b), then a norm (BERT)."""

    activation: ActivationName = "gelu"
    """Activation after the matrix."""
    bias: bool = True
    """Whether the dense layer has a bias."""
    norm: bool = True
    """Whether a norm of the model's kind follows the activation."""


class Head(Settings):
    """Output head, from the last hidden state to the logits."""

    tied: bool = False
    """Whether the head uses the embedding matrix as its weight matrix."""
    bias: bool = False
    """Whether a learned bias is added to the logits."""
    scale: Derived[Positive] = DERIVED
    """Factor on the logits (Cohere). Granite publishes the inverse, a divisor. null: 1, or base_width / d_model with
    model.mup."""
    softcap: Positive | None = None
    """Soft limit c on the logits z: they become c tanh(z / c), after the scale (Gemma 2). null: no limit."""
    transform: HeadTransform | None = None
    """Dense layer between the final norm and the output matrix (BERT). null: no such layer."""


class Init(Settings):
    """Standard deviations of initial weights, by role.

    Norms are initialized to weight 1 and bias 0, and all other biases to 0. With model.mup, the values are those at its
    base_width.
    """

    embedding: Positive | None = None
    """Standard deviation of the initial weights of token and position embeddings. null: 1 / sqrt(d_model), or 1 /
    sqrt(base_width) with model.mup."""
    input: Positive | None = None
    """Standard deviation of the initial weights of projections that read the stream (q, k, v, up, gate). null: 1 /
    sqrt(fan-in)."""
    output: Positive | None = None
    """Standard deviation of the initial weights of projections that write to the stream (attention output, MLP down
    projection). null: 1 / sqrt(fan-in)."""
    head: Positive | None = None
    """Standard deviation of the initial weights of an untied head. null: 1 / sqrt(d_model), or 1 / sqrt(base_width)
    with model.mup."""
    depth_scaled: bool = False
    """Whether the standard deviation of output projections is divided by the square root of the number of branches
    (GPT-2). A model in which each layer has attention and an MLP has 2 n_layers branches."""


class Layers(Settings):
    """Layer kinds by name, and the pattern in which they repeat. Each kind is a set of overrides of `model`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Overrides] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    pattern: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_LAYERS, strict=False)]
    """Names of layer kinds in order. The pattern repeats until there are n_layers layers."""

    @model_validator(mode="before")
    @classmethod
    def _not_too_many(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and len(raw) - 1 > MOST_KINDS:
            raise ValueError(f"{len(raw) - 1:,} layer kinds; allowed: up to {MOST_KINDS}")
        return raw

    @property
    def kinds(self) -> dict[str, Overrides]:
        """Overrides of `model` for each layer kind, by name of the kind."""
        return dict(self.__pydantic_extra__)


class Encoder(Settings):
    """Encoder that reads a source text, and the attention through which the decoder reads the encoder's output.

    Apart from its own fields, the section may contain overrides of `model` for the layers of the encoder, such as
    `mlp.d_ff` or `position.kind`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    n_layers: Depth
    """Number of encoder layers. All of them are alike, and their tokens see each other in both directions."""
    cross: Overrides = Field(default_factory=dict)
    """Overrides of `model.attention` for the cross-attention of the decoder, such as `n_kv_heads`. Every decoder layer
    has cross-attention between attention and MLP. Its queries come from the decoder, and its keys and values come
    from the encoder's output, without position encoding, window or temperature."""

    @property
    def overrides(self) -> Overrides:
        """Overrides of `model` for the layers of the encoder."""
        return dict(self.__pydantic_extra__)

    def __hash__(self) -> int:
        return hash(self.n_layers)  # dicts of overrides have no hash


class ModelConfig(Displayed, Settings):
    """Architecture of one stack of layers, a decoder or an encoder; or of a decoder that reads from an encoder."""

    vocab_size: Width
    """Number of tokens in the vocabulary. The embedding matrix and the head have one row per token."""
    d_model: Width
    """Width of the residual stream."""
    n_layers: Depth
    """Number of layers. Each layer has one or more of attention, a mixer and an MLP."""
    max_seq_len: Length = 1024
    """Maximum sequence length in tokens, for which the model is built and trained. Learned position embeddings have one
    row per position up to this length."""
    norm: BlockNorm = RMSNorm()
    """Kind and placement of the norms around the branches of a layer."""
    block: Block = Block()
    """Arrangement of the branches of a layer: one after the other, or in parallel."""
    attention: Attention
    """Attention: its kind, heads, widths, window and biases."""
    mixer: Mixer = NoMixer()
    """Recurrent mixer next to attention, or instead of attention."""
    position: Position = Rope()
    """Position encoding, which tells the model the position of each token."""
    mlp: MLP = GatedMLP()
    """MLP: plain, gated or a mixture of experts, with its activation and width."""
    embedding: Embedding = Embedding()
    """Token embedding: its width and scale."""
    head: Head = Head()
    """Output head: its weights, bias and scale."""
    dropout: DropoutPlaces = Dropout()
    """Dropout probability at each place. A single number sets all places."""
    init: Init = Init()
    """Standard deviations of initial weights, by role."""
    layers: Layers | None = None
    """Layer kinds and their pattern, if layers differ from each other. null: all layers are alike."""
    encoder: Encoder | None = None
    """Encoder of a source text, which the layers of `model` read through cross-attention (Vaswani 2017). null: no
    encoder."""
    mup: MuP | None = None
    """Maximal update parametrization (muP), in which learning rates tuned at a small width hold at larger widths. null:
    the standard parametrization, in which the width affects only initial standard deviations, through the fan-in."""

    @property
    def base_width(self) -> int:
        """Width for which initial standard deviations and embedding scales are given: base_width of muP, otherwise
        d_model."""
        return self.mup.base_width if self.mup else self.d_model

    @property
    def added_width(self) -> int:
        """Width at which positions and segments are added to the token embedding."""
        embedding = self.embedding
        return embedding.width if embedding.width and embedding.widened == "sum" else self.d_model

    @property
    def readout(self) -> Head:
        scale = self.head.scale or self.base_width / self.d_model
        return self.head.model_copy(update={"scale": scale})

    @property
    def multi_head(self) -> MultiHead:
        """Attention of the layers, for callers that support only multi-head attention. Raise UserError if the attention
        is of another kind."""
        return expect(self.attention, MultiHead, "attention", "model", "multihead")

    @property
    def dense(self) -> Dense:
        """MLP of the layers, for callers that support only plain and gated MLPs. Raise UserError if the MLP is of
        another kind."""
        return expect(self.mlp, Dense, "mlp", "model", "plain, gated")
