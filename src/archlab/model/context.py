"""What one forward pass knows beside the stream: where tokens stand, and what follows for masks, rotations, biases."""

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.position import Alibi, Position
from archlab.config.components.visibility import Visibility, is_plain_causal
from archlab.config.core.registry import make
from archlab.config.layers import LayerConfig
from archlab.model.masks import Mask, Visible
from archlab.model.rotary import Rotation, check_rotation
from archlab.model.state import NO_STATES, Cache, State


class Collected(UserDict[str, list[Tensor]]):
    """What components report beside the stream, by name, a tensor per layer: auxiliary losses, loads of experts.

    No dict, for `fully_shard` gives a module a copy of any dict in which it finds tensors.
    """

    def __missing__(self, name: str) -> list[Tensor]:
        self[name] = []
        return self[name]


@dataclass(frozen=True)
class SequenceShard:
    """Some tokens of each sequence; other processes have the others (context parallelism). T tokens here, S in all."""

    runs: tuple[range, ...]
    """Indices of the tokens in the sequence, in order."""
    gathered: Callable[[Tensor], Tensor]
    """Gather keys or values: [B, heads, T, width] -> [B, heads, S, width], in the order of the sequence."""

    def own(self, x_BS: Tensor) -> Tensor:
        """[B, S] -> [B, T]: the tokens of this process."""
        return torch.cat([x_BS[:, run.start : run.stop] for run in self.runs], 1)

    def extend(self, **new: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of all processes, as `State.extend` returns the cached rows with the new ones."""
        return tuple(self.gathered(rows) for rows in new.values())


_CAUSAL = Visibility()


@dataclass(frozen=True)
class Context:
    """What a component needs to know of the pass; the same for all layers of one config. B is 1 where all sequences of
    the batch are alike. What is about queries and keys is None in a layer without attention."""

    positions_BT: Tensor
    """Of the new tokens; negative ones are padding."""
    is_real_BT: Tensor | None
    """False at padding; None where there is none."""
    starts_BT: Tensor | None
    """Index, in this pass, of the first token of each one's document; None where a row is one text."""
    mask_BTS: Mask | None
    """Which keys a query sees; None for plain causal."""
    distance_BTS: Tensor | None
    """Query position minus key position (Falcon's ALiBi: 0 minus key position); None where nothing reads it."""
    rotation: Rotation | None
    """How queries and new keys rotate; None without RoPE."""
    bias_BHTS: Tensor | None
    """On the scores, from the table that all layers share; None where they share none."""
    collected: Collected | None
    """Where components put auxiliary losses and loads; None where nobody asks for them."""

    def causal(self, state: State | None) -> Tensor:
        """[B or 1, T, S], true where a new token sees one of those that `state.extend` gives (without a state: of the
        new ones): itself, or an earlier one of its text or document. For an attention that a plug-in brings."""
        query_BT, key_BS = self.positions_BT, self.positions_BT
        if state is not None:
            last = state.length.tensor + query_BT.shape[1] - 1
            padding_B1 = last - query_BT[:, -1:]
            key_BS = state.indices(query_BT.shape[1])[None] - padding_B1
        return Visible(_CAUSAL, query_BT, key_BS, starts_BQ=self.starts_BT).dense


@dataclass(frozen=True)
class ForwardPass:
    """The new tokens of one forward pass: their positions, [B or 1, T]; negative ones are padding."""

    positions_BT: Tensor
    lengths_BT: Tensor
    """Tokens, so far, of the text or document that each belongs to, [B or 1, T or 1]."""
    starts_BT: Tensor | None
    """Index of the first token of each one's document; None where a row is one text."""
    is_plain: bool
    """Whether every row is one text from its first token: nothing cached, padded or packed."""
    prefix_B11: Tensor | None
    """First tokens of each text that see each other both ways, in layers that say so; None: none."""
    cache: Cache | None
    dtype: torch.dtype
    of_all: "ForwardPass | None" = None
    """Where these are some tokens of each row, the pass of all of them; None: these are all."""
    runs: tuple[range, ...] | None = None
    """Which these are, then."""

    def of(self, part: SequenceShard) -> "ForwardPass":
        """Some of the tokens, whose queries see the keys of all."""
        return replace(
            self,
            positions_BT=part.own(self.positions_BT),
            lengths_BT=self.lengths_BT if self.starts_BT is None else part.own(self.lengths_BT),
            starts_BT=None if self.starts_BT is None else part.own(self.starts_BT),
            is_plain=False,
            of_all=self,
            runs=part.runs,
        )

    def contexts(
        self,
        layers: Sequence[LayerConfig],
        first_alike: Sequence[int],
        shared_bias: nn.Module | None,
        collected: Collected | None,
    ) -> list[Context]:
        """Every layer's. `first_alike`: for each, which layer is the first of the same config; they share a context."""
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
        """As one layer sees it."""
        query_BT, T = self.positions_BT, self.positions_BT.shape[1]
        is_real_BT = query_BT >= 0 if self.cache and self.cache.is_padded else None
        attention = layer.attention
        if not isinstance(attention, AnyAttention):
            return Context(query_BT, is_real_BT, self.starts_BT, None, None, None, None, collected)
        key_BS = self.of_all.positions_BT if self.of_all else query_BT
        if self.cache is not None and (state := states.get("attention")):
            key_BS = state.indices(T)[None] - self.cache.padding_B1
        is_plain = self.is_plain and is_plain_causal(attention, T)
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
        )

    def _mask(self, attention: AnyAttention, query_BT: Tensor, key_BS: Tensor, *, is_biased: bool) -> Mask:
        is_whole = self.of_all is None and (self.is_plain or self.starts_BT is not None)
        key_starts_BS = self.of_all.starts_BT if self.of_all else None
        mask = Visible(attention, query_BT, key_BS, self.prefix_B11, self.starts_BT, is_whole, key_starts_BS, self.runs)
        mask.prepare(is_biased=is_biased)
        return mask

    def _rotation(self, position: Position, width: int) -> Rotation | None:
        if position.acts_on != "queries":
            return None
        return make(position, width, self.positions_BT, self.lengths_BT, self.dtype, check=check_rotation)


def _distance(position: Position, query_BT: Tensor, key_BS: Tensor) -> Tensor | None:
    if position.acts_on != "scores":
        return None
    is_falcons = isinstance(position, Alibi) and position.form == "falcon"
    return (0 if is_falcons else query_BT[:, :, None]) - key_BS[:, None, :].expand(-1, query_BT.shape[1], -1)


def start_pass(
    tokens_BT: Tensor, documents_BT: Tensor | None, prefix_B: Tensor | None, cache: Cache | None, dtype: torch.dtype
) -> ForwardPass:
    """Positions count from the start of the cache, of the text behind the padding, or of each document."""
    T = tokens_BT.shape[1]
    index_1T = torch.arange(T, device=tokens_BT.device)[None]
    if documents_BT is not None:
        return _packed(index_1T, documents_BT, dtype)
    prefix_B11 = None if prefix_B is None else prefix_B[:, None, None]
    if cache is None:
        return ForwardPass(index_1T, torch.full_like(index_1T[:, :1], T), None, True, prefix_B11, None, dtype)
    first_B1 = cache.length_tensor - cache.padding_B1
    # A decoding step never asks for the number, at which a compiled one would be compiled anew.
    is_plain = T > 1 and cache.length == 0 and not cache.is_padded
    return ForwardPass(first_B1 + index_1T, first_B1 + T, None, is_plain, prefix_B11, cache, dtype)


def _packed(index_1T: Tensor, documents_BT: Tensor, dtype: torch.dtype) -> ForwardPass:
    """A document is a run of equal numbers."""
    T = documents_BT.shape[1]
    differs_BT = documents_BT[:, 1:] != documents_BT[:, :-1]
    edge_B1 = torch.ones_like(documents_BT[:, :1], dtype=torch.bool)
    starts_BT = (index_1T * torch.cat((edge_B1, differs_BT), 1)).cummax(-1).values
    ends_BT = torch.where(torch.cat((differs_BT, edge_B1), 1), index_1T + 1, T).flip(-1).cummin(-1).values.flip(-1)
    return ForwardPass(index_1T - starts_BT, ends_BT - starts_BT, starts_BT, False, None, None, dtype)
