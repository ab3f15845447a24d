"""Memory that autograd keeps for the backward pass."""

from collections.abc import Callable

import torch


def kept_by_autograd(module: torch.nn.Module, run: Callable[[], object]) -> int:
    """Return the bytes that autograd keeps, without parameters and their autocast copies."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    shapes = {shape for p in module.parameters() for shape in (p.shape, p.T.shape if p.ndim == 2 else p.shape)}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    made = (t for pointer, t in kept.items() if pointer not in own)
    return sum(t.untyped_storage().nbytes() for t in made if t.dtype is torch.float32 or t.shape not in shapes)
