"""`archlab study run|report|list|new|show`, and `archlab demo`."""

import sys
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.help import verb_with_subcommands
from archlab.cli.terminal import long_output, print_json, print_table, show_table
from archlab.config.core.text import note
from archlab.config.core.yaml_text import to_yaml, to_yaml_line
from archlab.console import console
from archlab.errors import UserError
from archlab.progress import doing
from archlab.study.executors.named import ExecutorName, make_executor
from archlab.study.formatting import listed, plural
from archlab.study.record import StudySummary

if TYPE_CHECKING:
    from archlab.pricing.hardware import Hardware
    from archlab.study.arm import Arm
    from archlab.study.schema import StudyConfig

app = verb_with_subcommands("study")


@app.command
def run(
    study: str,
    /,
    *,
    scale: str | None = None,
    out: Path | None = None,
    executor: ExecutorName = "local",
    workers: AtLeastOne | None = None,
    threads: AtLeastOne | None = None,
    slurm: Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)] = (),
    renew: Flag = False,
) -> None:
    """Train every arm with every seed, compare, and write the report. Finished runs are never repeated.

    It ends with the ledger's claim that the study is about, or with what explains the arms of a study of yours.

    Parameters
    ----------
    study
        The name of a study that comes with archlab, a YAML file, or a study folder.
    scale
        One of the study's scales, such as smoke. Left out: as the study's file stands.
    out
        The study's folder. Left out: studies/NAME, or the study folder itself.
    executor
        What trains the runs: this machine, a Ray cluster, or jobs of Slurm (docs/executors.md). Any of them goes on
        where another one stopped.
    workers
        Runs at once. Left out: on this machine one per GPU, on a CPU one per core for small models, else one; on Ray
        and Slurm as many as have room.
    threads
        Cores of each run. Left out: one for small models on a CPU, up to 8 beside a GPU, else all of this machine.
    slurm
        Options of Slurm's jobs, as in partition=gpu time=120 (minutes); with --executor slurm.
    renew
        Train again what was trained by other code of archlab, or on another machine.
    """
    from archlab.study.progress import StudyProgress
    from archlab.study.runner import Study
    from archlab.study.study_file import read_study, usual_folder

    name, config = read_study(study, scale)
    folder = out or usual_folder(study, name)
    comparison = Study(name, config, folder, make_executor(executor, workers, slurm), threads)
    if changed := comparison.changed():
        note(f"{folder}: {listed(changed)} changed; runs that still apply are kept")
    with StudyProgress() as progress:
        summary = comparison.run(progress, renew=renew, on_timing=progress.timing)
    present(summary, folder)
    if summary.failed:
        lines = [f"  {label}: {why}" for label, why in summary.failed.items()]
        raise UserError("\n".join([f"{plural(len(lines), 'run')} failed; run again to try again", *lines]))


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
    from archlab.study.runner import Study
    from archlab.study.study_file import is_study_folder, read_study

    if not is_study_folder(folder):
        raise UserError(f"{folder}: no study folder (no study.yaml); `archlab study run` makes one")
    name, config = read_study(str(folder))
    summary = Study(name, config, folder).read()
    if json:
        print_json(summary.model_dump(mode="json"))
    else:
        present(summary, folder)


@app.command(name="list")
@long_output
def list_studies(*, json: Flag = False) -> None:
    """The studies that come with archlab: what each asks, what its claim predicts, and what it takes at its scales.

    In the order of the claims.

    Parameters
    ----------
    json
        JSON instead.
    """
    from archlab.config.io import studies
    from archlab.evidence.claims import claim_of
    from archlab.evidence.results import committed_pace
    from archlab.pricing.hardware import load_hardware
    from archlab.report.study.claims import basis, entry
    from archlab.study.forecast import as_timed, at_best, at_pace, listed_studies
    from archlab.study.study_file import AS_IT_STANDS, QUICKEST

    this, pace = _this_machine(), committed_pace()
    clock = as_timed(this) if this else at_pace(pace.flops_per_second) if pace else None
    here = dict.fromkeys((QUICKEST, AS_IT_STANDS), clock) if clock else {}
    claims = {name: claim_of(name) for name in studies()}
    numbers = {name: [claim.number for claim in found] for name, found in claims.items()}
    in_order = sorted(claims, key=lambda name: numbers[name] or [inf])
    every = listed_studies(in_order, {**here, "gpu": at_best(load_hardware("h100"))})
    if json:
        print_json([{**one.model_dump(mode="json"), "claims": numbers[one.name]} for one in every])
        return
    out = console()
    for one in every:
        for line in entry(one, claims[one.name], out.width):
            out.print(line)
    out.print(basis(None if this else pace))


def _this_machine() -> "Hardware | None":
    """As it was measured; None where it was not."""
    from archlab.pricing.hardware import THIS, load_hardware, this_machine

    return load_hardware(THIS) if this_machine().exists() else None


@app.command
@long_output
def new(study: str | None = None, /, *, out: Path | None = None) -> None:
    """A study's file to change and run, with every field explained.

    Parameters
    ----------
    study
        The study to begin with: the name of one that comes with archlab, or a YAML file. Left out: a small one.
    out
        The file to write, which must not be there. Left out: it is printed.
    """
    from archlab.files import write_atomic
    from archlab.study.authoring import EXAMPLE, template
    from archlab.study.study_file import read_study

    values = EXAMPLE if study is None else read_study(study)[1].model_dump(mode="json", exclude_unset=True)
    if out is None:
        print(template(values), end="")
        return
    if out.exists():
        raise UserError(f"{out}: exists; name a new file")
    write_atomic(out, template(values))
    print(out)


@app.command
@long_output
def show(study: str, /, *, scale: str | None = None, yaml: Flag = False) -> None:
    """What a study asks and what it would run, before it costs anything.

    Parameters
    ----------
    study
        The name of a study that comes with archlab, a YAML file, or a study folder.
    scale
        One of the study's scales, such as smoke. Left out: as the study's file stands.
    yaml
        The study as YAML instead, what it extends written out: to save, change and run.
    """
    from archlab.config.training import resolve_train
    from archlab.pricing.params import parameters
    from archlab.review.findings import in_one_line, warnings
    from archlab.study.design import arms, grid
    from archlab.study.folder import reading
    from archlab.study.schema import most_seeds
    from archlab.study.study_file import read_study

    _, config = read_study(study, scale)
    if yaml:
        print(to_yaml(config.model_dump(mode="json", exclude_unset=True)), end="")
        return
    designed = arms(config)
    if found := list(dict.fromkeys(text for arm in designed for text in warnings(arm.config))):
        note(in_one_line(found))
    out, reads = console(), reading(config, designed)
    out.print(config.question)
    if config.claim:
        out.print(f"claimed: {config.claim}")
    for line in _predicted(study):
        out.print(line)
    out.print(reads)
    tuning = len(grid(config)) * config.tune_seeds
    few, most = len(config.seed_list), most_seeds(config.seeds)
    per_arm = (plural(few, "seed") if few == most else f"{few} to {most} seeds") + (
        f" and {tuning} tuning runs" if tuning else ""
    )
    out.print(f"{plural(len(designed), 'arm')}, {per_arm} each\n")
    print_table(
        ("arm", "against", "changes", "what follows"),
        [
            (
                arm.name,
                arm.reference or "",
                "\n".join(f"{k}: {to_yaml_line(v)}" for k, v in {**arm.overrides, **arm.adjusted}.items()),
                "\n".join(f"{k}: {to_yaml_line(v)}" for k, v in arm.follows.items()),
            )
            for arm in designed
        ],
    )
    print_table(
        ("arm", "shape", "parameters", "training tokens", "rate"),
        [
            (
                arm.name,
                f"{arm.config.model.n_layers} x {arm.config.model.d_model}",
                f"{parameters(arm.config.model).total:,}",
                f"{(train := resolve_train(arm.config)).trained:,}",
                f"{train.lr:g}",
            )
            for arm in designed
        ],
        right=("shape", "parameters", "training tokens", "rate"),
    )
    out.print(_in_all(config, designed))
    out.print(_at_once(designed))


def _predicted(study: str) -> Iterator[str]:
    """What the ledger's claims predict for a study that comes with archlab."""
    from archlab.config.io import studies
    from archlab.evidence.claims import claim_of
    from archlab.report.study.claims import predicted

    for claim in claim_of(study) if study in studies() else ():
        yield f"claim {claim.number} of the ledger, {claim.name}, predicts: {predicted(study, claim)}"


def _in_all(config: "StudyConfig", designed: Sequence["Arm"]) -> str:
    from archlab.pricing.units import seconds
    from archlab.study.forecast import STEPS, as_rehearsed, as_timed, forecast
    from archlab.study.schema import most_seeds

    this, first = _this_machine(), designed[0]
    found = forecast(config, designed, as_timed(this) if this else as_rehearsed(first.config))
    up_to = "up to " if most_seeds(config.seeds) > len(config.seed_list) else ""
    begun = f"in all {up_to}{plural(found.runs, 'run')}, {found.flops:.3g} FLOPs of training"
    if found.seconds is None:
        return f"{begun}; for a time, measure this machine by `archlab hardware --measure`"
    how = "as it was measured" if this else f"by {STEPS} steps of {first.label}, others by their FLOPs"
    return f"{begun}, about {seconds(found.seconds)} on this machine ({how}); evaluation comes on top"


def _at_once(designed: Sequence["Arm"]) -> str:
    from archlab.study.executors.executor import needs, usual_threads
    from archlab.study.executors.local import usual_workers, visible_gpus

    configs = [arm.config for arm in designed]
    each = needs(configs, usual_threads(configs))
    at_once = usual_workers(each.cores, visible_gpus() if each.gpus else [])
    return f"each run takes {each}; at once on this machine: {at_once}"


def present(summary: StudySummary, folder: Path) -> None:
    """Print the table, write the page and the picture into the folder, and print where the page is.

    The picture comes last: whatever happens to it, the rest is done.
    """
    from archlab.report.study import claims as study_claims
    from archlab.report.study.page import write_page, write_picture
    from archlab.report.study.tables import study_tables, terminal_table

    out = console()
    show_table(out, terminal_table(summary, out.width))
    for table in study_tables(summary, out.width):
        out.print()
        show_table(out, table)
    out.print()
    out.print(summary.answer)
    for warning in summary.warnings:
        out.print(f"note: {warning}")
    for line in study_claims.lines(summary):
        out.print(line)
    sys.stdout.flush()
    with doing("writing the report"):
        page = write_page(summary, folder)
    print(f"report: {page.absolute()}", flush=True)
    try:
        with doing("drawing its picture"):
            write_picture(summary, folder)
    except UserError as error:
        note(f"report.png is not written: {error}")


def demo(*, out: Path = Path("studies/ladder")) -> None:
    """Train the ladder from 2017's block to today's on this machine, and show which step bought what.

    Parameters
    ----------
    out
        The study's folder; run again, it goes on where it stopped.
    """
    run("ladder", out=out)
