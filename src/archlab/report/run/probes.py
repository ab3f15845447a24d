"""What probes found in runs, as small pictures."""

from collections.abc import Sequence

from archlab.report.probe.charts import over_depth, over_steps, over_training
from archlab.report.probe.measures import LOG_Z, OF_LAYERS, measured
from archlab.report.run.watched import Watched
from archlab.report.study.probes import Probe, over_layers_in_words
from archlab.study.details import over_layers, probes_of
from archlab.training.run_folder import PROBES


def depth_probes(runs: Sequence[Watched]) -> list[Probe]:
    """Over the layers, at the newest probe of each run; none where nothing was probed."""
    newest = {run.name: next((line[PROBES] for line in reversed(run.metrics) if PROBES in line), {}) for run in runs}
    return [
        Probe(f"depth-{name}", measure.title, measure.says, over_depth(newest, name, measure))
        for name, measure in measured(newest.values()).items()
    ]


def time_probes(runs: Sequence[Watched]) -> list[Probe]:
    """Over the training: of one run a line per layer, of several a line for each, with one number for all layers."""
    if len(runs) == 1:
        rows = [{"step": line["step"], **line[PROBES]} for line in runs[0].metrics if PROBES in line]
        found = measured(rows).items()
        return [Probe(f"time-{n}", measure.title, measure.says, over_steps(rows, n, measure)) for n, measure in found]
    by_tokens = {run.name: probes_of(run.metrics) for run in runs}
    every = [probe for of_run in by_tokens.values() for probe in of_run.values()]
    found = [
        (name, measure) for name, measure in {**OF_LAYERS, "log_z": LOG_Z}.items() if any(name in p for p in every)
    ]
    lines = {
        name: {
            run: (list(of_run), [over_layers(name, p[name]) if name in OF_LAYERS else p[name] for p in of_run.values()])
            for run, of_run in (
                (run, {tokens: p for tokens, p in of_run.items() if name in p}) for run, of_run in by_tokens.items()
            )
        }
        for name, _ in found
    }
    return [
        Probe(
            f"time-{name}", measure.title, f"{measure.says}{over_layers_in_words(name)}",
            over_training(lines[name], measure),
        )
        for name, measure in found
    ]  # fmt: skip
