"""Run a study from Python and write its page."""

from pathlib import Path

from archlab.config.core.merge import Raw
from archlab.config.core.text import note
from archlab.errors import UserError
from archlab.files import real_path
from archlab.report.study.page import write_page, write_picture
from archlab.study.executors.named import ExecutorName, make_executor
from archlab.study.progress import StudyProgress
from archlab.study.record import StudySummary
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from archlab.study.study_file import default_folder, read_study, study_from_values, study_path


def run_study(
    study: str | Path | Raw | StudyConfig,
    out: str | Path | None = None,
    workers: int | None = None,
    executor: ExecutorName = "local",
) -> StudySummary:
    """Train every arm with every seed, compare the arms, and write the study's folder and page.

    This function does the same as `archlab study run`. Progress is printed to stderr. Finished runs are never repeated.
    The `failed` field of the summary names the runs that failed. UserError is raised if the study is invalid or if no
    run finished.

    `study` is the name of a study that comes with archlab, the path of a YAML file or study folder, the values of a
    study file, or a StudyConfig. `out` is the folder for the study. By default, it is `studies/NAME`, or `study` itself
    if that is a study folder. At most `workers` runs train at the same time. `executor` determines where the runs are
    trained: `local`, `ray` or `slurm`.

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
    if isinstance(study, str | Path):
        (name, config), source = read_study(str(study)), study_path(str(study))
        folder = Path(out) if out is not None else default_folder(str(study), name)
    elif out is None:
        raise UserError("out: a study without a file needs a folder, which names it, for example out='studies/mine'")
    else:
        folder, source = Path(out), "the study"
        name, config = real_path(folder).name, study if isinstance(study, StudyConfig) else study_from_values(study)
    if workers is not None and workers < 1:
        raise UserError(f"workers: {workers}; allowed: at least 1")
    with StudyProgress() as progress:
        runner = Study(name, config, folder, make_executor(executor, workers), source=source)
        summary = runner.run(progress, on_timing=progress.timing)
    write_page(summary, folder)
    try:
        write_picture(summary, folder)
    except UserError as error:
        note(f"report.png was not written: {error}")
    return summary
