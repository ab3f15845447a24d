"""`archlab demo`."""

from pathlib import Path

from archlab.cli import study


def run(*, out: Path = Path("studies/ladder")) -> None:
    """Train the ladder from 2017's block to today's on this machine, and show which step bought what.

    Parameters
    ----------
    out
        The study's folder; run again, it goes on where it stopped.
    """
    study.run("ladder", out=out)
