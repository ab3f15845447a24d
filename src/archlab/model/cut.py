"""Tensors that several processes have parts of (torch's DTensor)."""

from torch import Tensor


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """What this process holds of a tensor that is cut as `like` is; all of it where that is not cut."""
    if not is_cut(like):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def is_cut(x: Tensor) -> bool:
    """Without loading what makes such tensors."""
    return hasattr(x, "device_mesh")


def held(x: Tensor) -> int:
    """Numbers of a tensor that this process has."""
    if not is_cut(x):
        return x.numel()
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return x.to_local().numel()


def whole(x: Tensor) -> Tensor:
    """All of a tensor, gathered from the processes that have parts of it; each of them has to ask."""
    if not is_cut(x):
        return x
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return x.full_tensor()
