"""What models run on: peaks, memory and links of named devices, as their makers publish them, or as measured here."""

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
"""Operations, bytes or cycles; `2P` is 2e15."""

THIS = "this"
"""The name of the machine that archlab runs on, once it has been measured."""

_INSTEAD: dict[NumberFormat, tuple[NumberFormat, ...]] = {
    "float32": ("bfloat16",),
    "tf32": ("float32", "bfloat16"),
    "bfloat16": ("float32",),
    "float16": ("bfloat16", "float32"),
    "float8": ("bfloat16", "float32"),
    "int8": ("bfloat16", "float32"),
}
"""In what a device computes that does not multiply a format itself; a TPU rounds float32 to bfloat16."""


class Link(Base):
    """How devices reach each other."""

    name: Line
    bandwidth: PerSecond
    """Bytes per second that one device sends, over all its links of this kind together, in one direction. Makers often
    print the sum of both directions, which is twice as much."""


class Derivation(Base):
    """A peak that its maker does not print: units times clock times operations of one unit in one cycle."""

    units: Count
    """Cores."""
    clock: PerSecond
    """Cycles per second while all units compute."""
    per_cycle: dict[NumberFormat, Positive]
    """Operations of one unit in one cycle; a multiplication and an addition are two."""
    reason: Line
    """Where these come from."""


class Rate(Base):
    """Seconds that operations of one kind take; they add up."""

    per_flop: NonNegative
    """Of matrices."""
    per_byte: NonNegative
    per_large_byte: NonNegative
    """More than `per_byte`, in tensors for which memory is asked of the system."""
    per_operation: NonNegative


class Rates(Base):
    """Rates of a pass in one number format, which `archlab hardware --measure` fitted to models that ran."""

    by_kind: dict[OperationKind, Rate]


class Measurements(Base):
    """What `archlab hardware --measure` found beside peaks and bandwidth."""

    products: dict[NumberFormat, dict[str, Positive]]
    """FLOPs per second of the product of two square matrices, by format and by their side."""
    copy_bandwidth: Positive
    """Bytes per second that a copy of a large array reads and writes together."""
    read_bandwidth: Positive
    """Bytes per second of a large matrix that is multiplied with a vector, as weights are in decoding."""
    cached_read_bandwidth: Positive
    """As `read_bandwidth`, of an array that fits in a cache."""
    dispatch: Positive
    """Seconds from one small operation to the next: what an operation costs however little it computes."""
    threads: Count
    """In use while it was measured."""
    passes: dict[PassName, dict[NumberFormat, Rates]] = Field(default_factory=dict)
    """What operations cost in passes that ran, by number format; nothing was compiled."""


class Hardware(Base):
    """A device that models run on, or several of the same."""

    name: Line
    """As its maker writes it."""
    maker: Line
    year: Annotated[int, Field(ge=2010)]
    """Of release."""
    peak: Annotated[dict[NumberFormat, PerSecond], Field(min_length=1)]
    """Operations per second of matrix products by number format, a multiplication and an addition being two: dense
    (half of what makers print with structured sparsity), added up in float32 (int8: in int32). A format that is
    missing is one that the device does not multiply, or of which no figure is published."""
    memory: MemorySize
    """As nvidia-smi or the like prints it, where that is known: makers say 80 GB, and mean 80 GiB or a little less. A
    program is given about 1% less."""
    bandwidth: PerSecond
    """Bytes per second of the memory, read and written together."""
    link: Link | None = None
    """Between the devices of a server. null: there is none but the server's own memory, or it is not published."""
    network: Link | None = None
    """Between servers. null: as it is bought."""
    devices_per_server: Count = 1
    link_joins: Count | None = None
    """Devices that `link` joins, beyond servers. null: those of a server."""
    price_per_hour: NonNegative | None = None
    """Of one device. null, as in all that come with archlab: prices change, and differ between sellers."""
    derivation: Derivation | None = None
    """Of `peak`. null: published as it stands, or measured."""
    measured: Measurements | None = None
    """null: not measured here."""
    source: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Data sheets and pages of the maker, and where their figures were read if not there."""
    certainty: Certainty = "from memory"
    """verified: read in the maker's own text; secondary: from transcriptions of it; from memory: unchecked."""
    notes: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    """Which figure in circulation is something else."""
    count: Count = 1
    """Devices, as in h100x8."""

    def speed(self, number_format: NumberFormat) -> float:
        """Operations per second of one device in this format, or in the one it computes in instead."""
        return next(self.peak[known] for known in (number_format, *_INSTEAD[number_format]) if known in self.peak)

    def rates(self, name: PassName, number_format: NumberFormat) -> Rates | None:
        """What operations of a pass cost in this format; None where that was not measured."""
        return self.measured.passes.get(name, {}).get(number_format) if self.measured else None

    @property
    def linked(self) -> int:
        """Devices that `link` joins."""
        return self.link_joins or self.devices_per_server

    @property
    def servers(self) -> int:
        """How many of them `count` devices fill or begin."""
        return -(-self.count // self.devices_per_server)


def hardware() -> Iterator[tuple[str, Hardware]]:
    """All devices that come with archlab, each under its name."""
    for name, file in devices().items():
        yield name, _read(file)


def load_hardware(name: str) -> Hardware:
    """The device of that name, `this` machine as it was measured, or a YAML file of one's own; `h100x8` is 8 of h100.

    Names compare as those of presets. UserError where there is none of that name, or this machine is not measured yet.
    """
    if file := _file_of(name):
        try:
            return _read(file)
        except UserError as error:
            again = "; `archlab hardware --measure` writes it anew" if file == this_machine() else ""
            raise UserError(f"{error}{again}") from None
    if (several := re.fullmatch(r"(.+)[x×](\d{1,9})", name)) and (file := _file_of(several[1])):
        if not int(several[2]):
            raise UserError(f"hardware {name!r}: no devices; allowed: at least 1, as in {several[1]}x8")
        return _read(file).model_copy(update={"count": int(several[2])})
    begun = [known for known in devices() if known.startswith(f"{name.lower()}-")]
    hint = f"; did you mean {' or '.join(begun)}?" if begun else nearest(name, devices())
    raise UserError(f"no hardware {name!r}{hint or ';'} `archlab list hardware` shows all")


def _file_of(name: str) -> Path | Traversable | None:
    if name.lower() == THIS:
        if not this_machine().exists():
            raise UserError(
                "this machine has not been measured yet; `archlab hardware --measure` does it, in about four minutes"
            )
        return this_machine()
    if name.endswith((".yaml", ".yml")):
        return expand_user(name)
    return find_named(name, devices())


def _read(file: Path | Traversable) -> Hardware:
    found = validate(Hardware, read_yaml(file), str(file))
    if not {"float32", "bfloat16"} & found.peak.keys():
        raise UserError(f"{file}: peak has {', '.join(found.peak)}; needed: float32 or bfloat16, or both")
    return found


def this_machine() -> Path:
    """Where this machine's measurements are; several machines may share the cache folder, so it has the host's name."""
    host = re.sub(r"[^\w.-]", "_", platform.node()) or THIS
    return cache_folder() / "hardware" / f"{host}.yaml"


def keep_measured(found: Hardware) -> None:
    """Have `this` mean what was measured."""
    make_folder(this_machine().parent)
    write_atomic(this_machine(), to_yaml(found.model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
