"""Large numbers for people to read."""

_DECIMAL = ("", "K", "M", "G", "T", "P", "E", "Z", "Y")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def si(value: float) -> str:
    """Three significant digits and a decimal prefix: 14_500_000 -> `14.5M`."""
    return "".join(_scaled(value, 1000, _DECIMAL))


def count(value: float) -> str:
    """As `si`, a thousand million being a B, as is usual for parameters: `8.03B`."""
    return si(value).replace("G", "B")


def binary(n_bytes: float) -> str:
    """Three significant digits and a binary unit: 131072 -> `128 KiB`."""
    return " ".join(_scaled(n_bytes, 1024, _BINARY))


def _scaled(value: float, base: int, prefixes: tuple[str, ...]) -> tuple[str, str]:
    step = 0
    while float(f"{value:.3g}") >= 1000 and step < len(prefixes) - 1:
        value, step = value / base, step + 1
    return f"{value:.3g}", prefixes[step]
