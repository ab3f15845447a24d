"""How a study's results are written: the same in its answer, its tables and its charts."""

from collections.abc import Sequence
from math import ceil

from archlab.pricing.units import binary, count
from archlab.study.outcome_schema import Source, Unit
from archlab.study.record import ArmSummary, Comparison


def bits(value: float) -> str:
    """Bits per byte to the thousandth, `-1.190`, or finer where that hides the sign, `-0.00004`; never `-0.000`."""
    digits = next((n for n in (3, 4, 5) if abs(value) >= 0.5 * 10**-n), 6)
    text = f"{value:.{digits}f}"
    return text if float(text) else "0.000"


def amount(value: float, unit: Unit) -> str:
    """A value of that unit, without the unit's name: `1.190`, `87.3%`, `12.4K`."""
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
    """Of two values of that unit: `-1.190`; of shares in percentage points, `-46.5 pp`, for `%` would say of what."""
    return amount(value, unit).replace("%", " pp")


def four_digits(value: float) -> float:
    """As exact as a picture: there may be thousands of points."""
    return float(f"{value:.4g}")


def with_unit(value: str, unit: Unit) -> str:
    """`0.021 bits per byte`, `3.1%`: the unit where a number does not show it."""
    return value if unit in ("share", "bytes", "count", "norm", "rate") else f"{value} {unit}"


def margin_of(value: float, unit: Unit) -> str:
    """Of a difference: `0.02 bits per byte`, `1.0 pp`: as it was written, with its unit."""
    return with_unit(difference(value, unit) if unit in ("share", "bytes") else f"{value:g}", unit)


def interval(low: float | None, high: float | None, unit: Unit = "bits per byte") -> str:
    """Of a difference: `[-1.280, -1.100]`, of shares `[-48.2, -44.7]`; empty where there is none."""
    return "" if low is None or high is None else f"[{amount(low, unit)}, {amount(high, unit)}]".replace("%", "")


def with_interval(value: float, low: float | None, high: float | None, unit: Unit) -> str:
    """A difference with its interval: `-0.021 [-0.030, -0.012]`; of shares `-46.5 pp [-48.2, -44.7]`."""
    return f"{difference(value, unit)} {interval(low, high, unit)}".strip()


def effect(value: float, low: float | None, high: float | None, unit: Unit) -> str:
    """`-0.021 [-0.030, -0.012] bits per byte`."""
    return with_unit(with_interval(value, low, high, unit), unit)


def p_value(p: float) -> str:
    """`0.004`, `< 0.001`; rounded up, so that 0.0497 is not 0.050, beyond significance, and a bound stays one."""
    if p < 0.001:
        return "< 0.001"
    digits = 4 if 0.049 < p < 0.05 else 3 if p < 0.1 else 2
    return f"{min(1.0, ceil(p * 10**digits - 1e-9) / 10**digits):.{digits}f}"


def p_equals(p: float, sign: str = "=") -> str:
    """`p = 0.004`, `p < 0.001`."""
    return f"p {p_value(p)}" if p < 0.001 else f"p {sign} {p_value(p)}"


def span(low: str, high: str) -> str:
    """`2 to 3`, or `3` where both are the same."""
    return low if low == high else f"{low} to {high}"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def plural(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def paired(comparisons: Sequence[Comparison], source: Source) -> str:
    """`3 paired seeds`, `12 paired seeds on 10 folds`, `9 paired rounds`: what differences are tested by."""
    pairs = [found.pairs for found in comparisons]
    number = span(str(min(pairs)), str(max(pairs)))
    what = "round" if source == "timing" else "seed"
    folds = [found.folds for found in comparisons if found.folds is not None]
    on = f" on {span(str(min(folds)), str(max(folds)))} folds" if folds else ""
    return f"{number} paired {what if number == '1' else f'{what}s'}{on}"


def verdict(arm: ArmSummary) -> str:
    """`better`, `not distinguishable`, …; `reference` for the arm that is compared with none."""
    return arm.comparison.verdict if arm.comparison else "reference"


def diverged_seeds(arm: ArmSummary) -> str:
    """`1 of 3 seeds`; empty where no run of the arm diverged."""
    return f"{len(arm.diverged)} of {plural(len(arm.seeds), 'seed')}" if arm.diverged else ""


def diverged(arm: ArmSummary) -> str:
    """`diverged on 1 of 3 seeds`; empty where no run of the arm diverged."""
    return f"diverged on {diverged_seeds(arm)}" if arm.diverged else ""
