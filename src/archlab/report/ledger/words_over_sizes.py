"""Wording of gains over model sizes, shared by the terminal and the pages."""

from archlab.evidence.over_sizes import SizedGain, SizedResult
from archlab.pricing.units import count
from archlab.study.formatting import effect, span, with_level

COLUMNS = ("source and parameters", "seeds", "gain", "result")
"""Column headings of the table of gains over model sizes."""


def heading(result: SizedResult) -> str:
    """Return a heading such as `SwiGLU vs ReLU on python-stdlib 3.11.7, difference over model sizes: grows (the
    difference changes by 0.044 [0.031, 0.056] bits per byte, 99.3% interval; as predicted)`."""
    about, change = f"{result.expected.of} on {result.text}", ""
    if result.change and result.change.difference is not None:
        text = effect(result.change.difference, result.change.low, result.change.high, result.outcome.unit)
        change = f"the difference changes by {with_level(text, result.change.confidence)}; "
    return f"{about}, difference over model sizes: {result.trend} ({change}{_predicted(result)})"


def line(result: SizedResult) -> str:
    """Return a line such as `steps: SwiGLU vs ReLU on python-stdlib 3.11.7: gain +0.2% [-1.3, +1.7] at 298K, -0.9%
    [-2.4, +0.6] at 1M (99.3% intervals), no trend found (predicted: grows)`."""
    sizes = ", ".join(f"{_share(gain)} at {count(gain.parameters)}" for gain in result.measured)
    levels = sorted(f"{100 * gain.confidence:.3g}" for gain in result.measured if gain.confidence is not None)
    level = f" ({span(levels[0], levels[-1])}% intervals)" if levels and levels != ["95"] * len(levels) else ""
    what = f"{result.expected.study}: {result.expected.of} on {result.text}"
    return f"{what}: gain {sizes}{level}, {result.trend} ({_predicted(result)})"


def _predicted(result: SizedResult) -> str:
    return "as predicted" if result.trend == result.expected.trend else f"predicted: {result.expected.trend}"


def _share(gain: SizedGain) -> str:
    ends = "" if gain.low is None or gain.high is None else f" [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    return "unknown" if gain.gain is None else f"{gain.gain:+.1%}{ends}"


def row(gain: SizedGain) -> tuple[str, str, str, str]:
    """Return a row of the table of gains over model sizes, with the columns of COLUMNS."""
    share, seeds = with_level(_share(gain), gain.confidence), "" if gain.seeds is None else str(gain.seeds)
    return f"{gain.source}: {count(gain.parameters)}", seeds, share, gain.result or "published"
