"""What `archlab cost --devices` says, as tables: what fits, what is sent, and how long it takes, way by way."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from archlab.config.schema import Config
from archlab.evidence.claims import sources
from archlab.pricing.budget import (
    HIGHEST_MFU,
    LOWEST_MFU,
    PUBLISHED_MFU,
    ChosenWay,
    PlanPair,
    Spent,
    at_published_mfu,
    budgets,
    choose,
    rule_in_words,
    spent,
)
from archlab.pricing.hardware import Hardware
from archlab.pricing.params import parameters
from archlab.pricing.partition import Parallel
from archlab.pricing.training_plan import TrainingPlan
from archlab.pricing.units import binary, count, seconds
from archlab.report.text_table import Table


def tables(
    config: Config, found: Mapping[Parallel, PlanPair], refused: Sequence[str], device: Hardware, price: float | None
) -> Iterator[Table]:
    """A column for every way of dividing; `price` of a device and hour."""
    plans = [divided.plain for divided in found.values()]
    recomputed = [divided.recomputed for divided in found.values()]
    chosen, n_devices = choose(found), next(iter(found)).devices
    names = [f"{parallel} *" if chosen and parallel == chosen.way else str(parallel) for parallel in found]
    yield Table(
        (f"one {device.name} of {n_devices}", *names),
        [
            *_memory(plans),
            _row("in all", plans, lambda p: binary(p.total_memory)),
            _row("  recomputing layers", recomputed, lambda p: binary(p.total_memory)),
            _row(f"fits in {binary(device.memory)}", plans, _fits),
            _row("  recomputing layers", recomputed, _fits),
            _row("micro-batch, texts", plans, lambda p: str(p.micro_batch)),
            _row("  largest that fits", plans, _largest_micro_batch),
            _row("  largest, recomputing", recomputed, _largest_micro_batch),
            _row("tokens of a step", plans, lambda p: count(p.batch_tokens)),
            _row("sent in a step", plans, lambda p: binary(sum(p.sent.values()))),
            *([_row("layers of a stage", plans, _stages)] if any(len(p.stages) > 1 for p in plans) else []),
            _row("pipeline's bubble", plans, lambda p: f"{p.bubble:.0%}"),
            _row("a step at best", plans, lambda p: seconds(p.computing)),
            _row("  recomputing layers", recomputed, lambda p: seconds(p.computing)),
            _row("sending, unless hidden", plans, _sending),
            _row("  recomputing layers", recomputed, _sending),
        ],
    )
    yield _budgets(config, found, names, device, price)
    if chosen:
        yield Table((f"* {chosen.way}",), [(reason,) for reason in _reasons(chosen, device)])
    yield _published()
    if refused:
        yield Table(("not possible",), [(reason,) for reason in refused])


def _row(label: str, plans: Sequence[TrainingPlan], cell: Callable[[TrainingPlan], str]) -> Sequence[str]:
    return (label, *(cell(plan) for plan in plans))


def _memory(plans: Sequence[TrainingPlan]) -> Iterator[Sequence[str]]:
    for what in plans[0].memory:
        if any(plan.memory[what] for plan in plans):
            yield _row(what, plans, lambda p, what=what: binary(p.memory[what]) if p.memory[what] else "-")


def _sending(plan: TrainingPlan) -> str:
    """Seconds to send, and their share of computing: a wide model's tensor groups send little for what they compute."""
    return f"{seconds(plan.sending)} {plan.sending / plan.computing:.0%}"


def _fits(plan: TrainingPlan) -> str:
    return "yes" if plan.fits else "no"


def _largest_micro_batch(plan: TrainingPlan) -> str:
    return str(plan.largest_micro_batch or "none")


def _stages(plan: TrainingPlan) -> str:
    return "-".join(str(n) for n in sorted({min(plan.stages), max(plan.stages)}))


def _budgets(
    config: Config, found: Mapping[Parallel, PlanPair], names: Sequence[str], device: Hardware, price: float | None
) -> Table:
    """Time, utilization and money of what fits, with layers recomputed if nothing else fits."""
    how = [
        "does not fit" if d.fitting is None else "recomputing" if d.fitting.recomputes else "keeping"
        for d in found.values()
    ]
    rows: list[Sequence[str]] = [("activations", *how)]
    for budget in budgets(config):
        rule = f", {rule_in_words(parameters(config.model))}" if budget.is_rule else ""
        at_best = [d.fitting and spent(budget, d.fitting, way.devices, device, price) for way, d in found.items()]
        high, low = ([spent and at_published_mfu(spent)[i] for spent in at_best] for i in (0, 1))
        rows.append((f"{count(budget.tokens)} tokens{rule}", *map(_time, at_best)))
        rows.append((f"  {budget.flops:.3g} FLOPs, MFU", *(f"{spent.mfu:.0%}" if spent else "-" for spent in at_best)))
        rows.append((f"  at {HIGHEST_MFU.high:.0%} MFU, {HIGHEST_MFU.model}", *map(_time, high)))
        rows.append((f"  at {LOWEST_MFU.low:.0%} MFU, {LOWEST_MFU.model}", *map(_time, low)))
        if price is not None:
            rows.append((f"  at {price:g} an hour and device", *map(_price, at_best)))
            rows.append((f"    at {LOWEST_MFU.low:.0%} MFU", *map(_price, low)))
    return Table(("at best", *names), rows)


def _reasons(chosen: ChosenWay, device: Hardware) -> Iterator[str]:
    """Why that way would be chosen, a short sentence a row."""
    plan = chosen.plan
    step, fastest = seconds(plan.step), seconds(chosen.fastest)
    others = "no way that fits is faster" if step == fastest else f"the fastest way needs {fastest}"
    yield f"A step takes {step} at best; {others}."
    if chosen.as_fast:
        least = seconds(min(other.sending for other in chosen.as_fast))
        yield f"Of the ways within 1% of that, it sends least: {seconds(plan.sending)}, others {least} or more."
    activations = "recomputes layers" if plan.recomputes else "keeps all activations"
    yield f"It {activations} and leaves {binary(device.memory - plan.total_memory)} of {binary(device.memory)}."


def _published() -> Table:
    rows = [
        (published.model, published.devices, _range(published.low, published.high), sources()[published.source].cited)
        for published in PUBLISHED_MFU
    ]
    return Table(("published MFU", "devices", "", "source"), rows)


def _range(low: float, high: float) -> str:
    return f"{low:.1%}" if low == high else f"{low:.0%} to {high:.0%}"


def _time(spent: Spent | None) -> str:
    return "-" if spent is None else seconds(spent.seconds)


def _price(spent: Spent | None) -> str:
    return "-" if spent is None or spent.price is None else f"{spent.price:,.0f}"
