"""Turn study folders into the results from which `archlab ledger` computes its verdicts.

Usage:
    archlab study run gates                          # unchanged; add --scale gpu on a machine with a GPU
    python benchmarks/claims.py studies/gates ...    # writes src/archlab/evidence/results/gates.jsonl.

Each folder must hold a study that comes with archlab, without changes that could affect results. Before the lines are
kept, the comparisons computed from them are checked against the study's own summary.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from rounds import help_of

import archlab
from archlab.errors import UserError
from archlab.evidence.results import identified, read_results, record, results_name
from archlab.files import write_atomic
from archlab.study.record import StudySummary
from archlab.study.summary_file import load_study

RESULTS = Path(archlab.__file__).parent / "evidence" / "results"


def keep(folder: Path) -> Path:
    summary = load_study(folder)
    study, scale = identified(summary)
    ended = datetime.fromtimestamp((folder / "summary.json").stat().st_mtime, UTC).date()
    text = "".join(f"{line}\n" for line in record(summary, study, scale, str(ended)))
    check(summary, text)
    file = RESULTS / f"{results_name(study, scale)}.jsonl"
    RESULTS.mkdir(exist_ok=True)
    write_atomic(file, text)
    return file


def check(summary: StudySummary, text: str) -> None:
    """Raise ValueError if a comparison computed from the lines differs from the one in the study's summary."""
    found = read_results(text)
    outcomes = {summary.outcome.name: ({arm.name: arm for arm in summary.arms}, summary.contrasts)}
    outcomes |= {other.outcome.name: (other.arms, other.contrasts) for other in summary.others}
    for outcome, (arms, contrasts) in outcomes.items():
        compared = found.compared(outcome)
        for name, measured in [*arms.items(), *((one.name, one) for one in contrasts)]:
            if compared[name].comparison != measured.comparison:
                raise ValueError(f"{summary.name}: {outcome} of {name} differs from the study's summary")


def main() -> None:
    parser = help_of(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="study folders")
    for folder in parser.parse_args().folders:
        try:
            print(keep(folder))
        except UserError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
