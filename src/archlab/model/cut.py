"""Tensors that are sharded over several processes (torch's DTensor)."""

from torch import Tensor


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
