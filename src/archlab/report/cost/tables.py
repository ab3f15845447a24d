"""Tables of `archlab cost`, for one config and for several configs side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from archlab.pricing.hardware import Hardware
from archlab.pricing.params import Parameters
from archlab.pricing.pass_time import ideal, predicted, untimed
from archlab.pricing.summary import Cost, room
from archlab.pricing.units import binary, count, seconds, si
from archlab.pricing.work import PassName, Work, matrix_flops_per_byte
from archlab.report.text_table import Table

Point = tuple[int, int]
"""Context length in tokens, and batch size."""

Unit = Callable[[float], str]

OF_MODEL = "FLOPs, memory and times"
"""Numbers in these tables that leave out the teacher of a model."""


def _with_corrections(counts: Parameters) -> list[tuple[str, str, str]]:
    """Return the row of the total with the correction biases of routers, which some classes of transformers count."""
    if not counts.corrections:
        return []
    whole = counts.total + counts.corrections
    return [("total with correction biases", f"{whole:,}", count(whole))]


def of_one(cost: Cost, device: Hardware | None = None) -> Iterator[Table]:
    """Yield the tables of one config: parameters, serving, training, and the work of each pass. If a device is given,
    further tables show whether serving fits into its memory, and the shortest possible time of each pass."""
    counts, flops, memory = cost.parameters, cost.forward_flops, cost.training_memory
    yield Table(
        ("parameters", "count", "share"),
        [(role, f"{n:,}", f"{n / counts.total:.1%}") for role, n in counts.parts.items() if n]
        + [("total", f"{counts.total:,}", count(counts.total))]
        + _with_corrections(counts)
        + ([("active per token", f"{counts.active:,}", count(counts.active))] if counts.idle else [])
        + [("non-embedding", f"{counts.non_embedding:,}", count(counts.non_embedding))],
    )
    yield Table(
        (f"serving, {_tokens(cost.context, cost.source, ' of context')}", "FLOPs per token", "share"),
        [(part, si(n), f"{n / flops.total:.1%}") for part, n in flops if n] + [("forward pass", si(flops.total), "")],
    )
    yield Table(
        ("", "memory"),
        [
            *_cache(cost),
            *_recurrent(cost),
            (f"weights, {cost.dtype}", binary(cost.weight_bytes)),
            *_read(cost),
        ],
    )
    target = cost.training_target if cost.training_source else cost.training_window
    yield Table(
        (f"training, windows of {_tokens(target, cost.training_source)}", ""),
        [
            *_training_flops(cost),
            ("weights, gradients, optimizer state, float32", binary(memory.total)),
            *_step_memory(cost),
        ],
    )
    yield _intensity(cost)
    yield _kinds(cost)
    if device is not None:
        yield _room(cost, device)
        yield _times(cost, device)
        yield from _predictions(cost, device)


def _tokens(target: int, source: int, of_what: str = "") -> str:
    return f"{target:,} target + {source:,} source tokens" if source else f"{target:,} tokens{of_what}"


def _cache(cost: Cost) -> list[tuple[str, str]]:
    if not cost.decodes:
        return [("KV cache", "none: nothing is decoded")]
    label = f"  of which {cost.batch} x {cost.source:,} source tokens"
    return [
        (f"KV cache per token, {cost.dtype}", binary(cost.kv_bytes_per_token)),
        (f"KV cache of {cost.batch} x {cost.context:,} tokens, {cost.dtype}", binary(cost.kv_cache_bytes)),
        *([(label, binary(cost.source_kv_bytes))] if cost.source else []),
    ]


def _read(cost: Cost) -> list[tuple[str, str]]:
    n_bytes = cost.read_bytes_per_decoded_token
    return [] if n_bytes is None else [("read per decoded token, one sequence", binary(n_bytes))]


def _recurrent(cost: Cost) -> list[tuple[str, str]]:
    label = f"recurrent states, batch of {cost.batch}, {cost.dtype} and float32"
    return [(label, binary(cost.recurrent_bytes))] if cost.recurrent_bytes else []


def _step_memory(cost: Cost) -> list[tuple[str, str]]:
    step = cost.step_memory
    return [
        ("activations of a micro-batch", binary(step.activations)),
        ("  if layers are recomputed", binary(step.recomputed_activations)),
        ("logits", binary(step.logits)),
        ("peak memory of a step", binary(step.peak)),
        ("  if layers are recomputed", binary(step.recomputed_peak)),
    ]


def _training_flops(cost: Cost) -> list[tuple[str, str]]:
    """Return table rows with the training FLOPs that the architecture needs. If the attention kernel also computes
    hidden pairs, further rows include their FLOPs."""
    needed, tokens = cost.training_flops_per_token, cost.training_tokens
    computed = cost.computed_training_flops_per_token
    with_hidden = "  including hidden pairs that are computed"
    rows = [("FLOPs per token, forward and backward", si(needed))]
    rows += [(with_hidden, si(computed))] if computed != needed else []
    if tokens is None:
        return [*rows, ("FLOPs of the whole training", "set train.tokens=N")]
    rows += [(f"FLOPs of the whole training, {count(tokens)} tokens", f"{needed * tokens:.3g}")]
    return rows + ([(with_hidden, f"{computed * tokens:.3g}")] if computed != needed else [])


def _intensity(cost: Cost) -> Table:
    rows = [
        (
            _label(cost, name),
            si(_flops(work)),
            binary(_bytes(work)),
            _number(matrix_flops_per_byte(work)),
            f"{sum(part.count for part in work):,}",
        )
        for name, work in cost.work.items()
    ]
    return Table((f"a pass, {cost.dtype}", "FLOPs", "bytes moved", "FLOPs per byte", "operations"), rows)


def _label(cost: Cost, name: PassName) -> str:
    match name:
        case "training":
            return f"training step of {count(cost.tokens[name])} tokens"
        case "prefill":
            source = f" + {cost.source:,}" if cost.source else ""
            return f"{_reading([cost])} of {cost.batch} x {cost.context:,}{source}"
        case "decoding":
            return f"decoding step, batch of {cost.batch}"


def _reading(costs: Sequence[Cost]) -> str:
    """Return the name of the pass over a whole sequence: `prefill` if any of the models decodes after it."""
    return "prefill" if any(cost.decodes for cost in costs) else "forward pass"


def _times(cost: Cost, device: Hardware) -> Table:
    rows = list[Sequence[str]]()
    for name, work in cost.work.items():
        best = ideal(work, device, cost.dtype, cost.tokens[name])
        rows.append(
            (_label(cost, name), seconds(best.seconds), si(best.tokens_per_second), best.limit, _share(best.of_peak))
        )
    return Table((f"at best on one {device.name}", "time", "tokens/s", "limited by", "share of peak"), rows)


def _room(cost: Cost, device: Hardware) -> Table:
    serving = room(cost, device)
    kept = "weights, cache and states" if cost.decodes else "weights"
    texts = "any number" if serving.texts is None else f"{serving.texts:,}"
    return Table(
        (f"serving on one {device.name}", ""),
        [
            (kept, f"{binary(serving.needed)} of {binary(serving.memory)}"),
            ("fits", "yes" if serving.fits else "no"),
            *([(f"sequences of {cost.context:,} tokens that fit", texts)] if cost.decodes else []),
        ],
    )


def _predictions(cost: Cost, device: Hardware) -> Iterator[Table]:
    """Yield a table of times that are predicted from timings of the same kinds of operations. Yield nothing if the
    device was not measured."""
    rows = list[Sequence[str]]()
    for name, work in cost.computed_work.items():
        if (rates := device.rates(name, cost.dtype)) is None:
            continue
        if unknown := untimed(work, rates):
            rows.append((_label(cost, name), "-", "-", "-", f"not timed: {', '.join(unknown)}"))
        else:
            prediction = predicted(work, rates, cost.tokens[name])
            most, longest = max(prediction.seconds_by_kind.items(), key=lambda item: item[1])
            share = f"{most} {longest / prediction.seconds:.0%}"
            rows.append(
                (
                    _label(cost, name),
                    seconds(prediction.seconds),
                    si(prediction.tokens_per_second),
                    seconds(prediction.latency),
                    share,
                )
            )
    if rows:
        yield Table(("predicted from timings, not compiled", "time", "tokens/s", "latency", "largest part"), rows)


def _kinds(cost: Cost) -> Table:
    passes: list[PassName] = [name for name in ("training", "decoding") if name in cost.work]
    kinds = dict.fromkeys(work.kind for name in passes for work in cost.work[name])
    rows = list[Sequence[str]]()
    for kind in kinds:
        parts = [next((work for work in cost.work[name] if work.kind == kind), None) for name in passes]
        rows.append(_shares(cost, kind, passes, parts))
        if kind == "products":
            for part in cost.products["training"]:
                rows.append(_shares(cost, f"  {part}", passes, [cost.products[name].get(part) for name in passes]))
    headings = [f"{name}: {quantity}" for name in passes for quantity in ("FLOPs", "bytes")]
    return Table(("share by kind of operation", *headings), rows)


def _shares(cost: Cost, label: str, passes: Sequence[PassName], parts: Sequence[Work | None]) -> Sequence[str]:
    cells = [label]
    for name, part in zip(passes, parts, strict=True):
        whole = cost.work[name]
        cells.append(_share(part.flops / _flops(whole)) if part else "-")
        cells.append(_share(part.n_bytes / _bytes(whole)) if part else "-")
    return cells


def _share(value: float) -> str:
    return "<0.1%" if 0 < value < 0.0005 else f"{value:.1%}"


def _flops(work: Sequence[Work]) -> float:
    return sum(part.flops for part in work)


def _bytes(work: Sequence[Work]) -> float:
    return sum(part.n_bytes for part in work)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class CostQuantity(NamedTuple):
    """A quantity for which tables show each config's ratio to the first config."""

    label: str
    of: Callable[[Cost], float]
    unit: Unit
    json_key: str | None = None
    """Key in the JSON output. Default: the label."""


ACTIVE = CostQuantity("active per token", lambda c: c.parameters.active, count)
WHOLE = (
    CostQuantity("parameters", lambda c: c.parameters.total, count),
    ACTIVE,
    CostQuantity("non-embedding", lambda c: c.parameters.non_embedding, count),
    CostQuantity("weights", lambda c: c.weight_bytes, binary),
    CostQuantity("KV cache per token", lambda c: c.kv_bytes_per_token, binary),
    CostQuantity("training FLOPs per token", lambda c: c.training_flops_per_token, si),
    CostQuantity(
        "weights, gradients, optimizer state",
        lambda c: c.training_memory.total,
        binary,
        "weights, gradients, averages",
    ),
)
"""Quantities that depend neither on the context nor on the batch size."""

AT_A_POINT = (
    CostQuantity("forward FLOPs per token", lambda c: c.forward_flops.total, si),
    CostQuantity("KV cache and states", lambda c: c.state_bytes, binary),
    CostQuantity(
        "bytes moved, decoding step",
        lambda c: _bytes(c.work.get("decoding", [])),
        binary,
        "moved by a decoding step",
    ),
    CostQuantity(
        "FLOPs per byte, decoding",
        lambda c: matrix_flops_per_byte(c.work.get("decoding", [])),
        _number,
        "its FLOPs per byte",
    ),
    CostQuantity(
        "FLOPs per byte, prefill",
        lambda c: matrix_flops_per_byte(c.work["prefill"]),
        _number,
        "FLOPs per byte of prefill",
    ),
)


def side_by_side(costs_at: Mapping[str, Mapping[Point, Cost]], device: Hardware | None = None) -> Iterator[Table]:
    """Yield tables with one column per config. From the second config on, each value is followed by its ratio to the
    first config.

    The first table does not depend on the context or the batch size. Each further table is for one context and batch
    size.
    """
    names = list(costs_at)
    points = list(costs_at[names[0]])
    whole = [costs_at[name][points[0]] for name in names]
    quantities = [q for q in _shown(WHOLE, whole) if q is not ACTIVE or any(c.parameters.idle for c in whole)]
    rows = [_ratios(q.label, [q.of(c) for c in whole], q.unit) for q in quantities]
    trained = [_speed("training", whole, device)] if device else []
    yield Table((whole[0].dtype, *names), [*rows, *trained, *_windows(whole)])
    for context, batch in points:
        at = [costs_at[name][context, batch] for name in names]
        rows = [_ratios(_named(q.label, at), [q.of(c) for c in at], q.unit) for q in _shown(AT_A_POINT, at)]
        if any(c.source for c in at):
            rows.insert(0, ("source tokens", *(f"{c.source:,}" if c.source else "-" for c in at)))
        yield Table((f"{batch:,} x {context:,} tokens", *names), [*rows, *(_speeds(at, device) if device else [])])


def _shown(quantities: Sequence[CostQuantity], costs: Sequence[Cost]) -> list[CostQuantity]:
    """Return the quantities to show. If no model decodes, those of the cache and of decoding are left out."""
    return [q for q in quantities if any(cost.decodes or q.of(cost) for cost in costs)]


def _named(label: str, costs: Sequence[Cost]) -> str:
    return label.replace("prefill", _reading(costs))


def beyond_limits(costs_at: Mapping[str, Mapping[Point, Cost]]) -> list[str]:
    """Return one sentence for each config with a requested context that is longer than its maximum sequence length."""
    sentences = list[str]()
    for name, costs in costs_at.items():
        limit = next(iter(costs.values())).max_seq_len
        if longer := [f"{context:,}" for context in dict.fromkeys(c for c, _ in costs) if context > limit]:
            sentences.append(
                f"{name} is built for at most {limit:,} tokens (model.max_seq_len); "
                f"costs for {' and '.join(longer)} tokens are computed anyway"
            )
    return sentences


def with_sources(costs_at: Mapping[str, Mapping[Point, Cost]]) -> list[str]:
    """Return one sentence for each config with an encoder, about the length of its source texts."""
    sentences = list[str]()
    for name, costs in costs_at.items():
        if sources := [f"{source:,}" for source in dict.fromkeys(cost.source for cost in costs.values()) if source]:
            words = f"a source text of {' and '.join(sources)} tokens for each sequence"
            sentences.append(f"{name} reads {words}; numbers per token are per target token")
    return sentences


def ratios(cost: Cost, first: Cost) -> dict[str, float | None]:
    """Return every quantity of `cost` divided by the same quantity of `first`. Both are for the same context and batch
    size. A ratio is None if its divisor is zero."""
    quantities = (*WHOLE, *AT_A_POINT)
    return {q.json_key or q.label: q.of(cost) / q.of(first) if q.of(first) else None for q in quantities}


def _speeds(costs: Sequence[Cost], device: Hardware) -> Iterator[Sequence[str]]:
    yield (f"fits in {binary(device.memory)}", *("yes" if room(c, device).fits else "no" for c in costs))
    yield _speed("prefill", costs, device)
    if any(cost.decodes for cost in costs):
        yield _speed("decoding", costs, device)


def _speed(name: PassName, costs: Sequence[Cost], device: Hardware) -> Sequence[str]:
    speeds = [
        ideal(c.work[name], device, c.dtype, c.tokens[name]).tokens_per_second if name in c.work else 0.0 for c in costs
    ]
    return _ratios(_named(f"tokens/s, {name}, {device.name}", costs), speeds, si)


def _windows(costs: Sequence[Cost]) -> list[Sequence[str]]:
    """Return a table row with the training windows if they differ between configs. The window affects FLOPs per token
    and training speed."""
    windows = [cost.training_window for cost in costs]
    return [("training window, tokens", *(f"{n:,}" for n in windows))] if len(set(windows)) > 1 else []


def _ratios(label: str, values: Sequence[float], unit: Unit) -> Sequence[str]:
    first = values[0]
    return (label, unit(first) if first else "-", *(_cell(value, first, unit) for value in values[1:]))


def _cell(value: float, first: float, unit: Unit) -> str:
    if not value:
        return "-"
    return f"{unit(value)} {value / first:.2f}x" if first else unit(value)
