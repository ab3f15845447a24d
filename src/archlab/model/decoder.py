"""The Transformer that a ModelConfig describes: a decoder, or an encoder such as BERT.

Shapes: B batch, T tokens, D d_model, V vocabulary.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.check import check_model
from archlab.config.components.component import RoleName
from archlab.config.components.norm import NoNorm
from archlab.config.layers import final_norm, layer_configs
from archlab.config.model_schema import HeadTransform as HeadTransformConfig
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.activations import make_activation
from archlab.model.arithmetic import Same, scaled
from archlab.model.context import Collected, SequenceShard, start_pass
from archlab.model.init import initialize
from archlab.model.inputs import check_inputs
from archlab.model.layer import Layer
from archlab.model.norms import make_norm
from archlab.model.origin import Origin
from archlab.model.positions import make_positions, make_shared_bias
from archlab.model.projection import Projection, linear
from archlab.model.state import NO_STATES, Cache


class TokenEmbedding(nn.Module):
    """Embedding table with one row per token.

    The config decides by which scale the rows are multiplied, and whether they are then projected and normalized.
    """

    roles: ClassVar[dict[str, RoleName]] = {"weight": "embedding"}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embedding = config.embedding
        width = embedding.width or config.d_model
        self.weight = nn.Parameter(torch.empty(config.vocab_size, width))
        widens = embedding.width and embedding.widened == "tokens"
        self.widen = Projection(width, config.d_model, bias=False, role="input") if widens else Same()
        self.scale = float(config.embedding.resolve(config.base_width).scale)
        self.round_scale = config.embedding.round_scale
        self.norm = make_norm(config.norm if embedding.norm is True else NoNorm(), config.d_model)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Look up token ids: [B, T] int64 -> [B, T, D]."""
        rows_BTE = F.embedding(tokens_BT, self.weight)
        if self.round_scale:  # as a tensor, the scale is rounded to the weights' dtype; as a Python number, it is not
            return self.norm(self.widen(rows_BTE * rows_BTE.new_full((), self.scale)))
        return self.norm(self.widen(scaled(rows_BTE, self.scale)))


class SegmentEmbedding(nn.Module):
    """Embedding table with one row per segment, which is added to the token embedding (Devlin 2018)."""

    roles: ClassVar[dict[str, RoleName]] = {"weight": "embedding"}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.embedding.segments, config.added_width))

    def forward(self, segments_BT: Tensor) -> Tensor:
        """Look up segments: [B, T] int64 -> [B, T, D]."""
        return F.embedding(segments_BT, self.weight)


class Summed(nn.Module):
    """Steps after positions and segments are added to the token embedding: norm, dropout and widening."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embedding, width = config.embedding, config.added_width
        self.norm = make_norm(config.norm if embedding.norm == "sum" else NoNorm(), width)
        self.dropout = nn.Dropout(config.dropout.embedding) if config.dropout.embedding else Same()
        widens = embedding.width and embedding.widened == "sum"
        self.widen = Projection(width, config.d_model, bias=True, role="input") if widens else Same()

    def forward(self, x_BTE: Tensor) -> Tensor:
        """Apply the steps: [B, T, E] -> [B, T, D]."""
        return self.widen(self.dropout(self.norm(x_BTE)))


class HeadTransform(nn.Module):
    """Dense layer before the output matrix: norm(activation(W x + b))."""

    def __init__(self, config: ModelConfig, transform: HeadTransformConfig) -> None:
        super().__init__()
        width = config.embedding.width or config.d_model
        self.dense = Projection(config.d_model, width, bias=transform.bias, role="input")
        self.activation = make_activation(transform.activation)
        self.norm = make_norm(config.norm if transform.norm else NoNorm(), width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply the layer: [B, T, D] -> [B, T, E], where E is the input width of the output matrix."""
        return self.norm(self.activation(self.dense(x_BTD)))


class Head(nn.Module):
    """Linear map from hidden states to logits. It has its own matrix or uses the embedding's matrix."""

    roles: ClassVar[dict[str, RoleName]] = {"weight": "head"}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config.readout
        width, transform = config.embedding.width, config.head.transform
        self.transform = HeadTransform(config, transform) if transform else Same()
        narrow = width if width and not transform else None
        self.narrow = Projection(config.d_model, narrow, bias=False, role="head") if narrow else Same()
        shape = (config.vocab_size, width or config.d_model)
        self.weight = None if config.head.tied else nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.head.bias else None
        self.constants = {"bias": 0.0}

    def forward(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        """Return logits: [B, T, D] -> [B, T, V].

        The full formula is softcap(scale (W x + b)). The config decides which of these steps are used.
        """
        logits_BTV = self.uncapped(x_BTD, embedding_VD)
        cap = self.config.softcap
        return logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)

    def uncapped(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        """Return the logits before the soft cap: [B, T, D] -> [B, T, V]."""
        return scaled(self.product(self.narrow(self.transform(x_BTD)), embedding_VD), self.config.scale)

    def product(self, x_BTE: Tensor, embedding_VE: Tensor) -> Tensor:
        """Return the matrix product plus the bias: [B, T, E] -> [B, T, V]."""
        return linear(x_BTE, embedding_VE if self.weight is None else self.weight, self.bias)


class Decoder(nn.Module):
    """Transformer with one stack of layers, a decoder or an encoder: tokens -> logits.

    `seed` determines the initial parameters; with None, the parameters are not initialized. `kernel` names the way to
    compute attention (see kernels.py). Raise ConfigError if the config breaks a rule.
    """

    def __init__(self, config: ModelConfig, *, seed: int | None = 0, kernel: str = "auto") -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            raise UserError(
                f"Decoder: config is a {type(config).__name__}; allowed: a ModelConfig, such as load_config(...).model"
            )
        check_model(config)
        self.config, self.origin = config, Origin()
        self.layer_configs = layer_configs(config)
        last_norm = final_norm(config)
        self.first_alike = [self.layer_configs.index(layer) for layer in self.layer_configs]
        self.embedding = TokenEmbedding(config)
        self.segments = SegmentEmbedding(config) if config.embedding.segments else None
        self.positions = make_positions(config)
        self.position_bias = make_shared_bias(config)
        self.summed = Summed(config)
        self.layers = nn.ModuleList(Layer(layer, kernel) for layer in self.layer_configs)
        self.norm = make_norm(last_norm, config.d_model)
        self.head = Head(config)
        if seed is not None:
            initialize(self, config, seed)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        documents: Tensor | None = None,
        lengths: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        cache: Cache | None = None,
        collected: Collected | None = None,
    ) -> Tensor:
        """Return logits: [B, T] int64 -> [B, T, V].

        `documents`, [B, T], holds the document number of each token. Consecutive tokens with the same number are one
        document. They see only each other, and their positions start at 0.

        `lengths`, [B], is the number of tokens in each row. The rest of the row is padding, which no token sees.

        `segments`, [B, T], holds the segment of each token, if `embedding.segments` is set. By default it is 0.

        `prefix`, [B], is the length of each sequence's prefix, without padding. Prefix tokens see each other in both
        directions, in layers whose `attention.visibility` is prefix.

        `cache` holds the previous tokens; the new tokens are added to it. A prefix must be read in one pass.

        `collected` receives auxiliary losses and expert loads from components, by name.
        """
        hidden_BTD = self.hidden(
            tokens_BT,
            documents=documents,
            lengths=lengths,
            segments=segments,
            prefix=prefix,
            cache=cache,
            collected=collected,
        )
        return self.head(hidden_BTD, self.embedding.weight)

    def hidden(
        self,
        tokens_BT: Tensor,
        *,
        documents: Tensor | None = None,
        lengths: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        cache: Cache | None = None,
        collected: Collected | None = None,
        part: SequenceShard | None = None,
    ) -> Tensor:
        """Return hidden states after the final norm: [B, T] int64 -> [B, T, D].

        With `part`, return only the states of this process's tokens.
        """
        inputs = {"documents": documents, "lengths": lengths, "segments": segments, "prefix": prefix}
        check_inputs(self.config, tokens_BT, cache=cache, **inputs)
        if cache is not None:
            cache.begin(tokens_BT.shape[1])
        x_BTD = self.through_layers(tokens_BT, cache=cache, collected=collected, part=part, **inputs)
        if cache is not None:
            cache.end(tokens_BT.shape[1])
        return x_BTD

    def through_layers(
        self,
        tokens_BT: Tensor,
        *,
        documents: Tensor | None = None,
        lengths: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        cache: Cache | None = None,
        collected: Collected | None = None,
        part: SequenceShard | None = None,
    ) -> Tensor:
        """Run the layers without checking inputs or counting cached tokens. Only this part is worth compiling."""
        own_BT = tokens_BT if part is None else part.own(tokens_BT)
        x_BTD = self.embedding(own_BT)
        this_pass = start_pass(tokens_BT, documents, lengths, prefix, cache, x_BTD.dtype)
        if part is not None:
            this_pass = this_pass.of(part)
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(own_BT) if segments is None else segments)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(this_pass.positions_BT, x_BTD.dtype)
        x_BTD = self.summed(x_BTD)
        contexts = this_pass.contexts(self.layer_configs, self.first_alike, self.position_bias, collected)
        none = NO_STATES if part is None else {"attention": part}
        states = cache.layers if cache is not None else [none] * len(contexts)
        for layer, context, of_layer in zip(self.layers, contexts, states, strict=True):
            x_BTD = layer(x_BTD, context, of_layer)
        return self.norm(x_BTD)
