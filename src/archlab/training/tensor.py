"""Tensor parallelism (Shoeybi 2019): processes that share the work of every component, by heads and middles of MLPs.

Each has a component of its own, the whole one's share (`Component.share`). What goes in is the same everywhere, and its
gradient is summed; what comes out is summed. All else each process computes by itself, of the same numbers.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from archlab.model.arithmetic import Same
from archlab.model.context import Context
from archlab.model.decoder import Decoder
from archlab.model.layer import make_component
from archlab.model.positions import AlibiBias
from archlab.training.moved import moved
from archlab.training.parts import Holders


def share_components(model: Decoder, mesh: DeviceMesh) -> None:
    """In place, before the parameters have values."""
    group = _Sharers(mesh)
    for layer, config in zip(model.layers, model.layer_configs, strict=True):
        for branch in config.branches:
            whole = getattr(layer, branch.name)
            own = make_component(branch.component.share(group.size), config, "auto")
            for name, module in list(own.named_modules()):
                group.fit(whole.get_submodule(name), module)
            group.divide(whole, own)
            own.register_forward_pre_hook(group.enter)
            own.register_forward_hook(group.leave)
            setattr(layer, branch.name, own)
    group.hold(model, Replicate())


class _Sharers(Holders):
    """What processes that share components send each other."""

    def fit(self, whole: nn.Module, own: nn.Module) -> None:
        """What of a module's share is not seen from the shapes of its parameters."""
        widths, of_whole = (getattr(module, "over_all", {}) for module in (own, whole))
        for name, width in widths.items():
            if not isinstance(norm := getattr(whole, name), Same):
                setattr(own, name, norm)
                self._gather_for(norm, of_whole[name], width)
        if isinstance(whole, AlibiBias) and isinstance(own, AlibiBias):
            own.slopes = whole.slopes[self.first(len(whole.slopes), len(own.slopes)) :][: len(own.slopes)]

    def enter(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Before a component: what it reads, and its heads' rows of a bias that all layers share."""
        x_BTD, context, *rest = args
        assert isinstance(context, Context)
        if (bias_BHTS := context.bias_BHTS) is not None:
            own_BHTS = self._moved(bias_BHTS, Replicate(), Replicate(), Partial()).chunk(self.size, 1)[self.rank]
            context = replace(context, bias_BHTS=own_BHTS)
        return self._moved(x_BTD, Replicate(), Replicate(), Partial()), context, *rest

    def leave(self, _: nn.Module, __: tuple[Any, ...], y: Tensor) -> Tensor:
        """Behind a component: the sum of what all processes give."""
        return self._moved(y, Partial(), Replicate(), Replicate())

    def _moved(self, x: Tensor, before: Placement, after: Placement, gradient: Placement) -> Tensor:
        return moved(x, self.mesh, before, after, gradient)

    def _gather_for(self, norm: nn.Module, whole: int, own: int) -> None:
        """Let a norm see the features of all processes, and give each its own."""
        copies = self.size * own // whole

        def gathered(_: nn.Module, args: tuple[Tensor]) -> Tensor:
            x = self._moved(args[0], Shard(args[0].ndim - 1), Replicate(), Partial())
            return x.unflatten(-1, (self.size, -1))[..., ::copies, :].flatten(-2)

        norm.register_forward_pre_hook(gathered)
        norm.register_forward_hook(lambda _, __, y: y.narrow(-1, self.first(whole, own), own))
