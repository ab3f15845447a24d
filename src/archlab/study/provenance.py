"""Where and by which code a study's runs were made. Neither is part of a run's name, so a study may mix them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from archlab.code import code_digest
from archlab.files import remove_folder
from archlab.study.formatting import listed
from archlab.training.run_folder import RunFolder

_MATTERS = {
    "code": "code of archlab",
    "torch": "torch",
    "processor": "processor",
    "threads": "number of threads",
    "compiled": "choice to compile",
}
"""Part of a run's environment that changes rounding or speed -> what it is called."""


def remove_stale(runs: Path, now: Mapping[str, Any]) -> None:
    """Remove the folders of runs that were made otherwise than they would be now; UserError where one is being
    trained."""
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        folder = RunFolder(path)
        before = folder.environment()
        if any(before.get(key) != now[key] for key in _MATTERS if key in now):
            with folder.locked():
                remove_folder(path)


def mixed(environments: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A warning for each thing in which the runs of one study differ, and one where other code made them."""
    known = [environment for environment in environments if environment]
    for key, what in _MATTERS.items():
        found = list(dict.fromkeys(str(environment[key]) for environment in known if key in environment))
        if len(found) > 1:
            yield f"its runs differ in the {what} ({listed(found)}); differences between arms may come of that"
    if any(environment.get("code") != code_digest() for environment in known):
        yield "runs were made by other code of archlab than this; `archlab study run --renew` trains those again"
