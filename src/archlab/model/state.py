"""What layers keep between passes: tensors of fixed shape, written in place.

Keys and values stand in slots, no more of them than a window needs (then a ring); a recurrent mixer keeps what its
config says. Tokens are counted by index, padding included; token i of a sequence padded on the left by p has position
i - p.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from archlab.config.components.component import StateTensor
from archlab.config.layers import layer_configs, sees_as
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.arithmetic import WHOLE, wide


class Length:
    """Tokens in a cache, padding included: as a number, and as a tensor that a compiled step reads."""

    def __init__(self, device: torch.device) -> None:
        self.number = 0
        self.tensor = torch.zeros((), dtype=torch.int64, device=device)

    def set(self, number: int) -> None:
        """From here on it is that many."""
        self.number = number
        self.tensor.fill_(number)


def is_step(n_new: int) -> bool:
    """Whether a pass of so many new tokens is a decoding step: one token, and no gradient to carry through a state."""
    return n_new == 1 and not torch.is_grad_enabled()


class State:
    """What one component keeps, each tensor [B, *shape]. Where it keeps a row per token, [B, heads, slots, width], slot
    i % slots holds token i, the newest that belongs there."""

    def __init__(
        self, tensors: Sequence[StateTensor], batch: int, dtype: torch.dtype, device: torch.device, length: Length
    ) -> None:
        self.tensors = {
            name: torch.zeros(batch, *shape, dtype=wide(dtype) if is_wide else dtype, device=device)
            for name, shape, _, is_wide in tensors
        }
        self.slots = next((tensor.shape[-2] for tensor in tensors if tensor.per_token), 0)
        self.length = length

    def __getitem__(self, name: str) -> Tensor:
        """A tensor to read, and to write in place."""
        return self.tensors[name]

    def extend(self, **new: Tensor) -> tuple[Tensor, ...]:
        """Add the rows of new tokens, [B, heads, T, width] each; all that they may see, in the order of `indices`."""
        extended = self._step if is_step(next(iter(new.values())).shape[2]) else self._several
        return tuple(extended(self.tensors[name], rows) for name, rows in new.items())

    def _step(self, held: Tensor, new: Tensor) -> Tensor:
        """In place; all slots in a compiled step, which is of one shape, and else those that are filled."""
        if torch.compiler.is_compiling():
            held.index_copy_(2, self.length.tensor[None] % self.slots, new.to(held.dtype))
            return held.to(new.dtype)  # autocast may narrow
        held.narrow(2, self.length.number % self.slots, 1).copy_(new)
        return held.narrow(2, 0, self._n_filled).to(new.dtype)

    @property
    def _n_filled(self) -> int:
        """Slots, after one more token."""
        return min(self.length.number + 1, self.slots)

    def _several(self, held: Tensor, new: Tensor) -> Tensor:
        """The newest in place; what was held before and the new ones, for in a ring the first of them see rows that
        the last take the place of."""
        length, n = self.length.number, new.shape[2]
        seen = torch.cat((held[:, :, : min(length, self.slots)].to(new.dtype), new), 2)
        newest = torch.arange(max(0, n - self.slots), n, device=new.device)
        held[:, :, (length + newest) % self.slots] = new.detach()[:, :, newest].to(held.dtype)
        return seen

    def indices(self, n_new: int) -> Tensor:
        """Token index of each row that `extend` returns; negative for slots that are empty."""
        length = self.length.tensor
        if is_step(n_new):
            n_read = self.slots if torch.compiler.is_compiling() else self._n_filled
            return length - (length - torch.arange(n_read, device=length.device)) % self.slots
        slots = torch.arange(min(self.length.number, self.slots), device=length.device)
        held = length - 1 - (length - 1 - slots) % self.slots
        return torch.cat((held, length + torch.arange(n_new, device=length.device)))


NO_STATES: Mapping[str, State] = {}
"""Of a layer without a cache."""


class Cache:
    """All layers' states for a batch of sequences of at most `capacity` tokens."""

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
        if sees_as(model, "two_sided"):
            raise UserError(
                "model.attention.visibility: two_sided; later tokens change what such a layer makes of earlier ones, "
                "so nothing can be cached; allowed: causal, prefix"
            )
        if capacity < 1:
            raise UserError(f"capacity: {capacity}; allowed: 1 token or more")
        self._length = Length(torch.device(device))
        self.layers: list[Mapping[str, State]] = [
            {
                branch.name: State(tensors, batch, dtype, torch.device(device), self._length)
                for branch in layer.branches
                if (tensors := branch.component.state(layer.site, capacity))
            }
            for layer in layer_configs(model)
        ]
        """Per layer, by the name of the branch; a branch that keeps nothing has none."""
        self.padding_B1, self.least_padding = torch.zeros(1, 1, dtype=torch.int64, device=device), 0
        if padding is not None:
            padding_B = torch.as_tensor(padding, device=device)
            if padding_B.shape != (batch,) or padding_B.dtype not in WHOLE or (padding_B < 0).any():
                allowed = f"for each of {batch} texts a whole number from 0"
                raise UserError(f"padding: {padding_B.tolist()}; allowed: {allowed}")
            self.padding_B1, self.least_padding = padding_B[:, None], min(padding_B.tolist(), default=0)
        self.model, self.batch, self.capacity = model, batch, capacity
        self.is_padded, self.is_torn = padding is not None, False

    @property
    def length(self) -> int:
        """Tokens in it, padding included."""
        return self._length.number

    @property
    def length_tensor(self) -> Tensor:
        """The same as a tensor, int64 without axes."""
        return self._length.tensor

    def begin(self, n_new: int) -> None:
        """Before a pass of that many tokens. UserError when they do not fit, or an earlier pass was broken off."""
        if self.length + n_new > self.capacity:
            raise UserError(
                f"the cache holds {self.capacity} tokens; {self.length} are in it and {n_new} more do not fit"
            )
        if self.is_torn:
            raise UserError("cache: a pass was broken off, and some layers hold more than others; clear() it")
        self.is_torn = True

    def end(self, n_new: int) -> None:
        """After the pass."""
        self._length.set(self.length + n_new)
        self.is_torn = False

    def clear(self) -> None:
        """Forget all tokens."""
        for tensor in self._tensors():
            tensor.zero_()
        self._length.set(0)
        self.is_torn = False

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> list[Tensor]:
        return [tensor for layer in self.layers for state in layer.values() for tensor in state.tensors.values()]
