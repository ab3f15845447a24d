"""Processes that train one run together, as started by torchrun, and their communication."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from archlab.config.parallel import ParallelConfig
from archlab.config.problems import ConfigError, Problem
from archlab.errors import UserError
from archlab.model.torch_private import EXCHANGE_LOGGER

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from archlab.training.parallel import ContextGroup

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process and its place in the group of processes that train a run together."""

    rank: int = 0
    """Index of this process over all machines, counted from 0."""
    size: int = 1
    local_rank: int = 0
    """Index of this process on its machine, counted from 0."""
    mesh: "DeviceMesh | None" = None
    """Device mesh with the axes `replicate`, `shard` and `within`; None for a single process.

    Tensor and expert parallelism use the axis `within`. Processes that divide the same windows are neighbors on the
    axis `shard`.
    """
    tensor: int = 1
    """Number of neighboring processes that read the same windows and split components (tensor parallelism)."""
    sum_group: "ProcessGroup | None" = None
    """Processes over which `sum` adds. None means all processes.

    Processes that read the same windows form a group. One process of each group takes part in the sum, this process
    for its own group.
    """
    expert: int = 1
    """Number of neighboring processes over which experts are distributed (expert parallelism)."""
    context_group: "ContextGroup | None" = None
    """Group of neighboring processes that divide the tokens of the same windows. None if windows are not divided."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes the run's folder and prints to the user."""
        return self.rank == 0

    @property
    def context(self) -> int:
        """Number of processes among which the tokens of each window are divided."""
        return self.context_group.size if self.context_group else 1

    @property
    def readers(self) -> int:
        """Number of process groups that each read their own windows."""
        return self.size // (self.tensor * self.context)

    @property
    def reader(self) -> int:
        """Index of this process's group among the groups that read their own windows, counted from 0."""
        return self.rank // (self.tensor * self.context)

    @property
    def averaged(self) -> int:
        """Number of processes over which `fully_shard` averages gradients.

        Gradients are summed over the processes of tensor and expert parallelism.
        """
        return self.size // (self.tensor * self.expert)

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all groups that read their own windows. Every process must pass the same shape."""
        if self.size > 1:
            torch.distributed.all_reduce(values, group=self.sum_group)
        return values

    def any(self, value: bool) -> bool:
        """Return whether `value` is true in at least one process."""
        if self.size == 1:
            return value
        count = torch.tensor(int(value))
        torch.distributed.all_reduce(count)
        return bool(count)

    def broadcast_from_first(self, compute: Callable[[], T]) -> T:
        """Call `compute` in the first process, and return its result in every process.

        If `compute` raises UserError, every process raises that error.
        """
        if self.size == 1:
            return compute()
        message: list[Any] = [None, None]
        if self.is_first:
            try:
                message[0] = compute()
            except UserError as error:
                message[1] = error
        torch.distributed.broadcast_object_list(message)
        if message[1] is not None:
            raise message[1]
        return message[0]

    @property
    def division(self) -> str:
        """Text that says how the processes are divided, such as `8: replicate 2, shard 4`; `1` for a single process."""
        replicate, shard = (self.mesh.size(0), self.mesh.size(1) // self.context) if self.mesh else (1, 1)
        sizes = {"replicate": replicate, "shard": shard} | {way: getattr(self, way) for way in WITHIN}
        ways = ", ".join(f"{way} {n}" for way, n in sizes.items() if n > 1)
        return f"{self.size}: {ways}" if ways else str(self.size)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run the block in one process of each machine first. The other processes then use the prepared files."""
        if self.size == 1:
            yield
            return
        waiting = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)
        assert isinstance(
            waiting, torch.distributed.ProcessGroup
        )  # otherwise a number, for processes outside of the group
        if self.local_rank > 0:
            torch.distributed.barrier(waiting)
        yield
        if self.local_rank == 0:
            torch.distributed.barrier(waiting)


WITHIN = ("tensor", "expert", "context")
"""Fields of `parallel` that divide layers or windows within a group of processes. At most one may be above 1."""

ALONE = World()

_PATIENCE = timedelta(days=1)
"""Maximum time that processes wait while another process prepares a text, which may be large.

If a process dies, torchrun stops all processes.
"""


def n_processes() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(parallel: ParallelConfig, device_type: str) -> Iterator[World]:
    """Connect all processes for the duration of the block, and yield this process's `World`.

    Raise ConfigError if the number of processes does not match the config. If a process dies inside the block, torchrun
    stops the others.
    """
    size = n_processes()
    sizes = divided(parallel, size)
    if size == 1:
        yield ALONE
        return
    from torch.distributed import destroy_process_group, get_rank, init_process_group, is_initialized
    from torch.distributed.device_mesh import init_device_mesh

    local_rank = int(os.environ["LOCAL_RANK"])
    if device_type == "cuda":
        _check_devices(int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count())
        torch.cuda.set_device(local_rank)
    else:
        logging.getLogger(EXCHANGE_LOGGER).setLevel(logging.ERROR)  # each process would warn
    if joins := not is_initialized():  # the user's program may already have connected them
        init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
    try:
        mesh = init_device_mesh(device_type, sizes, mesh_dim_names=("replicate", "shard", "within"))
        if mesh["within"].size() > 1:
            mesh["shard", "within"]._flatten()  # torch then sums over both axes at once
        sum_group, context_group = None, None
        if parallel.tensor > 1:
            sum_group = mesh["replicate", "shard"]._flatten().get_group()
        if parallel.context > 1:
            from archlab.training.parallel import ContextGroup

            shape = (size // parallel.context, parallel.context)
            windows = init_device_mesh(device_type, shape, mesh_dim_names=("reading", "window"))
            sum_group, context_group = windows["reading"].get_group(), ContextGroup(windows["window"])
        yield World(get_rank(), size, local_rank, mesh, parallel.tensor, sum_group, parallel.expert, context_group)
    finally:
        if joins:
            destroy_process_group()


def _check_devices(processes: int, gpus: int) -> None:
    if processes > gpus:
        message = f"{processes} processes on this machine, which has {gpus} GPU{'s' if gpus > 1 else ''}"
        raise UserError(f"torchrun --nproc-per-node: {message}; allowed: at most {gpus}, or train.device=cpu")


def divided(parallel: ParallelConfig, size: int) -> tuple[int, int, int]:
    """Return the sizes of the device mesh for `size` processes: (replicate, shard * context, tensor * expert).

    Raise ConfigError if the product of the config's fields is not `size`, or if two fields of WITHIN are above 1.
    """
    if len(several := [way for way in WITHIN if getattr(parallel, way) > 1]) > 1:
        first, other = several[:2]
        message = (
            f"{getattr(parallel, other)}, with {first} {getattr(parallel, first)}; allowed: only one of them above 1"
        )
        raise ConfigError([Problem(f"parallel.{other}", message)], "the config")
    left, divided_by = size, f"with {size} process{'es' if size > 1 else ''}"
    for way in (*WITHIN, "replicate"):
        n = getattr(parallel, way)
        if left % n:
            allowed = "a divisor of the number of processes" if size > 1 else "1; torchrun starts more processes"
            message = f"{n}, {divided_by}; allowed: {allowed}"
            raise ConfigError([Problem(f"parallel.{way}", message)], "the config")
        left //= n
        divided_by += f" / {way} {n}" if n > 1 else ""
    if parallel.shard not in (None, left):
        message = f"{parallel.shard}, {divided_by}; allowed: {left}, or null"
        raise ConfigError([Problem("parallel.shard", message)], "the config")
    return parallel.replicate, left * parallel.context, parallel.tensor * parallel.expert
