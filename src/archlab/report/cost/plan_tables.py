"""Tables of `archlab cost --devices`: memory, communication and time for each way to distribute a training run."""

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
    config: Config,
    plans_by_way: Mapping[Parallel, PlanPair],
    refused: Sequence[str],
    device: Hardware,
    price: float | None,
) -> Iterator[Table]:
    """Yield tables with one column per way to distribute the training run over the devices. `price` is the price of one
    device per hour."""
    plans = [pair.plain for pair in plans_by_way.values()]
    recomputed = [pair.recomputed for pair in plans_by_way.values()]
    chosen, n_devices = choose(plans_by_way), next(iter(plans_by_way)).devices
    names = [f"{parallel} *" if chosen and parallel == chosen.way else str(parallel) for parallel in plans_by_way]
    yield Table(
        (f"each of {n_devices} {device.name}", *names),
        [
            *_memory(plans),
            _row("total", plans, lambda p: binary(p.total_memory)),
            _row("  recomputing layers", recomputed, lambda p: binary(p.total_memory)),
            _row(f"fits in {binary(device.memory)}", plans, _fits),
            _row("  recomputing layers", recomputed, _fits),
            _row("micro-batch, sequences", plans, lambda p: str(p.micro_batch)),
            _row("  largest that fits", plans, _largest_micro_batch),
            _row("  largest, recomputing", recomputed, _largest_micro_batch),
            _row("tokens per step", plans, lambda p: count(p.batch_tokens)),
            _row("sent per step", plans, lambda p: binary(sum(p.sent.values()))),
            *([_row("layers per stage", plans, _stages)] if any(len(p.stages) > 1 for p in plans) else []),
            _row("pipeline bubble", plans, lambda p: f"{p.bubble:.0%}"),
            _row("time of a step at best", plans, lambda p: seconds(p.computing)),
            _row("  recomputing layers", recomputed, lambda p: seconds(p.computing)),
            _row("sending, if not overlapped", plans, _sending),
            _row("  recomputing layers", recomputed, _sending),
        ],
    )
    yield _budgets(config, plans_by_way, names, device, price)
    if chosen:
        yield Table((f"* {chosen.way}",), [(reason,) for reason in _reasons(chosen, device)])
    yield _published()
    if refused:
        yield Table(("not possible",), [(reason,) for reason in refused])


def _row(label: str, plans: Sequence[TrainingPlan], cell: Callable[[TrainingPlan], str]) -> Sequence[str]:
    return (label, *(cell(plan) for plan in plans))


_LABELS = {"weights, gradients, averages": "weights, gradients, optimizer state"}
"""Labels of parts of the memory whose JSON key is different."""


def _memory(plans: Sequence[TrainingPlan]) -> Iterator[Sequence[str]]:
    for part in plans[0].memory:
        if any(plan.memory[part] for plan in plans):
            yield _row(
                _LABELS.get(part, part), plans, lambda p, part=part: binary(p.memory[part]) if p.memory[part] else "-"
            )


def _sending(plan: TrainingPlan) -> str:
    return f"{seconds(plan.sending)} {plan.sending / plan.computing:.0%}"


def _fits(plan: TrainingPlan) -> str:
    return "yes" if plan.fits else "no"


def _largest_micro_batch(plan: TrainingPlan) -> str:
    return str(plan.largest_micro_batch or "none")


def _stages(plan: TrainingPlan) -> str:
    return "-".join(str(n) for n in sorted({min(plan.stages), max(plan.stages)}))


def _budgets(
    config: Config,
    plans_by_way: Mapping[Parallel, PlanPair],
    names: Sequence[str],
    device: Hardware,
    price: float | None,
) -> Table:
    activations = [
        "does not fit" if pair.fitting is None else "recomputed" if pair.fitting.recomputes else "kept"
        for pair in plans_by_way.values()
    ]
    rows: list[Sequence[str]] = [("activations", *activations)]
    for budget in budgets(config):
        rule = f", {rule_in_words(parameters(config.model))}" if budget.is_rule else ""
        at_best = [
            pair.fitting and spent(budget, pair.fitting, way.devices, device, price)
            for way, pair in plans_by_way.items()
        ]
        high, low = ([spent and at_published_mfu(spent)[i] for spent in at_best] for i in (0, 1))
        rows.append((f"{count(budget.tokens)} tokens{rule}", *map(_time, at_best)))
        rows.append((f"  {budget.flops:.3g} FLOPs, MFU", *(f"{spent.mfu:.0%}" if spent else "-" for spent in at_best)))
        rows.append((f"  at {HIGHEST_MFU.high:.0%} MFU, {HIGHEST_MFU.model}", *map(_time, high)))
        rows.append((f"  at {LOWEST_MFU.low:.0%} MFU, {LOWEST_MFU.model}", *map(_time, low)))
        if price is not None:
            rows.append((f"  price at {price:g} per device-hour", *map(_price, at_best)))
            rows.append((f"    at {LOWEST_MFU.low:.0%} MFU", *map(_price, low)))
    return Table(("at best", *names), rows)


def _reasons(chosen: ChosenWay, device: Hardware) -> Iterator[str]:
    plan = chosen.plan
    step, fastest = seconds(plan.step), seconds(chosen.fastest)
    others = "no other way that fits is faster" if step == fastest else f"the fastest way needs {fastest}"
    yield f"A step takes {step} at best; {others}."
    if chosen.as_fast:
        least = seconds(min(other.sending for other in chosen.as_fast))
        yield (
            "Of the ways within 1% of the fastest, this one spends the least time on communication: "
            f"{seconds(plan.sending)}. The others need {least} or more."
        )
    activations = "recomputes layers" if plan.recomputes else "keeps all activations"
    free = binary(device.memory - plan.total_memory)
    yield f"This way {activations} and leaves {free} of {binary(device.memory)} free on each device."


def _published() -> Table:
    rows = [
        (published.model, published.devices, _range(published.low, published.high), sources()[published.source].cited)
        for published in PUBLISHED_MFU
    ]
    return Table(("published MFU", "devices", "MFU", "source"), rows)


def _range(low: float, high: float) -> str:
    return f"{low:.1%}" if low == high else f"{low:.0%} to {high:.0%}"


def _time(spent: Spent | None) -> str:
    return "-" if spent is None else seconds(spent.seconds)


def _price(spent: Spent | None) -> str:
    return "-" if spent is None or spent.price is None else f"{spent.price:,.0f}"
