"""The processes that train one run together, as torchrun starts them, and what they tell each other."""

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

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from archlab.training.parallel import ContextGroup

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process, and its place among the processes that train a run together."""

    rank: int = 0
    """This process, counted from 0 over all machines."""
    size: int = 1
    """All of them."""
    local_rank: int = 0
    """This process, counted from 0 on its machine."""
    mesh: "DeviceMesh | None" = None
    """[replicate, shard, within], the last of `tensor` or `expert`; `context` is among `shard`. None: alone."""
    tensor: int = 1
    """Neighbouring processes that work on the same windows and share components."""
    reading: "ProcessGroup | None" = None
    """This process, and one of each other group that reads windows of its own; None: all."""
    expert: int = 1
    """Neighbouring processes that have experts for each other."""
    context_group: "ContextGroup | None" = None
    """Neighbouring processes that divide the tokens of the same windows; None: each has whole ones."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes the run's folder and speaks to the user."""
        return self.rank == 0

    @property
    def context(self) -> int:
        """How many divide the tokens of the same windows."""
        return self.context_group.size if self.context_group else 1

    @property
    def readers(self) -> int:
        """Groups of processes that each read windows of their own."""
        return self.size // (self.tensor * self.context)

    @property
    def reader(self) -> int:
        """This process's group, counted from 0."""
        return self.rank // (self.tensor * self.context)

    @property
    def averaged(self) -> int:
        """Processes whose gradients `fully_shard` averages; it adds up those of the others."""
        return self.size // (self.tensor * self.expert)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all that read windows of their own, of a tensor of one shape everywhere."""
        if self.size > 1:
            torch.distributed.all_reduce(values, group=self.reading)
        return values

    def any(self, here: bool) -> bool:
        """Whether it is so for one of the processes at least."""
        if self.size == 1:
            return here
        found = torch.tensor(int(here))
        torch.distributed.all_reduce(found)
        return bool(found)

    def broadcast_from_first(self, compute: Callable[[], T]) -> T:
        """Return in every process what `compute` returns in the first one, or raise its UserError there."""
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
        """`8: replicate 2, shard 4`; of one process `1`."""
        replicate, shard = (self.mesh.size(0), self.mesh.size(1) // self.context) if self.mesh else (1, 1)
        sizes = {"replicate": replicate, "shard": shard} | {way: getattr(self, way) for way in WITHIN}
        ways = ", ".join(f"{way} {n}" for way, n in sizes.items() if n > 1)
        return f"{self.size}: {ways}" if ways else str(self.size)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """One process of each machine goes through the block, then the others: it prepares files that they find."""
        if self.size == 1:
            yield
            return
        waiting = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)
        assert isinstance(waiting, torch.distributed.ProcessGroup)  # else a number, for who is not in the group
        if self.local_rank > 0:
            torch.distributed.barrier(waiting)
        yield
        if self.local_rank == 0:
            torch.distributed.barrier(waiting)


WITHIN = ("tensor", "expert", "context")
"""The ways to divide, of which one at a time may have more than one process."""

ALONE = World()

_PATIENCE = timedelta(days=1)
"""For which processes wait while one prepares a text, which may be large. torchrun ends them sooner where one dies."""


def n_processes() -> int:
    """As torchrun started them; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(parallel: ParallelConfig, device_type: str) -> Iterator[World]:
    """All processes within the block, divided as the config says.

    ConfigError where they cannot be divided so. A process that dies within it is noticed by torchrun, which ends the
    others.
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
    if joins := not is_initialized():  # a program of one's own may have joined them before
        init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
    try:
        mesh = init_device_mesh(device_type, sizes, mesh_dim_names=("replicate", "shard", "within"))
        if mesh["within"].size() > 1:
            mesh["shard", "within"]._flatten()  # torch sums over both at once where it finds this
        reading, context_group = None, None
        if parallel.tensor > 1:
            reading = mesh["replicate", "shard"]._flatten().get_group()
        if parallel.context > 1:
            from archlab.training.parallel import ContextGroup

            shape = (size // parallel.context, parallel.context)
            windows = init_device_mesh(device_type, shape, mesh_dim_names=("reading", "window"))
            reading, context_group = windows["reading"].get_group(), ContextGroup(windows["window"])
        yield World(get_rank(), size, local_rank, mesh, parallel.tensor, reading, parallel.expert, context_group)
    finally:
        if joins:
            destroy_process_group()


def _check_devices(processes: int, gpus: int) -> None:
    if processes > gpus:
        found = f"{processes} processes on this machine, which has {gpus} GPU{'s' if gpus > 1 else ''}"
        raise UserError(f"torchrun --nproc-per-node: {found}; allowed: at most so many, or train.device=cpu")


def divided(parallel: ParallelConfig, size: int) -> tuple[int, int, int]:
    """(replicate, shard with context, tensor or expert) of so many processes: the mesh by which weights are cut.

    ConfigError where their product is another number.
    """
    if len(several := [way for way in WITHIN if getattr(parallel, way) > 1]) > 1:
        first, other = several[:2]
        found = f"{getattr(parallel, other)}, with {first} {getattr(parallel, first)}; allowed: one of both above 1"
        raise ConfigError([Problem(f"parallel.{other}", found)], "the config")
    left, of = size, f"of {size} process{'es' if size > 1 else ''}"
    for way in (*WITHIN, "replicate"):
        n = getattr(parallel, way)
        if left % n:
            allowed = "a divisor of their number" if size > 1 else "1; torchrun starts more processes"
            found = f"{n}, {of}; allowed: {allowed}"
            raise ConfigError([Problem(f"parallel.{way}", found)], "the config")
        left //= n
        of += f" / {way} {n}" if n > 1 else ""
    if parallel.shard not in (None, left):
        found = f"{parallel.shard}, {of}; allowed: {left}, or null"
        raise ConfigError([Problem("parallel.shard", found)], "the config")
    return parallel.replicate, left * parallel.context, parallel.tensor * parallel.expert
