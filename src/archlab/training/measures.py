"""Measures of a probe: names, titles and display settings. docs/probes.md has the formulas."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

ProbeValues = Mapping[str, Any]
"""Values of one probe, by measure name. A value is a number, or a list with one number per layer."""


class Measure(NamedTuple):
    """Title, description and display settings of a measure."""

    title: str
    says: str
    unit: Literal["number", "share", "count"]
    is_logarithmic: bool
    """Whether charts show the measure on a logarithmic scale."""
    in_every_layer: bool = False
    """Whether every layer has the measure, whatever components the layer contains."""
    in_studies: bool = False
    """Whether the summary of a study includes the measure."""
    takes_largest: bool = False
    """Whether charts over time show the maximum over the layers instead of the mean."""

    def text(self, value: float | None) -> str:
        """Format a value with three significant digits, as a percentage, or as a count. None becomes a dash."""
        if value is None:
            return "-"
        return f"{value:.1%}" if self.unit == "share" else f"{value:,.0f}" if self.unit == "count" else f"{value:.3g}"


OF_LAYERS: dict[str, Measure] = {
    "gradient": Measure(
        "gradient of parameters",
        "Norm of the gradient of each layer's parameters.",
        "number",
        True,
        in_every_layer=True,
        in_studies=True,
    ),
    "stream_gradient": Measure(
        "gradient of the stream",
        "Norm of the gradient with respect to the residual stream after each layer.",
        "number",
        True,
        in_every_layer=True,
    ),
    "stream_rms": Measure(
        "RMS of the stream",
        "RMS of the residual stream after each layer.",
        "number",
        True,
        in_every_layer=True,
        in_studies=True,
    ),
    "drift": Measure(
        "drift",
        "RMS of the layer's change to the residual stream, divided by the RMS of its input.",
        "number",
        True,
        in_every_layer=True,
    ),
    "update_ratio": Measure(
        "update to weights",
        "Norm of one update, divided by the norm of the weights.",
        "number",
        True,
        in_every_layer=True,
        in_studies=True,
    ),
    "largest_score": Measure(
        "largest score",
        "Largest attention score before the softmax.",
        "number",
        False,
        in_studies=True,
        takes_largest=True,
    ),
    "entropy": Measure("entropy", "Entropy of attention, in nats.", "number", False, in_studies=True),
    "entropy_share": Measure(
        "share of entropy", "Entropy of attention, divided by the entropy of uniform attention.", "share", False
    ),
    "first_token": Measure(
        "on the first token", "Share of attention on the first token.", "share", False, in_studies=True
    ),
    "learned_sink": Measure(
        "on the learned sink", "Share of attention on the learned sink.", "share", False, in_studies=True
    ),
    "dead_units": Measure(
        "dead units", "Share of the MLP's hidden units that no token uses.", "share", False, in_studies=True
    ),
    "largest_load": Measure(
        "largest load",
        "Share of the tokens that the busiest expert receives.",
        "share",
        False,
        in_studies=True,
        takes_largest=True,
    ),
    "dead_experts": Measure("dead experts", "Number of experts that receive no tokens.", "count", False),
}
"""Measures with one number per layer, by name and in display order."""

LOG_Z = Measure(
    "log Z", "Mean of log Z over the tokens, where Z is the softmax denominator of the logits.", "number", False
)

OF_MODEL = {
    "loss": "loss, nats per token",
    "uniform_loss": "loss of a uniform guess",
    "log_z": "log Z, mean",
    "log_z_rms": "log Z, RMS",
    "log_z_uncapped": "log Z before the cap, mean",
    "log_z_uncapped_rms": "log Z before the cap, RMS",
    "embedding_rms": "RMS of the embedding",
}
"""Titles of the measures with one number for the whole model, by name."""


def measured(rows: Iterable[ProbeValues]) -> dict[str, Measure]:
    names = {name for row in rows for name in row}
    return {name: measure for name, measure in OF_LAYERS.items() if name in names}
