"""What ALiBi and T5 add to a score over the distance of query and key, by the model's own modules."""

import altair as alt
import torch

from archlab.config.components.multi_head import MultiHead
from archlab.config.components.position import T5, Alibi
from archlab.model.positions import AlibiBias, bucket
from archlab.report.drawings.line_chart import lines

_HEADS, _LENGTH, _FAR = 8, 64, 256


def alibi_points(
    alibi: Alibi | None = None, n_heads: int = _HEADS, length: int = _LENGTH
) -> list[dict[str, float | str]]:
    """The bias of every head at every distance."""
    heads = MultiHead(n_heads=n_heads).resolve(n_heads * 8)
    distances_11S = torch.arange(length)[None, None]
    bias_HS = AlibiBias(alibi or Alibi(), heads)(distances_11S, torch.zeros(1, n_heads, 1, 8))[0, :, 0]
    return [
        {"line": f"head {head + 1}", "x": distance, "y": value}
        for head, of_head in enumerate(bias_HS.tolist())
        for distance, value in enumerate(of_head)
    ]


def t5_points(t5: T5 | None = None, length: int = _FAR) -> list[dict[str, float | str]]:
    """The bucket of every distance, in which each head learns one bias."""
    t5 = t5 or T5()
    buckets = bucket(torch.arange(length), t5.buckets, t5.max_distance)
    return [{"line": "bucket", "x": distance, "y": value} for distance, value in enumerate(buckets.tolist())]


def alibi_biases() -> alt.Chart:
    """A line per head."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="distance in tokens", grid=False)
    y = alt.Y("y:Q").axis(title="added to the score", tickCount=5)
    return lines(alibi_points(), x, y, "ALiBi's biases over distance")


def t5_buckets() -> alt.Chart:
    """Single distances first, then ever wider buckets."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="distance in tokens", grid=False)
    y = alt.Y("y:Q").axis(title="bucket, with a learned bias per head", tickCount=5)
    return lines(t5_points(), x, y, "T5's buckets over distance", interpolate="step-after")
