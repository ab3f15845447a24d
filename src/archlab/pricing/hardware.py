"""Devices that models run on: peak speed, memory and links, as published by their makers or measured on this
machine."""

import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from archlab.config.about import Certainty
from archlab.config.check import validate
from archlab.config.components.work import OperationKind
from archlab.config.core.base import Base, Count, Flops, MemorySize, NonNegative, Positive
from archlab.config.core.text import Line
from archlab.config.core.yaml_text import read_yaml, to_yaml
from archlab.config.io import devices, find_named
from archlab.config.problems import nearest
from archlab.displayed import Displayed
from archlab.errors import UserError
from archlab.files import cache_folder, expand_user, make_folder, write_atomic
from archlab.pricing.work import PassName

NumberFormat = Literal["float32", "tf32", "bfloat16", "float16", "float8", "int8"]

PerSecond = Annotated[Flops, Field(ge=1, le=1e30)]
"""Number of operations, bytes or cycles per second. `2P` is 2e15."""

THIS = "this"
"""Name of the machine that archlab runs on, once it has been measured."""

_CLOSE = 0.5
"""Minimum similarity (0 to 1) between an unknown name and a suggested device. It is low because the names are short:
`h1oo` and `h100` share only half of their characters."""

_INSTEAD: dict[NumberFormat, tuple[NumberFormat, ...]] = {
    "float32": ("bfloat16",),
    "tf32": ("float32", "bfloat16"),
    "bfloat16": ("float32",),
    "float16": ("bfloat16", "float32"),
    "float8": ("bfloat16", "float32"),
    "int8": ("bfloat16", "float32"),
}
"""Mapping from number formats to replacements. If a device cannot compute matrix products in a format, it uses the
first replacement that it supports.

For example, a TPU rounds float32 numbers to bfloat16.
"""


class Link(Base):
    """Connection between devices, such as NVLink."""

    name: Line
    bandwidth: PerSecond
    """Bytes per second that one device can send, over all its links of this kind together. Receiving is not counted.

    Makers often publish the sum of both directions, which is twice as large.
    """


class Derivation(Base):
    """Derivation of a peak speed that the maker does not publish: `units * clock * per_cycle`."""

    units: Count
    """Number of units, such as cores."""
    clock: PerSecond
    """Clock rate in cycles per second while all units compute."""
    per_cycle: dict[NumberFormat, Positive]
    """Number of operations per unit and cycle, by number format. A multiply-add counts as two operations."""
    reason: Line
    """Explanation of these figures."""


class Rate(Base):
    """Measured time of one kind of operation. The time in seconds is `per_flop` times the number of FLOPs, plus the
    corresponding products for the other fields."""

    per_flop: NonNegative
    """Seconds per FLOP of matrix products."""
    per_byte: NonNegative
    """Seconds per byte that is read or written."""
    per_large_byte: NonNegative
    """Seconds per byte, in addition to `per_byte`, for tensors so large that their memory is requested from the
    operating system."""
    per_operation: NonNegative
    """Seconds per operation, whatever its size."""


class Rates(Base):
    """Rates of all kinds of operations, for one pass (such as decoding) in one number format.

    `archlab hardware --measure` fits the rates to measured times of models.
    """

    by_kind: dict[OperationKind, Rate]


class Measurements(Base):
    """Results of `archlab hardware --measure`, except the peak speed and the bandwidth."""

    products: dict[NumberFormat, dict[str, Positive]]
    """FLOPs per second in a product of two square matrices, by number format and number of rows."""
    copy_bandwidth: Positive
    """Bytes per second when a large array is copied. Bytes that are read and bytes that are written both count."""
    read_bandwidth: Positive
    """Bytes per second at which a large matrix is read for a product with a vector, as in decoding."""
    cached_read_bandwidth: Positive
    """Bytes per second at which a matrix that fits into a cache is read for a product with a vector."""
    dispatch: Positive
    """Minimum time of an operation in seconds: the time between the starts of two small operations."""
    threads: Count
    """Number of threads used for the measurement."""
    passes: dict[PassName, dict[NumberFormat, Rates]] = Field(default_factory=dict)
    """Measured rates, by pass and number format. The measured models were not compiled."""


class Hardware(Displayed, Base):
    """Device that models run on, or several identical devices."""

    name: Line
    """Name of the device as its maker writes it."""
    maker: Line
    year: Annotated[int, Field(ge=2010)]
    """Year of release."""
    peak: Annotated[dict[NumberFormat, PerSecond], Field(min_length=1)]
    """Operations per second of matrix products, by number format.

    A multiply-add counts as two operations. The figures are for dense matrices; the figures of makers for structured
    sparsity are twice as large. Sums are accumulated in float32 (for int8, in int32). A format is missing if the device
    cannot multiply numbers in it, or if no figure is published.
    """
    memory: MemorySize
    """Memory of one device in bytes. If it is known, it is the value that nvidia-smi or a similar tool prints.

    A maker's "80 GB" means 80 GiB or a little less. About 1% of the memory is not available to programs.
    """
    bandwidth: PerSecond
    """Bandwidth of the memory in bytes per second. Reads and writes share it."""
    link: Link | None = None
    """Link between the devices of one server. null if the devices communicate only through the server's main memory, or
    if no figure is published.
    """
    network: Link | None = None
    """Link between servers. null if the buyer chooses it."""
    devices_per_server: Count = 1
    link_joins: Count | None = None
    """Number of devices that `link` connects, if it connects several servers. null if it connects only the devices of
    one server."""
    price_per_hour: NonNegative | None = None
    """Price of one device per hour.

    It is null for all devices that come with archlab, because prices change and differ between sellers.
    """
    derivation: Derivation | None = None
    """Derivation of `peak`. null if the maker publishes the peak, or if it was measured."""
    measured: Measurements | None = None
    """Measurements of this machine. null if the device has not been measured."""
    source: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Sources of the figures: data sheets and web pages of the maker. If the figures were read elsewhere, that source
    is listed, too."""
    certainty: Certainty = "from memory"
    """Certainty of the figures.

    verified: read in the maker's own text. secondary: read in a copy of the maker's figures by somebody else. from
    memory: not checked.
    """
    notes: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Notes on figures that are often quoted for this device but mean something else."""
    count: Count = 1
    """Number of devices: 8 for h100x8."""

    def speed(self, number_format: NumberFormat) -> float:
        """Return the operations per second of one device in a number format. If the device does not support the format,
        return the speed of the format that replaces it."""
        return next(self.peak[known] for known in (number_format, *_INSTEAD[number_format]) if known in self.peak)

    def rates(self, name: PassName, number_format: NumberFormat) -> Rates | None:
        """Return the rates of a pass in a number format, or None if they were not measured."""
        return self.measured.passes.get(name, {}).get(number_format) if self.measured else None

    @property
    def linked(self) -> int:
        return self.link_joins or self.devices_per_server

    @property
    def servers(self) -> int:
        return -(-self.count // self.devices_per_server)


def hardware() -> Iterator[tuple[str, Hardware]]:
    for name, file in devices().items():
        yield name, _read(file)


class Devices(Displayed, dict[str, Hardware]):
    """Devices, by name."""


def list_hardware() -> Devices:
    """Return all devices that come with archlab, by name, and `this` machine if it has been measured.

    Speeds are in operations per second, memory is in bytes, and bandwidths are in bytes per second.

    >>> [name for name, device in archlab.list_hardware().items() if device.link and device.memory > 190 * 2**30]
    ['mi300x']
    """
    listed = Devices(hardware())
    with suppress(UserError):
        listed[THIS] = load_hardware(THIS)
    return listed


def load_hardware(name: str) -> Hardware:
    """Load the description of a device or of several identical devices.

    `name` is a device of `archlab.list_hardware`, a YAML file, or `this` for this machine. `h100x8` means 8 devices
    `h100`. In a name, case, dots, dashes and underscores do not matter. Raise UserError if the name is unknown, or if
    this machine has not been measured.

    >>> device = archlab.load_hardware("h100x8")
    >>> device.peak["bfloat16"], device.count
    (989400000000000.0, 8)
    """
    if file := _file_of(name):
        try:
            return _read(file)
        except UserError as error:
            advice = "; `archlab hardware --measure` writes it again" if file == this_machine() else ""
            raise UserError(f"{error}{advice}") from None
    if (several := re.fullmatch(r"(.+)[x×](\d{1,9})", name)) and (file := _file_of(several[1])):
        if not int(several[2]):
            raise UserError(f"hardware {name!r} has no devices; allowed: at least 1, as in {several[1]}x8")
        return _read(file).model_copy(update={"count": int(several[2])})
    longer = [known for known in devices() if known.startswith(f"{name.lower()}-")]
    hint = f"; did you mean {' or '.join(longer)}?" if longer else nearest(name, devices(), _CLOSE)
    raise UserError(f"unknown hardware {name!r}{hint or ';'} `archlab list hardware` shows all devices")


def _file_of(name: str) -> Path | Traversable | None:
    if name.lower() == THIS:
        if not this_machine().exists():
            raise UserError(
                "this machine has not been measured yet; run `archlab hardware --measure` (about four minutes)"
            )
        return this_machine()
    if name.endswith((".yaml", ".yml")):
        return expand_user(name)
    return find_named(name, devices())


def _read(file: Path | Traversable) -> Hardware:
    device = validate(Hardware, read_yaml(file), str(file))
    if not {"float32", "bfloat16"} & device.peak.keys():
        raise UserError(f"{file}: peak contains {', '.join(device.peak)}; it must also contain float32 or bfloat16")
    return device


def this_machine() -> Path:
    """Return the path of the file with this machine's measurements.

    The file is named after the host, because several machines may share the cache folder.
    """
    host = re.sub(r"[^\w.-]", "_", platform.node()) or THIS
    return cache_folder() / "hardware" / f"{host}.yaml"


def keep_measured(device: Hardware) -> None:
    make_folder(this_machine().parent)
    write_atomic(this_machine(), to_yaml(device.model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
