"""Parallelism within layers: tensor, expert and context parallelism.

Tensor parallelism (Shoeybi 2019): processes split every component by heads, or by hidden units of MLPs. Each process
has its part of the component (`Component.share`). All processes read the same input. The outputs are summed over
processes, and so is the gradient of the input. Everything outside the components is replicated in every process.

Expert parallelism (Lepikhin 2020): the experts of a mixture are distributed over processes, which read different
windows. A token's hidden state is sent to the process of each expert that the router chose, and the result is sent
back. All other parameters are replicated.

Context parallelism: processes read the same windows and divide the tokens of each. A window is cut into twice as many
pieces as there are processes. Each process has one piece from the beginning and the opposite piece from the end. With a
causal mask, all processes then compare the same number of token pairs (Llama 3, 2024, arXiv 2407.21783). Every
attention layer gathers the keys and values of all processes. In the backward pass, the gradients of keys and values are
sent to the processes that own the tokens.

torch sees a divided parameter as a whole tensor (DTensor), so the optimizer, clipping, `fully_shard` and checkpoints
need no changes. The module that uses the parameter sees only this process's part.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from archlab.config.components.component import RoleName
from archlab.config.components.moe import MoE as MoEConfig
from archlab.model.arithmetic import Same
from archlab.model.context import Context, SequenceShard
from archlab.model.decoder import Decoder
from archlab.model.layer import make_component
from archlab.model.moe import Experts, MoE
from archlab.model.positions import AlibiBias
from archlab.model.roles import ROLES
from archlab.model.torch_private import exchange_rows

View = Callable[[DTensor], Tensor]
"""Function that maps a parameter to the tensor that the module reads."""


def redistributed(x: Tensor, mesh: DeviceMesh, before: Placement, after: Placement, gradient: Placement) -> Tensor:
    """Redistribute a tensor from placement `before` to `after`.

    A placement says what each process holds: a part of the tensor, one summand of it, or the whole tensor. `gradient`
    is the placement of the result's gradient.
    """
    sent = DTensor.from_local(x, mesh, [before], run_check=False).redistribute(placements=[after])
    return sent.to_local(grad_placements=[gradient])


class _Group:
    """Group of processes that divide parameters, and the rank of this process in it."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, self.size, self.rank = mesh, mesh.size(), mesh.get_local_rank()

    def divide(self, whole: nn.Module, own: nn.Module) -> None:
        """Replace the parameters of `own` by DTensors that are parts of the parameters of `whole`.

        `own` is this process's share of the component `whole`. Each parameter is divided along the axis in which its
        shapes in `own` and `whole` differ. Gradients are summed over processes.
        """
        if hasattr(whole, "constants"):
            own.constants = whole.constants
        views = dict[str, View]()
        for name, parameter in list(own.named_parameters(recurse=False)):
            placement, views[name] = self._part(whole, own, name)
            whole_parameter = getattr(whole, name)
            local = whole_parameter if isinstance(placement, Replicate) else parameter
            setattr(own, name, self._placed(local, placement, whole_parameter))
        _see(own, views)
        for name, module in own.named_children():
            self.divide(getattr(whole, name), module)

    def replicate_rest(self, model: nn.Module, gradient: Placement) -> None:
        """Replicate all parameters that are not divided.

        `gradient` says whether each process computes the whole gradient or a summand of it.
        """
        for module in model.modules():
            views = dict[str, View]()
            for name, parameter in list(module.named_parameters(recurse=False)):
                if not isinstance(parameter, DTensor):
                    setattr(module, name, self._placed(parameter, Replicate(), parameter))
                    views[name] = _local(gradient)
            _see(module, views)

    def first(self, whole: int, own: int) -> int:
        """Return the index of this process's first row. Each process has `own` rows of the `whole` rows in total.

        If there are fewer shares than processes, neighboring processes have the same rows.
        """
        return self.rank * whole // self.size // own * own

    def _part(self, whole: nn.Module, own: nn.Module, name: str) -> tuple[Placement, View]:
        shapes = getattr(whole, name).shape, getattr(own, name).shape
        axes = [axis for axis, (n, own_n) in enumerate(zip(*shapes, strict=True)) if n != own_n]
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
        """Return this process's rows along an axis on which several blocks are concatenated.

        `whole` and `own` are the row counts of each block, in total and in this process.
        """
        starts = [end - n + self.first(n, some) for end, n, some in zip(accumulate(whole), whole, own, strict=True)]
        return torch.cat([x.narrow(axis, start, n) for start, n in zip(starts, own, strict=True)], axis)

    def _placed(self, local: Tensor, placement: Placement, whole: Tensor) -> nn.Parameter:
        placed = DTensor.from_local(
            local.detach(), self.mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        return nn.Parameter(placed)


def _local(gradient: Placement, pick: Callable[[Tensor], Tensor] = lambda x: x) -> View:
    def view(parameter: DTensor) -> Tensor:
        if parameter.device_mesh.ndim > 1:  # sharded at the moment; fully_shard itself reads it
            return parameter
        return pick(parameter.to_local(grad_placements=[gradient]))

    return view


def _see(module: nn.Module, views: dict[str, View]) -> None:
    if views:
        own = type(module)
        module.__class__ = type(own.__name__, (own,), {name: _reading(name, view) for name, view in views.items()})


def _reading(name: str, view: View) -> property:
    return property(lambda module: view(module._parameters[name]))


def share_components(model: Decoder, mesh: DeviceMesh) -> None:
    """Apply tensor parallelism in place. Call before the parameters are initialized."""
    group = _TensorGroup(mesh)
    for layer, config in zip(model.layers, model.layer_configs, strict=True):
        for branch in config.branches:
            whole = getattr(layer, branch.name)
            own = make_component(branch.component.share(group.size), branch.site)
            for name, module in list(own.named_modules()):
                group.fit(whole.get_submodule(name), module)
            group.divide(whole, own)
            own.register_forward_pre_hook(group.enter)
            own.register_forward_hook(group.leave)
            setattr(layer, branch.name, own)
    group.replicate_rest(model, Replicate())


class _TensorGroup(_Group):
    """Group of processes that divide components."""

    def fit(self, whole: nn.Module, own: nn.Module) -> None:
        widths, whole_widths = (getattr(module, "over_all", {}) for module in (own, whole))
        for name, width in widths.items():
            if not isinstance(norm := getattr(whole, name), Same):
                setattr(own, name, norm)
                self._gather_for(norm, whole_widths[name], width)
        if isinstance(whole, AlibiBias) and isinstance(own, AlibiBias):
            own.slopes = whole.slopes[self.first(len(whole.slopes), len(own.slopes)) :][: len(own.slopes)]

    def enter(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BTD, context, *rest = args
        assert isinstance(context, Context)
        if (bias_BHTS := context.bias_BHTS) is not None:
            own_BHTS = self._moved(bias_BHTS, Replicate(), Replicate(), Partial()).chunk(self.size, 1)[self.rank]
            context = replace(context, bias_BHTS=own_BHTS)
        return self._moved(x_BTD, Replicate(), Replicate(), Partial()), context, *rest

    def leave(self, _: nn.Module, __: tuple[Any, ...], y: Tensor) -> Tensor:
        return self._moved(y, Partial(), Replicate(), Replicate())

    def _moved(self, x: Tensor, before: Placement, after: Placement, gradient: Placement) -> Tensor:
        return redistributed(x, self.mesh, before, after, gradient)

    def _gather_for(self, norm: nn.Module, whole: int, own: int) -> None:
        copies = self.size * own // whole

        def gathered(_: nn.Module, args: tuple[Tensor]) -> Tensor:
            x = self._moved(args[0], Shard(args[0].ndim - 1), Replicate(), Partial())
            return x.unflatten(-1, (self.size, -1))[..., ::copies, :].flatten(-2)

        norm.register_forward_pre_hook(gathered)
        norm.register_forward_hook(lambda _, __, y: y.narrow(-1, self.first(whole, own), own))


def deal_experts(model: Decoder, mesh: DeviceMesh) -> None:
    """Apply expert parallelism in place. Call before the parameters are initialized."""
    group = _ExpertGroup(mesh)
    for layer, config in zip(model.layers, model.layer_configs, strict=True):
        for module in layer.children():
            if isinstance(module, MoE):
                assert isinstance(config.mlp, MoEConfig)
                own = Experts(config.mlp.divide_experts(group.size), config.d_model)
                group.divide(module.experts, own)
                own.through = partial(group.through, own)
                module.experts = own
    group.replicate_rest(model, Partial())


class _ExpertGroup(_Group):
    """Group of processes over which the experts of each mixture are distributed."""

    def through(self, experts: Experts, x_RD: Tensor, expert_R: Tensor) -> Tensor:
        """Apply the experts of all processes to hidden states [R, D], sorted by expert. Return the outputs, [R, D]."""
        E = len(experts.up)
        sent_PE = torch.bincount(expert_R, minlength=self.size * E).view(self.size, E)
        got_PE = self._exchanged(sent_PE, [1] * self.size, [1] * self.size)
        sent, got = sent_PE.sum(1).tolist(), got_PE.sum(1).tolist()
        own_S = torch.arange(E, device=x_RD.device).repeat(self.size).repeat_interleave(got_PE.flatten())
        order_S = own_S.argsort(stable=True)
        x_SD = self._exchanged(x_RD, got, sent).index_select(0, order_S)
        y_SD = Experts.through(experts, x_SD, own_S[order_S])
        return self._exchanged(y_SD.index_select(0, order_S.argsort()), sent, got)

    def _exchanged(self, x: Tensor, got: list[int], sent: list[int]) -> Tensor:
        return exchange_rows(x.contiguous(), got, sent, self.mesh.get_group())


class ContextGroup:
    """Group of processes that divide the tokens of each window."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh, self.size = mesh, mesh.size()
        self._dealt = [piece for rank in range(self.size) for piece in self._pieces(rank)]

    def shard(self, n_tokens: int) -> SequenceShard:
        """Return this process's shard of a window. `n_tokens` must be a multiple of twice the number of processes."""
        length = n_tokens // len(self._dealt)
        own = self._pieces(self._mesh.get_local_rank())
        return SequenceShard(tuple(range(piece * length, (piece + 1) * length) for piece in own), self._gathered)

    def sum(self, x: Tensor) -> Tensor:
        """Sum a tensor over all processes of the group.

        The backward pass does not sum gradients: every process already has the whole gradient of the sum.
        """
        return redistributed(x, self._mesh, Partial(), Replicate(), Replicate())

    def _pieces(self, rank: int) -> tuple[int, int]:
        return rank, 2 * self.size - 1 - rank

    def _gathered(self, rows: Tensor) -> Tensor:
        pieces = redistributed(rows, self._mesh, Shard(2), Replicate(), Partial()).chunk(len(self._dealt), 2)
        return torch.cat([pieces[self._dealt.index(i)] for i in range(len(pieces))], 2)
