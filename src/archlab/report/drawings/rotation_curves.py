"""How RoPE turns the pairs of a head over positions, and what it leaves of a product over distances."""

import altair as alt
import torch

from archlab.config.components.position import Rope
from archlab.infer.probe import rope_products
from archlab.model.rotary import rotation
from archlab.report.drawings.line_chart import lines

_WIDTH, _LENGTH, _SHOWN = 64, 128, 6
_THETAS = (1e4, 5e5)
_LONG = 8192


def rotation_points(rope: Rope, width: int = _WIDTH, length: int = _LENGTH) -> list[dict[str, float | str]]:
    """The cosine of a few pairs' angles at every position, the fastest pair first."""
    positions_1T = torch.arange(length)[None]
    turned = rotation(rope, width, positions_1T, torch.tensor([[length]]), torch.float64)
    every = 2 if rope.pairing == "interleaved" else 1
    cos_TP = turned.cos[0, 0, :, ::every][:, : turned.cos.shape[-1] // 2]
    n_pairs = cos_TP.shape[-1]
    pairs = sorted({round(i * (n_pairs - 1) / (_SHOWN - 1)) for i in range(_SHOWN)})
    return [
        {"line": f"pair {pair + 1}", "x": t, "y": value}
        for pair in pairs
        for t, value in enumerate(cos_TP[:, pair].tolist())
    ]


def product_points() -> list[dict[str, float | str]]:
    """The mean product of a query with an equal key, for a few thetas."""
    return [
        {"line": f"theta {theta:,.0f}", "x": distance, "y": product}
        for theta in _THETAS
        for found in [rope_products("layer", Rope(theta=theta), _WIDTH, _LONG, seed=0)]
        for distance, product in zip(found.distances, found.products, strict=True)
        if distance
    ]


def rotations() -> alt.Chart:
    """Of a head of 64 dimensions."""
    x = alt.X("x:Q", scale=alt.Scale(nice=False)).axis(title="position", grid=False)
    y = alt.Y("y:Q").axis(title="cosine of the angle", tickCount=5)
    return lines(rotation_points(Rope()), x, y, "Angles of RoPE's pairs over positions")


def rotated_products() -> alt.Chart:
    """Falling with the distance, the slower the larger theta is."""
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False)).axis(title="distance in tokens", format="~s", tickCount=5)
    y = alt.Y("y:Q").axis(title="product, as a share", tickCount=5)
    return lines(product_points(), x, y, "Product of a query and an equal key over their distance, under RoPE")
