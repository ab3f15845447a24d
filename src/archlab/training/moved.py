"""How a tensor goes from process to process."""

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement


def moved(x: Tensor, mesh: DeviceMesh, before: Placement, after: Placement, gradient: Placement) -> Tensor:
    """What each process has of a tensor as `after` says, of which each has what `before` says: a part, a summand, or
    all. `gradient`: what each finds of the gradient of what it is given."""
    sent = DTensor.from_local(x, mesh, [before], run_check=False).redistribute(placements=[after])
    return sent.to_local(grad_placements=[gradient])
