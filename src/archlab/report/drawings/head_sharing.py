"""How query heads share keys and values: multi-head, grouped, multi-query and latent attention."""

import math
from collections.abc import Iterator

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Site
from archlab.config.components.latent_attention import Latent
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import RMSNorm
from archlab.config.components.position import Rope
from archlab.report.drawings.svg import SMALL, TITLE, Cell, Label, Shape, Svg, Wire, to_svg

_D_MODEL, _HEADS, _HEAD_DIM = 512, 8, 64
_CELL, _STEP, _MARGIN, _BESIDE, _PER_ROW = 16, 22, 16, 40, 2
_QUERIES, _KEYS, _LATENT = 0, 1, 3


def kinds() -> dict[str, AnyAttention]:
    """Eight query heads of 64 in a model 512 wide, sharing ever more."""
    shared = {"Multi-head": _HEADS, "Grouped-query": 2, "Multi-query": 1}
    heads: dict[str, AnyAttention] = {
        name: MultiHead(n_heads=_HEADS, n_kv_heads=n, head_dim=_HEAD_DIM).resolve(_D_MODEL)
        for name, n in shared.items()
    }
    latent = Latent(n_heads=_HEADS, kv_rank=128, nope_dim=_HEAD_DIM, rope_dim=32).resolve(_D_MODEL)
    return heads | {"Latent": latent}


def kept_per_token(heads: AnyAttention) -> int:
    """Numbers that a cache keeps of one token in one layer."""
    site = Site(_D_MODEL, RMSNorm(), Rope())
    return sum(math.prod(tensor.shape) for tensor in heads.state(site, 1))


def head_sharing() -> Svg:
    """Query heads above, below them the heads of keys and values that they read, or what these are made from."""
    side, row = _HEADS * _STEP + _BESIDE, 170
    found = list(kinds().items())
    height = row * math.ceil(len(found) / _PER_ROW)
    shapes = list[Shape]()
    for i, (name, heads) in enumerate(found):
        x, top = _MARGIN + i % _PER_ROW * side, height - i // _PER_ROW * row
        shapes += [
            Label(name, x, top - 24, TITLE, bold=True),
            Label(f"keeps {kept_per_token(heads):,} numbers per token", x, top - row + 14, SMALL, faint=True),
            *_drawn(name, heads, x, top - 60),
        ]
    x = _MARGIN + _PER_ROW * side - _BESIDE / 2
    shapes += [Label("queries", x, height - 56, faint=True), Label("keys and values", x, height - 106, faint=True)]
    shapes.append(Label("one narrow vector", x, row - 136, faint=True))
    return to_svg(shapes, x + 116, height, "Heads of keys and values that query heads share")


def _drawn(name: str, heads: AnyAttention, x: float, up: float) -> Iterator[Shape]:
    made = heads.n_heads if isinstance(heads, Latent) else _kv_heads(heads)
    group = heads.n_heads // made
    middles = [x + (group * (i + 0.5) - 0.5) * _STEP + _CELL / 2 for i in range(made)]
    for head in range(heads.n_heads):
        middle = x + head * _STEP + _CELL / 2
        yield Wire([(middle, up), (middles[head // group], up - 50 + _CELL)])
        yield Cell(f"{name} query {head}", middle - _CELL / 2, up, _CELL, _CELL, _QUERIES)
    for i, middle in enumerate(middles):
        yield Cell(f"{name} kv {i}", middle - _CELL / 2, up - 50, _CELL, _CELL, _KEYS)
    if isinstance(heads, Latent):
        width = heads.n_heads * _STEP - (_STEP - _CELL)
        for middle in middles:
            yield Wire([(middle, up - 50), (middle, up - 66)])
        yield Cell(f"{name} latent", x, up - 78, width, 12, _LATENT, f"{heads.kept_width} numbers for all heads")


def _kv_heads(heads: AnyAttention) -> int:
    assert isinstance(heads, MultiHead)
    return heads.n_kv_heads
