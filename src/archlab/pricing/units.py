"""Formatting of large numbers for display."""

_DECIMAL = ("", "K", "M", "G", "T", "P", "E", "Z", "Y")
_DECIMAL_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def si(value: float) -> str:
    """Format with three significant digits and a decimal prefix: 14_500_000 -> `14.5M`."""
    return "".join(_scaled(value, 1000, _DECIMAL))


def count(value: float) -> str:
    """Format like `si`, but with B for 10^9, as is usual for parameter counts: `8.03B`."""
    return si(value).replace("G", "B")


def binary(n_bytes: float) -> str:
    """Format with three significant digits and a binary unit: 131072 -> `128 KiB`."""
    return " ".join(_scaled(n_bytes, 1024, _BINARY))


def decimal(n_bytes: float) -> str:
    """Format with three significant digits and a decimal unit: 25_600_000 -> `25.6 MB`."""
    return " ".join(_scaled(n_bytes, 1000, _DECIMAL_BYTES))


def length(tokens: int) -> str:
    """Format a token count without rounding: 131072 -> `128Ki`. Multiples of 1,000 stay decimal: 8000 -> `8,000`."""
    for size, prefix in ((2**20, "Mi"), (2**10, "Ki")):
        if tokens % size == 0 and tokens % 1000:
            return f"{tokens // size:,}{prefix}"
    return f"{tokens:,}"


def seconds(value: float) -> str:
    """Format a duration with three significant digits and a unit: 0.0042 -> `4.2 ms`.

    The unit is minutes from 2 minutes on, hours from 2 hours on, and so on up to years.
    """
    for unit, size in (("years", 365.25 * 86400), ("days", 86400), ("hours", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.3g} {unit}"
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _scaled(value: float, base: int, prefixes: tuple[str, ...]) -> tuple[str, str]:
    step = 0
    while float(f"{value:.3g}") >= 1000 and step < len(prefixes) - 1:
        value, step = value / base, step + 1
    return f"{value:.3g}", prefixes[step]


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: `1 seed` or `3 seeds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
