"""TensorBoard: event files in the run's folder, so that `tensorboard --logdir runs` shows the runs side by side."""

from typing import Any

from archlab.config.core.yaml_text import to_yaml
from archlab.training.sinks.sink import LoggedRun, Measures


class TensorBoard:
    """Events under `tensorboard/`."""

    def __init__(self, tensorboardx: Any, run: LoggedRun) -> None:
        self._library, self._run, self._writer = tensorboardx, run, None

    def begin(self, step: int) -> None:
        """A new file, which says that what the older ones have of this step and later is not to be shown."""
        if self._writer is not None:
            self._writer.close()
        folder = self._run.folder / "tensorboard"
        before = len(list(folder.glob("*")))  # files that begin in the same second would have one name
        self._writer = self._library.SummaryWriter(str(folder), purge_step=step, filename_suffix=f".{before:05}")
        if step == 0:
            self._writer.add_text("config", f"```\n{to_yaml(dict(self._run.values))}```", 0)

    def log(self, step: int, measures: Measures) -> None:
        """A scalar each."""
        assert self._writer is not None
        for name, value in measures.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, ended: bool) -> None:
        """Bring all to the disk."""
        if self._writer is not None:
            self._writer.close()
