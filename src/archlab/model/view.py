"""Where the tokens of one forward pass stand, and what follows for masks, rotations and biases."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlab.config.layers import LayerConfig
from archlab.config.model_schema import BIASED, T5, Alibi, Position, Rope
from archlab.model.cache import Cache, LayerCache
from archlab.model.rotary import Rotation, rotation
from archlab.model.visibility import is_plain_causal, visible


@dataclass(frozen=True)
class View:
    """What a layer's attention needs to know. B is 1 where all sequences of the batch are alike."""

    mask_BTS: Tensor | None
    """True where a query sees a key; None for plain causal."""
    distance_BTS: Tensor | None
    """Query position minus key position (Falcon's ALiBi: 0 minus key position); None where nothing reads it."""
    rotation: Rotation | None
    """How queries and new keys turn; None without RoPE."""
    bias_BHTS: Tensor | None
    """On the scores, from the table that all layers share; None where they share none."""
    length: int
    """Tokens in the cache before this pass."""


@dataclass(frozen=True)
class Place:
    """Positions of a pass's new tokens, [B or 1, T]; negative ones are padding."""

    positions_BT: Tensor
    lengths_BT: Tensor
    """Tokens, so far, of the text or document that each belongs to, [B or 1, T or 1]."""
    starts_BT: Tensor | None
    """Index of the first token of each one's document; None where a row is one text."""
    plain: bool
    """Whether every row is one text from its first token: nothing cached, padded or packed."""
    cache: Cache | None
    dtype: torch.dtype

    def views(self, layers: Sequence[LayerConfig], kinds: Sequence[int], shared_bias: nn.Module | None) -> list[View]:
        """Every layer's; `kinds` are the indices of the first layers of the same config, which share it."""
        caches = self.cache.layers if self.cache else [None] * len(layers)
        of_kind = {kind: self.view(layers[kind], caches[kind], shared_bias) for kind in set(kinds)}
        return [of_kind[kind] for kind in kinds]

    def view(self, layer: LayerConfig, cache: LayerCache | None, shared_bias: nn.Module | None) -> View:
        """As one layer sees it."""
        query_BT, T = self.positions_BT, self.positions_BT.shape[1]
        length = self.cache.length if self.cache else 0
        key_BS = cache.indices(length, T)[None] - self.cache.padding_B1 if self.cache and cache else query_BT
        plain = self.plain and is_plain_causal(layer.attention, T)
        distance_BTS = _distance(layer.position, query_BT, key_BS)
        is_shared = isinstance(layer.position, T5) and layer.position.shared
        return View(
            mask_BTS=None if plain else self._mask(layer, query_BT, key_BS),
            distance_BTS=distance_BTS,
            rotation=self._rotation(layer),
            bias_BHTS=shared_bias(distance_BTS) if is_shared and shared_bias is not None else None,
            length=length,
        )

    def _mask(self, layer: LayerConfig, query_BT: Tensor, key_BS: Tensor) -> Tensor:
        query_BT1, key_B1S = query_BT[:, :, None], key_BS[:, None, :]
        seen_BTS = visible(layer.attention, query_BT1, key_B1S)
        if self.starts_BT is not None:
            return seen_BTS & (self.starts_BT[:, :, None] == self.starts_BT[:, None, :])
        # A padding token sees itself alone: a softmax over nothing is not a number.
        return (seen_BTS & (key_B1S >= 0)) | (key_B1S == query_BT1)

    def _rotation(self, layer: LayerConfig) -> Rotation | None:
        if not isinstance(layer.position, Rope):
            return None
        head_dim = layer.attention.head_dim
        return rotation(layer.position, head_dim, self.positions_BT, self.lengths_BT, self.dtype)


def _distance(position: Position, query_BT: Tensor, key_BS: Tensor) -> Tensor | None:
    if position.kind not in BIASED:
        return None
    is_falcons = isinstance(position, Alibi) and position.form == "falcon"
    return (0 if is_falcons else query_BT[:, :, None]) - key_BS[:, None, :].expand(-1, query_BT.shape[1], -1)


def place(tokens_BT: Tensor, documents_BT: Tensor | None, cache: Cache | None, dtype: torch.dtype) -> Place:
    """Positions count from the start of the cache, of the text behind the padding, or of each document."""
    T = tokens_BT.shape[1]
    index_1T = torch.arange(T, device=tokens_BT.device)[None]
    if documents_BT is not None:
        return _packed(index_1T, documents_BT, dtype)
    if cache is None:
        return Place(index_1T, torch.full_like(index_1T[:, :1], T), None, True, None, dtype)
    positions_BT = cache.length + index_1T - cache.padding_B1
    plain = cache.length == 0 and not cache.is_padded
    return Place(positions_BT, cache.length + T - cache.padding_B1, None, plain, cache, dtype)


def _packed(index_1T: Tensor, documents_BT: Tensor, dtype: torch.dtype) -> Place:
    """A document is a run of equal numbers."""
    T = documents_BT.shape[1]
    differs_BT = documents_BT[:, 1:] != documents_BT[:, :-1]
    edge_B1 = torch.ones_like(documents_BT[:, :1], dtype=torch.bool)
    starts_BT = (index_1T * torch.cat((edge_B1, differs_BT), 1)).cummax(-1).values
    ends_BT = torch.where(torch.cat((differs_BT, edge_B1), 1), index_1T + 1, T).flip(-1).cummin(-1).values.flip(-1)
    return Place(index_1T - starts_BT, ends_BT - starts_BT, starts_BT, False, None, dtype)
