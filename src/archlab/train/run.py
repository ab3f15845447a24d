"""Training from Python."""

from pathlib import Path

from archlab.config.schema import Config
from archlab.train import loop
from archlab.train.progress import watcher
from archlab.train.run_folder import RunSummary


def train(config: Config, out: str | Path) -> RunSummary:
    """Train in the folder `out`, or go on there; a run that has ended is only read. How it ended.

    Progress goes to stderr. UserError when the folder holds another run; KeyboardInterrupt, after a checkpoint, when
    asked to stop.
    """
    return loop.train(config, Path(out), watcher())
