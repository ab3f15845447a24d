"""Some tokens of each row, where other processes have the others (context parallelism).

Shapes: B batch, T tokens of this process, S tokens of the whole row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Which tokens, and what an attention asks for the keys of all."""

    runs: tuple[range, ...]
    """Of the row, in their order."""
    gathered: Callable[[Tensor], Tensor]
    """[B, heads, T, width] -> [B, heads, S, width], in the order of the row."""

    def own(self, x_BS: Tensor) -> Tensor:
        """[B, S] -> [B, T]: this process's."""
        return torch.cat([x_BS[:, run.start : run.stop] for run in self.runs], 1)

    def extend(self, **new: Tensor) -> tuple[Tensor, ...]:
        """What all processes have of these, as a cache gives what it holds with the new ones."""
        return tuple(self.gathered(rows) for rows in new.values())
