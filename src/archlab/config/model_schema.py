"""The architecture: every choice about the model is one field here.

A field left at `null` is derived from others; `layers.py` says how, and everyone else reads the result.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from archlab.config.base import (
    MOST_KINDS,
    MOST_LAYERS,
    Base,
    Depth,
    Heads,
    Index,
    Length,
    Overrides,
    Positive,
    Probability,
    Width,
)

Activation = Literal[
    "relu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "elu",
    "selu",
    "relu_squared",
    "sigmoid",
    "softplus",
    "identity",
    "xielu",
]
ACTIVATION_PARAMETERS = {"xielu": 2}
"""Learned numbers of an activation that has any."""

Placement = Literal["pre", "post", "double", "output", "carried"]


# --- norms ----------------------------------------------------------------------------------------------------


class Scaling(Base):
    """What layer norm and RMS norm have in common: the epsilon, and the learned weight."""

    kind: str
    eps: Positive = 1e-5
    """Added to the variance (or the mean square) before the root."""
    weight: bool = True
    """Multiply by a learned weight per feature; without it and without bias it is OLMo 1's norm."""
    unit_offset: bool = False
    """Multiply by 1 + weight, the weight starting at 0 (Gemma; Nemotron's LN1P)."""

    def n_parameters(self, width: int) -> int:
        """Learned numbers of one norm over `width` features."""
        return width * self.weight


class LayerNormScaling(Scaling):
    """(x - mean) / sqrt(var + eps) * w + b over the features, in float32 (Ba 2016)."""

    kind: Literal["layernorm"] = "layernorm"  # pyright: ignore[reportIncompatibleVariableOverride]
    bias: bool = True
    """Add a learned bias after the weight."""

    def n_parameters(self, width: int) -> int:
        """Learned numbers of one norm over `width` features."""
        return width * (self.weight + self.bias)


class RMSNormScaling(Scaling):
    """x / sqrt(mean(x^2) + eps) * w over the features, in float32 (Zhang & Sennrich 2019)."""

    kind: Literal["rmsnorm"] = "rmsnorm"  # pyright: ignore[reportIncompatibleVariableOverride]
    cast: Literal["after_weight", "before_weight"] = "after_weight"
    """When the result goes back to the activations' format: seen in bfloat16 only (Llama: before_weight)."""


class NoNorm(Base):
    """No normalisation."""

    kind: Literal["none"] = "none"

    def n_parameters(self, width: int) -> int:
        """None."""
        return 0 * width


class _Placed(Base):
    placement: Placement = "pre"
    """pre x+f(n(x)); post n(x+f(x)); double x+n'(f(n(x))); output x+n'(f(x)); carried n(x)+f(n(x)) (BLOOM's option).
    Names as in Xiong 2020."""


class LayerNorm(_Placed, LayerNormScaling):
    """Layer norm in the block."""


class RMSNorm(_Placed, RMSNormScaling):
    """RMS norm in the block."""


class ScaleNorm(_Placed):
    """g x / max(||x||, eps), g one learned number that starts at sqrt(width) (Nguyen & Salazar 2019)."""

    kind: Literal["scalenorm"] = "scalenorm"
    eps: Positive = 1e-5
    """Least length that x is divided by."""

    def n_parameters(self, width: int) -> int:
        """One learned number, whatever the width."""
        return 1


class DynamicTanh(_Placed):
    """tanh(alpha x) * w + b in place of a norm, alpha one learned number; no statistics (Zhu 2025)."""

    kind: Literal["dyt"] = "dyt"
    alpha: Positive = 0.5
    """Where alpha starts."""

    def n_parameters(self, width: int) -> int:
        """Weight and bias per feature, and alpha."""
        return 2 * width + 1


Norm = Annotated[LayerNorm | RMSNorm | ScaleNorm | DynamicTanh | NoNorm, Field(discriminator="kind")]


class _Scoped(Base):
    scope: Literal["head", "each_head", "width"] = "head"
    """head: over each head, one weight [head_dim] for all (Qwen 3); each_head: with weights of its own
    [heads, head_dim] (Command R+); width: over all heads at once, before the split (OLMo 2)."""


class QKLayerNorm(_Scoped, LayerNormScaling):
    """Layer norm of queries and keys."""


class QKRMSNorm(_Scoped, RMSNormScaling):
    """RMS norm of queries and keys."""


QKNorm = Annotated[QKLayerNorm | QKRMSNorm | NoNorm, Field(discriminator="kind")]


# --- block and attention --------------------------------------------------------------------------------------


class Block(Base):
    """How attention and MLP stand to each other."""

    parallel: Literal["none", "shared", "separate"] = "none"
    """none: attention, then MLP; shared: both behind one norm (GPT-J, PaLM); separate: behind two (NeoX)."""
    attention_multiplier: Positive = 1.0
    """Factor on the attention branch before it is added to the stream (Granite's residual multiplier)."""
    mlp_multiplier: Positive = 1.0
    """Factor on the MLP branch before it is added to the stream."""


class BlockSparse(Base):
    """Fixed sparse attention (Child 2019): the own block so far, and the last keys of every earlier block."""

    size: Length
    """Tokens per block."""
    summary: Length
    """Last keys of an earlier block that later queries see."""


class Attention(Base):
    """Multi-head attention, MHA to MQA."""

    n_heads: Heads
    """Query heads."""
    n_kv_heads: Heads | None = None
    """Key/value heads: n_heads MHA, 1 MQA (Shazeer 2019), between GQA (Ainslie 2023). null: n_heads."""
    head_dim: Width | None = None
    """Width of one head; n_heads * head_dim need not be d_model. null: d_model / n_heads."""
    window: Length | None = None
    """Keys that a query sees, its own included: those at distance < window. null: all before it."""
    stride: Annotated[Index, Field(ge=2)] | None = None
    """Beyond the window, keys at distances divisible by it are seen too (dilated). null: none."""
    global_tokens: Index = 0
    """The first tokens of a sequence, which all later ones see, window or not (Longformer, causal form)."""
    blocks: BlockSparse | None = None
    """Fixed sparse blocks instead of a window. null: none."""
    scale: Positive | None = None
    """Factor on q.k. null: 1 / sqrt(head_dim)."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections."""
    out_bias: bool = False
    """Bias on the output projection."""
    qk_norm: QKNorm = NoNorm()
    """Norm of queries and keys before their product (Henry 2020)."""
    clip_qkv: Positive | None = None
    """Queries, keys and values are clamped to [-c, c] right after their projection (OLMo, MPT). null: not."""
    softcap: Positive | None = None
    """Scores s become c tanh(s / c), before the mask (Gemma 2). null: not."""
    sub_norm: bool = False
    """One more norm, of the block's kind, before the output projection (BitNet)."""


# --- positions ------------------------------------------------------------------------------------------------

Theta = Annotated[float, Field(gt=1)]
Stretch = Annotated[float, Field(ge=1)]
Longer = Annotated[float, Field(gt=1)]
"""A stretch that is one."""


class NoPosition(Base):
    """No position information but the causal mask (NoPE)."""

    kind: Literal["none"] = "none"


class Sinusoidal(Base):
    """Fixed sines and cosines added to the embedding (Vaswani 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: Theta = 10000.0
    """Base of the geometric series of wavelengths."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """Sine and cosine of a frequency side by side (2017), or all sines, then all cosines."""
    offset: Index = 0
    """Where the first position stands on the waves (XGLM: 2)."""


class Learned(Base):
    """A learned vector per position, added to the embedding; max_seq_len of them."""

    kind: Literal["learned"] = "learned"
    offset: Index = 0
    """Unused rows before the first position's (OPT: 2)."""


class Shaw(Base):
    """Learned vectors a of the distance beside the keys: q.(k + a) (Shaw 2018); per layer, shared by its heads."""

    kind: Literal["shaw"] = "shaw"
    max_distance: Width = 16
    """Larger distances share the last vector."""


class T5(Base):
    """A learned bias per head and bucket of distances (Raffel 2020), one-sided."""

    kind: Literal["t5"] = "t5"
    buckets: Annotated[Width, Field(ge=3)] = 32
    """Half of them for single distances, the others logarithmic up to max_distance."""
    max_distance: Length = 128
    """From here on all distances share the last bucket."""
    shared: bool = True
    """One table for all layers, or one per layer."""


class Alibi(Base):
    """A bias falling linearly with the distance, steeper in some heads (Press 2021)."""

    kind: Literal["alibi"] = "alibi"
    max_bias: Positive = 8.0
    """Head i of h falls by 2^(-max_bias i / h) per token; interleaved when h is no power of two."""
    form: Literal["distance", "falcon"] = "distance"
    """distance: -slope * distance, added to the scaled scores; falcon: slope * key position, both rounded to bfloat16,
    added before the scores are scaled (Falcon-RW)."""


class NoScaling(Base):
    """RoPE's angles as they are."""

    kind: Literal["none"] = "none"


class LinearScaling(Base):
    """All frequencies divided by the factor (Chen 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Longer
    """How many times longer than in training."""


class DynamicNTK(Base):
    """Theta grows with the sequence once it is longer than the original; cached decoding then differs from the full
    pass by design, for earlier keys were turned at another theta."""

    kind: Literal["dynamic"] = "dynamic"
    factor: Stretch
    """How fast theta grows."""
    original_max_seq_len: Length
    """Up to here nothing changes."""


class Llama3Scaling(Base):
    """Long waves stretched, short ones kept, a blend between (Llama 3.1)."""

    kind: Literal["llama3"] = "llama3"
    factor: Longer
    """How much long waves are stretched."""
    low_freq_factor: Positive = 1.0
    """Waves longer than original / this are stretched."""
    high_freq_factor: Positive = 4.0
    """Waves shorter than original / this are kept."""
    original_max_seq_len: Length = 8192
    """Length before the stretch."""


class Yarn(Base):
    """Frequencies interpolated by how often they turn within the original length (Peng 2023)."""

    kind: Literal["yarn"] = "yarn"
    factor: Stretch
    """How many times longer than in training."""
    original_max_seq_len: Length
    """Length before the stretch."""
    beta_fast: Positive = 32.0
    """Pairs that turn more often than this are kept."""
    beta_slow: Positive = 1.0
    """Pairs that turn less often than this are interpolated."""
    truncate: bool = True
    """Round the range between the two outward to whole pairs."""
    attention_factor: Positive | None = None
    """Factor on cos and sin. null: 0.1 ln(factor) + 1."""


class Longrope(Base):
    """A factor per pair, one list for short and one for long sequences (Ding 2024). A cache that is filled on both
    sides of the original length holds keys of both lists; `generate` reads the text again there."""

    kind: Literal["longrope"] = "longrope"
    original_max_seq_len: Annotated[Length, Field(ge=2)]
    """Longer sequences take the long factors, whole."""
    short_factor: Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]
    """Divides each pair's frequency up to the original length."""
    long_factor: Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]
    """Divides each pair's frequency beyond it."""
    factor: Stretch
    """How many times longer than in training; decides attention_factor, and is 1 where that is given."""
    attention_factor: Positive | None = None
    """Factor on cos and sin. null: sqrt(1 + ln(factor) / ln(original))."""


class Proportional(Base):
    """p-RoPE: only the fastest pairs turn, the others stand still (Barbero 2024)."""

    kind: Literal["proportional"] = "proportional"
    turning: Annotated[float, Field(gt=0, lt=1)]
    """Share of the pairs that turn."""

    def turning_pairs(self, n: int) -> int:
        """How many of the pairs of n dimensions turn."""
        return int(self.turning * n // 2)


RopeScaling = Annotated[
    NoScaling | LinearScaling | DynamicNTK | Llama3Scaling | Yarn | Longrope | Proportional,
    Field(discriminator="kind"),
]


class Rope(Base):
    """Rotary embedding of queries and keys (Su 2021)."""

    kind: Literal["rope"] = "rope"
    theta: Theta = 10000.0
    """Base of the rotation frequencies."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of each head that turns: its first int(head_dim * fraction) dimensions."""
    pairing: Literal["half", "interleaved"] = "half"
    """Which dimensions turn together: i with i + dim/2 (rotate_half), or 2i with 2i + 1."""
    order: Literal["after_qk_norm", "before_qk_norm"] = "after_qk_norm"
    """Queries and keys are turned after or before their norm (Hunyuan: before)."""
    scaling: RopeScaling = NoScaling()
    """How the angles stretch for sequences longer than in training."""


BIASED = ("shaw", "t5", "alibi")
"""Kinds that read the distance of query and key, and add to their score."""

Position = Annotated[NoPosition | Sinusoidal | Learned | Shaw | T5 | Alibi | Rope, Field(discriminator="kind")]


# --- the rest -------------------------------------------------------------------------------------------------


class MLP(Base):
    """The feed-forward branch: plain W2 act(W1 x), gated W2 (act(W1 x) * V x) (Shazeer 2020)."""

    kind: Literal["plain", "gated"] = "gated"
    activation: Activation = "silu"
    """gated: silu is SwiGLU, gelu GEGLU, relu ReGLU, sigmoid GLU, identity bilinear."""
    d_ff: Width | None = None
    """Width of one matrix. null: 4 d_model plain, 8/3 d_model gated, rounded up to a multiple of 8."""
    bias: bool = False
    """Biases on every projection of the MLP."""
    sub_norm: bool = False
    """One more norm, of the block's kind, before the down projection (BitNet)."""


class Embedding(Base):
    """The token embedding."""

    width: Width | None = None
    """Of a narrower matrix, whose rows a projection widens to d_model, and to which another narrows the stream again
    before the head (Lan 2019; OPT-350m). null: d_model, without projections."""
    scale: Positive | Literal["sqrt_d_model"] = 1.0
    """Factor on the embedding before positions are added; sqrt_d_model as in 2017 and Gemma."""
    round_scale: bool = False
    """Round the scale to the number format of the weights first, as Gemma's code does: by 0.2% in bfloat16 at most."""
    norm: bool = False
    """A norm of the model's kind on the embedding (BLOOM)."""


class Head(Base):
    """From the last hidden state to the logits."""

    tied: bool = False
    """Use the embedding matrix as the head's."""
    bias: bool = False
    """Add a learned bias to the logits."""
    scale: Positive = 1.0
    """Factor on the logits (Cohere; Granite divides)."""
    softcap: Positive | None = None
    """Logits z become c tanh(z / c), after the scale (Gemma 2). null: not."""


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


class ModelConfig(Base):
    """One decoder-only Transformer."""

    vocab_size: Width
    """Rows of the embedding and the head."""
    d_model: Width
    """Width of the residual stream."""
    n_layers: Depth
    """Blocks, each attention and MLP."""
    max_seq_len: Length = 1024
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
