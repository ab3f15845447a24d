"""What `archlab cost --devices` says, as a table: what fits, what is sent, and how long it takes, way by way."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.cost.budget import TOKENS_PER_PARAMETER
from archlab.cost.flops import training_flops
from archlab.cost.hardware import Hardware
from archlab.cost.parallel import WAYS, Parallel
from archlab.cost.params import parameters
from archlab.cost.plan import Plan, plan
from archlab.cost.units import binary, count, seconds
from archlab.errors import UserError
from archlab.report.cost_tables import Table


class Divided(NamedTuple):
    """One way of dividing."""

    plain: Plan
    recomputed: Plan
    """Layers keep their input alone, and are computed again."""

    def as_json(self) -> dict[str, Any]:
        """Both under their names."""
        return {name: one.model_dump(mode="json") for name, one in self._asdict().items()}


def ways(devices: int) -> list[Parallel]:
    """So many devices, each way alone."""
    return [Parallel(**{way: devices}) for way in WAYS] if devices > 1 else [Parallel()]


def divide(config: Config, tried: Sequence[Parallel], device: Hardware) -> tuple[dict[Parallel, Divided], list[str]]:
    """Way -> plans; and why the other ways cannot be gone. UserError where none can."""
    found, refused = dict[Parallel, Divided](), list[str]()
    for parallel in tried:
        try:
            found[parallel] = Divided(*(plan(config, parallel, device, recompute=again) for again in (False, True)))
        except UserError as error:
            refused.append(str(error) if len(tried) == 1 else f"{parallel}: {error}")
    if not found:
        raise UserError("\n".join(refused))
    return found, refused


def tables(
    config: Config, found: Mapping[Parallel, Divided], refused: Sequence[str], device: Hardware, price: float | None
) -> Iterator[Table]:
    """A column for every way of dividing; `price` of a device and hour."""
    plans = [divided.plain for divided in found.values()]
    recomputed = [divided.recomputed for divided in found.values()]
    names, n_devices = [str(parallel) for parallel in found], next(iter(found)).devices
    yield Table(
        (f"one {device.name} of {n_devices}", *names),
        [
            *_memory(plans),
            _row("in all", plans, lambda p: binary(p.total_memory)),
            _row("  recomputing layers", recomputed, lambda p: binary(p.total_memory)),
            _row(f"fits in {binary(device.memory)}", plans, _fits),
            _row("  recomputing layers", recomputed, _fits),
            _row("texts of a replica at once", plans, lambda p: str(p.micro_batch)),
            _row("  at most", plans, lambda p: str(p.largest_micro_batch)),
            _row("  at most, recomputing", recomputed, lambda p: str(p.largest_micro_batch)),
            _row("tokens of a step", plans, lambda p: count(p.batch_tokens)),
            _row("sent in a step", plans, lambda p: binary(sum(p.sent.values()))),
            _row("pipeline's bubble", plans, lambda p: f"{p.bubble:.0%}"),
            _row("a step at best", plans, lambda p: seconds(p.computing)),
            _row("  recomputing layers", recomputed, lambda p: seconds(p.computing)),
            _row("sending, unless hidden", plans, lambda p: seconds(p.sending)),
        ],
    )
    yield _budgets(config, list(found.values()), names, n_devices, price)
    if refused:
        yield Table(("not possible",), [(reason,) for reason in refused])


def _row(label: str, plans: Sequence[Plan], cell: Callable[[Plan], str]) -> Sequence[str]:
    return (label, *(cell(one) for one in plans))


def _memory(plans: Sequence[Plan]) -> Iterator[Sequence[str]]:
    for what in plans[0].memory:
        if any(one.memory[what] for one in plans):
            yield _row(what, plans, lambda p, what=what: binary(p.memory[what]) if p.memory[what] else "-")


def _fits(one: Plan) -> str:
    return "yes" if one.fits else "no"


def _budgets(
    config: Config, found: Sequence[Divided], names: Sequence[str], devices: int, price: float | None
) -> Table:
    """Time and money for the tokens that the config asks for, and for as many as its parameters are worth; of what
    fits, with layers recomputed where nothing else does."""
    train = resolve_train(config)
    best = TOKENS_PER_PARAMETER * parameters(config.model).active
    asked = {f"{count(best)} tokens, {TOKENS_PER_PARAMETER} per parameter": best}
    if "tokens" in config.train.model_fields_set:
        asked = {f"{count(train.trained)} tokens": train.trained, **asked}
    fitting = [next((one for one in both if one.fits), None) for both in found]
    how = [
        "does not fit" if one is None else "recomputing" if one is both.recomputed else "keeping"
        for one, both in zip(fitting, found, strict=True)
    ]
    rows: list[Sequence[str]] = [("activations", *how)]
    for label, tokens in asked.items():
        flops = f"{training_flops(config.model, train.seq_len) * tokens:.3g} FLOPs"
        times = [one and tokens / one.batch_tokens * max(one.computing, one.sending) for one in fitting]
        rows.append((f"{label}, {flops}", *("-" if time is None else seconds(time) for time in times)))
        if price is not None:
            spent = ("-" if time is None else f"{time / 3600 * devices * price:,.0f}" for time in times)
            rows.append((f"  at {price:g} an hour and device", *spent))
    return Table(("at best", *names), rows)
