"""Cache of a model: the states that layers keep from one forward pass to the next.

The states are tensors of fixed shape, which are written in place. Keys and values are stored in slots. With a sliding
window, the cache has only as many slots as the window needs, and uses them as a ring buffer. A recurrent mixer keeps
the state tensors that its config lists. Token indices count padding: in a sequence with p padding tokens on the left,
token i has position i - p.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archlab.config.components.component import StateTensor
from archlab.config.layers import layer_configs, sees_as
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.arithmetic import WHOLE, wide


class Length:
    """Number of tokens in a cache, including padding. It is stored as an int, and as a tensor for compiled steps."""

    def __init__(self, device: torch.device) -> None:
        self.number = 0
        self.tensor = torch.zeros((), dtype=torch.int64, device=device)

    def set(self, number: int) -> None:
        self.number = number
        self.tensor.fill_(number)


def is_step(n_new: int) -> bool:
    """Return whether a pass of `n_new` tokens is a decoding step: one token, without gradients."""
    return n_new == 1 and not torch.is_grad_enabled()


def is_compiled_step(n_new: int) -> bool:
    """Return whether a pass is a compiled decoding step, which reads all slots of a cache, whether filled or empty."""
    return torch.compiler.is_compiling() and is_step(n_new)


class State:
    """State of one component: tensors of shape [B, *shape].

    A tensor with one row per token has the shape [B, heads, slots, width]. Token i is stored in slot i % slots, where
    it overwrites an older token.
    """

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
        """Return the tensor with this name. The caller may write to it in place."""
        return self.tensors[name]

    def extend(self, **new: Tensor) -> tuple[Tensor, ...]:
        """Add rows for the new tokens to the tensors with the given names, [B, heads, T, width] each.

        Return all rows that the new tokens may see, in the order of `indices`.
        """
        extended = self._step if is_step(next(iter(new.values())).shape[2]) else self._several
        return tuple(extended(self.tensors[name], rows) for name, rows in new.items())

    def _step(self, rows: Tensor, new: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            rows.index_copy_(2, self.length.tensor[None] % self.slots, new.to(rows.dtype))
            return rows.to(new.dtype)  # autocast may have made `new` narrower
        rows.narrow(2, self.length.number % self.slots, 1).copy_(new)
        return rows.narrow(2, 0, self._n_filled).to(new.dtype)

    @property
    def _n_filled(self) -> int:
        return min(self.length.number + 1, self.slots)

    def _several(self, rows: Tensor, new: Tensor) -> Tensor:
        """Store the newest tokens in place. Return the old and the new rows.

        In a ring buffer, the old rows are read first, because the first new tokens may see rows that the last new
        tokens overwrite.
        """
        length, n = self.length.number, new.shape[2]
        seen = torch.cat((rows[:, :, : min(length, self.slots)].to(new.dtype), new), 2)
        newest = torch.arange(max(0, n - self.slots), n, device=new.device)
        rows[:, :, (length + newest) % self.slots] = new.detach()[:, :, newest].to(rows.dtype)
        return seen

    def indices(self, n_new: int) -> Tensor:
        """Return the token index of each row that `extend` returns. Rows of empty slots have negative indices."""
        length = self.length.tensor
        if is_step(n_new):
            n_read = self.slots if is_compiled_step(n_new) else self._n_filled
            return length - (length - torch.arange(n_read, device=length.device)) % self.slots
        slots = torch.arange(min(self.length.number, self.slots), device=length.device)
        old = length - 1 - (length - 1 - slots) % self.slots
        return torch.cat((old, length + torch.arange(n_new, device=length.device)))


NO_STATES: Mapping[str, State] = {}
"""Empty mapping of states, for a layer without a cache."""


@dataclass(frozen=True)
class Source:
    """Source text of a forward pass, as the decoder sees it. Shapes: B batch, S tokens of the source."""

    is_real_BS: Tensor
    """Whether each token is not padding."""
    is_padded: bool
    """Whether the source may contain padding, which always comes after the text."""
    hidden_BSD: Tensor | None
    """Output of the encoder; None if a cache already contains the keys and values of the source."""
    seen_BTS: Tensor | None = None
    """Whether each of T tokens sees each source token, in packed documents. None: it sees all that are not padding."""


class Cache:
    """Cache of a model: the states of all layers, for a batch of sequences with at most `capacity` tokens each.

    `padding` is the number of padding tokens on the left of each sequence. `source` is the number of tokens, with
    padding, in each source text that an encoder reads. Raise UserError if the model cannot have such a cache.
    """

    def __init__(
        self,
        model: ModelConfig,
        batch: int,
        capacity: int,
        *,
        source: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        padding: Tensor | Sequence[int] | None = None,
    ) -> None:
        if sees_as(model, "two_sided"):
            raise UserError(
                "model.attention.visibility is two_sided: the model cannot have a cache, because later tokens change "
                "the states of earlier ones; allowed: causal, prefix (`archlab fill` predicts masked tokens)"
            )
        if (model.encoder is None) != (source == 0):
            allowed = "0, because the model has no encoder" if model.encoder is None else "1 token or more"
            raise UserError(f"source: {source} tokens of source text; allowed: {allowed}")
        if capacity < 1:
            raise UserError(f"capacity: {capacity}; allowed: 1 token or more")
        self._length = Length(torch.device(device))
        self.layers: list[Mapping[str, State]] = [
            {
                branch.name: State(tensors, batch, dtype, torch.device(device), self._length)
                for branch in layer.branches
                if (tensors := branch.state(capacity, source))
            }
            for layer in layer_configs(model)
        ]
        """For each layer, a dict that maps branch names to states. Branches without a state are left out."""
        self.padding_B1, self.least_padding = torch.zeros(1, 1, dtype=torch.int64, device=device), 0
        if padding is not None:
            padding_B = torch.as_tensor(padding, device=device)
            if padding_B.shape != (batch,) or padding_B.dtype not in WHOLE or (padding_B < 0).any():
                allowed = f"an integer >= 0 for each of {batch} texts"
                raise UserError(f"padding: {padding_B.tolist()}; allowed: {allowed}")
            self.padding_B1, self.least_padding = padding_B[:, None], min(padding_B.tolist(), default=0)
        self.model, self.batch, self.capacity, self.source_capacity = model, batch, capacity, source
        self.source: Source | None = None
        """Source text whose keys and values the cache contains; None before the first pass, or without an encoder."""
        self.is_padded, self.is_torn = padding is not None, False

    @property
    def length(self) -> int:
        """Number of tokens in the cache, including padding."""
        return self._length.number

    @property
    def length_tensor(self) -> Tensor:
        """Number of tokens in the cache, including padding, as an int64 scalar tensor."""
        return self._length.tensor

    def begin(self, n_new: int) -> None:
        """Begin a pass of `n_new` tokens. Raise UserError if they do not fit, or if an earlier pass was interrupted."""
        if self.length + n_new > self.capacity:
            raise UserError(
                f"the cache has room for {self.capacity} tokens and holds {self.length}; {n_new} more do not fit"
            )
        if self.is_torn:
            raise UserError("cache: a pass was interrupted, so some layers hold more tokens than others; call clear()")
        self.is_torn = True

    def end(self, n_new: int) -> None:
        self._length.set(self.length + n_new)
        self.is_torn = False

    def clear(self) -> None:
        for tensor in self.tensors:
            tensor.zero_()
        self._length.set(0)
        self.is_torn, self.source = False, None

    def reorder(self, rows_B: Tensor) -> None:
        """Replace each row b by the row `rows_B[b]`, as beam search does."""
        for tensor in self.tensors:
            tensor.copy_(tensor[rows_B])
        if len(self.padding_B1) > 1:
            self.padding_B1 = self.padding_B1[rows_B]
        if self.source is not None:
            self.source = replace(self.source, is_real_BS=self.source.is_real_BS[rows_B])

    @property
    def n_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors of all layers' states."""
        return [tensor for layer in self.layers for state in layer.values() for tensor in state.tensors.values()]
