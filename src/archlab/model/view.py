"""Where the tokens of one forward pass stand, and what follows for masks, rotations and biases."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlab.config.layers import LayerConfig
from archlab.config.model_schema import T5, Alibi, Rope
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
    shared_bias: nn.Module | None
    """The position bias that all layers share, if they do."""
    length: int
    """Tokens in the cache before this pass."""


@dataclass(frozen=True)
class Place:
    """Positions of a pass's new tokens, [B or 1, T]; negative ones are padding."""

    positions_BT: Tensor
    documents_BT: Tensor | None
    cache: Cache | None
    dtype: torch.dtype

    def view(self, layer: LayerConfig, cache: LayerCache | None, shared_bias: nn.Module | None) -> View:
        """As one layer sees it; layers of the same config share it."""
        query_BT, T = self.positions_BT, self.positions_BT.shape[1]
        length = self.cache.length if self.cache else 0
        key_BS = cache.indices(length, T)[None] - self.cache.padding_B1 if self.cache and cache else query_BT
        distance_BTS = query_BT[:, :, None] - key_BS[:, None, :]
        plain = length == 0 and len(query_BT) == 1 and is_plain_causal(layer.attention, T)
        if isinstance(layer.position, Alibi) and layer.position.form == "falcon":
            distance_BTS = -key_BS[:, None, :].expand_as(distance_BTS)
        reads_distance = layer.position.kind in ("alibi", "t5", "shaw")
        return View(
            mask_BTS=None if plain else self._mask(layer, query_BT, key_BS),
            distance_BTS=distance_BTS if reads_distance else None,
            rotation=self._rotation(layer, length + T),
            shared_bias=shared_bias if isinstance(layer.position, T5) else None,
            length=length,
        )

    def _mask(self, layer: LayerConfig, query_BT: Tensor, key_BS: Tensor) -> Tensor:
        query_BT1, key_B1S = query_BT[:, :, None], key_BS[:, None, :]
        seen_BTS = visible(layer.attention, query_BT1, key_B1S)
        if self.documents_BT is not None:
            return seen_BTS & (self.documents_BT[:, :, None] == self.documents_BT[:, None, :])
        # A padding token sees itself alone: a softmax over nothing is not a number.
        return (seen_BTS & (key_B1S >= 0)) | (key_B1S == query_BT1)

    def _rotation(self, layer: LayerConfig, length: int) -> Rotation | None:
        if not isinstance(layer.position, Rope):
            return None
        return rotation(layer.position, layer.attention.head_dim, self.positions_BT, length, self.dtype)


def place(tokens_BT: Tensor, documents_BT: Tensor | None, cache: Cache | None, dtype: torch.dtype) -> Place:
    """Positions count from the start of the cache, of the text behind the padding, or of each document."""
    index_1T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
    if cache is not None:
        return Place(cache.length + index_1T - cache.padding_B1, None, cache, dtype)
    if documents_BT is None:
        return Place(index_1T, None, None, dtype)
    begins_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    begins_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return Place(index_1T - (index_1T * begins_BT).cummax(-1).values, documents_BT, None, dtype)
