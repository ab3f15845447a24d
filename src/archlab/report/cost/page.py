"""Page with the costs of configs: tables and charts in one HTML file that opens offline."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from archlab.config.components.multi_head import MultiHead
from archlab.config.layers import encoder_of, layer_configs, sees_as, with_overrides
from archlab.config.schema import Config
from archlab.files import write_page
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import ideal
from archlab.pricing.summary import Cost, cost
from archlab.pricing.units import binary, si
from archlab.pricing.work import PassName
from archlab.report.charts.axes import LENGTH, covering, powers_of_ten
from archlab.report.charts.marks import DASHED, chart_of, color, crosshair, dash_turns, layered, tooltip
from archlab.report.cost.tables import Point, beyond_limits, side_by_side, with_sources
from archlab.report.html import render_page

BATCHES = tuple(2**n for n in range(10))


def write_costs(
    configs: Mapping[str, Config],
    costs_at: Mapping[str, Mapping[Point, Cost]],
    device: Hardware,
    dtype: Format,
    path: Path,
    source: int | None = None,
) -> Path:
    """Write the page, creating missing parent folders, and return its path. `source` is the number of source tokens of
    each sequence, if the user set it."""
    return write_page(path, render(configs, costs_at, device, dtype, source))


def render(
    configs: Mapping[str, Config],
    costs_at: Mapping[str, Mapping[Point, Cost]],
    device: Hardware,
    dtype: Format,
    source: int | None = None,
) -> str:
    points = list(next(iter(costs_at.values())))
    requested = list(dict.fromkeys(context for context, _ in points))
    batch, most = points[0][1], max(b for _, b in points)
    varied = next((name for name in configs if _has_heads_to_vary(configs[name])), None)
    costs = {name: list(at.values()) for name, at in costs_at.items()}
    charts = {"roofline": roofline(costs, device), "memory": memory(costs, device)}
    if varied:
        kinds = [
            row
            for context in requested
            for row in _kinds_of_heads(configs[varied], most, context, dtype, device, source)
        ]
        charts["heads"] = heads(varied, list(configs), kinds)
    if any("decoding" in cost.work for at in costs.values() for cost in at):
        limits = {name: config.model.max_seq_len for name, config in configs.items()}
        at_context = {
            name: [cost(config, batch, c, dtype, source) for c in _contexts(requested, limits[name])]
            for name, config in configs.items()
        }
        kept = {n: [(c.context, _kept(c), binary(_kept(c))) for c in at] for n, at in at_context.items()}
        speeds = {n: [_speed(c, c.context, device) for c in at] for n, at in at_context.items()}
        at_batch = {
            name: {
                context: [_speed(cost(config, b, context, dtype, source), b, device) for b in BATCHES]
                for context in requested
            }
            for name, config in configs.items()
        }
        charts |= {
            "cache": over_context(kept, limits, requested, "bytes kept"),
            "context": over_context(speeds, limits, requested, "decoded tokens/s"),
            "batch": over_batch(at_batch, "decoded tokens/s"),
        }
    return render_page(
        "cost",
        charts,
        names=list(configs),
        varied=varied,
        varies_decoder=varied is not None and configs[varied].model.encoder is not None,
        device=device,
        dtype=dtype,
        asked=" and ".join(f"{context:,}" for context in requested),
        beyond=[*beyond_limits(costs_at), *_about_sources(costs_at, source)],
        batch=batch,
        most=most,
        tables=list(side_by_side(costs_at, device)),
    )


def _about_sources(costs_at: Mapping[str, Mapping[Point, Cost]], source: int | None) -> list[str]:
    """Return sentences about the length of source texts, if a config has an encoder."""
    sentences = with_sources(costs_at)
    grows = source is None and sentences
    return [*sentences, *(["In charts over the context, source texts are as long as the context"] if grows else [])]


def _contexts(requested: Sequence[int], limit: int) -> list[int]:
    """Return the context lengths to draw: all requested lengths, and powers of two.

    The powers end at the model's maximum sequence length or at the longest requested length, whichever is longer. They
    start at 512 tokens, or earlier if the end is below 8,192 tokens.
    """
    powers = max(limit, *requested).bit_length()
    return sorted({*requested, *(2**n for n in range(max(0, min(9, powers - 5)), powers))})


def _kept(priced: Cost) -> int:
    return priced.state_bytes


def _speed(priced: Cost, x: int, device: Hardware) -> tuple[int, float, str]:
    if "decoding" not in priced.work:
        return x, 0.0, ""
    speed = ideal(priced.work["decoding"], device, priced.dtype, priced.tokens["decoding"]).tokens_per_second
    return x, speed, f"{si(speed)} tokens/s"


def _kinds_of_heads(
    config: Config, batch: int, context: int, dtype: Format, device: Hardware, source: int | None
) -> Iterator[tuple[str, int, float, float]]:
    """Yield (kind, context, bytes kept per token, decoded tokens per second) for variants of the config with different
    kinds of attention heads.

    With multi-head attention, the number of KV heads is the number of query heads, a quarter or an eighth of it, the
    config's own number, or one. The last variant is latent attention in DeepSeek's proportions: the latent vector is 4
    heads wide, and its rotated part is half a head wide.

    In a model with an encoder, the heads of self-attention and cross-attention in the decoder vary, and those of the
    encoder do not. Latent attention cannot read an encoder, so it is left out.
    """
    heads = layer_configs(config.model)[0].multi_head
    H, C = heads.n_heads, heads.head_dim
    numbers = {H, *(H // n for n in (4, 8) if H % n == 0), heads.n_kv_heads, 1}
    names = {H: "MHA", 1: "MQA"}
    kinds: dict[str, dict[str, Any]] = {
        names.get(n, f"GQA, {n} heads"): {"n_kv_heads": n} for n in sorted(numbers, reverse=True)
    }
    encoder, of_encoder = encoder_of(config.model), dict[str, Any]()
    if encoder is None:
        kinds["latent"] = {
            "kind": "latent", "n_heads": H, "kv_rank": 4 * C, "nope_dim": C, "rope_dim": C // 2, "v_dim": C,
        }  # fmt: skip
    else:
        own = layer_configs(encoder)[0].multi_head.n_kv_heads
        of_encoder = {"encoder": {"attention": {"n_kv_heads": own}}}
    for name, overrides in kinds.items():
        model = with_overrides(config.model, {"attention": overrides, **of_encoder})
        varied_cost = cost(config.model_copy(update={"model": model}), batch, context, dtype, source)
        yield name, context, varied_cost.kv_bytes_per_token, _speed(varied_cost, 0, device)[1]


def _has_heads_to_vary(config: Config) -> bool:
    """Return whether all layers have multi-head attention with a KV cache and the same heads. Their windows may
    differ. In a model with an encoder, this must also hold for cross-attention, without overrides."""
    if config.model.encoder is not None and config.model.encoder.cross:
        return False
    attentions = [layer.attention for layer in layer_configs(config.model)]
    heads = {(a.n_heads, a.n_kv_heads, a.head_dim) if isinstance(a, MultiHead) else None for a in attentions}
    return heads != {None} and len(heads) == 1 and not sees_as(config.model, "two_sided")


_GIB = 2**30
_Rows = Sequence[Mapping[str, Any]]

PASSES: dict[PassName, str] = {"training": "training", "prefill": "prefill (reading)", "decoding": "decoding"}
"""Map each pass to its name on the page."""
_WITHOUT_DECODING = "forward pass"
"""Name of the pass over a whole sequence if the model cannot decode after it."""


def roofline(costs_by_config: Mapping[str, Sequence[Cost]], device: Hardware) -> alt.LayerChart:
    """Return a roofline chart: the highest FLOPs per second that the device can reach, over FLOPs per byte. A dot marks
    every pass.

    `costs_by_config` maps the name of a config to its cost at each context and batch size.
    """
    peak, bandwidth = device.speed(next(iter(costs_by_config.values()))[0].dtype), device.bandwidth
    dots = [
        {
            "config": name,
            "pass": _name_of(name_of_pass, cost),
            "intensity": at.flops_per_byte,
            "speed": at.of_peak * peak,
            "text": f"{_pass_in_words(name_of_pass, cost)}: {at.flops_per_byte:.3g} FLOPs per byte, "
            f"{si(at.of_peak * peak)} FLOP/s at best",
        }
        for name, costs in costs_by_config.items()
        for cost in costs
        for name_of_pass, work in cost.work.items()
        for at in [ideal(work, device, cost.dtype, cost.tokens[name_of_pass])]
    ]
    ridge = peak / bandwidth
    low, high = min(0.5, *(d["intensity"] for d in dots)) / 1.5, max(ridge * 8, *(d["intensity"] for d in dots)) * 1.5
    roof = [{"intensity": x, "speed": min(peak, x * bandwidth)} for x in (low, ridge, high)]
    x = alt.X("intensity:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False))
    speeds = [d["speed"] for d in dots]
    y = alt.Y("speed:Q", scale=alt.Scale(type="log", domain=[min(speeds) / 2, peak * 2], nice=False)).axis(
        title="FLOP/s",
        format=".3~s",
        values=[*(tick for tick in powers_of_ten(min(speeds), max(speeds)) if 2 * tick < peak), peak],
    )
    x = x.axis(title="FLOPs per byte moved", format="~g", tickCount=6, grid=False)
    line = chart_of(roof).mark_line(strokeWidth=2, clip=True, style="notch").encode(x=x, y=y)
    corner = chart_of([{"intensity": ridge, "speed": peak, "ridge": f"ridge: {ridge:.3g} FLOPs per byte"}])
    label = corner.mark_text(baseline="bottom", dy=-5).encode(x=x, y=y, text="ridge:N")
    points = chart_of(dots).mark_point(size=90, strokeWidth=2)  # not filled, so that points show through each other
    names = [name for name in (*PASSES.values(), _WITHOUT_DECODING) if any(dot["pass"] == name for dot in dots)]
    shape = alt.Shape("pass:N", scale=alt.Scale(domain=names)).legend(title=None, orient="bottom", columns=2)
    points = points.encode(
        x=x, y=y, color=color([*costs_by_config], "config"), shape=shape, tooltip=tooltip("config", "text")
    )
    return layered([line, label, points], "Roofline: the highest speed of a pass at its FLOPs per byte")


def _name_of(name_of_pass: PassName, cost: Cost) -> str:
    return PASSES[name_of_pass] if cost.decodes or name_of_pass == "training" else _WITHOUT_DECODING


def _pass_in_words(name_of_pass: PassName, cost: Cost) -> str:
    if name_of_pass == "training":
        return f"{PASSES[name_of_pass]}, windows of {cost.training_window:,} tokens"
    return f"{_name_of(name_of_pass, cost)}, {cost.batch:,} x {cost.context:,} tokens"


def memory(costs_by_config: Mapping[str, Sequence[Cost]], device: Hardware) -> alt.LayerChart:
    """Return a chart of the memory that serving needs. It has one bar for each config, context and batch size."""
    costs = {
        _on_two_lines(name, f"{c.batch:,} x {c.context:,} tokens"): c
        for name, at in costs_by_config.items()
        for c in at
    }
    bars = [
        {"config": label, "part": part, "order": order, "GiB": n / _GIB, "text": f"{part}: {binary(n)}"}
        for label, cost in costs.items()
        for order, (part, n) in enumerate(
            {
                "weights": cost.weight_bytes,
                "KV cache": cost.kv_cache_bytes,
                "recurrent states": cost.recurrent_bytes,
            }.items()
        )
        if n
    ]
    y = alt.Y("config:N", sort=list(costs)).axis(title=None, labelLimit=180, labelExpr=_LINES)
    most = max(device.memory, *map(_served, costs.values())) / _GIB
    x = alt.X("GiB:Q", scale=alt.Scale(domain=[0, 1.05 * most], nice=False)).axis(title="GiB", tickCount=5)
    kept = [part for part in ("weights", "KV cache", "recurrent states") if any(bar["part"] == part for bar in bars)]
    parts = alt.Color("part:N", scale=alt.Scale(domain=kept, range="ordinal"))
    bar = chart_of(bars).mark_bar(cornerRadius=1, height={"band": 0.6})
    bar = bar.encode(
        x=x, y=y, order="order:Q", color=parts.legend(title=None, orient="bottom", columns=2), tooltip=tooltip("text")
    )
    limit = [{"GiB": device.memory / _GIB, "text": f"{device.name}: {binary(device.memory)}"}]
    rule = chart_of(limit).mark_rule(strokeDash=DASHED, style="notch").encode(x="GiB:Q")
    is_right = device.memory / _GIB > most / 2
    label = chart_of(limit).mark_text(align="right" if is_right else "left", dx=-5 if is_right else 5)
    label = label.encode(x="GiB:Q", y=alt.value(-8), text="text:N")
    return layered([bar, rule, label], "Memory of serving each config", 46 * len(costs) + 20)


_LINES = "split(datum.label, '|')"
"""Vega expression that splits a label into lines."""


def _on_two_lines(first: str, second: str) -> str:
    return f"{first}|{second}"


def _served(cost: Cost) -> int:
    return cost.weight_bytes + cost.state_bytes


def over_context(
    points: Mapping[str, Sequence[tuple[int, float, str]]],
    limits: Mapping[str, int],
    requested: Sequence[int],
    y_title: str,
) -> alt.LayerChart:
    """Return a chart over the context length with one line per config.

    `points` maps the name of a config to its list of (context, y, tooltip). A line is dashed beyond the maximum
    sequence length of its config. Requested contexts have a tick and a larger dot.
    """
    rows = list[Mapping[str, Any]]()
    for name, values in points.items():
        last_within = max((context for context, *_ in values if context <= limits[name]), default=0)
        for context, y, text in values:
            row = {"config": name, "line": name, "x": context, "y": y, "asked": context in requested,
                   "text": f"{context:,} tokens: {text}"}  # fmt: skip
            rows += [{**row, "part": "within"}] if context <= limits[name] else []
            rows += [{**row, "part": "beyond"}] if context >= last_within and last_within < values[-1][0] else []
    contexts = sorted({row["x"] for row in rows})
    dash = alt.StrokeDash("part:N", scale=alt.Scale(domain=["within", "beyond"], range=[[1, 0], DASHED])).legend(None)
    return _over(rows, list(points), _ticks(contexts, requested), dash, "tokens of context", y_title)


def over_batch(points: Mapping[str, Mapping[int, Sequence[tuple[int, float, str]]]], y_title: str) -> alt.LayerChart:
    """Return a chart over the batch size with one line for each config and context.

    `points[name][context]` is a list of (batch, y, tooltip) for the config with this name.
    """
    rows = [
        {"config": name, "line": f"{name}, {context}", "x": batch, "y": y, "context": f"{context:,}",
         "text": f"{batch:,} x {context:,} tokens: {text}"}
        for name, contexts in points.items()
        for context, values in contexts.items()
        for batch, y, text in values
    ]  # fmt: skip
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    dash = alt.StrokeDash("context:N", scale=alt.Scale(domain=contexts, range=dash_turns(len(contexts))))
    legend = alt.Legend(title="tokens of context", orient="bottom", symbolType="stroke", symbolSize=400)
    dash = dash.legend(legend if len(contexts) > 1 else None)
    return _over(rows, list(points), _ticks(sorted({row["x"] for row in rows})), dash, "batch (sequences)", y_title)


def _ticks(values: Sequence[int], requested: Sequence[int] = ()) -> list[int]:
    ticks = [*requested]
    for value in values:
        if all(max(value / tick, tick / value) >= 4 for tick in ticks):
            ticks.append(value)
    return sorted(ticks)


def _over(
    rows: _Rows, names: Sequence[str], ticks: Sequence[int], dash: alt.StrokeDash, x_title: str, y_title: str
) -> alt.LayerChart:
    shown = [row for row in rows if row["y"]]
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False)).axis(title=x_title, values=ticks, labelExpr=LENGTH)
    marks = covering([row["y"] for row in shown]) if shown else []
    y = alt.Y("y:Q", scale=alt.Scale(type="log", domain=[marks[0], marks[-1]] if marks else alt.Undefined, nice=False))
    y = y.axis(title=y_title, labelExpr="replace(format(datum.value, '~s'), 'k', 'K')", values=marks)
    base = chart_of(shown).encode(x=x, y=y, color=color(names, "config"))
    dots = base.mark_point(filled=True).encode(size=alt.condition("datum.asked", alt.value(70), alt.value(22)))
    line = base.mark_line(strokeWidth=2).encode(strokeDash=dash)
    pointed = crosshair(base.encode(tooltip=tooltip("config", "text")), "x", y, "line")
    return layered([line, dots, *pointed], f"{y_title} over {x_title}")


def heads(config: str, names: Sequence[str], rows: Sequence[tuple[str, int, float, float]]) -> alt.LayerChart:
    """Return a chart that compares kinds of attention heads for one config. `rows` holds (kind, context, bytes kept per
    token, decoded tokens per second)."""
    several = len({context for _, context, *_ in rows}) > 1
    bars = [
        {
            "config": config,
            "kind": _on_two_lines(kind, f"{context:,} tokens") if several else kind,
            "speed": speed,
            "text": f"{si(speed)} tokens/s|{binary(kept)} kept per token",
        }
        for kind, context, kept, speed in rows
    ]
    room = 3 * max(bar["speed"] for bar in bars)
    x = alt.X("speed:Q", scale=alt.Scale(domain=[0, room], nice=False)).axis(None)
    y = alt.Y("kind:N", sort=None).axis(title=None, labelLimit=180, labelExpr=_LINES)
    base = chart_of(bars).encode(x=x, y=y)
    bar = base.mark_bar(cornerRadius=1, height={"band": 0.6}).encode(color=color(names, "config"))
    words = base.mark_text(align="left", dx=6, baseline="bottom", dy=2, lineBreak="|").encode(text="text:N")
    return layered([bar, words], "Decoding speed and bytes kept per token, by kind of heads", 40 * len(bars))
