"""Create executors by name. Each executor's module is imported on first use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from archlab.config.problems import choose
from archlab.errors import UserError

if TYPE_CHECKING:
    from archlab.study.executors.executor import Executor

ExecutorName = Literal["local", "ray", "slurm"]


def make_executor(name: str = "local", workers: int | None = None, slurm: Sequence[str] = ()) -> "Executor":
    """Return the executor with this name.

    `workers` is the number of runs that train at the same time; by default, as many as fit on the machines. `slurm`
    holds options of Slurm jobs, such as partition=gpu. Raise UserError for an unknown name or option, for Slurm options
    with another executor, and for a library that is not installed.
    """
    if slurm and name != "slurm":
        raise UserError(f"slurm: {slurm[0]!r} needs the executor slurm, but executor is {name!r}")
    match name:
        case "local":
            from archlab.study.executors.local import Local

            return Local(workers)
        case "ray":
            from archlab.study.executors.ray import Ray, installed_ray

            installed_ray()
            return Ray(workers)
        case "slurm":
            from archlab.study.executors.slurm import Slurm, check_slurm, slurm_options

            check_slurm(options := slurm_options(slurm))
            return Slurm(workers, options)
        case _:
            raise UserError(f"unknown executor {name!r}{choose(name, get_args(ExecutorName))}")
