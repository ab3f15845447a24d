"""Devices that models run on: peak speed, memory and links, as published by their makers or as measured here."""

import platform
import re
from collections.abc import Iterator
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
from archlab.errors import UserError
from archlab.files import cache_folder, expand_user, make_folder, write_atomic
from archlab.pricing.work import PassName

NumberFormat = Literal["float32", "tf32", "bfloat16", "float16", "float8", "int8"]

PerSecond = Annotated[Flops, Field(ge=1, le=1e30)]
"""Number of operations, bytes or cycles per second; `2P` is 2e15."""

THIS = "this"
"""Name of the machine that archlab runs on, once it has been measured."""

_INSTEAD: dict[NumberFormat, tuple[NumberFormat, ...]] = {
    "float32": ("bfloat16",),
    "tf32": ("float32", "bfloat16"),
    "bfloat16": ("float32",),
    "float16": ("bfloat16", "float32"),
    "float8": ("bfloat16", "float32"),
    "int8": ("bfloat16", "float32"),
}
"""Formats that a device uses instead of one that it cannot multiply. For example, a TPU rounds float32 to bfloat16."""


class Link(Base):
    """A link between devices."""

    name: Line
    bandwidth: PerSecond
    """Bytes per second that one device sends in one direction, over all its links of this kind together.

    Makers often publish the sum of both directions, which is twice as much.
    """


class Derivation(Base):
    """A peak that the maker does not publish: units times clock times operations of one unit per cycle."""

    units: Count
    """Number of units (cores)."""
    clock: PerSecond
    """Cycles per second while all units compute."""
    per_cycle: dict[NumberFormat, Positive]
    """Operations of one unit in one cycle. A multiplication and an addition count as two."""
    reason: Line
    """Origin of these figures."""


class Rate(Base):
    """Seconds that operations of one kind take. The four terms add up."""

    per_flop: NonNegative
    """Seconds per FLOP of matrix products."""
    per_byte: NonNegative
    per_large_byte: NonNegative
    """Seconds in addition to `per_byte`, for tensors whose memory is requested from the operating system."""
    per_operation: NonNegative


class Rates(Base):
    """Rates of a pass in one number format. `archlab hardware --measure` fits them to the times of real models."""

    by_kind: dict[OperationKind, Rate]


class Measurements(Base):
    """Results of `archlab hardware --measure` besides peak speed and bandwidth."""

    products: dict[NumberFormat, dict[str, Positive]]
    """FLOPs per second of the product of two square matrices, by number format and matrix size."""
    copy_bandwidth: Positive
    """Bytes per second that a copy of a large array reads and writes together."""
    read_bandwidth: Positive
    """Bytes per second at which a large matrix is read for a product with a vector, as in decoding."""
    cached_read_bandwidth: Positive
    """Same as `read_bandwidth`, but for an array that fits in a cache."""
    dispatch: Positive
    """Seconds between the starts of two small operations: the minimum cost of an operation."""
    threads: Count
    """Number of threads used for the measurement."""
    passes: dict[PassName, dict[NumberFormat, Rates]] = Field(default_factory=dict)
    """Cost of operations in measured passes, by number format. The models were not compiled."""


class Hardware(Base):
    """A device that models run on, or several of the same kind."""

    name: Line
    """Name of the device as its maker writes it."""
    maker: Line
    year: Annotated[int, Field(ge=2010)]
    """Year of release."""
    peak: Annotated[dict[NumberFormat, PerSecond], Field(min_length=1)]
    """Operations per second of matrix products by number format. A multiplication and an addition count as two.

    Figures are for dense matrices; makers print twice as much for structured sparsity. Sums are in float32 (for int8
    in int32). A format is missing if the device cannot multiply it, or if no figure is published.
    """
    memory: MemorySize
    """Memory of one device, as nvidia-smi or a similar tool prints it, if that is known.

    Makers say 80 GB and mean 80 GiB or a little less. About 1% of it is not available to programs.
    """
    bandwidth: PerSecond
    """Bytes per second of the memory, counting reads and writes together."""
    link: Link | None = None
    """Link between the devices of a server.

    null: devices reach each other only through the server's memory, or no figure is published.
    """
    network: Link | None = None
    """Link between servers. null: it depends on what the buyer chooses."""
    devices_per_server: Count = 1
    link_joins: Count | None = None
    """Number of devices that `link` connects, if it reaches beyond one server. null: the devices of one server."""
    price_per_hour: NonNegative | None = None
    """Price of one device per hour.

    It is null for all devices that come with archlab, because prices change and differ between sellers.
    """
    derivation: Derivation | None = None
    """Derivation of `peak`. null: the maker publishes the peak, or it was measured."""
    measured: Measurements | None = None
    """Measurements of this machine. null: not measured."""
    source: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Data sheets and pages of the maker. If their figures were read elsewhere, that place is listed, too."""
    certainty: Certainty = "from memory"
    """Certainty of the figures.

    verified: read in the maker's own text. secondary: from transcriptions of it. from memory: unchecked.
    """
    notes: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Notes on widely quoted figures that mean something else."""
    count: Count = 1
    """Number of devices, as in h100x8."""

    def speed(self, number_format: NumberFormat) -> float:
        """Return operations per second of one device in this format, or in the format that it uses instead."""
        return next(self.peak[known] for known in (number_format, *_INSTEAD[number_format]) if known in self.peak)

    def rates(self, name: PassName, number_format: NumberFormat) -> Rates | None:
        """Return the rates of a pass in this format; None if they were not measured."""
        return self.measured.passes.get(name, {}).get(number_format) if self.measured else None

    @property
    def linked(self) -> int:
        """Number of devices that `link` connects."""
        return self.link_joins or self.devices_per_server

    @property
    def servers(self) -> int:
        """Number of servers that `count` devices need."""
        return -(-self.count // self.devices_per_server)


def hardware() -> Iterator[tuple[str, Hardware]]:
    """Yield the name and the device for each device that comes with archlab."""
    for name, file in devices().items():
        yield name, _read(file)


def load_hardware(name: str) -> Hardware:
    """Load a device by name, `this` machine as it was measured, or a YAML file of your own.

    `h100x8` means 8 devices of h100. Names are compared like those of presets.
    Raise UserError if the name is unknown or this machine has not been measured yet.
    """
    if file := _file_of(name):
        try:
            return _read(file)
        except UserError as error:
            advice = "; `archlab hardware --measure` writes it again" if file == this_machine() else ""
            raise UserError(f"{error}{advice}") from None
    if (several := re.fullmatch(r"(.+)[x×](\d{1,9})", name)) and (file := _file_of(several[1])):
        if not int(several[2]):
            raise UserError(f"hardware {name!r} has no devices; at least 1 is needed, as in {several[1]}x8")
        return _read(file).model_copy(update={"count": int(several[2])})
    begun = [known for known in devices() if known.startswith(f"{name.lower()}-")]
    hint = f"; did you mean {' or '.join(begun)}?" if begun else nearest(name, devices())
    raise UserError(f"unknown hardware {name!r}{hint or ';'} `archlab list hardware` shows all")


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
        raise UserError(f"{file}: peak has only {', '.join(device.peak)}; float32 or bfloat16 (or both) is needed")
    return device


def this_machine() -> Path:
    """Return the file with this machine's measurements.

    It is named after the host, because several machines may share the cache folder.
    """
    host = re.sub(r"[^\w.-]", "_", platform.node()) or THIS
    return cache_folder() / "hardware" / f"{host}.yaml"


def keep_measured(device: Hardware) -> None:
    """Save the measured device under the name `this`."""
    make_folder(this_machine().parent)
    write_atomic(this_machine(), to_yaml(device.model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
