"""Workbench: one config with its diagram, its cost and its findings. Every view is a URL."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from archlab.config.core.yaml_text import to_yaml, to_yaml_line
from archlab.config.identity import flatten, resolved
from archlab.config.io import build_config, devices, overlay, parse_overrides
from archlab.config.problems import MISSING, ConfigError
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.evidence.claims import cited
from archlab.evidence.usage import most_common
from archlab.exchange.configs import Shape, read_named_config
from archlab.pricing.hardware import Hardware, load_hardware
from archlab.pricing.pass_time import ideal
from archlab.pricing.summary import Cost, cost, n_learned_positions, room
from archlab.pricing.units import binary, count, length, plural, si
from archlab.pricing.work import PassName
from archlab.report.check import sentences
from archlab.report.cost.tables import beyond_limits, of_one
from archlab.report.drawings.block import block_diagram
from archlab.report.text_table import Table
from archlab.review.findings import Finding, findings, summary
from archlab.review.shape_rule import Case
from archlab.ui.bench.boxes import PartFacts, part_facts
from archlab.ui.bench.inputs import FieldInput, main_choices, other_choices
from archlab.ui.configs import ComparedConfigs, Variant, find, in_address, load, overrides_in, refuse_unknown
from archlab.ui.values import means

DEVICE = "h100"
_SPEEDS: Mapping[PassName, str] = {"decoding": "Tokens/s, decoding", "training": "Tokens/s, training"}
LOCKS: Mapping[str, str] = {"model.mlp.d_ff": "hidden width", "model.n_layers": "layers", "model.d_model": "width"}
"""Fields that can be adjusted to keep the number of parameters."""

_SAME = 0.01
"""Relative difference up to which two numbers of parameters count as the same size."""

MAX_POWERS: Mapping[str, int] = {"context": 20, "batch": 10}
"""Largest value of each slider, as a power of two. Learned positions may end earlier."""

_SETTINGS = (*MAX_POWERS, "hardware", "lock")
"""Names in a query that are not fields."""


_device = cache(load_hardware)
"""Description of a device of the library, which does not change while the server runs."""


class NotCanonicalError(Exception):
    """The URL has another, shorter form, `address`."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass(frozen=True)
class View:
    """Settings in the URL of the workbench."""

    name: str
    overrides: Mapping[str, str]
    """Changed fields, with their values as text."""
    context: int | None = None
    """Tokens of each served sequence; None for the longest sequence of the model."""
    batch: int = 1
    device: str = DEVICE
    lock: str = ""
    """Field that is adjusted after each change, so that the number of parameters stays the same. Empty: none is."""

    @classmethod
    def of(cls, name: str, query: list[tuple[str, str]]) -> "View":
        """Read the URL. Raise UserError if a value is not allowed."""
        values = dict(query)
        refuse_unknown(values, _SETTINGS)
        if (lock := values.get("lock", "")) not in ("", *LOCKS):
            raise UserError(f"lock is {lock!r}; allowed: {', '.join(LOCKS)}")
        if (device := values.get("hardware") or DEVICE) not in devices():
            raise UserError(f"hardware is {device!r}; allowed: {', '.join(devices())}")
        context, batch = values.get("context"), values.get("batch")
        return cls(
            name,
            overrides_in(values.items()),
            None if not context else _power("context", context),
            1 if not batch else _power("batch", batch),
            device,
            lock,
        )

    @classmethod
    def of_variant(cls, variant: Variant) -> "View":
        return cls(variant.name, variant.overrides)

    def address(self, screen: str = "m") -> str:
        """Return the path and query of a screen that shows this config."""
        settings = {
            "context": self.context and self.context.bit_length() - 1,
            "batch": self.batch.bit_length() - 1 if self.batch > 1 else None,
            "hardware": None if self.device == DEVICE else self.device,
            "lock": self.lock or None,
        }
        query = {**self.overrides, **{name: value for name, value in settings.items() if value is not None}}
        return f"/{screen}/{in_address(self.name)}{'?' if query else ''}{urlencode(query)}"

    @property
    def variant(self) -> Variant:
        return Variant(self.name, self.overrides)

    @property
    def as_opened(self) -> dict[str, str]:
        """Part of a query by which other screens know the model that is open here."""
        context = {} if self.context is None else {"context": str(self.context.bit_length() - 1)}
        return {"in": self.name, **self.overrides, **context}


class Quantity(NamedTuple):
    """Number in the summary of the workbench."""

    label: str
    value: str
    remark: str


@dataclass(frozen=True)
class Workbench:
    """Everything that the screen shows."""

    view: View
    diagram: Markup
    parts: list[PartFacts]
    quantities: list[Quantity]
    tables: list[Table]
    notes: list[str]
    findings: list[Finding]
    verdict: str
    locks: Mapping[str, str]
    """Label of each field of the config that can keep the size, by its path."""
    choices: Mapping[str, list[FieldInput]]
    others: list[FieldInput]
    context: int
    max_powers: Mapping[str, int]
    """Largest value of each slider, as a power of two."""
    longest: int
    """Tokens of the longest sequence of the model."""
    commands: list[str]
    devices: list[str]

    @property
    def reset(self) -> str:
        """Address of the same config without changes."""
        return View(self.view.name, {}).address()

    @property
    def with_longest(self) -> str:
        """Address of the same config with the longest sequence of the model."""
        return replace(self.view, context=None).address()

    @property
    def context_power(self) -> int:
        """Position of the slider: the power of two that the context is, or the next one above it."""
        return min((self.context - 1).bit_length(), self.max_powers["context"])

    @property
    def compared(self) -> ComparedConfigs:
        """The config, for a comparison with another one."""
        return ComparedConfigs((self.view.variant,))


def workbench(view: View, root: Path, added: Mapping[str, str]) -> Workbench:
    """Return the screen of a view. `added` maps a field that the user has typed to its value.

    Raise UserError if the config is not valid, and NotCanonicalError if the URL sets fields to the values that they
    have anyway.
    """
    overrides = {**view.overrides, **added}
    base = flatten(resolved(load(Variant(view.name, {}), root).config)) if overrides else {}
    overrides = {
        field: value for field, value in overrides.items() if field not in base or not means(value, base[field])
    }
    shape, overrides = _complete(view.name, overrides, root)
    if view.lock:
        overrides = {**overrides, **_same_size(view, overrides, root)}
        shape = load(Variant(view.name, overrides), root)
    longest = shape.config.model.max_seq_len
    canonical = replace(view, overrides=overrides, context=None if view.context == longest else view.context)
    if canonical != view:
        raise NotCanonicalError(canonical.address())
    device = _device(view.device)
    context = view.context or longest
    costs = cost(shape.config, view.batch, context)
    found = findings(Case(shape.config))
    values = flatten(resolved(shape.config))
    return Workbench(
        view=view,
        diagram=Markup(block_diagram(shape.config, view.name, remark=_remark(view, shape.part))),
        parts=part_facts(shape.config, costs),
        quantities=_quantities(costs, device),
        tables=list(of_one(costs, device)),
        notes=[*shape.notes, *beyond_limits({view.name: {(context, view.batch): costs}})],
        findings=found,
        verdict=summary(found),
        locks={path: label for path, label in LOCKS.items() if path in values},
        choices=main_choices(values, overrides),
        others=other_choices(values, overrides),
        context=context,
        max_powers={**MAX_POWERS, "context": _max_context_power(shape.config)},
        longest=longest,
        commands=_commands(view, context),
        devices=list(devices()),
    )


def _complete(name: str, overrides: Mapping[str, str], root: Path) -> tuple[Shape, Mapping[str, str]]:
    """Return a config and its changed fields. Fields that a chosen kind needs and the URL does not set have the values
    that most published models with this kind have."""
    try:
        return load(Variant(name, overrides), root), overrides
    except ConfigError as error:
        needed = [problem.path for problem in error.problems if problem.message == MISSING]
        usual = {path: most_common(path, overrides.get(f"{path.rpartition('.')[0]}.kind", "")) for path in needed}
        added = {path: value for path, value in usual.items() if value is not None}
        if not added:
            raise
        overrides = {**overrides, **added}
        return load(Variant(name, overrides), root), overrides


def config_text(view: View, root: Path) -> str:
    """Return the resolved config as YAML, as `archlab show` prints it."""
    return to_yaml(resolved(load(view.variant, root).config))


def model_file(view: View, root: Path) -> str:
    """Return the model as one PyTorch file, as `archlab flatten` prints it."""
    from archlab.flatten.write import flatten_model, title_of

    return flatten_model(load(view.variant, root).config.model, title=title_of(view.name, view.variant.settings))


def finding_lines(finding: Finding) -> list[str]:
    """Return the sentences below the heading of a finding, with its sources."""
    return [*sentences(finding), *(source.located for source in cited(finding.sources))]


def _same_size(view: View, overrides: Mapping[str, str], root: Path) -> dict[str, str]:
    """Return the field that `lock` names, with the value that gives the changed config as many parameters as the
    unchanged one, within 1%. Return nothing if it has as many already. A hidden width is a multiple that hardware
    computes well, if one is near enough."""
    from archlab.sizing.scale import rounded
    from archlab.study.fit import match_config, quantity_function
    from archlab.study.schema import Equal

    config = find(view.name, root)
    raw = read_named_config(config)
    changes, _ = parse_overrides([f"{field}={value}" for field, value in overrides.items()])
    equal = Equal.model_validate({"parameters": _SAME, "by": view.lock})
    size = quantity_function(equal)
    target, changed = size(build_config(raw)), overlay(raw, changes, Config)
    try:
        fitted, change = match_config(changed, equal, target)
    except UserError as error:
        raise UserError(
            f"{view.name}, changed like this, {error}; or choose another field that keeps the size"
        ) from None
    if "model.mlp.d_ff" in change:
        even = {"model.mlp.d_ff": rounded(change["model.mlp.d_ff"], fitted.model.d_model)}
        if abs(size(build_config(overlay(changed, even, Config))) / target - 1) <= _SAME:
            change = even
    return {field: to_yaml_line(value) for field, value in change.items()}


def _remark(view: View, part: str) -> str:
    changed = f"{plural(len(view.overrides), 'field')} changed" if view.overrides else ""
    return ", ".join(filter(None, (part, changed)))


def _quantities(costs: Cost, device: Hardware) -> list[Quantity]:
    """Return the numbers of the summary: those that most choices change."""
    counts, tokens = costs.parameters, f"{costs.batch} × {length(costs.context)} tokens"
    active = f"{count(counts.active)} per token" if counts.active != counts.total else "all of them for each token"
    rows = [Quantity("Parameters", count(counts.total), active)]
    if costs.decodes:
        rows.append(Quantity("KV cache and states", binary(costs.state_bytes), f"{tokens}, {costs.dtype}"))
    rows.append(Quantity("FLOPs per token", si(costs.forward_flops.total), "of a forward pass"))
    for name, label in _SPEEDS.items():
        if work := costs.work.get(name):
            best = ideal(work, device, costs.dtype, costs.tokens[name])
            rows.append(Quantity(label, si(best.tokens_per_second), f"at best, limited by {best.limit}"))
    serving = room(costs, device)
    needed = f"{binary(serving.needed)} of {binary(serving.memory)}"
    rows.append(Quantity(f"Fits one {device.name}", "yes" if serving.fits else "no", f"{needed} to serve"))
    return rows


def _commands(view: View, context: int) -> list[str]:
    variant, batch = view.variant, ["--batch", str(view.batch)] if view.batch > 1 else []
    return [
        variant.command("cost", "--context", str(context), *batch, "--hardware", view.device),
        variant.command("check"),
        variant.command("draw", "--out", "diagram.svg"),
        variant.command("show"),
    ]


def _max_context_power(config: Config) -> int:
    longest = n_learned_positions(config.model)
    return MAX_POWERS["context"] if longest is None else min(MAX_POWERS["context"], longest.bit_length() - 1)


def _power(name: str, text: str) -> int:
    """Return the power of two that the slider `name` selects."""
    if not text.isdecimal() or int(text) > MAX_POWERS[name]:
        raise UserError(f"{name} is {text!r}; allowed: 0 to {MAX_POWERS[name]}, the exponents of powers of two")
    return 2 ** int(text)
