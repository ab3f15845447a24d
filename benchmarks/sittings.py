"""Keep the ended runs of an unfinished study as lines of text. Another machine resumes the study from them.

Usage:
    python benchmarks/sittings.py keep studies/shapes benchmarks/studies/shapes.jsonl
    python benchmarks/sittings.py restore benchmarks/studies/shapes.jsonl studies/shapes

Then `archlab study run studies/shapes` trains the other runs.

The first line has the files of the study, and each further line those of an ended run. Of the log of a run, only the
evaluations are kept. So studies that measure more than the loss are refused, and the report of the study shows only the
training time of runs that were not restored.
"""

import json
import sys
from pathlib import Path

from rounds import help_of

from archlab.config.core.yaml_text import read_yaml
from archlab.digests import write_with_digests
from archlab.errors import UserError
from archlab.files import RUNS, STUDY, write_atomic
from archlab.training.run_files import ENVIRONMENT, METRICS, SUMMARY, RunFiles

_OF_STUDY = (STUDY, "corpus.json", "planned.json")
_OF_RUN = ("config.yaml", ENVIRONMENT, SUMMARY)


def keep(folder: Path, file: Path) -> None:
    """Write the files of the study and of its ended runs, as a line each."""
    if read_yaml(folder / STUDY).get("measure"):
        raise UserError(f"{folder / STUDY}: measure: only the loss can be kept, which every study compares")
    lines = [json.dumps({"files": {name: (folder / name).read_text() for name in _OF_STUDY}})]
    for path in sorted((folder / RUNS).iterdir()):
        run = RunFiles(path)
        if run.summary() is None:
            continue
        evaluations = [json.dumps(line) for line in run.metrics() if "held_out_loss" in line]
        files = {name: (path / name).read_text() for name in _OF_RUN} | {METRICS: "\n".join([*evaluations, ""])}
        lines.append(json.dumps({"run": path.name, "files": files}))
    write_atomic(file, "\n".join([*lines, ""]))
    print(f"{file}: {len(lines) - 1} runs")


def restore(file: Path, folder: Path) -> None:
    """Write the files of the study and of the ended runs into a new folder."""
    if folder.exists():
        raise UserError(f"{folder} exists; choose a new folder")
    of_study, *runs = map(json.loads, file.read_text().splitlines())
    (folder / RUNS).mkdir(parents=True)
    write_atomic(folder / STUDY, of_study["files"].pop(STUDY))  # without a digest, because people may edit it
    write_with_digests(folder, of_study["files"])
    for run in runs:
        (folder / RUNS / run["run"]).mkdir()
        write_with_digests(folder / RUNS / run["run"], run["files"])
    print(f"{folder}: {len(runs)} runs")


def main() -> None:
    parser = help_of(__doc__)
    parser.add_argument("command", choices=["keep", "restore"])
    parser.add_argument("source", type=Path, help="keep: a study folder; restore: a file")
    parser.add_argument("target", type=Path, help="keep: a file; restore: a new folder")
    chosen = parser.parse_args()
    try:
        {"keep": keep, "restore": restore}[chosen.command](chosen.source, chosen.target)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
