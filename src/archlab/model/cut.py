"""Tensors that are sharded over several processes (torch's DTensor)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor in the same way as `like`, and return this process's part.

    If `like` is not sharded, return the whole tensor.
    """
    if not is_cut(like):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def is_cut(x: Tensor) -> bool:
    """Return whether a tensor is sharded (a DTensor), without importing torch.distributed."""
    return hasattr(x, "device_mesh")


def local_numel(x: Tensor) -> int:
    """Return the number of the tensor's elements that are stored in this process."""
    if not is_cut(x):
        return x.numel()
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return x.to_local().numel()


def whole(x: Tensor) -> Tensor:
    """Return the whole tensor, gathered from all processes that have a part. Each of them must call this function."""
    if not is_cut(x):
        return x
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return x.full_tensor()


def placements(x: Tensor) -> object:
    """Return how a tensor is sharded, as a value that can be compared; None if it is not sharded."""
    return getattr(x, "placements", None)


def n_sharing(x: Tensor) -> int:
    """Return the number of processes that a tensor is sharded over; 1 if it is not sharded."""
    if not is_cut(x):
        return 1
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return x.device_mesh.size()


def dealt(stack: Tensor) -> Tensor:
    """Return this process's entries of the first axis of a stack, each of them whole.

    The processes have different entries. If they cannot divide the entries evenly, each process has all of them. Each
    process that has a part of the stack must call this function.
    """
    if not is_cut(stack):
        return stack
    from torch.distributed.tensor import DTensor

    assert isinstance(stack, DTensor)
    return stack.redistribute(placements=_of_whole_entries(stack)).to_local()


def collected(entries: Tensor, like: Tensor) -> Tensor:
    """Return the stack of the entries that the processes have after `dealt(like)`, sharded in the same way as `like`."""
    if not is_cut(like):
        return entries
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    before, shape, stride = _of_whole_entries(like), like.shape, like.stride()
    stack = DTensor.from_local(entries, like.device_mesh, before, run_check=False, shape=shape, stride=stride)
    return stack.redistribute(placements=like.placements)


def _of_whole_entries(stack: "DTensor") -> "Sequence[Placement]":
    """Return placements in which each process has whole entries of the first axis."""
    from torch.distributed.tensor import Replicate, Shard

    # Experts are sharded over `within` and then over `shard`, both along the first axis. These entries are whole
    # already, and torch 2.13 would confuse their order on the way to the usual placements.
    if [getattr(placement, "dim", None) for placement in stack.placements].count(0) > 1:
        return stack.placements
    divides = len(stack) % stack.device_mesh.size() == 0
    return [Shard(0) if divides else Replicate()] * stack.device_mesh.ndim
