"""Context parallelism: processes that read the same windows and divide each one's tokens.

A row is cut into twice as many pieces as there are processes, and each has one from its beginning and the opposite one
from its end, so that under causality all compare as many pairs of tokens (Llama 3, 2024, arXiv 2407.21783). Every
attention gathers the keys and values of all; the gradient of each goes back to the process that has its token.
"""

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

from archlab.model.part import Part
from archlab.training.moved import moved


class Row:
    """The processes that divide a row, and this one among them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh, self.size = mesh, mesh.size()
        self._dealt = [piece for rank in range(self.size) for piece in self._pieces(rank)]

    def part(self, n_tokens: int) -> Part:
        """Of a row of so many tokens, which twice the number of processes divides."""
        length = n_tokens // len(self._dealt)
        own = self._pieces(self._mesh.get_local_rank())
        return Part(tuple(range(piece * length, (piece + 1) * length) for piece in own), self._gathered)

    def added(self, x: Tensor) -> Tensor:
        """The sum over all; its gradient goes to each as it is, for each has it of the whole sum."""
        return moved(x, self._mesh, Partial(), Replicate(), Replicate())

    def _pieces(self, rank: int) -> tuple[int, int]:
        return rank, 2 * self.size - 1 - rank

    def _gathered(self, rows: Tensor) -> Tensor:
        pieces = moved(rows, self._mesh, Shard(2), Replicate(), Partial()).chunk(len(self._dealt), 2)
        return torch.cat([pieces[self._dealt.index(i)] for i in range(len(pieces))], 2)
