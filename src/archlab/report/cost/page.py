"""What configs cost, as one HTML file that opens offline: tables and pictures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archlab.config.components.multi_head import MultiHead
from archlab.config.layers import layer_configs, sees_as, with_overrides
from archlab.config.schema import Config
from archlab.files import write_page
from archlab.pricing.hardware import Hardware
from archlab.pricing.memory import Format
from archlab.pricing.pass_time import ideal
from archlab.pricing.summary import Cost, cost
from archlab.pricing.units import binary, si
from archlab.report import html
from archlab.report.charts.palette import MODES, PALETTES, dots_theme
from archlab.report.cost.charts import heads, memory, over_batch, over_context, roofline
from archlab.report.cost.tables import Point, beyond_limits, side_by_side

BATCHES = tuple(2**n for n in range(10))


def write_costs(
    configs: Mapping[str, Config],
    found: Mapping[str, Mapping[Point, Cost]],
    device: Hardware,
    dtype: Format,
    path: Path,
) -> Path:
    """Write the page, and the folders above it; its path."""
    return write_page(path, render(configs, found, device, dtype))


def render(
    configs: Mapping[str, Config], found: Mapping[str, Mapping[Point, Cost]], device: Hardware, dtype: Format
) -> str:
    """The page as text: styles, charts and Vega itself inlined, nothing loaded from anywhere."""
    points = list(next(iter(found.values())))
    asked = list(dict.fromkeys(context for context, _ in points))
    batch, most = points[0][1], max(b for _, b in points)
    varied = next((name for name in configs if _has_heads_to_vary(configs[name])), None)
    costs = {name: list(at.values()) for name, at in found.items()}
    charts = {"roofline": roofline(costs, device), "memory": memory(costs, device)}
    if varied:
        kinds = [row for context in asked for row in _kinds_of_heads(configs[varied], most, context, dtype, device)]
        charts["heads"] = heads(varied, list(configs), kinds)
    if any("decoding" in cost.work for at in costs.values() for cost in at):
        limits = {name: config.model.max_seq_len for name, config in configs.items()}
        at_context = {
            name: [cost(config, batch, c, dtype) for c in _contexts(asked, limits[name])]
            for name, config in configs.items()
        }
        kept = {n: [(c.context, _kept(c), binary(_kept(c))) for c in at] for n, at in at_context.items()}
        speeds = {n: [_speed(c, c.context, device) for c in at] for n, at in at_context.items()}
        at_batch = {
            name: {context: [_speed(cost(config, b, context, dtype), b, device) for b in BATCHES] for context in asked}
            for name, config in configs.items()
        }
        charts |= {
            "cache": over_context(kept, limits, asked, "bytes kept"),
            "context": over_context(speeds, limits, asked, "decoded tokens/s"),
            "batch": over_batch(at_batch, "decoded tokens/s"),
        }
    return html.template("cost.html.jinja").render(
        names=list(configs),
        varied=varied,
        device=device,
        dtype=dtype,
        asked=" and ".join(f"{context:,}" for context in asked),
        beyond=beyond_limits(found),
        batch=batch,
        most=most,
        tables=list(side_by_side(found, device)),
        colours=list(zip(*(PALETTES[mode].distinct for mode in MODES), strict=True)),
        specs={name: html.full_width(chart) for name, chart in charts.items()},
        themes={mode: dots_theme(mode) for mode in MODES},
    )


def _contexts(asked: Sequence[int], limit: int) -> list[int]:
    """Powers of two from 512 tokens (of a short limit, from a 16th) to the config's limit or to the longest context
    that was asked for, and all that were asked for."""
    powers = max(limit, *asked).bit_length()
    return sorted({*asked, *(2**n for n in range(max(0, min(9, powers - 5)), powers))})


def _kept(found: Cost) -> int:
    return found.kv_cache_bytes + found.recurrent_bytes


def _speed(found: Cost, x: int, device: Hardware) -> tuple[int, float, str]:
    if "decoding" not in found.work:
        return x, 0.0, ""
    speed = ideal(found.work["decoding"], device, found.dtype, found.tokens["decoding"]).tokens_per_second
    return x, speed, f"{si(speed)} tokens/s"


def _kinds_of_heads(
    config: Config, batch: int, context: int, dtype: Format, device: Hardware
) -> Iterator[tuple[str, int, float, float]]:
    """Return (kind, context, bytes kept per token, decoded tokens per second) for the config with other heads.

    The kinds: as many key heads as query heads, as few as the config has, a quarter, an eighth, one, and latent
    attention in DeepSeek's proportions (a vector 4 heads wide and a rotated part of half a head).
    """
    one = layer_configs(config.model)[0].multi_head
    H, C = one.n_heads, one.head_dim
    numbers = {H, *(H // n for n in (4, 8) if H % n == 0), one.n_kv_heads, 1}
    names = {H: "MHA", 1: "MQA"}
    kinds: dict[str, dict[str, Any]] = {
        names.get(n, f"GQA, {n} heads"): {"n_kv_heads": n} for n in sorted(numbers, reverse=True)
    }
    kinds["latent"] = {
        "kind": "latent", "n_heads": H, "kv_rank": 4 * C, "nope_dim": C, "rope_dim": C // 2, "v_dim": C,
    }  # fmt: skip
    for name, change in kinds.items():
        model = with_overrides(config.model, {"attention": change})
        found = cost(config.model_copy(update={"model": model}), batch, context, dtype)
        yield name, context, found.kv_bytes_per_token, _speed(found, 0, device)[1]


def _has_heads_to_vary(config: Config) -> bool:
    """Multi-head attention with the same heads in every layer, whatever their windows, and a cache."""
    attentions = [layer.attention for layer in layer_configs(config.model)]
    heads = {(a.n_heads, a.n_kv_heads, a.head_dim) if isinstance(a, MultiHead) else None for a in attentions}
    return heads != {None} and len(heads) == 1 and not sees_as(config.model, "two_sided")
