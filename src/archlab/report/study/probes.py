"""What probes found in a study's runs, as small pictures with a line per arm."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from archlab.report.probe.charts import over_depth, over_training
from archlab.report.probe.measures import LOG_Z, OF_LAYERS
from archlab.report.study.arms import labels
from archlab.study.details import LARGEST
from archlab.study.record import ProbedArm, StudySummary


class Probe(NamedTuple):
    """One measure in one picture."""

    name: str
    """Of its place on the page."""
    title: str
    says: str
    chart: alt.LayerChart


def depth_probes(summary: StudySummary) -> list[Probe]:
    """Over the layers, at the last probe; none where nothing was probed."""
    found = {label: probed.at_end if probed else {} for label, probed in _probed(summary).items()}
    return [
        Probe(f"depth-{name}", measure.title, measure.says, over_depth(found, name, measure))
        for name, measure in OF_LAYERS.items()
        if any(name in of_arm for of_arm in found.values())
    ]


def time_probes(summary: StudySummary) -> list[Probe]:
    """Over the training, one number for all layers."""
    measures = {**OF_LAYERS, "log_z": LOG_Z}
    lines = {name: {arm: _line(of_arm, name) for arm, of_arm in _probed(summary).items()} for name in measures}
    return [
        Probe(
            f"time-{name}",
            measure.title,
            f"{measure.says}{over_layers_in_words(name)}",
            over_training(lines[name], measure),
        )
        for name, measure in measures.items()
        if any(values for _, values in lines[name].values())
    ]


def _probed(summary: StudySummary) -> dict[str, ProbedArm | None]:
    """By label, every arm, so that each keeps its colour."""
    return {label: arm.probes for label, arm in zip(labels(summary).values(), summary.arms, strict=True)}


def _line(probed: ProbedArm | None, name: str) -> tuple[Sequence[int], Sequence[float | None]]:
    return (probed.tokens, probed.over_time[name]) if probed and name in probed.over_time else ([], [])


def over_layers_in_words(name: str) -> str:
    """What became of the layers' numbers; empty for what is of the whole model."""
    if name not in OF_LAYERS:
        return ""
    return " The largest of all layers." if name in LARGEST else " The mean over the layers."
