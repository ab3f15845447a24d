"""Tensors that are sharded over several processes (torch's DTensor)."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor in the same way as `like`, and return this process's part.

    If `like` is not sharded, return the whole tensor.
    """
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def is_sharded(x: Tensor) -> bool:
    """Return whether a tensor is sharded (a DTensor), without importing torch.distributed."""
    return hasattr(x, "device_mesh")


def local_numel(x: Tensor) -> int:
    """Return the number of the tensor's elements that are stored in this process."""
    if not is_sharded(x):
        return x.numel()
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return x.to_local().numel()


def whole(x: Tensor) -> Tensor:
    """Return the whole tensor, gathered from all processes that have a part. Each of them must call this function."""
    if not is_sharded(x):
        return x
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return x.full_tensor()


def placements(x: Tensor) -> object:
    """Return how a tensor is sharded, as a value that can be compared; None if it is not sharded."""
    return getattr(x, "placements", None)


def n_sharing(x: Tensor) -> int:
    """Return the number of processes that have different parts of a tensor; 1 if it is not sharded."""
    if not is_sharded(x):
        return 1
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    sizes = zip(x.placements, x.device_mesh.shape, strict=True)
    return prod(size for placement, size in sizes if _axis(placement) is not None)


def whole_entries(stack: Tensor) -> Tensor:
    """Return this process's entries of the first axis of a stack, each of them whole.

    Processes that have divided the first axis (experts) keep their entries. Otherwise they divide it if they can do so
    evenly; if not, each has all entries. Each process that has a part of the stack must call this function.
    """
    if not is_sharded(stack):
        return stack
    from torch.distributed.tensor import DTensor

    assert isinstance(stack, DTensor)
    return stack.redistribute(placements=_of_whole_entries(stack)).to_local()


def sharded_again(entries: Tensor, like: Tensor) -> Tensor:
    """Return the stack of the entries that the processes have after `whole_entries(like)`, sharded like `like`."""
    if not is_sharded(like):
        return entries
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    before, shape, stride = _of_whole_entries(like), like.shape, like.stride()
    stack = DTensor.from_local(entries, like.device_mesh, before, run_check=False, shape=shape, stride=stride)
    return stack.redistribute(placements=like.placements)


def _of_whole_entries(stack: "DTensor") -> "Sequence[Placement]":
    """Return placements in which each process has whole entries of the first axis."""
    from torch.distributed.tensor import Replicate, Shard

    axes = [_axis(placement) for placement in stack.placements]
    if 0 in axes:  # experts that the processes have divided
        return [own if axis == 0 else Replicate() for own, axis in zip(stack.placements, axes, strict=True)]
    divides = len(stack) % n_sharing(stack) == 0
    return [Shard(0) if divides and axis is not None else Replicate() for axis in axes]


def _axis(placement: "Placement") -> int | None:
    """Return the axis along which a placement divides a tensor. torch has two classes of such placements."""
    return getattr(placement, "dim", None)
