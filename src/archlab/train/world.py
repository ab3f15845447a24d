"""The processes that train one run together, as torchrun starts them, and what they tell each other."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from archlab.config.parallel import ParallelConfig
from archlab.config.problems import ConfigError, Problem

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among them. Alone, it tells nobody anything."""

    rank: int = 0
    """This process, counted from 0 over all machines."""
    size: int = 1
    """All of them."""
    local_rank: int = 0
    """This process, counted from 0 on its machine."""
    mesh: "DeviceMesh | None" = None
    """[replicate, shard]; None: alone."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes the run's folder and speaks to the user."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, of a tensor of one shape everywhere."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def any(self, here: bool) -> bool:
        """Whether it is so for one of the processes at least."""
        return here if self.size == 1 else bool(self.sum(torch.tensor(int(here))))

    def told(self, found: Callable[[], T]) -> T:
        """What the first process finds, everywhere; the others do not look."""
        if self.size == 1:
            return found()
        message: list[Any] = [found() if self.is_first else None]
        torch.distributed.broadcast_object_list(message)
        return message[0]

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """One process of each machine goes through the block, then the others: it prepares files that they find."""
        if self.size > 1 and self.local_rank > 0:
            torch.distributed.barrier()
        yield
        if self.size > 1 and self.local_rank == 0:
            torch.distributed.barrier()


ALONE = World()


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
        torch.cuda.set_device(local_rank)
    if joins := not is_initialized():  # a program of one's own may have joined them before
        init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
    try:
        mesh = init_device_mesh(device_type, sizes, mesh_dim_names=("replicate", "shard"))
        yield World(get_rank(), size, local_rank, mesh)
    finally:
        if joins:
            destroy_process_group()


def divided(parallel: ParallelConfig, size: int) -> tuple[int, int]:
    """(replicate, shard) of so many processes; ConfigError where their product is another number."""
    replicate, shard = parallel.replicate, parallel.shard
    if size % replicate:
        found = f"{replicate}, of {size} process{'es' if size > 1 else ''}"
        raise ConfigError([Problem("parallel.replicate", f"{found}; allowed: a divisor of their number")], "the config")
    left = size // replicate
    if shard not in (None, left):
        found = f"{shard}, with replicate {replicate} and {size} process{'es' if size > 1 else ''}"
        raise ConfigError([Problem("parallel.shard", f"{found}; allowed: {left}, or null")], "the config")
    return replicate, left
