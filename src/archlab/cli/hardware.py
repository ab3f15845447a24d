"""The command `archlab hardware`."""

from collections.abc import Iterator

from archlab.cli.arguments import DeviceName, Flag
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.errors import UserError
from archlab.pricing.hardware import THIS, Hardware, Link, load_hardware
from archlab.pricing.units import binary, si


@long_output
def run(name: DeviceName = THIS, /, *, measure: Flag = False, json: Flag = False) -> None:
    """Show a device: peak speeds, memory, links, and the sources of these numbers.

    Parameters
    ----------
    name
        A device of `archlab list hardware`, several of one kind as in h100x8, a YAML file with the same fields, or
        "this" for this machine, if it has been measured.
    measure
        Measure this machine first, and save the result under the name "this". The measurement takes about four minutes.
        Run nothing else during that time.
    json
        Print JSON.
    """
    if measure:
        if name != THIS:
            raise UserError(f"--measure measures this machine, not {name!r}; type: archlab hardware --measure")
        from archlab.infer.measure import measure_hardware

        measure_hardware()
    device = load_hardware(name)
    if json:
        print_json(device.model_dump(mode="json"))
        return
    print_table((name, device.name), _facts(device))


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
