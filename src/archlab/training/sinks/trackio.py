"""Trackio: a local database, or a Space on the Hugging Face hub where TRACKIO_SPACE_ID names one."""

import os
import sys
from contextlib import redirect_stdout
from typing import Any

from archlab.training.sinks.sink import PROJECT, LoggedRun, Measures


class Trackio:
    """A run of our name. What it says of itself goes where notes go, for stdout is for results."""

    def __init__(self, trackio: Any, run: LoggedRun) -> None:
        self._library = trackio
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=run.name,
                config=dict(run.values),
                resume="allow",
                embed=False,
            )

    def begin(self, step: int) -> None:
        """Steps that come again are drawn again."""

    def log(self, step: int, measures: Measures) -> None:
        """A row."""
        self._run.log(dict(measures), step=step)

    def close(self, *, ended: bool) -> None:
        """Wait until all is written."""
        with redirect_stdout(sys.stderr):
            self._library.finish()  # of this run, and nothing is left to do at the process's end
