"""The commands `archlab study run|report|list|new|show` and `archlab demo`."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from archlab.cli.arguments import AtLeastOne, Flag, StudyName
from archlab.cli.help import verb_with_subcommands
from archlab.cli.terminal import long_output, print_json
from archlab.config.core.text import note
from archlab.config.core.yaml_text import to_yaml
from archlab.console import console
from archlab.errors import UserError
from archlab.pricing.units import plural
from archlab.study.executors.named import ExecutorName
from archlab.study.record import StudySummary

app = verb_with_subcommands("study")


@app.command
def run(
    study: StudyName,
    /,
    *,
    scale: str | None = None,
    seeds: AtLeastOne | None = None,
    out: Path | None = None,
    executor: ExecutorName = "local",
    workers: AtLeastOne | None = None,
    threads: AtLeastOne | None = None,
    slurm: Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)] = (),
    renew: Flag = False,
) -> None:
    """Train the arms of a study (its variants of a model), compare them, and write the report.

    Every arm is trained with every seed. Finished runs are never repeated.

    At the end, the command shows the claim in the ledger that the study tests. For a study of your own, it prints
    commands that explain its arms.

    Parameters
    ----------
    study
        A study that comes with archlab, a YAML file, or a study folder.
    scale
        One of the scales of the study, such as smoke. Default: the values of the study file itself.
    seeds
        Number of seeds for each arm. Default: the seeds of the study.
    out
        The study folder to write. Default: studies/NAME, or STUDY itself if it is a study folder.
    executor
        Where the runs are trained: on this machine, on a Ray cluster or in Slurm jobs (docs/executors.md). An executor
        can resume runs that another executor has started.
    workers
        Number of runs that are trained at the same time. Default: as many as there is room for.
    threads
        Number of cores for each run. Default: one for small models on a CPU, up to 8 with a GPU, otherwise all.
    slurm
        Options of the Slurm jobs, as in partition=gpu time=120 (minutes). This needs --executor slurm.
    renew
        Repeat runs that were trained with a different version of archlab's code or on a different machine.
    """
    from archlab.report.study.run_study import run_study
    from archlab.study.study_file import default_folder, read_study

    folder = out or default_folder(study, read_study(study, scale)[0])
    summary = run_study(
        study, folder, workers, executor, scale=scale, seeds=seeds, threads=threads, slurm=slurm, renew=renew
    )
    present(summary, folder)
    if summary.failed:
        lines = [f"  {label}: {reason}" for label, reason in summary.failed.items()]
        raise UserError("\n".join([f"{plural(len(lines), 'run')} failed; to try again, repeat the command", *lines]))


@app.command
@long_output
def report(folder: Path, /, *, json: Flag = False) -> None:
    """Write the report again from the finished runs, and print the table.

    Parameters
    ----------
    folder
        A study folder.
    json
        Print the summary as JSON.
    """
    from archlab.report.study.run_study import write_report
    from archlab.study.runner import Study
    from archlab.study.study_file import check_study_folder, read_study, study_path

    check_study_folder(folder)
    name, config = read_study(folder)
    summary = Study(name, config, folder, source=study_path(folder)).read()
    if json:
        print_json(summary.model_dump(mode="json"))
    else:
        write_report(summary, folder)
        present(summary, folder)


@app.command(name="list")
@long_output
def list_studies(*, json: Flag = False) -> None:
    """List the studies that come with archlab: question, prediction of the claim, and duration at each scale.

    The studies are sorted by the number of the claim in the ledger that they test.

    Parameters
    ----------
    json
        Print JSON.
    """
    from archlab.evidence.studies import list_studies as listed_studies
    from archlab.report.study.claims import print_studies

    studies = listed_studies()
    if json:
        print_json([study.model_dump(mode="json") for study in studies])
    else:
        print_studies(console(), studies)


@app.command
@long_output
def new(study: StudyName | None = None, /, *, out: Path | None = None) -> None:
    """Write a study file to change and run, with every field explained.

    Parameters
    ----------
    study
        The study to start from: one that comes with archlab, or a YAML file. Default: a small example.
    out
        The file to write. It must not exist. Default: print it.
    """
    from archlab.files import write_atomic
    from archlab.study.authoring import EXAMPLE, template
    from archlab.study.study_file import read_study

    values = EXAMPLE if study is None else read_study(study)[1].model_dump(mode="json", exclude_unset=True)
    if out is None:
        print(template(values), end="")
        return
    if out.exists():
        raise UserError(f"--out is {out}, which already exists; name a new file")
    write_atomic(out, template(values))
    print(out)


@app.command
@long_output
def show(study: StudyName, /, *, scale: str | None = None, yaml: Flag = False) -> None:
    """Show the question of a study, its arms, and the time that its runs would take. Nothing is trained.

    Parameters
    ----------
    study
        A study that comes with archlab, a YAML file, or a study folder.
    scale
        One of the scales of the study, such as smoke. Default: the values of the study file itself.
    yaml
        Print the study as YAML, to save, change and run it. Studies that it extends are merged into the YAML.
    """
    from archlab.evidence.study_plan import plan_study
    from archlab.report.study.plan import print_plan
    from archlab.study.study_file import read_study

    if yaml:
        print(to_yaml(read_study(study, scale)[1].model_dump(mode="json", exclude_unset=True)), end="")
        return
    plan = plan_study(study, scale)
    for text in plan.notes:
        note(text)
    print_plan(console(), plan)


def present(summary: StudySummary, folder: Path) -> None:
    """Print the table of a study, its claims, and the path of its page."""
    from archlab.files import REPORT
    from archlab.report.study import claims
    from archlab.report.study.tables import print_study

    out = console()
    print_study(out, summary)
    for line in claims.lines(summary):
        out.print(line)
    sys.stdout.flush()
    print(f"report: {(folder / REPORT).absolute()}", flush=True)


def demo(*, out: Path = Path("studies/ladder")) -> None:
    """Train and compare seven models, from the Transformer block of 2017 to today's. This is the study `ladder`.

    Parameters
    ----------
    out
        The study folder to write. Run the command again to resume.
    """
    run("ladder", out=out)
