"""Some tokens of each row, where other processes have the others (context parallelism).

Shapes: B batch, T tokens of this process, S tokens of the whole row in the order in which they are gathered.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """To an attention it is what a cache is: the new keys go in, and all that there are come out."""

    own_T: Tensor
    """Index of each token in its row."""
    every_S: Tensor
    """The same of the tokens of all processes."""
    gathered: Callable[[Tensor], Tensor]
    """[B, heads, T, width] -> [B, heads, S, width]."""

    def extend(self, **new: Tensor) -> tuple[Tensor, ...]:
        """What all processes have of these, in the order of `every_S`."""
        return tuple(self.gathered(rows) for rows in new.values())
