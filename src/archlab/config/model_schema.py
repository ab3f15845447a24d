"""The architecture: every choice about the model is one field here.

A field left at `null` is derived from others; `layers.py` says how, and everyone else reads the result.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from archlab.config.base import Base, Overrides, Positive, Probability, Width

NormEps = Annotated[
    Positive, Field(description="Added to the variance (or the mean square) before the root.")
]
Placement = Annotated[
    Literal["pre", "post", "double", "output"],
    Field(
        description="pre x+f(n(x)); post n(x+f(x)); double x+n'(f(n(x))); output x+n'(f(x)). "
        "Names as in Xiong 2020."
    ),
]
Activation = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "elu", "selu", "relu_squared", "sigmoid", "softplus", "identity"
]


class LayerNorm(Base):
    """(x - mean) / sqrt(var + eps) * w + b (Ba 2016)."""

    kind: Literal["layernorm"] = "layernorm"
    eps: NormEps = 1e-5
    placement: Placement = "pre"
    bias: bool = True
    """Add a learned bias after the weight."""


class RMSNorm(Base):
    """x / sqrt(mean(x^2) + eps) * w (Zhang & Sennrich 2019)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: NormEps = 1e-5
    placement: Placement = "pre"


class NoNorm(Base):
    """No normalisation anywhere."""

    kind: Literal["none"] = "none"


Norm = Annotated[LayerNorm | RMSNorm | NoNorm, Field(discriminator="kind")]


class Block(Base):
    """How attention and MLP stand to each other."""

    parallel: Literal["none", "shared", "separate"] = "none"
    """none: attention, then MLP; shared: both behind one norm (GPT-J, PaLM); separate: behind two (NeoX)."""


class Attention(Base):
    """Multi-head attention, MHA to MQA."""

    n_heads: Width
    """Query heads."""
    n_kv_heads: Width | None = None
    """Key/value heads: n_heads MHA, 1 MQA (Shazeer 2019), between GQA (Ainslie 2023). null: n_heads."""
    head_dim: Width | None = None
    """Width of one head; n_heads * head_dim need not be d_model. null: d_model / n_heads."""
    window: Width | None = None
    """Keys that a query sees, its own included: those at distance < window. null: all before it."""
    scale: Positive | None = None
    """Factor on q.k. null: 1 / sqrt(head_dim)."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    out_bias: bool = False
    """Bias on the output projection."""


class NoPosition(Base):
    """No position information but the causal mask (NoPE)."""

    kind: Literal["none"] = "none"


class Sinusoidal(Base):
    """Fixed sines and cosines added to the embedding (Vaswani 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: Positive = 10000.0
    """Base of the geometric series of wavelengths."""


class Learned(Base):
    """A learned vector per position, added to the embedding; max_seq_len of them."""

    kind: Literal["learned"] = "learned"


class Rope(Base):
    """Rotary embedding of queries and keys (Su 2021)."""

    kind: Literal["rope"] = "rope"
    theta: Positive = 10000.0
    """Base of the rotation frequencies."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of each head that turns: its first int(head_dim * fraction) dimensions."""
    pairing: Literal["half", "interleaved"] = "half"
    """Which dimensions turn together: i with i + dim/2 (rotate_half), or 2i with 2i + 1."""


Position = Annotated[NoPosition | Sinusoidal | Learned | Rope, Field(discriminator="kind")]


class MLP(Base):
    """The feed-forward branch: plain W2 act(W1 x), gated W2 (act(W1 x) * V x) (Shazeer 2020)."""

    kind: Literal["plain", "gated"] = "gated"
    activation: Activation = "silu"
    """gated: silu is SwiGLU, gelu GEGLU, relu ReGLU, sigmoid GLU, identity bilinear."""
    d_ff: Width | None = None
    """Width of one matrix. null: 4 d_model plain, 8/3 d_model gated, rounded up to a multiple of 8."""
    bias: bool = False
    """Biases on every projection of the MLP."""


class Embedding(Base):
    """The token embedding."""

    scale: Positive | Literal["sqrt_d_model"] = 1.0
    """Factor on the embedding before positions are added; sqrt_d_model as in 2017 and Gemma."""


class Head(Base):
    """From the last hidden state to the logits."""

    tied: bool = False
    """Use the embedding matrix as the head's."""
    bias: bool = False
    """Add a learned bias to the logits."""


class Dropout(Base):
    """Where activations are dropped in training; a single number sets all places."""

    embedding: Probability = 0.0
    """After the embedding and its positions."""
    attention: Probability = 0.0
    """On the attention weights."""
    branch: Probability = 0.0
    """On the output of attention and MLP, before the addition."""


def _everywhere(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dict.fromkeys(Dropout.model_fields, float(value))
    return value


DropoutPlaces = Annotated[Dropout, BeforeValidator(_everywhere, json_schema_input_type=Dropout | Probability)]
"""Dropout by place, or one number for all."""


class Init(Base):
    """Standard deviations by role; norms start at weight 1 and bias 0, biases at 0."""

    embedding: Positive | None = None
    """Token and position embeddings. null: 1 / sqrt(d_model)."""
    input: Positive | None = None
    """Projections that read the stream (q, k, v, up, gate). null: 1 / sqrt(fan-in)."""
    output: Positive | None = None
    """Projections that write to the stream (attention out, MLP down). null: 1 / sqrt(fan-in)."""
    head: Positive | None = None
    """The untied head. null: 1 / sqrt(d_model)."""
    depth_scaled: bool = False
    """Divide the output projections' deviation by sqrt(2 n_layers) (GPT-2)."""


class Layers(Base):
    """Layer kinds by name, each a set of overrides, and the cycle in which they come."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Overrides] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    pattern: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """Names of layer kinds, repeated until n_layers are filled."""

    @property
    def kinds(self) -> dict[str, Overrides]:
        """Layer kind -> what it changes, relative to `model`."""
        return dict(self.__pydantic_extra__)


class ModelConfig(Base):
    """One decoder-only Transformer."""

    vocab_size: Width
    """Rows of the embedding and the head."""
    d_model: Width
    """Width of the residual stream."""
    n_layers: Width
    """Blocks, each attention and MLP."""
    max_seq_len: Width = 1024
    """Longest sequence it is built and trained for, in tokens; learned positions end here."""
    norm: Norm = RMSNorm()
    """Which norm, and where it stands."""
    block: Block = Block()
    """Serial or parallel branches."""
    attention: Attention
    """Heads, widths, window, biases."""
    position: Position = Rope()
    """How the model knows where a token stands."""
    mlp: MLP = MLP()
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
