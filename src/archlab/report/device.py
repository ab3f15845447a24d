"""A device as text."""

from collections.abc import Iterator

from rich.console import Console

from archlab.pricing.hardware import Hardware, Link
from archlab.pricing.units import binary, si
from archlab.report.text_table import print_columns


def print_device(out: Console, device: Hardware) -> None:
    print_columns(out, ("device", device.name), _facts(device))


def _facts(device: Hardware) -> Iterator[tuple[str, str]]:
    if not device.measured:
        yield "maker, year", f"{device.maker}, {device.year}"
    yield "operations/s", ", ".join(f"{si(peak)} {name}" for name, peak in device.peak.items())
    if why := device.derivation:
        cycle = ", ".join(f"{number:g} {name}" for name, number in why.per_cycle.items())
        yield "  derived from", f"{why.units} cores x {si(why.clock)}Hz x operations per cycle: {cycle}; {why.reason}"
    yield "memory", f"{binary(device.memory)}, {si(device.bandwidth)}B/s"
    for name in ("float32", "bfloat16"):
        if name in device.peak:
            balance = f"{device.peak[name] / device.bandwidth:.3g} operations per byte"
            yield f"  {name}", f"memory is the bottleneck below {balance}"
    yield "link in a server", _link(device.link)
    yield "between servers", _link(device.network)
    yield "per server", f"{device.devices_per_server}"
    if device.count > 1:
        yield "devices", f"{device.count}, in {device.servers} server{'s' if device.servers > 1 else ''}"
    if device.price_per_hour is not None:
        yield "price per hour", f"{device.price_per_hour:g}"
    if here := device.measured:
        for name, products in here.products.items():
            by_side = ", ".join(f"{si(speed)} at {side}" for side, speed in products.items())
            yield f"{name} products", f"{by_side} rows and columns"
        yield "copy", f"{si(here.copy_bandwidth)}B/s, read and written"
        yield "read", f"{si(here.read_bandwidth)}B/s; from a cache {si(here.cached_read_bandwidth)}B/s"
        yield "a small operation", f"{here.dispatch * 1e6:.3g} µs"
        yield "threads", f"{here.threads}"
    yield "certainty", device.certainty
    if device.source:
        yield "sources", "\n".join(device.source)
    if device.notes:
        yield "notes", "\n".join(device.notes)


def _link(link: Link | None) -> str:
    return f"{link.name}, {si(link.bandwidth)}B/s sent by one device" if link else "-"
