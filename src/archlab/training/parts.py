"""Parameters of which several processes have parts, and the modules that read them.

To torch such a parameter is whole (DTensor): the optimiser, clipping, `fully_shard` and checkpoints need not know more.
To the module that reads it, it is the part that this process has.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from archlab.model.roles import ROLES, RoleName

View = Callable[[DTensor], Tensor]
"""What a module reads of a parameter."""


class Holders:
    """The processes that have parts, and this one among them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, self.size, self.rank = mesh, mesh.size(), mesh.get_local_rank()

    def divide(self, whole: nn.Module, own: nn.Module) -> None:
        """Make the parameters of a module parts of those of the whole one; `own` is what this process has of `whole`,
        and the shapes say along which axis a parameter is cut. A gradient is the sum of those that all find."""
        if hasattr(whole, "constants"):
            own.constants = whole.constants
        views = dict[str, View]()
        for name, parameter in list(own.named_parameters(recurse=False)):
            placement, views[name] = self._part(whole, own, name)
            all_of_it = getattr(whole, name)
            held = all_of_it if isinstance(placement, Replicate) else parameter
            setattr(own, name, self._placed(held, placement, all_of_it))
        _see(own, views)
        for name, module in own.named_children():
            self.divide(getattr(whole, name), module)

    def hold(self, model: nn.Module, gradient: Placement) -> None:
        """What is not divided, whole in each process. `gradient`: whether each finds all of it, or a summand."""
        for module in model.modules():
            views = dict[str, View]()
            for name, parameter in list(module.named_parameters(recurse=False)):
                if not isinstance(parameter, DTensor):
                    setattr(module, name, self._placed(parameter, Replicate(), parameter))
                    views[name] = _local(gradient)
            _see(module, views)

    def first(self, whole: int, own: int) -> int:
        """Where this process's rows begin, of so many; neighbours have the same where there are fewer shares than
        processes."""
        return self.rank * whole // self.size // own * own

    def _part(self, whole: nn.Module, own: nn.Module, name: str) -> tuple[Placement, View]:
        shapes = getattr(whole, name).shape, getattr(own, name).shape
        axes = [axis for axis, (n, some) in enumerate(zip(*shapes, strict=True)) if n != some]
        if not axes:
            role: RoleName = getattr(own, "roles", {}).get(name, "constant")
            times = self.size if ROLES[role].is_added_once else 1
            return Replicate(), _local(Partial(), lambda x: x if times == 1 else x / times)
        (axis,) = axes
        n, some = (getattr(m, "widths", shape[axis : axis + 1]) for m, shape in zip((whole, own), shapes, strict=True))
        if len(n) == 1 and self.size * some[0] == n[0]:
            return Shard(axis), _local(Shard(axis))
        return Replicate(), _local(Partial(), lambda x: self._rows(x, axis, n, some))

    def _rows(self, x: Tensor, axis: int, whole: Sequence[int], own: Sequence[int]) -> Tensor:
        """This process's, of what stands side by side along an axis, each of so many rows in whole and here."""
        starts = [end - n + self.first(n, some) for end, n, some in zip(accumulate(whole), whole, own, strict=True)]
        return torch.cat([x.narrow(axis, start, n) for start, n in zip(starts, own, strict=True)], axis)

    def _placed(self, local: Tensor, placement: Placement, whole: Tensor) -> nn.Parameter:
        placed = DTensor.from_local(
            local.detach(), self.mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        return nn.Parameter(placed)


def _local(gradient: Placement, pick: Callable[[Tensor], Tensor] = lambda x: x) -> View:
    def view(held: DTensor) -> Tensor:
        if held.device_mesh.ndim > 1:  # put away by fully_shard, which itself looks at it
            return held
        return pick(held.to_local(grad_placements=[gradient]))

    return view


def _see(module: nn.Module, views: dict[str, View]) -> None:
    """Let the module's code read its parameters by these views."""
    if views:
        own = type(module)
        module.__class__ = type(own.__name__, (own,), {name: _reading(name, view) for name, view in views.items()})


def _reading(name: str, view: View) -> property:
    return property(lambda module: view(module._parameters[name]))
