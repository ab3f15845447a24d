"""Saving of checkpoints during training: the state is copied, and a thread writes the copy."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from archlab.config.schema import Keep
from archlab.files import disk_errors, folder_atomic
from archlab.training.checkpoint import Retention, complete, remove_others, state_of, step_folder, write_whole
from archlab.training.world import ALONE, World

if TYPE_CHECKING:
    from torch.distributed.checkpoint.staging import DefaultStager

State = Mapping[str, Mapping[str, Tensor]]
"""Tensors of a checkpoint by the name of their file and their own name."""


class Saver:
    """Context manager that writes checkpoints in a thread, one at a time. On exit, it waits until all are on disk.

    A single process writes whole tensors. With several processes, each one writes its parts of the tensors
    (torch.distributed.checkpoint) into a temporary folder. When all have finished, the first process renames this
    folder.
    """

    def __init__(self, folder: Path, retention: Retention, world: World) -> None:
        self._folder, self._retention, self._world = folder, retention, world
        self._group = _group_of_all() if world.size > 1 else None
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, model: nn.Module, optimizer: Optimizer | None, metrics: bytes) -> None:
        """Wait for the previous checkpoint, then begin to write `folder/step-N`.

        Checkpoints that are no longer kept are removed after the new one is written. Raise UserError if the previous
        checkpoint could not be written.
        """
        self.wait()
        optimizer = optimizer if self._retention.needs_optimizer(step) else None
        with ExitStack() as stack:
            enter = stack.enter_context
            temporary = self._world.broadcast_from_first(lambda: enter(folder_atomic(step_folder(self._folder, step))))
            write = self._prepare(temporary, step, model, optimizer)
            cleanup = stack.pop_all()

        def finish() -> None:
            with cleanup:
                write()
                if self._world.is_first:
                    complete(temporary, metrics)
            if self._world.is_first:
                remove_others(self._folder, step, self._retention)

        self._thread = Thread(target=self._run, args=(finish,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk. Raise UserError if it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if (error := self._error) is not None:
            self._error = None
            raise error

    def check(self) -> None:
        """Raise UserError if the last checkpoint could not be written. Do not wait for a checkpoint in progress."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def _prepare(self, temporary: Path, step: int, model: nn.Module, optimizer: Optimizer | None) -> Callable[[], None]:
        state = state_of(model, optimizer)
        if self._group is None:
            copies, wait = _copied(state)

            def write() -> None:
                wait()
                write_whole(temporary, step, copies)

            return write
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        all_tensors = {name: x for tensors in state.values() for name, x in tensors.items()}
        writer = HuggingFaceStorageWriter(path=str(temporary), save_distributed=True)
        stager = _pinned_stager() if any(x.is_cuda for x in all_tensors.values()) else None
        future = async_save(all_tensors, storage_writer=writer, process_group=self._group, async_stager=stager)
        assert isinstance(future, Future)

        def write_parts() -> None:
            with closing(stager) if stager else nullcontext():
                _wait_for_parts(future, self._folder)

        return write_parts

    def _run(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        except BaseException as error:  # the training thread raises it later
            self._error = error


def _copied(state: State) -> tuple[State, Callable[[], None]]:
    """Return a copy in the memory of the host, and a function that waits until it is complete.

    A GPU copies while training continues. Its later updates follow in its queue, so they do not change the copy.
    """

    def copied(x: Tensor) -> Tensor:
        return torch.empty_like(x, device="cpu", pin_memory=x.is_cuda).copy_(x, non_blocking=True)

    with torch.no_grad():
        copies = {file: {name: copied(x) for name, x in tensors.items()} for file, tensors in state.items()}
    if not any(x.is_cuda for tensors in state.values() for x in tensors.values()):
        return copies, lambda: None
    end = torch.cuda.Event()
    end.record()
    return copies, end.synchronize


def _pinned_stager() -> "DefaultStager":
    """Return a stager that copies from a GPU into pinned memory. The writer's own stager copies twice, through memory
    that is not pinned."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    return DefaultStager(StagingOptions(use_shared_memory=False, use_async_staging=False))


def _wait_for_parts(future: Future[Any], folder: Path) -> None:
    """Wait until all processes have written their parts. If any disk is full, raise UserError in all processes."""
    from torch.distributed.checkpoint.api import CheckpointException

    with disk_errors(folder):
        try:
            future.result()
        except CheckpointException as error:
            first, _ = next(iter(error.failures.values()))
            raise first from error


def _group_of_all() -> torch.distributed.ProcessGroup:
    group = torch.distributed.new_group(backend="gloo")
    assert isinstance(group, torch.distributed.ProcessGroup)
    return group


def save_checkpoint(
    folder: Path, step: int, model: nn.Module, optimizer: Optimizer | None, metrics: bytes = b""
) -> None:
    """Write one checkpoint before returning. Without `optimizer`, training cannot continue from the checkpoint."""
    ends_here = optimizer is None
    with Saver(folder, Retention(Keep(), last_step=step if ends_here else step + 1), ALONE) as saver:
        saver.save(step, model, optimizer, metrics)
