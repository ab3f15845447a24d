"""Inputs of a layer's components besides the hidden states: positions, masks, rotations and biases."""

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.position import Alibi, Position
from archlab.config.components.visibility import Visibility, hidden_keys, is_plain_causal, reaches_all
from archlab.config.core.registry import make
from archlab.config.layers import LayerConfig
from archlab.model.masks import Mask, NoMask, TensorMask, Visible
from archlab.model.rotary import Rotation, check_rotation
from archlab.model.state import NO_STATES, Cache, Source, State, is_step


class Collected(UserDict[str, list[Tensor]]):
    """Auxiliary losses, expert loads and other tensors that components report: name -> one tensor per layer.

    This class is not a dict, because `fully_shard` passes modules a copy of every dict that contains tensors.
    """

    def __missing__(self, name: str) -> list[Tensor]:
        self[name] = []
        return self[name]


@dataclass(frozen=True)
class SequenceShard:
    """This process's part of each sequence in context parallelism: T of S tokens. Other processes have the rest."""

    runs: tuple[range, ...]
    """Indices of this process's tokens in the sequence, in order."""
    gathered: Callable[[Tensor], Tensor]
    """Function that gathers the keys or values of all processes in the order of the sequence: [B, heads, T, width] ->
    [B, heads, S, width]."""

    def own(self, x_BS: Tensor) -> Tensor:
        """Select the tokens of this process: [B, S] -> [B, T]."""
        return torch.cat([x_BS[:, run.start : run.stop] for run in self.runs], 1)

    def extend(self, **new: Tensor) -> tuple[Tensor, ...]:
        """Return the keys or values of all processes.

        Components call this method instead of `State.extend`, which returns cached and new rows.
        """
        return tuple(self.gathered(rows) for rows in new.values())


_CAUSAL = Visibility()


@dataclass(frozen=True)
class Context:
    """Information about the forward pass that a layer's components need. Layers with identical configs share it.

    Shapes: B batch (1 if all sequences have the same values), T new tokens, S keys, H query heads. Fields about queries
    and keys are None in a layer without attention.
    """

    positions_BT: Tensor
    """Positions of the new tokens; negative for padding."""
    is_real_BT: Tensor | None
    """Whether each token is not padding. None if there is no padding."""
    starts_BT: Tensor | None
    """For each token, the index of its document's first token in this pass. None if documents are not packed."""
    mask_BTS: Mask | None
    """Mask of the keys that each query sees; None for a plain causal mask."""
    distance_BTS: Tensor | None
    """Query position minus key position; None if no bias needs the distance.

    Falcon's ALiBi uses minus the key position instead.
    """
    rotation: Rotation | None
    """Rotation of queries and new keys; None without RoPE."""
    bias_BHTS: Tensor | None
    """Position bias to add to the attention scores if all layers share one; otherwise None."""
    collected: Collected | None
    """Container to which components add auxiliary losses and expert loads; None if they are not needed."""
    source_BSD: Tensor | None = None
    """Output of the encoder, from which cross-attention computes keys and values. None for other components, and if the
    cache already contains these keys and values."""
    cross: "Context | None" = None
    """Context of the layer's cross-attention; None without an encoder."""

    def causal(self, state: State | None) -> Tensor:
        """Return a causal mask, [B or 1, T, S], for the attention of a plug-in.

        A token sees itself and the earlier tokens of its sequence or document. The S keys are the rows that
        `state.extend` returns, or the new tokens if there is no state.
        """
        query_BT, key_BS = self.positions_BT, self.positions_BT
        if state is not None:
            last = state.length.tensor + query_BT.shape[1] - 1
            padding_B1 = last - query_BT[:, -1:]
            key_BS = state.indices(query_BT.shape[1])[None] - padding_B1
        return Visible(_CAUSAL, query_BT, key_BS, starts_BQ=self.starts_BT).dense


@dataclass(frozen=True)
class ForwardPass:
    """The new tokens of one forward pass, from which the context of each layer is made."""

    positions_BT: Tensor
    """Positions of the new tokens, [B or 1, T]; negative for padding."""
    lengths_BT: Tensor
    """Length of the sequence or document that each token belongs to, including new tokens, [B or 1, T or 1]."""
    starts_BT: Tensor | None
    """For each token, the index of its document's first token. None if documents are not packed."""
    is_whole: bool
    """Whether every row is one whole sequence, perhaps with padding after it: nothing is cached or packed."""
    is_padded: bool
    """Whether rows may have padding: before the sequence with a cache, otherwise after it."""
    prefix_B11: Tensor | None
    """Length of each sequence's prefix, whose tokens see each other in prefix layers. None means no prefix."""
    cache: Cache | None
    dtype: torch.dtype
    source: Source | None = None
    """Source text that cross-attention reads; None without an encoder."""
    whole: "ForwardPass | None" = None
    """Forward pass of all tokens, if this pass contains only this process's tokens; otherwise None."""
    runs: tuple[range, ...] | None = None
    """Indices of this process's tokens; None if the process has all tokens."""

    @property
    def is_real(self) -> Tensor | None:
        """Whether each token is not padding. None if there is no padding."""
        return self.positions_BT >= 0 if self.is_padded else None

    def of(self, part: SequenceShard) -> "ForwardPass":
        """Return the part of this pass for one process's tokens. Their queries still see the keys of all tokens."""
        return replace(
            self,
            positions_BT=part.own(self.positions_BT),
            lengths_BT=self.lengths_BT if self.starts_BT is None else part.own(self.lengths_BT),
            starts_BT=None if self.starts_BT is None else part.own(self.starts_BT),
            is_whole=False,
            whole=self,
            runs=part.runs,
        )

    def contexts(
        self,
        layers: Sequence[LayerConfig],
        first_alike: Sequence[int],
        shared_bias: nn.Module | None,
        collected: Collected | None,
    ) -> list[Context]:
        """Return the context of every layer. Layers with identical configs share one context.

        `first_alike` holds, for each layer, the index of the first layer with an identical config.
        """
        states = self.cache.layers if self.cache else [NO_STATES] * len(layers)
        made = {i: self.context(layers[i], states[i], shared_bias, collected) for i in set(first_alike)}
        return [made[i] for i in first_alike]

    def context(
        self,
        layer: LayerConfig,
        states: Mapping[str, State] = NO_STATES,
        shared_bias: nn.Module | None = None,
        collected: Collected | None = None,
    ) -> Context:
        query_BT, T = self.positions_BT, self.positions_BT.shape[1]
        is_real_BT = self.is_real
        cross = None if self.source is None else _cross(self.source, query_BT, is_real_BT, collected)
        attention = layer.attention
        if not isinstance(attention, AnyAttention):
            return Context(query_BT, is_real_BT, self.starts_BT, None, None, None, None, collected, cross=cross)
        key_BS = self.whole.positions_BT if self.whole else query_BT
        if self.cache is not None and (state := states.get("attention")):
            key_BS = state.indices(T)[None] - self.cache.padding_B1
        is_plain = self.is_whole and is_plain_causal(attention, T)
        is_biased = layer.position.acts_on == "scores"
        distance_BTS = _distance(layer.position, query_BT, key_BS)
        return Context(
            query_BT,
            is_real_BT,
            self.starts_BT,
            mask_BTS=None if is_plain else self._mask(attention, query_BT, key_BS, is_biased=is_biased),
            distance_BTS=distance_BTS,
            rotation=self._rotation(layer.position, attention.rotary_width),
            bias_BHTS=shared_bias(distance_BTS) if layer.position.is_shared and shared_bias is not None else None,
            collected=collected,
            cross=cross,
        )

    def _mask(self, attention: AnyAttention, query_BT: Tensor, key_BS: Tensor, *, is_biased: bool) -> Mask:
        # Padding after a sequence needs no mask unless a query sees later keys.
        is_whole = self.is_whole and not (self.is_padded and attention.visibility == "two_sided")
        n_queries, n_keys = query_BT.shape[1], key_BS.shape[1]
        if (is_whole and hidden_keys(attention, n_keys) == "none") or self._sees_all_kept(attention, n_keys):
            return NoMask(n_queries, n_keys, key_BS.device)
        is_whole |= self.whole is None and self.starts_BT is not None
        key_starts_BS = self.whole.starts_BT if self.whole else None
        mask = Visible(attention, query_BT, key_BS, self.prefix_B11, self.starts_BT, is_whole, key_starts_BS, self.runs)
        mask.prepare(is_biased=is_biased)
        return mask

    def _sees_all_kept(self, rule: Visibility, n_keys: int) -> bool:
        """Return whether this pass is an uncompiled decoding step on a GPU whose query sees all `n_keys` keys it reads.

        Without a mask, torch's kernel for GPUs divides the keys of a head among several blocks of threads.
        """
        query_BT, cache = self.positions_BT, self.cache
        if torch.compiler.is_compiling() or cache is None or self.is_padded or query_BT.device.type == "cpu":
            return False
        # A cache keeps only the keys within a window, but keys of two neighboring blocks.
        reach = n_keys if rule.blocks is None else cache.length + 1
        return is_step(query_BT.shape[1]) and reaches_all(rule, reach)

    def _rotation(self, position: Position, width: int) -> Rotation | None:
        if position.acts_on != "queries":
            return None
        return make(position, width, self.positions_BT, self.lengths_BT, self.dtype, check=check_rotation)


def _cross(source: Source, positions_BT: Tensor, is_real_BT: Tensor | None, collected: Collected | None) -> Context:
    """Return the context of cross-attention. A query sees the whole source, or the source of its document."""
    T, (B, S) = positions_BT.shape[1], source.is_real_BS.shape
    mask = NoMask(T, S, positions_BT.device)
    if source.seen_BTS is not None:
        mask = TensorMask(source.seen_BTS)
    elif source.is_padded:
        mask = TensorMask(source.is_real_BS[:, None].expand(B, T, S))
    return Context(positions_BT, is_real_BT, None, mask, None, None, None, collected, source.hidden_BSD)


def _distance(position: Position, query_BT: Tensor, key_BS: Tensor) -> Tensor | None:
    if position.acts_on != "scores":
        return None
    is_falcons = isinstance(position, Alibi) and position.form == "falcon"
    return (0 if is_falcons else query_BT[:, :, None]) - key_BS[:, None, :].expand(-1, query_BT.shape[1], -1)


def start_pass(
    tokens_BT: Tensor,
    documents_BT: Tensor | None,
    lengths_B: Tensor | None,
    prefix_B: Tensor | None,
    cache: Cache | None,
    dtype: torch.dtype,
) -> ForwardPass:
    """Return the forward pass of new tokens.

    Positions count from the first token after the padding, including cached tokens. In packed documents, they count
    from the first token of each document. Padding after packed documents is a document of its own.
    """
    T = tokens_BT.shape[1]
    index_1T = torch.arange(T, device=tokens_BT.device)[None]
    if documents_BT is not None:
        return _packed(index_1T, documents_BT, lengths_B, dtype)
    prefix_B11 = None if prefix_B is None else prefix_B[:, None, None]
    if lengths_B is not None:
        lengths_B1 = lengths_B[:, None].to(index_1T.dtype)
        positions_BT = torch.where(index_1T < lengths_B1, index_1T, -1)
        return ForwardPass(positions_BT, lengths_B1, None, True, True, prefix_B11, None, dtype)
    if cache is None:
        return ForwardPass(index_1T, torch.full_like(index_1T[:, :1], T), None, True, False, prefix_B11, None, dtype)
    first_B1 = cache.length_tensor - cache.padding_B1
    # A decoding step never reads cache.length: a compiled step would be recompiled for each new value.
    is_whole = T > 1 and cache.length == 0 and not cache.is_padded
    positions_BT = first_B1 + index_1T
    return ForwardPass(positions_BT, first_B1 + T, None, is_whole, cache.is_padded, prefix_B11, cache, dtype)


def _packed(index_1T: Tensor, documents_BT: Tensor, lengths_B: Tensor | None, dtype: torch.dtype) -> ForwardPass:
    T = documents_BT.shape[1]
    differs_BT = documents_BT[:, 1:] != documents_BT[:, :-1]
    if lengths_B is not None:
        differs_BT |= index_1T[:, 1:] == lengths_B[:, None]
    edge_B1 = torch.ones_like(documents_BT[:, :1], dtype=torch.bool)
    starts_BT = (index_1T * torch.cat((edge_B1, differs_BT), 1)).cummax(-1).values
    ends_BT = torch.where(torch.cat((differs_BT, edge_B1), 1), index_1T + 1, T).flip(-1).cummin(-1).values.flip(-1)
    positions_BT = index_1T - starts_BT
    if lengths_B is not None:
        positions_BT = positions_BT.masked_fill(index_1T >= lengths_B[:, None], -1)
    return ForwardPass(positions_BT, ends_BT - starts_BT, starts_BT, False, lengths_B is not None, None, None, dtype)
