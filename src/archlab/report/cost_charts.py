"""Pictures of what configs cost: a roofline, memory, cache and decoding speed over context and batch, kinds of heads.

Colours come from the page's theme, one per config.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from archlab.cost.hardware import Hardware
from archlab.cost.roofline import ideal
from archlab.cost.summary import Cost
from archlab.cost.units import binary, si
from archlab.cost.work import PassName

_HEIGHT = 240
_GIB = 2**30
_Rows = Sequence[Mapping[str, Any]]

PASSES: dict[PassName, str] = {"training": "training", "prefill": "reading (prefill)", "decoding": "decoding"}
"""Name of a pass -> what the page calls it."""


def roofline(found: Mapping[str, Sequence[Cost]], device: Hardware) -> alt.LayerChart:
    """FLOPs per second that the device could do at a pass's FLOPs per byte, and where every pass stands under it.

    `found`: name of a config -> its cost at each batch.
    """
    peak, bandwidth = device.speed(next(iter(found.values()))[0].dtype), device.bandwidth
    dots = [
        {
            "config": name,
            "pass": PASSES[passed],
            "intensity": at.flops_per_byte,
            "speed": at.of_peak * peak,
            "text": f"{PASSES[passed]}, batch {cost.batch:,}: {at.flops_per_byte:.3g} FLOPs per byte, "
            f"{si(at.of_peak * peak)}FLOP/s at best",
        }
        for name, costs in found.items()
        for cost in costs
        for passed, work in cost.work.items()
        for at in [ideal(work, device, cost.dtype, cost.tokens[passed])]
    ]
    ridge = peak / bandwidth
    low, high = min(0.5, *(d["intensity"] for d in dots)) / 1.5, max(ridge * 8, *(d["intensity"] for d in dots)) * 1.5
    roof = [{"intensity": x, "speed": min(peak, x * bandwidth)} for x in (low, ridge, high)]
    x = alt.X("intensity:Q", scale=alt.Scale(type="log", domain=[low, high], nice=False))
    y = alt.Y("speed:Q", scale=alt.Scale(type="log", nice=False)).axis(
        title="FLOP/s", format="~s", values=_powers([d["speed"] for d in dots])
    )
    x = x.axis(title="FLOPs per byte moved", format="~g", tickCount=6, grid=False)
    line = alt.Chart(alt.InlineData(values=roof)).mark_line(strokeWidth=2, style="ground").encode(x=x, y=y)
    points = alt.Chart(alt.InlineData(values=dots)).mark_point(filled=True, size=80, opacity=0.85)
    shape = alt.Shape("pass:N", scale=alt.Scale(domain=list(PASSES.values()))).legend(title=None, orient="bottom")
    points = points.encode(x=x, y=y, color=_colour(found), shape=shape, tooltip=["config:N", "text:N"])
    return _layers([line, points], "The roofline: what a pass could reach at its FLOPs per byte")


def memory(found: Mapping[str, Cost], device: Hardware) -> alt.LayerChart:
    """Weights, cache and states as served, beside weights, gradients and AdamW's averages in training."""
    bars = [
        {"config": name, "part": part, "order": order, "GiB": n / _GIB, "text": f"{part}: {binary(n)}"}
        for name, cost in found.items()
        for order, (part, n) in enumerate(
            {
                "weights": cost.weight_bytes,
                "KV cache": cost.kv_cache_bytes,
                "recurrent states": cost.recurrent_bytes,
            }.items()
        )
        if n
    ]
    y = alt.Y("config:N", sort=list(found)).axis(title=None, labelLimit=180)
    most = max(device.memory / _GIB, *(_served(cost) / _GIB for cost in found.values()))
    x = alt.X("GiB:Q", scale=alt.Scale(domain=[0, 1.05 * most], nice=False)).axis(title="GiB", tickCount=5)
    parts = alt.Color("part:N", scale=alt.Scale(domain=["weights", "KV cache", "recurrent states"], range="ordinal"))
    bar = alt.Chart(alt.InlineData(values=bars)).mark_bar(cornerRadius=1, height={"band": 0.6})
    bar = bar.encode(x=x, y=y, order="order:Q", color=parts.legend(title=None, orient="bottom"), tooltip="text:N")
    limit = [{"GiB": device.memory / _GIB, "text": f"{device.name}: {binary(device.memory)}"}]
    rule = alt.Chart(alt.InlineData(values=limit)).mark_rule(strokeDash=[4, 3], style="notch").encode(x="GiB:Q")
    is_right = device.memory / _GIB > most / 2
    label = alt.Chart(alt.InlineData(values=limit)).mark_text(
        align="right" if is_right else "left", dx=-5 if is_right else 5
    )
    label = label.encode(x="GiB:Q", y=alt.value(-8), text="text:N")
    return _layers([bar, rule, label], "Bytes of serving each config", 46 * len(found) + 20)


def _served(cost: Cost) -> int:
    return cost.weight_bytes + cost.kv_cache_bytes + cost.recurrent_bytes


def over(found: Mapping[str, Sequence[tuple[int, float, str]]], x_title: str, y_title: str) -> alt.LayerChart:
    """A line per config on two logarithmic axes: name -> (x, y, a few words)."""
    points = [
        {"config": name, "x": x, "y": y, "text": text} for name, values in found.items() for x, y, text in values if y
    ]
    ticks = sorted({point["x"] for point in points})
    shown = ticks[:: max(1, len(ticks) // 6)]
    label = "datum.value >= 1024 ? datum.value / 1024 + 'K' : datum.value"
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False)).axis(title=x_title, values=shown, labelExpr=label)
    marks = _powers([point["y"] for point in points]) if points else []
    y = alt.Y("y:Q", scale=alt.Scale(type="log", domain=[marks[0], marks[-1]] if marks else alt.Undefined, nice=False))
    y = y.axis(title=y_title, format="~s", values=marks)
    base = alt.Chart(alt.InlineData(values=points)).encode(x=x, y=y, color=_colour(found))
    dots = base.mark_point(filled=True, size=26).encode(tooltip=["config:N", "text:N"])
    return _layers([base.mark_line(strokeWidth=2), dots], f"{y_title} over {x_title}")


def heads(rows: Iterable[tuple[str, float, float]]) -> alt.LayerChart:
    """Kinds of heads: name, bytes kept per token, decoded tokens per second."""
    bars = [
        {"kind": name, "speed": speed, "text": f"{si(speed)} tokens/s, {binary(kept)} kept per token"}
        for name, kept, speed in rows
    ]
    room = 2.4 * max(bar["speed"] for bar in bars)
    x = alt.X("speed:Q", scale=alt.Scale(domain=[0, room], nice=False)).axis(None)
    y = alt.Y("kind:N", sort=None).axis(title=None, labelLimit=180)
    base = alt.Chart(alt.InlineData(values=bars)).encode(x=x, y=y)
    bar = base.mark_bar(cornerRadius=1, height={"band": 0.6}, style="dots")
    words = base.mark_text(align="left", dx=6).encode(text="text:N")
    return _layers([bar, words], "Decoding speed and bytes kept by kind of heads", 40 * len(bars))


def _colour(names: Iterable[str]) -> alt.Color:
    return alt.Color("config:N", scale=alt.Scale(domain=list(names), range="category"), legend=None)


def _layers(layers: list[Any], description: str, height: int = _HEIGHT) -> alt.LayerChart:
    return alt.LayerChart(layer=layers, width="container", height=height, description=description)


def _powers(values: Sequence[float]) -> list[float]:
    """Of ten, from the one below the smallest value to the one above the largest."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**n for n in range(low, high + 1)]
