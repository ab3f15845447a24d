"""Plan of a study as text and tables: its question, its arms, and what its runs would take."""

from collections.abc import Iterator

from rich.console import Console

from archlab.config.core.merge import Raw
from archlab.config.core.yaml_text import to_yaml_line
from archlab.evidence.study_plan import PlannedStudy
from archlab.pricing.units import plural, seconds
from archlab.report.study.claims import predicted
from archlab.report.text_table import Table, print_columns
from archlab.study.design import grid
from archlab.study.schema import StudyConfig, most_seeds


def print_plan(out: Console, plan: PlannedStudy) -> None:
    """Print a plan, as `archlab study show` does."""
    for line in (plan.config.question, *about(plan)):
        out.print(line)
    out.print()
    for table in tables(plan):
        print_columns(out, table.columns, table.rows, right=("shape", "parameters", "training tokens", "rate"))
    for line in needs(plan):
        out.print(line)


def about(plan: PlannedStudy) -> Iterator[str]:
    """Yield lines about what the study tests, its text, and its number of arms."""
    if plan.config.claim:
        yield f"claimed: {plan.config.claim}"
    for claim in plan.claims:
        yield f"claim {claim.number} of the ledger ({claim.name}) predicts: {predicted(plan.name, claim)}"
    from archlab.study.folder import describe_text  # loads torch

    yield describe_text(plan.config, plan.arms)
    yield f"{plural(len(plan.arms), 'arm')}, {_runs_per_arm(plan.config)} each"


def tables(plan: PlannedStudy) -> Iterator[Table]:
    """Yield two tables of the arms: what each of them changes, and its size and training."""
    rows = plan.frame()
    yield Table(
        ("arm", "against", "changes", "what follows"),
        [(row["arm"], row["reference"] or "", _lines(row["changes"]), _lines(row["follows"])) for row in rows],
    )
    yield Table(
        ("arm", "shape", "parameters", "training tokens", "rate"),
        [
            (
                row["arm"],
                f"{row['n_layers']} x {row['d_model']}",
                f"{row['parameters']:,}",
                f"{row['tokens']:,}",
                f"{row['lr']:g}",
            )
            for row in rows
        ],
    )


def needs(plan: PlannedStudy) -> Iterator[str]:
    """Yield lines about the number of runs, their estimated time and its source, and what each run uses."""
    total, config = plan.forecast, plan.config
    up_to = "up to " if most_seeds(config.seeds) > len(config.seed_list) else ""
    runs = f"in all {up_to}{plural(total.runs, 'run')}, {total.flops:.3g} FLOPs of training"
    if total.seconds is None:
        yield f"{runs}; to estimate the time, measure this machine with `archlab hardware --measure`"
    else:
        yield runs
        time = f"time of all runs, one after another: about {seconds(total.seconds)} {plan.pace.source}"
        yield f"{time}. Start-up is not included."
    yield f"each run uses {plan.needs}; number of runs at the same time on this machine: {plan.workers}"


def _runs_per_arm(config: StudyConfig) -> str:
    few, most = len(config.seed_list), most_seeds(config.seeds)
    seeds = plural(few, "seed") if few == most else f"{few} to {most} seeds"
    tuning = len(grid(config)) * config.tune_seeds
    return f"{seeds} and {tuning} tuning runs" if tuning else seeds


def _lines(fields: Raw) -> str:
    return "\n".join(f"{field}: {to_yaml_line(value)}" for field, value in fields.items())
