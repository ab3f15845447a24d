"""`archlab hardware`."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from archlab.atlas.table import MARKS
from archlab.cli.arguments import Flag
from archlab.cli.terminal import print_json, print_table
from archlab.errors import UserError
from archlab.pricing.hardware import THIS, Hardware, Link, hardware, keep_measured, load_hardware
from archlab.pricing.units import binary, si

HEADINGS = ("hardware", "year", "memory", "bytes/s", "float32", "bfloat16", "int8", "link")
LEGEND = (
    "float32, bfloat16, int8: operations per second of matrix products, dense.",
    "link: bytes per second that one device sends to the others of its server.",
    "* from secondary sources; ~ from memory. `archlab hardware NAME` shows more.",
    "`archlab hardware --measure` measures this machine; it is then called `this`.",
)


def run(name: str = THIS, /, *, measure: Flag = False, json: Flag = False) -> None:
    """Show a device that costs are computed for: its peaks, memory, links, and where the figures come from.

    Parameters
    ----------
    name
        A device (`archlab list hardware`), several of it as in h100x8, a YAML file with the same fields, or this
        machine.
    measure
        Measure this machine first, in about four minutes, while it does nothing else. It is called `this` then.
    json
        JSON instead.
    """
    if measure:
        if name != THIS:
            raise UserError(f"--measure: measures this machine, not {name!r}; allowed: archlab hardware --measure")
        from archlab.infer.measure import measure as measured

        keep_measured(measured())
    found = load_hardware(name)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    print_table((name, found.name), _facts(found))


def listed() -> dict[str, Hardware]:
    """All devices by name, and this machine where it has been measured by this version of archlab."""
    found = dict(hardware())
    with suppress(UserError):
        found[THIS] = load_hardware(THIS)
    return found


def print_list(found: Mapping[str, Hardware]) -> None:
    """A line per device."""
    print_table(HEADINGS, [_cells(name, device) for name, device in found.items()], right=HEADINGS[1:])
    print("\n".join(LEGEND))


def _cells(name: str, found: Hardware) -> tuple[str, ...]:
    peaks = (si(found.peak[key]) if key in found.peak else "-" for key in ("float32", "bfloat16", "int8"))
    link = si(found.link.bandwidth) if found.link else "-"
    return f"{name}{MARKS[found.certainty]}", str(found.year), binary(found.memory), si(found.bandwidth), *peaks, link


def _facts(found: Hardware) -> Iterator[tuple[str, str]]:
    if not found.measured:
        yield "maker, year", f"{found.maker}, {found.year}"
    yield "operations/s", ", ".join(f"{si(peak)} {name}" for name, peak in found.peak.items())
    if why := found.derivation:
        cycle = ", ".join(f"{number:g} {name}" for name, number in why.per_cycle.items())
        yield "  derived from", f"{why.units} cores x {si(why.clock)}Hz x operations per cycle: {cycle}; {why.reason}"
    yield "memory", f"{binary(found.memory)}, {si(found.bandwidth)}B/s"
    for name in ("float32", "bfloat16"):
        if name in found.peak:
            balance = f"{found.peak[name] / found.bandwidth:.3g} operations per byte"
            yield f"  {name}", f"{balance}; with fewer, memory is the limit"
    yield "link in a server", _link(found.link)
    yield "between servers", _link(found.network)
    yield "per server", f"{found.devices_per_server}"
    if found.count > 1:
        yield "here", f"{found.count}, in {found.servers} server{'s' if found.servers > 1 else ''}"
    if found.price_per_hour is not None:
        yield "price per hour", f"{found.price_per_hour:g}"
    if here := found.measured:
        for name, products in here.products.items():
            by_side = ", ".join(f"{si(speed)} at {side}" for side, speed in products.items())
            yield f"{name} products", f"{by_side} rows and columns"
        yield "copy", f"{si(here.copy_bandwidth)}B/s, read and written"
        yield "read", f"{si(here.read_bandwidth)}B/s; from a cache {si(here.cached_read_bandwidth)}B/s"
        yield "a small operation", f"{here.dispatch * 1e6:.3g} µs"
        yield "threads", f"{here.threads}"
    yield "certainty", found.certainty
    if found.source:
        yield "sources", "\n".join(found.source)
    if found.notes:
        yield "notes", "\n".join(found.notes)


def _link(link: Link | None) -> str:
    return f"{link.name}, {si(link.bandwidth)}B/s sent by one device" if link else "-"
