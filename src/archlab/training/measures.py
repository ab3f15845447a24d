"""What a probe measures: names, words for people, and how each number is used. docs/probes.md has the formulas."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

ProbeValues = Mapping[str, Any]
"""What one probe found, by name: a number, or a list with one per layer."""


class Measure(NamedTuple):
    """One number per layer."""

    title: str
    says: str
    """In a few words, what it is."""
    unit: Literal["number", "share", "count"]
    is_logarithmic: bool
    """Whether factors are what matters of it."""
    in_every_layer: bool = False
    """Whether every layer has it, whatever its components are."""
    in_studies: bool = False
    """Whether a study's summary keeps it."""
    takes_largest: bool = False
    """Whether one layer decides: over time, the largest of all layers stands for them, not their mean."""

    def text(self, value: float | None) -> str:
        """Three significant digits, or a percentage; a dash where there is nothing."""
        if value is None:
            return "-"
        return f"{value:.1%}" if self.unit == "share" else f"{value:,.0f}" if self.unit == "count" else f"{value:.3g}"


OF_LAYERS: dict[str, Measure] = {
    "gradient": Measure(
        "gradient of parameters", "Its norm, of each layer's own.", "number", True, in_every_layer=True, in_studies=True
    ),
    "stream_gradient": Measure(
        "gradient of the stream", "Its norm, after each layer.", "number", True, in_every_layer=True
    ),
    "stream_rms": Measure(
        "RMS of the stream", "After each layer.", "number", True, in_every_layer=True, in_studies=True
    ),
    "drift": Measure(
        "drift", "RMS of what a layer adds, over the RMS of what it reads.", "number", True, in_every_layer=True
    ),
    "update_ratio": Measure(
        "update to weights",
        "Norm of one update, over the norm of the weights.",
        "number",
        True,
        in_every_layer=True,
        in_studies=True,
    ),
    "largest_score": Measure(
        "largest score",
        "Of a query and a key, as the softmax sees it.",
        "number",
        False,
        in_studies=True,
        takes_largest=True,
    ),
    "entropy": Measure("entropy", "Of attention, in nats.", "number", False, in_studies=True),
    "entropy_share": Measure("share of entropy", "Of what even attention would have.", "share", False),
    "first_token": Measure("on the first token", "Share of attention.", "share", False, in_studies=True),
    "learned_sink": Measure("on the learned sink", "Share of attention.", "share", False, in_studies=True),
    "dead_units": Measure("dead units", "Of the MLP: unused by every token.", "share", False, in_studies=True),
    "largest_load": Measure(
        "largest load",
        "Share of the tokens that the busiest expert has.",
        "share",
        False,
        in_studies=True,
        takes_largest=True,
    ),
    "dead_experts": Measure("dead experts", "Chosen by no token.", "count", False),
}
"""By name, in the order in which they are shown: one number per layer."""

LOG_Z = Measure("log Z", "Of the softmax of the logits, on average.", "number", False)

OF_MODEL = {
    "loss": "loss, nats per token",
    "uniform_loss": "loss of a uniform guess",
    "log_z": "log Z, mean",
    "log_z_rms": "log Z, RMS",
    "log_z_uncapped": "log Z before the cap, mean",
    "log_z_uncapped_rms": "log Z before the cap, RMS",
    "embedding_rms": "RMS of the embedding",
}
"""By name: one number of the whole model."""


def measured(rows: Iterable[ProbeValues]) -> dict[str, Measure]:
    """Those that any of the probes has, in order."""
    found = {name for row in rows for name in row}
    return {name: measure for name, measure in OF_LAYERS.items() if name in found}
