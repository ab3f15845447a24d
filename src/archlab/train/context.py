"""Context parallelism: processes that read the same windows and divide each one's tokens.

A row is cut into twice as many pieces as there are processes, and each has one from its beginning and the opposite one
from its end, so that all compare about as many pairs of tokens (Llama 3, 2024, arXiv 2407.21783). Every attention
gathers the keys and values of all; the gradient of each goes back to the process that has its token.
"""

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from archlab.model.part import Part


class Row:
    """The processes that divide a row, and this one among them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def part(self, n_tokens: int) -> Part:
        """Of a row of so many tokens, which twice the number of processes divides."""
        pieces = torch.arange(n_tokens, device=self._mesh.device_type).chunk(2 * self._mesh.size())
        pairs = zip(pieces[: self._mesh.size()], reversed(pieces), strict=False)
        dealt = [torch.cat(pair) for pair in pairs]
        return Part(dealt[self._mesh.get_local_rank()], torch.cat(dealt), self._gathered)

    def added(self, x: Tensor) -> Tensor:
        """The sum over all; its gradient goes to each as it is, for each has it of the whole sum."""
        summand = DTensor.from_local(x, self._mesh, [Partial()], run_check=False)
        return summand.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])

    def _gathered(self, rows: Tensor) -> Tensor:
        held = DTensor.from_local(rows, self._mesh, [Shard(2)], run_check=False)
        return held.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
