"""`archlab study run|report|list|show`."""

from pathlib import Path

from cyclopts import App
from rich.console import Console

from archlab.cli import list as list_verb
from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.terminal import print_json, print_table
from archlab.errors import UserError
from archlab.study.record import StudySummary

app = App(name="study", help="Run a comparison, or read one.")


@app.command
def run(study: str, /, *, out: Path | None = None, workers: AtLeastOne | None = None) -> None:
    """Train every arm with every seed, compare, and write the report. Finished runs are never repeated.

    Parameters
    ----------
    study
        The name of one of ours, a YAML file, or a study folder.
    out
        The study's folder. Left out: studies/NAME, or the study folder itself.
    workers
        Processes that train side by side. Left out: one per core for small models on a CPU, else one.
    """
    from archlab.study.design import is_study_folder, load_study
    from archlab.study.progress import Board
    from archlab.study.runner import Study

    name, config = load_study(study)
    folder = out or (Path(study) if is_study_folder(Path(study)) else Path("studies") / name)
    with Board() as board:
        summary = Study(name, config, folder, workers).run(board)
    present(summary, folder)


@app.command
def report(folder: Path, /, *, json: Flag = False) -> None:
    """Write the report anew from the runs that are there, and print the table.

    Parameters
    ----------
    folder
        A study's folder.
    json
        Print the summary as JSON instead of the table.
    """
    from archlab.study.design import is_study_folder, load_study
    from archlab.study.runner import Study

    if not is_study_folder(folder):
        raise UserError(f"{folder}: no study folder (no study.yaml); `archlab study run` makes one")
    name, config = load_study(str(folder))
    summary = Study(name, config, folder).read()
    if json:
        print_json(summary.model_dump(mode="json"))
    else:
        present(summary, folder)


@app.command(name="list")
def list_studies() -> None:
    """The studies that come with archlab."""
    list_verb.run("studies")


@app.command
def show(study: str, /) -> None:
    """What a study asks and what it would run, before it costs anything.

    Parameters
    ----------
    study
        The name of one of ours, a YAML file, or a study folder.
    """
    from archlab.study.design import arms, grid, load_study

    _, config = load_study(study)
    designed = arms(config)
    print(config.question)
    if config.claim:
        print(f"claimed: {config.claim}")
    tuning = len(grid(config)) * config.tune_seeds
    per_arm = f"{len(config.seed_list)} seeds" + (f" and {tuning} tuning runs" if tuning else "")
    print(f"{len(designed)} arms, {per_arm} each\n")
    print_table(
        ("arm", "against", "changes"),
        [
            (
                arm.name,
                arm.reference or "",
                "\n".join(f"{k}: {v}" for k, v in {**arm.overrides, **arm.adjusted}.items()),
            )
            for arm in designed
        ],
    )
    from archlab.config.training import resolve_train
    from archlab.cost.params import parameters

    print_table(
        ("arm", "parameters", "training tokens"),
        [(a.name, f"{parameters(a.config.model).total:,}", f"{resolve_train(a.config).trained:,}") for a in designed],
        right=("parameters", "training tokens"),
    )


def present(summary: StudySummary, folder: Path) -> None:
    """The table on the terminal, the page in the folder, and where it is."""
    from archlab.report.page import write_report
    from archlab.report.table import terminal_table

    page = write_report(summary, folder)
    console = Console(highlight=False, markup=False)
    console.print(terminal_table(summary))
    console.print(summary.answer)
    for warning in summary.warnings:
        console.print(f"note: {warning}")
    print(f"report: {page.resolve()}")
