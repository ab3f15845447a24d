"""The command `archlab hardware`."""

from archlab.cli.arguments import DeviceName, Flag
from archlab.cli.terminal import long_output, print_json
from archlab.console import console
from archlab.errors import UserError
from archlab.pricing.hardware import THIS, load_hardware
from archlab.report.device import print_device


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
        from archlab.measuring.measure import measure_hardware

        measure_hardware()
    device = load_hardware(name)
    if json:
        print_json(device.model_dump(mode="json"))
        return
    print_device(console(), device)
