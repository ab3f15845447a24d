"""Run a study from Python and write its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archlab.config.core.text import note
from archlab.errors import UserError
from archlab.files import real_path
from archlab.progress import doing
from archlab.report.study.page import write_page, write_picture
from archlab.study.executors.named import ExecutorName, make_executor
from archlab.study.formatting import listed
from archlab.study.progress import StudyProgress
from archlab.study.record import StudySummary
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from archlab.study.study_file import default_folder, given_study, with_seeds


def run_study(
    study: str | Path | Mapping[str, Any] | StudyConfig,
    out: str | Path | None = None,
    workers: int | None = None,
    executor: ExecutorName = "local",
    *,
    scale: str | None = None,
    seeds: int | None = None,
    threads: int | None = None,
    slurm: Sequence[str] = (),
    renew: bool = False,
) -> StudySummary:
    """Train every arm with every seed, compare the arms, and write the study's folder and page.

    This function does the same as `archlab study run`, whose options have the same names. Progress is printed to
    stderr. Finished runs are never repeated. The `failed` field of the summary names the runs that failed. UserError is
    raised if the study is invalid or if no run finished.

    `study` is the name of a study that comes with archlab, the path of a YAML file or study folder, the values of a
    study file, or a StudyConfig. `out` is the folder for the study. By default, it is `studies/NAME`, or `study` itself
    if that is a study folder. At most `workers` runs train at the same time, each on this number of `threads`.
    `executor` determines where the runs are trained: `local`, `ray`, or `slurm` with options such as `partition=gpu`.
    `scale` is one of the study's scales, such as `smoke`, and needs a name or a file. `seeds` is the number of seeds of
    each arm. `renew` repeats runs that were trained with different code or on a different machine.

    >>> question = {
    ...     "question": "Which activation?",
    ...     "base": "mine.yaml",
    ...     "budget": {"tokens": 320},
    ...     "arms": {"silu": {}, "gelu": {"model.mlp.activation": "gelu"}},
    ...     "seeds": 2,
    ... }
    >>> study = archlab.run_study(question, out="studies/b")
    >>> [(arm.label, len(arm.values)) for arm in study.arms]
    [('silu', 2), ('gelu', 2)]
    """
    for name, number in (("workers", workers), ("threads", threads)):
        if number is not None and number < 1:
            raise UserError(f"{name}: {number}; allowed: at least 1")
    name, config, source = given_study(study, scale)
    if out is not None:
        folder = Path(out)
    elif name is not None and isinstance(study, str | Path):
        folder = default_folder(study, name)
    else:
        raise UserError("out: a study without a file needs a folder, which names it, for example out='studies/mine'")
    if seeds is not None:
        config = with_seeds(config, seeds, source)
    name = name or real_path(folder).name
    runner = Study(name, config, folder, make_executor(executor, workers, slurm), threads, source)
    if changed := runner.changed():
        note(f"{folder}: {listed(changed)} changed; runs that are still valid are kept")
    with StudyProgress() as progress:
        summary = runner.run(progress, renew=renew, on_timing=progress.timing)
    write_report(summary, folder)
    return summary


def write_report(summary: StudySummary, folder: Path) -> None:
    """Write a study's page and picture into its folder. If the picture cannot be drawn, print the reason."""
    with doing("writing the report"):
        write_page(summary, folder)
        try:
            write_picture(summary, folder)
        except UserError as error:
            note(f"report.png was not written: {error}")
