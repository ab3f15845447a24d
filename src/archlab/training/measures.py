"""Measures of a probe: names, titles and display settings. docs/probes.md has the formulas."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

ProbeValues = Mapping[str, Any]
"""Values of one probe, by measure name. A value is a number, or a list with one number per layer."""

Number = float | None
"""Value of a measure. None means that there is nothing to measure, or that the value is not finite."""

Range = tuple[float | None, float | None]
"""Lowest and highest value. None means that the range has no limit on this side."""


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
    of_attention: bool = False
    """Whether the measure describes attention weights. Cross-attention also has these measures."""
    layer: str = "layer"
    """Name of a layer with this measure: `encoder layer` for layers of the encoder."""
    healthy: Range | None = None
    """Healthy values, as in docs/probes.md. None if docs/probes.md gives no numbers."""
    spread: float | None = None
    """Healthy ratio of the largest value to the smallest value over the layers."""
    healthy_says: str = ""
    """Sentence about the healthy values."""

    @property
    def caption(self) -> str:
        """Description of the measure, followed by its healthy values."""
        return f"{self.says} {self.healthy_says}".strip()

    def over_layers(self, layers: Sequence[Number]) -> Number:
        """Return one value for all layers, the maximum or the mean. Layers without a value are left out."""
        known = [value for value in layers if value is not None]
        return (max if self.takes_largest else fmean)(known) if known else None

    def text(self, value: Number) -> str:
        """Format a value with three significant digits, as a percentage, or as a count. None becomes a dash."""
        if value is None:
            return "-"
        return f"{value:.1%}" if self.unit == "share" else f"{value:,.0f}" if self.unit == "count" else f"{value:.3g}"


_OF_ONE_STACK: dict[str, Measure] = {
    "gradient": Measure(
        "gradient of parameters",
        "Norm of the gradient of each layer's parameters.",
        "number",
        True,
        in_every_layer=True,
        in_studies=True,
        spread=10,
        healthy_says="Healthy: within a factor of about 10 over the layers.",
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
        healthy=(None, 1e3),
        healthy_says="Healthy in low precision: below 1,000.",
    ),
    "drift": Measure(
        "drift",
        "RMS of the layer's change to the residual stream, divided by the RMS of its input.",
        "number",
        True,
        in_every_layer=True,
        healthy=(0.1, 1),
        healthy_says="Healthy: 0.1 to 1.",
    ),
    "update_ratio": Measure(
        "update to weights",
        "Norm of one update, divided by the norm of the weights.",
        "number",
        True,
        in_every_layer=True,
        in_studies=True,
        healthy=(1e-3, 1e-2),
        healthy_says="Healthy at the peak learning rate: 0.001 in large models to 0.01 in tiny ones.",
    ),
    "largest_score": Measure(
        "largest score",
        "Largest attention score before the softmax.",
        "number",
        False,
        in_studies=True,
        takes_largest=True,
        of_attention=True,
        healthy=(None, 50),
        healthy_says="Healthy: below about 50.",
    ),
    "entropy": Measure(
        "entropy", "Entropy of attention, in nats.", "number", False, in_studies=True, of_attention=True
    ),
    "entropy_share": Measure(
        "share of entropy",
        "Entropy of attention, divided by the entropy of uniform attention.",
        "share",
        False,
        of_attention=True,
    ),
    "first_token": Measure(
        "on the first token",
        "Share of attention on the first token.",
        "share",
        False,
        in_studies=True,
        of_attention=True,
    ),
    "learned_sink": Measure(
        "on the learned sink",
        "Share of attention on the learned sink.",
        "share",
        False,
        in_studies=True,
        of_attention=True,
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
"""Measures of the layers of one stack, by name and in display order."""

CROSS = "cross_attention."
"""Prefix of the names of measures of cross-attention, which reads the encoder's output in each decoder layer."""
ENCODER = "encoder."
"""Prefix of the names of measures of the encoder, in a model that also has a decoder."""

OF_LAYERS: dict[str, Measure] = {
    **_OF_ONE_STACK,
    **{
        f"{CROSS}{name}": measure._replace(title=f"cross-attention: {measure.title}")
        for name, measure in _OF_ONE_STACK.items()
        if measure.of_attention
    },
    **{
        f"{ENCODER}{name}": measure._replace(title=f"encoder: {measure.title}", layer="encoder layer")
        for name, measure in _OF_ONE_STACK.items()
    },
}
"""Measures with one number per layer, by name and in display order.

Names without such a prefix are measures of the decoder, or of the only stack of a model.
"""

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
    f"{ENCODER}embedding_rms": "encoder: RMS of the embedding",
}
"""Titles of the measures with one number for the whole model, by name."""


def measured(rows: Iterable[ProbeValues]) -> dict[str, Measure]:
    """Return the measures with one number per layer that any of the probes has, by name and in display order.

    If every model has an encoder, the titles of the other measures say `decoder` or `cross-attention`.
    """
    names = [set(row) for row in rows if row]
    measures = {name: measure for name, measure in OF_LAYERS.items() if any(name in of_row for of_row in names)}
    if not all(any(name.startswith(ENCODER) for name in of_row) for of_row in names):
        return measures
    return {
        name: measure._replace(title=f"decoder: {measure.title}") if name in _OF_ONE_STACK else measure
        for name, measure in measures.items()
    }
