"""The Transformer that a ModelConfig describes: a decoder, an encoder such as BERT, or both such as T5.

Shapes: B batch, T tokens, S tokens of a source text, D d_model, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.calls import checked
from archlab.config.check import check_model
from archlab.config.components.component import RoleName
from archlab.config.components.norm import NoNorm
from archlab.config.layers import encoder_of, final_norm, layer_configs
from archlab.config.model_schema import HeadTransform as HeadTransformConfig
from archlab.config.model_schema import ModelConfig
from archlab.model.activations import make_activation
from archlab.model.arithmetic import Same, scaled
from archlab.model.context import Collected, ForwardPass, SequenceShard, start_pass
from archlab.model.init import initialize
from archlab.model.inputs import NO_INPUTS, Inputs, check_ids, check_inputs, check_tensors, is_real, sees_source
from archlab.model.layer import Layer
from archlab.model.norms import make_norm
from archlab.model.origin import Origin
from archlab.model.positions import make_positions, make_shared_bias
from archlab.model.projection import Projection, linear
from archlab.model.state import NO_STATES, Cache, Source, State


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


class Stack(nn.Module):
    """Layers of an encoder or a decoder, with the positions before them and the norm after them."""

    def add_layers(self, config: ModelConfig, kernel: str) -> None:
        """Add the modules. Constructors of subclasses call this method, so that each decides their order."""
        self.layer_configs = layer_configs(config)
        self.first_alike = [self.layer_configs.index(layer) for layer in self.layer_configs]
        self.positions = make_positions(config)
        self.position_bias = make_shared_bias(config)
        self.summed = Summed(config)
        self.layers = nn.ModuleList(Layer(layer, kernel) for layer in self.layer_configs)
        self.norm = make_norm(final_norm(config), config.d_model)

    def run(
        self,
        x_BTE: Tensor,
        this_pass: ForwardPass,
        collected: Collected | None,
        states: Sequence[Mapping[str, State | SequenceShard]] | None = None,
    ) -> Tensor:
        """Return the hidden states after the final norm: embedded tokens [B, T, E] -> [B, T, D]. `states` holds one
        mapping per layer, from branch names to states."""
        if self.positions is not None:
            x_BTE = x_BTE + self.positions(this_pass.positions_BT, x_BTE.dtype)
        x_BTD = self.summed(x_BTE)
        contexts = this_pass.contexts(self.layer_configs, self.first_alike, self.position_bias, collected)
        for layer, context, of_layer in zip(self.layers, contexts, states or [NO_STATES] * len(contexts), strict=True):
            x_BTD = layer(x_BTD, context, of_layer)
        return self.norm(x_BTD)


class Encoder(Stack):
    """Encoder of a model that also has a decoder. It has positions, layers and a norm of its own, and reads tokens
    through the decoder's embedding."""

    def __init__(self, config: ModelConfig, kernel: str) -> None:
        super().__init__()
        self.add_layers(config, kernel)

    def forward(self, x_BSE: Tensor, this_pass: ForwardPass, collected: Collected | None) -> Tensor:
        """Return the output that cross-attention reads: embedded tokens [B, S, E] -> [B, S, D]."""
        return self.run(x_BSE, this_pass, collected)


class Decoder(Stack):
    """Transformer that a config describes: tokens -> logits. It is a decoder, an encoder such as BERT, or a decoder
    with an encoder such as T5.

    `seed` determines the initial parameters; with None, the parameters are not initialized. `kernel` names the way to
    compute attention (see kernels.py). Raise ConfigError if the config breaks a rule.

    >>> model = archlab.Decoder(archlab.load_config("tiny-llama").model, seed=0)
    >>> model(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 3, 2048])
    """

    @checked
    def __init__(self, config: ModelConfig, *, seed: int | None = 0, kernel: str = "auto") -> None:
        super().__init__()
        check_model(config)
        self.config, self.origin = config, Origin()
        self.embedding = TokenEmbedding(config)
        self.segments = SegmentEmbedding(config) if config.embedding.segments else None
        self.add_layers(config, kernel)
        self.encoder_config = encoder_of(config)
        self.encoder = Encoder(self.encoder_config, kernel) if self.encoder_config else None
        self.head = Head(config)
        if seed is not None:
            initialize(self, config, seed)

    @property
    def stacks(self) -> list[Stack]:
        """The encoder, if there is one, and the decoder."""
        return [self] if self.encoder is None else [self.encoder, self]

    @property
    def all_layers(self) -> list[Layer]:
        """Layers of all stacks, those of an encoder first."""
        return [cast(Layer, layer) for stack in self.stacks for layer in stack.layers]

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        documents: Tensor | None = None,
        lengths: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        source: Tensor | None = None,
        source_lengths: Tensor | None = None,
        source_documents: Tensor | None = None,
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

        `source`, [B, S], holds the tokens that the encoder reads, in a model with an encoder. `source_lengths`, [B], is
        the number of tokens in each row of the source. The rest of the row is padding, which no token sees.

        `source_documents`, [B, S], holds the document number of each source token. Source tokens are packed like
        `documents`, which is then required. A token sees the source tokens whose number is that of its own document.

        `cache` holds the previous tokens; the new tokens are added to it. A prefix must be read in one pass. The source
        is an argument of the first pass only, because the cache holds its keys and values.

        `collected` receives auxiliary losses and expert loads from components, by name.

        Raise UserError if the arguments do not fit the model or each other.
        """
        inputs = Inputs(documents, lengths, segments, prefix, source, source_lengths, source_documents, cache)
        check_tensors(tokens_BT, inputs)
        if tokens_BT.device.type == "cpu" and not torch.compiler.is_compiling():
            check_ids(self.config, tokens_BT, source)  # not on a GPU, where the check would wait for the device
        return self.head(self.hidden(tokens_BT, inputs, collected), self.embedding.weight)

    def hidden(
        self,
        tokens_BT: Tensor,
        inputs: Inputs = NO_INPUTS,
        collected: Collected | None = None,
        part: SequenceShard | None = None,
    ) -> Tensor:
        """Return hidden states after the final norm: [B, T] int64 -> [B, T, D]. `inputs` and `collected` are explained
        in `forward`.

        With `part`, return only the states of this process's tokens.
        """
        check_inputs(self.config, self.encoder_config, tokens_BT, inputs)
        if inputs.cache is not None:
            inputs.cache.begin(tokens_BT.shape[1])
        x_BTD = self.through_layers(tokens_BT, inputs, collected, part)
        if inputs.cache is not None:
            inputs.cache.end(tokens_BT.shape[1])
        return x_BTD

    def through_layers(
        self,
        tokens_BT: Tensor,
        inputs: Inputs = NO_INPUTS,
        collected: Collected | None = None,
        part: SequenceShard | None = None,
    ) -> Tensor:
        """Run the layers without checking inputs or counting cached tokens. Only this part is worth compiling."""
        own_BT = tokens_BT if part is None else part.own(tokens_BT)
        x_BTD = self.embedding(own_BT)
        cache = inputs.cache
        this_pass = start_pass(tokens_BT, inputs.documents, inputs.lengths, inputs.prefix, cache, x_BTD.dtype)
        if self.encoder is not None:
            this_pass = replace(this_pass, source=self._source(inputs, this_pass.is_real, collected))
        if part is not None:
            this_pass = this_pass.of(part)
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(own_BT) if inputs.segments is None else inputs.segments)
        states = cache.layers if cache is not None else None
        if part is not None:
            states = [{"attention": part}] * len(self.layers)
        return self.run(x_BTD, this_pass, collected, states)

    def encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None = None,
        documents_BS: Tensor | None = None,
        collected: Collected | None = None,
    ) -> Tensor:
        """Return the encoder's output: tokens of the source, [B, S], to hidden states, [B, S, D]."""
        assert self.encoder is not None
        x_BSE = self.embedding(source_BS)
        return self.encoder(x_BSE, start_pass(source_BS, documents_BS, lengths_B, None, None, x_BSE.dtype), collected)

    def _source(self, inputs: Inputs, is_real_BT: Tensor | None, collected: Collected | None) -> Source:
        source_BS, lengths_B, cache = inputs.source, inputs.source_lengths, inputs.cache
        if source_BS is None:
            assert cache is not None
            assert cache.source is not None
            return cache.source
        seen_BTS = None
        if inputs.documents is not None:
            seen_BTS = sees_source(inputs)
            if is_real_BT is not None:  # padding must see a key, because a softmax over no keys is NaN
                seen_BTS |= ~is_real_BT[:, :, None]
        hidden_BSD = self.encode(source_BS, lengths_B, inputs.source_documents, collected)
        source = Source(is_real(source_BS, lengths_B), lengths_B is not None, hidden_BSD, seen_BTS)
        if cache is not None:
            cache.source = replace(source, hidden_BSD=None)
        return source
