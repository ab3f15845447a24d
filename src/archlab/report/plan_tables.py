"""What `archlab cost --devices` says, as tables: what fits, what is sent, and how long it takes, way by way."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from archlab.config.schema import Config
from archlab.cost.budget import Spent, budgets, rule_in_words, spent
from archlab.cost.divide import Divided
from archlab.cost.hardware import Hardware
from archlab.cost.parallel import Parallel
from archlab.cost.params import parameters
from archlab.cost.plan import Plan
from archlab.cost.units import binary, count, seconds
from archlab.report.cost_tables import Table


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
            _row("sending, unless hidden", plans, _sending),
            _row("  recomputing layers", recomputed, _sending),
        ],
    )
    yield _budgets(config, found, price)
    if refused:
        yield Table(("not possible",), [(reason,) for reason in refused])


def _row(label: str, plans: Sequence[Plan], cell: Callable[[Plan], str]) -> Sequence[str]:
    return (label, *(cell(one) for one in plans))


def _memory(plans: Sequence[Plan]) -> Iterator[Sequence[str]]:
    for what in plans[0].memory:
        if any(one.memory[what] for one in plans):
            yield _row(what, plans, lambda p, what=what: binary(p.memory[what]) if p.memory[what] else "-")


def _sending(one: Plan) -> str:
    """With its share of computing: a wide model's tensor groups send little for what they compute."""
    return f"{seconds(one.sending)} {one.sending / one.computing:.0%}"


def _fits(one: Plan) -> str:
    return "yes" if one.fits else "no"


def _budgets(config: Config, found: Mapping[Parallel, Divided], price: float | None) -> Table:
    """Time and money of what fits, with layers recomputed where nothing else does."""
    how = [
        "does not fit" if d.fitting is None else "recomputing" if not d.plain.fits else "keeping"
        for d in found.values()
    ]
    rows: list[Sequence[str]] = [("activations", *how)]
    for budget in budgets(config):
        rule = f", {rule_in_words(parameters(config.model))}" if budget.is_rule else ""
        times = [d.fitting and spent(budget, d.fitting, way.devices, price) for way, d in found.items()]
        rows.append(
            (f"{count(budget.tokens)} tokens{rule}", *("-" if one is None else seconds(one.seconds) for one in times))
        )
        rows.append((f"  {budget.flops:.3g} FLOPs", *("" for _ in found)))
        if price is not None:
            rows.append((f"  at {price:g} an hour and device", *(_price(one) for one in times)))
    return Table(("at best", *map(str, found)), rows)


def _price(one: Spent | None) -> str:
    return "-" if one is None or one.price is None else f"{one.price:,.0f}"
