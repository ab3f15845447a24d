"""Formats of a study's results in its answer, tables and charts."""

import re
from collections.abc import Sequence
from math import ceil, isclose

from archlab.pricing.units import binary, count, plural
from archlab.study.outcomes.schema import Source, Unit
from archlab.study.record import ArmSummary, Comparison
from archlab.study.stats import ALPHA


def contrast_text(name: str) -> str:
    """Return the name of a contrast or of its reference as text for readers, such as `warmup=0 with
    norm.placement=post`."""
    return re.sub(r"\bwhere (?=[\w.]+=)", "with ", name)


def bits(value: float) -> str:
    """Format bits per byte with three decimals (`-1.190`). A value that three decimals would round to zero gets more
    decimals (`-0.00004`). Never return `-0.000`."""
    digits = next((n for n in (3, 4, 5) if abs(value) >= 0.5 * 10**-n), 6)
    text = f"{value:.{digits}f}"
    return text if float(text) else "0.000"


def amount(value: float, unit: Unit) -> str:
    """Format a value: `1.190`, `87.3%`, `12.4K`. The name of the unit, such as bits per byte, is left out."""
    match unit:
        case "bits per byte" | "nats per token":
            return bits(value)
        case "share":
            return f"{round(100 * value, 1) + 0.0:.1f}%" if abs(value) >= 5e-4 or not value else f"{100 * value:.2g}%"
        case "bytes":
            return f"{'-' * (value < 0)}{binary(abs(value))}"
        case "tokens" | "tokens/s" | "count":
            return f"{'-' * (value < 0)}{count(abs(value))}" if abs(value) >= 1000 else f"{value:.3g}"
        case "norm" | "rate":
            return f"{value:.3g}"


def difference(value: float, unit: Unit) -> str:
    """Format the difference of two values: `-1.190`. Differences of fractions are in percentage points, `-46.5 pp`,
    because `%` would be ambiguous."""
    return amount(value, unit).replace("%", " pp")


def four_digits(value: float) -> float:
    """Round to four significant digits, which are enough for a chart."""
    return float(f"{value:.4g}")


def with_unit(value: str, unit: Unit) -> str:
    """Append the unit if the formatted number does not show it: `0.021 bits per byte`, `3.1%`."""
    return value if unit in ("share", "bytes", "count", "norm", "rate") else f"{value} {unit}"


def margin_of(value: float, unit: Unit) -> str:
    """Format a margin with its unit and with the same digits as in the study's file: `0.02 bits per byte`, `1.0 pp`."""
    is_scaled = unit in ("share", "bytes", "tokens", "tokens/s")
    return with_unit(difference(value, unit) if is_scaled else f"{value:g}", unit)


def interval(low: float | None, high: float | None, unit: Unit = "bits per byte") -> str:
    """Format the interval of a difference: `[-1.280, -1.100]`, or `[-48.2, -44.7]` for fractions. Return "" if there is
    no interval."""
    return "" if low is None or high is None else f"[{amount(low, unit)}, {amount(high, unit)}]".replace("%", "")


def interval_of_equivalence(comparison: Comparison, unit: Unit) -> str:
    """Format the interval of a test for equivalence with its level, which is lower than that of a test for a
    difference: `90% interval [-0.003, 0.004]`. Return "" if there is no interval."""
    ends = interval(comparison.within_low, comparison.within_high, unit)
    level = comparison.within_confidence
    return ends and f"{'equivalence' if level is None else f'{100 * level:.3g}%'} interval {ends}"


def with_interval(value: float, low: float | None, high: float | None, unit: Unit) -> str:
    """Format a difference with its interval: `-0.021 [-0.030, -0.012]`, or `-46.5 pp [-48.2, -44.7]` for fractions."""
    return f"{difference(value, unit)} {interval(low, high, unit)}".strip()


def effect(value: float, low: float | None, high: float | None, unit: Unit) -> str:
    """Format a difference with its interval and unit: `-0.021 [-0.030, -0.012] bits per byte`, or `-46.5 [-48.2, -44.7]
    percentage points`."""
    text = with_interval(value, low, high, unit)
    return f"{text.replace(' pp', '')} percentage points" if unit == "share" else with_unit(text, unit)


def with_level(text: str, confidence: float | None) -> str:
    """Append the level of an interval, such as `, 98.3% interval`, if it is known and is not 95%."""
    return text if confidence is None or isclose(confidence, 1 - ALPHA) else f"{text}, {100 * confidence:.3g}% interval"


def p_value(p: float) -> str:
    """Format a p-value: `0.004`, `< 0.001`.

    The value is rounded up, so an upper bound remains an upper bound. Values between 0.049 and 0.05 have four digits.
    Otherwise 0.0497 would become 0.050, which looks as if it were not significant.
    """
    if p < 0.001:
        return "< 0.001"
    digits = 4 if 0.049 < p < 0.05 else 3 if p < 0.1 else 2
    return f"{min(1.0, ceil(p * 10**digits - 1e-9) / 10**digits):.{digits}f}"


def p_equals(p: float, sign: str = "=") -> str:
    """Format a p-value with its symbol: `p = 0.004`, `p < 0.001`."""
    return f"p {p_value(p)}" if p < 0.001 else f"p {sign} {p_value(p)}"


def span(low: str, high: str) -> str:
    """Format a range of numbers: `2 to 3`, or `3` if both ends are identical."""
    return low if low == high else f"{low} to {high}"


def listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def paired(comparisons: Sequence[Comparison], source: Source) -> str:
    """Describe the pairs that a test uses: `3 paired seeds`, `12 paired seeds on 10 folds`, `9 paired rounds`."""
    pairs = [comparison.pairs for comparison in comparisons]
    number = span(str(min(pairs)), str(max(pairs)))
    noun = "round" if source == "timing" else "seed"
    folds = [comparison.folds for comparison in comparisons if comparison.folds is not None]
    on_folds = f" on {span(str(min(folds)), str(max(folds)))} folds" if folds else ""
    return f"{number} paired {noun if number == '1' else f'{noun}s'}{on_folds}"


def verdict(arm: ArmSummary) -> str:
    """Return the verdict on an arm, such as `better`. Return `reference` if the arm is not compared with another
    arm."""
    return arm.comparison.verdict if arm.comparison else "reference"


def diverged_seeds(arm: ArmSummary) -> str:
    """Return the number of diverged runs, for example `1 of 3 seeds`. Return "" if no run of the arm diverged."""
    return f"{len(arm.diverged)} of {plural(len(arm.seeds), 'seed')}" if arm.diverged else ""


def diverged(arm: ArmSummary) -> str:
    """Return a phrase such as `diverged on 1 of 3 seeds`, or "" if no run of the arm diverged."""
    return f"diverged on {diverged_seeds(arm)}" if arm.diverged else ""
