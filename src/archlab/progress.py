"""Progress of a long job on stderr: a bar in a terminal, plain lines otherwise."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from typing import Any, Self

from rich.progress import BarColumn, Progress, TextColumn

from archlab.config.core.text import in_notebook, print_to_stderr, visible
from archlab.console import console
from archlab.pricing.units import seconds

_NARROWEST, _WIDEST = 6, 20

_BETWEEN_MOVES = 0.1
"""Minimum time between two changes of the bar in a notebook, in seconds."""

_LONG_ENOUGH, _FAR_ENOUGH = 10.0, 0.05
"""The remaining time is shown after this number of seconds, or after this fraction of the job. Before that, the
estimate is not reliable."""


class _CellBar:
    """Bar below the cell of a notebook. It needs neither a terminal nor widgets."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._last = float("-inf")

    def move(self, share: float | None, head: str, tail: str) -> None:
        """Show the progress, at most about ten times a second."""
        if (now := time.monotonic()) - self._last < _BETWEEN_MOVES and share != 1:
            return
        self._last = now
        value = "" if share is None else f' value="{share:.4f}"'
        html = f"{escape(head)} <progress{value}></progress> {escape(tail)}"
        self._show({"text/html": html, "text/plain": f"{head}  {tail}".strip()})

    def clear(self) -> None:
        if self._shown is not None:
            self._show({"text/plain": ""})
            self._shown = None

    def _show(self, bundle: dict[str, str]) -> None:
        if self._shown is None:
            display = sys.modules["IPython"].display.display
            self._shown = display(bundle, raw=True, display_id=True)
        else:
            self._shown.update(bundle, raw=True)


class Bar:
    """Line that is updated in place and shows the job, its progress and the remaining time. It is on stderr, or below
    the cell of a notebook.

    The line is never wider than the terminal. If stderr is neither, the bar prints a plain line every
    `seconds_between_lines` seconds. If `seconds_between_lines` is None, it prints nothing. A closed pipe or terminal
    raises no error.
    """

    def __init__(self, seconds_between_lines: float | None = 10.0) -> None:
        self._console = console(stderr=True)
        self._cell = _CellBar() if in_notebook() else None
        self.is_drawn = self._cell is not None or sys.stderr.isatty()
        """Whether a bar is drawn. Otherwise, the progress is printed as plain lines."""
        self._bar = BarColumn(_WIDEST)
        head, tail = (TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("head", "tail"))
        columns = head, self._bar, tail
        self._progress = Progress(
            *columns,
            console=self._console,
            disable=not self.is_drawn or self._cell is not None,
            transient=True,
            redirect_stdout=False,
        )
        self._seconds_between_lines, self._last_line = seconds_between_lines, float("-inf")
        self._task = self._progress.add_task("", visible=False, head="", tail="")
        self.begin("")

    def begin(self, what: str) -> None:
        """Start a job with the name `what`. The time before its first progress is not counted."""
        self._what = what
        self._at_first: float | None = None
        self._start: tuple[float, float] | None = None
        self._progress.update(self._task, visible=False)

    def update(self, share: float | None, how_far: str = "", *details: str, line: bool = False) -> None:
        """Show the progress: `share` is the fraction of the job that is done (None: unknown), and `how_far` describes
        it.

        If the terminal is too narrow for all `details`, the last ones are omitted. If stderr is not a terminal, `line`
        prints a plain line now, even if `seconds_between_lines` seconds have not passed since the last one.
        """
        now = time.monotonic()
        left, head = self._left(share, now), visible(f"{self._what} {how_far}".strip())
        if self.is_drawn:
            self._move(share, head, [text for text in (left, *details) if text])
        elif line or self._is_due(now):
            self._last_line = now
            self.print("  ".join(text for text in (head, *details, left) if text))

    def time_left(self, share: float) -> str:
        """Return the estimated remaining time, as in `4.5 min left`.

        Return an empty string if it is unknown or less than a second.
        """
        return self._left(share, time.monotonic())

    def _is_due(self, now: float) -> bool:
        pause = self._seconds_between_lines
        return pause is not None and now - self._last_line >= pause

    def print(self, text: str) -> None:
        """Print a line to stderr above the bar. In a terminal, the line is wrapped between words."""
        print_to_stderr(text)  # Rich draws the bar again below it

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._cell is not None:
            self._cell.clear()
        with suppress(OSError):
            self._progress.stop()

    def _left(self, share: float | None, now: float) -> str:
        if share is None:
            return ""
        self._at_first = share if self._at_first is None else self._at_first
        if self._start is None and share <= self._at_first:
            return ""
        # The time before the first progress is not counted, because it is spent on startup.
        self._start = self._start or (now, share)
        took, done = now - self._start[0], share - self._start[1]
        is_known = done > 0 and (took >= _LONG_ENOUGH or done >= _FAR_ENOUGH)
        left = took * (1 - share) / done if is_known else 0.0
        return f"{seconds(round(left))} left" if left >= 1 else ""

    def _move(self, share: float | None, head: str, tail: list[str]) -> None:
        if self._cell is not None:
            self._cell.move(share, head, "  ".join(tail))
            return
        room = self._console.width - len(head) - 2 - _NARROWEST
        while tail and len("  ".join(tail)) > room:
            tail.pop()
        text = "  ".join(tail)
        self._bar.bar_width = max(_NARROWEST, min(_WIDEST, room - len(text) + _NARROWEST))
        total, done = (None, 0.0) if share is None else (1.0, share)
        self._progress.update(self._task, total=total, completed=done, visible=True, head=head, tail=text)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Within the block, show in a terminal that the job `what` is running. Its length is unknown."""
    with Bar(seconds_between_lines=None) as bar:
        bar.begin(what)
        bar.update(None)
        yield
