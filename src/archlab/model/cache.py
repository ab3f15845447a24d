"""The key/value cache: per layer n_kv_heads wide, and no longer than a window needs (then a ring).

Shapes: B batch, K key/value heads, S slots, C head_dim. Tokens are counted by index, padding included; token i of a
sequence padded on the left by p has position i - p.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.arithmetic import WHOLE
from archlab.model.visibility import keys_kept


class LayerCache:
    """Keys and values of one layer; slot i % S holds token i, the newest that fits there."""

    def __init__(self, layer: LayerConfig, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = layer.attention
        self.slots = keys_kept(heads, capacity)
        shape = (batch, heads.n_kv_heads, self.slots, heads.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    def extend(self, k_BKTC: Tensor, v_BKTC: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Add tokens length, length + 1, ...; the keys and values that they may see, in the order of `indices`."""
        kept = min(length, self.slots)
        held = (self.k[:, :, :kept].to(k_BKTC.dtype), self.v[:, :, :kept].to(v_BKTC.dtype))  # autocast may narrow
        seen = tuple(torch.cat(pair, 2) for pair in zip(held, (k_BKTC, v_BKTC), strict=True))
        n = k_BKTC.shape[2]
        newest = torch.arange(max(0, n - self.slots), n, device=k_BKTC.device)
        slots = (length + newest) % self.slots
        self.k[:, :, slots] = k_BKTC.detach()[:, :, newest].to(self.k.dtype)
        self.v[:, :, slots] = v_BKTC.detach()[:, :, newest].to(self.v.dtype)
        return seen  # pyright: ignore[reportReturnType]

    def indices(self, length: int, n_new: int) -> Tensor:
        """Token index of each key that `extend` returns: the slots' newest, then the new ones."""
        slots = torch.arange(min(length, self.slots), device=self.k.device)
        held = length - 1 - (length - 1 - slots) % self.slots
        return torch.cat((held, torch.arange(length, length + n_new, device=self.k.device)))


class Cache:
    """All layers' caches for a batch of sequences of at most `capacity` tokens."""

    def __init__(
        self,
        model: ModelConfig,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        padding: Tensor | Sequence[int] | None = None,
    ) -> None:
        if capacity < 1:
            raise UserError(f"capacity: {capacity}; allowed: 1 token or more")
        self.layers = [
            LayerCache(layer, batch, capacity, dtype, torch.device(device)) for layer in layer_configs(model)
        ]
        self.padding_B1, self.least_padding = torch.zeros(1, 1, dtype=torch.int64, device=device), 0
        if padding is not None:
            padding_B = torch.as_tensor(padding, device=device)
            if padding_B.shape != (batch,) or padding_B.dtype not in WHOLE or (padding_B < 0).any():
                allowed = f"for each of {batch} texts a whole number from 0"
                raise UserError(f"padding: {padding_B.tolist()}; allowed: {allowed}")
            self.padding_B1, self.least_padding = padding_B[:, None], min(padding_B.tolist(), default=0)
        self.model, self.batch, self.capacity = model, batch, capacity
        self.clear()
        self.is_padded = padding is not None

    def begin(self, n_new: int) -> list[LayerCache]:
        """The layers' caches, for a pass of that many tokens.

        UserError when they do not fit, or an earlier pass was broken off.
        """
        if self.length + n_new > self.capacity:
            raise UserError(
                f"the cache holds {self.capacity} tokens; {self.length} are in it and {n_new} more do not fit"
            )
        if self.is_torn:
            raise UserError("cache: a pass was broken off, and some layers hold more than others; clear() it")
        self.is_torn = True
        return self.layers

    def end(self, n_new: int) -> None:
        """After the pass."""
        self.length, self.is_torn = self.length + n_new, False

    def clear(self) -> None:
        """Forget all tokens."""
        self.length, self.is_torn = 0, False

    @property
    def n_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (layer.k, layer.v))
