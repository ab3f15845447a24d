"""All pictures that explain one topic each, by its name."""

from collections.abc import Callable, Mapping
from functools import partial

import altair as alt

from archlab.exchange.configs import load_config
from archlab.report.drawings.activation_curves import activation_curves
from archlab.report.drawings.attention import CYCLES, cycle_visibility, head_sharing
from archlab.report.drawings.block import block_diagram
from archlab.report.drawings.decoding_intensity import decoding_intensity
from archlab.report.drawings.distance_biases import alibi_biases, t5_buckets
from archlab.report.drawings.rotation_curves import rotated_products, rotations
from archlab.report.drawings.router_loads import router_loads
from archlab.report.drawings.start_gradients import start_gradients
from archlab.report.drawings.svg import Svg

Picture = Svg | alt.Chart | alt.LayerChart
"""A chart takes its colours from the page's theme (`palette.dots_theme`); an SVG has those of both modes in it."""


def pictures() -> Mapping[str, Callable[[], Picture]]:
    """Name -> what draws it; nothing is computed before it is called."""
    placements = ("pre", "post", "double", "output", "carried")
    blocks = {
        **{f"{placement}-norm": f"model.norm.placement={placement}" for placement in placements},
        **{f"parallel-{kind}": f"model.block.parallel={kind}" for kind in ("shared", "separate")},
    }
    return {
        **{name: partial(_block, name, override) for name, override in blocks.items()},
        **{f"mask-{name}": partial(cycle_visibility, name) for name in CYCLES},
        "activations": activation_curves,
        "rotation": rotations,
        "rotation-products": rotated_products,
        "alibi": alibi_biases,
        "t5": t5_buckets,
        "head-sharing": head_sharing,
        "decoding-intensity": decoding_intensity,
        "start-gradients": start_gradients,
        "router-loads": router_loads,
    }


def _block(name: str, override: str) -> Svg:
    """Of a small Llama in which only that is changed."""
    return block_diagram(load_config("tiny-llama", override), name)
