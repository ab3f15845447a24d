"""What a probe measures, as people read it; docs/probes.md has the formulas."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

Unit = Literal["number", "share", "count"]

Row = Mapping[str, Any]
"""What one probe found, by name: a number, or a list with one per layer."""


class Measure(NamedTuple):
    """One number per layer."""

    title: str
    says: str
    """In a few words, what it is."""
    unit: Unit
    is_logarithmic: bool
    """Whether factors are what matters of it."""

    def text(self, value: float | None) -> str:
        """Three significant digits, or a percentage; a dash where there is nothing."""
        if value is None:
            return "-"
        return f"{value:.1%}" if self.unit == "share" else f"{value:,.0f}" if self.unit == "count" else f"{value:.3g}"


OF_LAYERS = {
    "gradient": Measure("gradient of parameters", "Its norm, of each layer's own.", "number", True),
    "stream_gradient": Measure("gradient of the stream", "Its norm, after each layer.", "number", True),
    "stream_rms": Measure("RMS of the stream", "After each layer.", "number", True),
    "drift": Measure("drift", "RMS of what a layer adds, over the RMS of what it reads.", "number", True),
    "update_ratio": Measure("update to weights", "Norm of one update, over the norm of the weights.", "number", True),
    "largest_score": Measure("largest score", "Of a query and a key, as the softmax sees it.", "number", False),
    "entropy": Measure("entropy", "Of attention, in nats.", "number", False),
    "entropy_share": Measure("share of entropy", "Of what even attention would have.", "share", False),
    "first_token": Measure("on the first token", "Share of attention.", "share", False),
    "learned_sink": Measure("on the learned sink", "Share of attention.", "share", False),
    "dead_units": Measure("dead units", "Of the MLP: unused by every token.", "share", False),
    "largest_load": Measure("largest load", "Share of the tokens that the busiest expert has.", "share", False),
    "dead_experts": Measure("dead experts", "Chosen by no token.", "count", False),
}

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


def measured(rows: Iterable[Row]) -> dict[str, Measure]:
    """Those that any of the probes has, in order."""
    found = {name for row in rows for name in row}
    return {name: measure for name, measure in OF_LAYERS.items() if name in found}
