"""Tensor parallelism: processes that share the work of every component, by heads and by the middles of MLPs.

Each has a component of its own, the whole one's share (`Component.share`), whose parameters are parts of the whole
ones. What goes in is the same everywhere, and its gradient is summed; what comes out is summed. All else each process
computes by itself, of the same numbers. To torch all parameters are whole (DTensor), with this process's part in it;
to the modules that read them they are this part.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from archlab.model.arithmetic import Same
from archlab.model.context import Context
from archlab.model.decoder import Decoder
from archlab.model.layer import make_component
from archlab.model.positions import AlibiBias
from archlab.model.roles import ROLES, RoleName

View = Callable[[DTensor], Tensor]
"""What a module reads of a parameter."""


def share_components(model: Decoder, mesh: DeviceMesh) -> None:
    """In place, before the parameters have values."""
    group = _Group(mesh)
    for layer, config in zip(model.layers, model.layer_configs, strict=True):
        for branch in config.branches:
            whole = getattr(layer, branch.name)
            own = make_component(branch.component.share(group.size), config, "auto")
            group.divide(whole, own)
            own.register_forward_pre_hook(group.enter)
            own.register_forward_hook(group.leave)
            setattr(layer, branch.name, own)
    for module in model.modules():
        group.hold(module)


class _Group:
    """The processes that share components, and this one among them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, self.size, self.rank = mesh, mesh.size(), mesh.get_local_rank()

    def divide(self, whole: nn.Module, own: nn.Module) -> None:
        """Make the parameters of a share parts of those of the whole, module by module."""
        widths, of_whole = (getattr(module, "over_all", {}) for module in (own, whole))
        for name, width in widths.items():
            if not isinstance(norm := getattr(whole, name), Same):
                setattr(own, name, norm)
                self._gather_for(norm, of_whole[name], width)
        if isinstance(whole, AlibiBias) and isinstance(own, AlibiBias):
            own.slopes = whole.slopes[self._first(len(whole.slopes), len(own.slopes)) :][: len(own.slopes)]
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

    def hold(self, module: nn.Module) -> None:
        """What is not divided, whole in each process."""
        views = dict[str, View]()
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                setattr(module, name, self._placed(parameter, Replicate(), parameter))
                views[name] = _local(Replicate())
        _see(module, views)

    def enter(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Before a component: what it reads, and its heads' rows of a bias that all layers share."""
        x_BTD, context, *rest = args
        assert isinstance(context, Context)
        if (bias_BHTS := context.bias_BHTS) is not None:
            own_BHTS = self._read_by_all(bias_BHTS).chunk(self.size, 1)[self.rank]
            context = replace(context, bias_BHTS=own_BHTS)
        return self._read_by_all(x_BTD), context, *rest

    def leave(self, _: nn.Module, __: tuple[Any, ...], y: Tensor) -> Tensor:
        """Behind a component: the sum of what all processes give."""
        return self._moved(y, Partial(), Replicate())

    def _read_by_all(self, x: Tensor) -> Tensor:
        """The same; its gradient is the sum of those that all processes find."""
        return DTensor.from_local(x, self.mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])

    def _moved(self, x: Tensor, before: Placement, after: Placement, gradient: Placement | None = None) -> Tensor:
        moved = DTensor.from_local(x, self.mesh, [before], run_check=False).redistribute(placements=[after])
        return moved.to_local(grad_placements=[gradient or after])

    def _gather_for(self, norm: nn.Module, whole: int, own: int) -> None:
        """Let a norm see the features of all processes, and give each its own."""
        copies = self.size * own // whole

        def gathered(_: nn.Module, args: tuple[Tensor]) -> Tensor:
            x = self._moved(args[0], Shard(args[0].ndim - 1), Replicate(), Partial())
            return x.unflatten(-1, (self.size, -1))[..., ::copies, :].flatten(-2)

        norm.register_forward_pre_hook(gathered)
        norm.register_forward_hook(lambda _, __, y: y.narrow(-1, self._first(whole, own), own))

    def _part(self, whole: nn.Module, own: nn.Module, name: str) -> tuple[Placement, View]:
        """How a parameter is divided, which its shape in the share says, and how it is read."""
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
        starts = [end - n + self._first(n, some) for end, n, some in zip(accumulate(whole), whole, own, strict=True)]
        return torch.cat([x.narrow(axis, start, n) for start, n in zip(starts, own, strict=True)], axis)

    def _first(self, whole: int, own: int) -> int:
        """Where this process's rows begin; neighbours have the same where there are fewer shares than processes."""
        return self.rank * whole // self.size // own * own

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
