"""What `archlab cost --devices` says: what fits, what is sent, and how long it takes, way by way."""

from collections.abc import Iterator, Sequence

from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.cost.flops import training_flops
from archlab.cost.hardware import Hardware
from archlab.cost.params import parameters
from archlab.cost.plan import WAYS, Parallel, Plan, plan
from archlab.cost.units import binary, count, seconds
from archlab.errors import UserError
from archlab.report.cost_tables import Table

CHINCHILLA = 20
"""Tokens per parameter with which a FLOP budget is spent best (Hoffmann 2022)."""


def ways(devices: int) -> list[Parallel]:
    """So many devices, each way alone."""
    return [Parallel(**{way: devices}) for way in WAYS] if devices > 1 else [Parallel()]


def plans(config: Config, tried: Sequence[Parallel], device: Hardware, price: float | None) -> Iterator[Table]:
    """A column for every way of dividing. UserError where there is but one way and it cannot be gone."""
    train, model = resolve_train(config), config.model
    batch, micro = train.rows, max(1, train.micro_batch_tokens // train.seq_len)
    found, refused = dict[str, tuple[Plan, Plan]](), list[str]()
    for parallel in tried:
        try:
            one, recomputed = (
                plan(
                    model,
                    parallel,
                    device,
                    batch=batch,
                    tokens=train.seq_len,
                    micro_batch=min(micro, max(1, batch // parallel.replicas)),
                    recompute=recompute,
                )
                for recompute in (False, True)
            )
            found[str(parallel)] = one, recomputed
        except UserError as error:
            if len(tried) == 1:
                raise
            refused.append(f"{parallel}: {error}")
    if not found:
        raise UserError("\n".join(refused))
    both = list(found.values())
    kinds = dict.fromkeys(kind for one, _ in both for kind, n in one.memory.items() if n)
    rows = [(kind, *(binary(one.memory[kind]) if one.memory[kind] else "-" for one, _ in both)) for kind in kinds]
    yield Table(
        (f"one {device.name} of {tried[0].devices}", *found),
        [
            *rows,
            ("in all", *(_fits(one, device) for one, _ in both)),
            ("  with recomputation", *(_fits(recomputed, device) for _, recomputed in both)),
            ("largest micro-batch, texts", *(str(one.largest_micro_batch) for one, _ in both)),
            ("  with recomputation", *(str(recomputed.largest_micro_batch) for _, recomputed in both)),
            ("sent in a step", *(binary(sum(one.sent.values())) for one, _ in both)),
            ("pipeline's bubble", *(f"{one.bubble:.0%}" for one, _ in both)),
            ("a step at best", *(seconds(one.computing) for one, _ in both)),
            ("sending, if not hidden", *(seconds(one.sending) for one, _ in both)),
        ],
    )
    yield _budgets(config, both, list(found), tried[0].devices, price)
    if refused:
        yield Table(("not possible",), [(reason,) for reason in refused])


def _fits(one: Plan, device: Hardware) -> str:
    return f"{binary(one.total_memory)}{'' if one.fits else ' !'}"


def _budgets(
    config: Config, both: Sequence[tuple[Plan, Plan]], names: Sequence[str], devices: int, price: float | None
) -> Table:
    """Time and money for the tokens that the config asks for, and for as many as its parameters are worth."""
    train, n = resolve_train(config), parameters(config.model)
    best = CHINCHILLA * n.total
    asked = {f"{count(best)} tokens, {CHINCHILLA} per parameter": best}
    if "tokens" in config.train.model_fields_set:
        asked = {f"{count(train.trained)} tokens": train.trained, **asked}
    rows = list[Sequence[str]]()
    for label, tokens in asked.items():
        flops = f"{training_flops(config.model, train.seq_len) * tokens:.3g} FLOPs"
        times = [tokens / train.batch_tokens * max(one.computing, one.sending) for one, _ in both]
        rows.append((f"{label}, {flops}", *(seconds(time) for time in times)))
        if price is not None:
            rows.append((f"  at {price:g} an hour and device", *(f"{t / 3600 * devices * price:,.0f}" for t in times)))
    return Table(("at best, all sending hidden", *names), rows)
