"""FLOPs per byte of a decoding step over batch and context: where memory is the limit, and where it no longer is."""

from collections.abc import Sequence

import altair as alt

from archlab.config.schema import Config
from archlab.exchange.configs import load_config
from archlab.pricing.summary import cost
from archlab.pricing.work import matrix_flops_per_byte
from archlab.report.drawings.line_chart import lines

_MODEL = "llama-3-8b"
_BATCHES, _CONTEXTS = tuple(2**n for n in range(0, 11, 2)), (1024, 8192, 65536)


def intensity_points(
    config: Config, batches: Sequence[int] = _BATCHES, contexts: Sequence[int] = _CONTEXTS
) -> list[dict[str, float | str]]:
    """In bfloat16."""
    return [
        {"line": f"{context:,} tokens", "x": batch, "y": matrix_flops_per_byte(found.work["decoding"])}
        for context in contexts
        for batch in batches
        for found in [cost(config, batch, context)]
    ]


def decoding_intensity() -> alt.Chart:
    """Of Llama 3 8B."""
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False)).axis(title="texts at once", values=list(_BATCHES))
    y = alt.Y("y:Q", scale=alt.Scale(type="log")).axis(title="FLOPs per byte moved", tickCount=4, format="~s")
    points = intensity_points(load_config(_MODEL))
    return lines(points, x, y, f"Arithmetic intensity of decoding with {_MODEL}", legend="context")
