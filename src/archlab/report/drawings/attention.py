"""Drawings of attention: how query heads share keys and values, and to which keys a query attends."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Site
from archlab.config.components.latent_attention import Latent
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import RMSNorm
from archlab.config.components.position import Rope
from archlab.config.components.visibility import Visibility, keys_kept, visible
from archlab.config.io import build_config
from archlab.config.layers import Branch, distinct_layers, encoder_of
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.report.drawings.svg import SMALL, TITLE, Cell, Label, Shape, Svg, Wire, to_svg

_D_MODEL, _ROPE_DIM = 512, 32
_STEP, _MARGIN, _BESIDE, _PER_ROW = 22, 16, 40, 2
_WIDEST = 12 * _STEP
"""Width of a row of heads. If there are many, they are drawn smaller."""
_FILLED = 16 / 22
"""Width of a head as a fraction of the distance between two."""
_QUERIES, _KEYS, _LATENT = 0, 1, 3


def _kinds_of_heads(n_heads: int, n_kv_heads: int, head_dim: int, kv_rank: int) -> dict[str, AnyAttention]:
    if n_heads % n_kv_heads:
        allowed = ", ".join(str(n) for n in range(1, n_heads + 1) if n_heads % n == 0)
        raise UserError(f"n_kv_heads is {n_kv_heads}, which does not divide n_heads = {n_heads}; allowed: {allowed}")
    shared = {"Multi-head": n_heads, "Grouped-query": n_kv_heads, "Multi-query": 1}
    heads: dict[str, AnyAttention] = {
        name: MultiHead(n_heads=n_heads, n_kv_heads=n, head_dim=head_dim).resolve(_D_MODEL)
        for name, n in shared.items()
    }
    latent = Latent(n_heads=n_heads, kv_rank=kv_rank, nope_dim=head_dim, rope_dim=_ROPE_DIM).resolve(_D_MODEL)
    return heads | {"Latent": latent}


def kept_per_token(heads: AnyAttention) -> int:
    """Return the number of values per token that the cache of one layer stores."""
    site = Site(_D_MODEL, RMSNorm(), Rope())
    return sum(math.prod(tensor.shape) for tensor in heads.state(site, 1))


def head_sharing(n_heads: int, n_kv_heads: int, head_dim: int, kv_rank: int) -> Svg:
    """Draw query heads above the key and value heads that they read.

    `n_kv_heads` are those of grouped-query attention. For latent attention, the latent vector of `kv_rank` numbers is
    drawn below the keys and values that are computed from it. Raise UserError if `n_kv_heads` does not divide
    `n_heads`.
    """
    kinds = list(_kinds_of_heads(n_heads, n_kv_heads, head_dim, kv_rank).items())
    labels = [Label(_kept_numbers(heads), 0, 0, SMALL) for _, heads in kinds]
    side, row = max(min(n_heads * _STEP, _WIDEST), *(label.width for label in labels)) + _BESIDE, 170
    height = row * math.ceil(len(kinds) / _PER_ROW)
    shapes = list[Shape]()
    for i, (name, heads) in enumerate(kinds):
        x, top = _MARGIN + i % _PER_ROW * side, height - i // _PER_ROW * row
        shapes += [
            Label(name, x, top - 24, TITLE, bold=True),
            Label(_kept_numbers(heads), x, top - row + 14, SMALL, faint=True),
            *_sharing(name, heads, x, top - 60),
        ]
    x = _MARGIN + _PER_ROW * side - _BESIDE / 2
    shapes += [Label("queries", x, height - 56, faint=True), Label("keys and values", x, height - 106, faint=True)]
    shapes.append(Label("one narrow vector", x, row - 136, faint=True))
    return to_svg(shapes, x + 116, height, "Key and value heads that query heads share")


def _kept_numbers(heads: AnyAttention) -> str:
    return f"keeps {kept_per_token(heads):,} numbers per token"


def _sharing(name: str, heads: AnyAttention, x: float, up: float) -> Iterator[Shape]:
    made = heads.n_heads if isinstance(heads, Latent) else _kv_heads(heads)
    group, step = heads.n_heads // made, min(_STEP, _WIDEST / heads.n_heads)
    cell = _FILLED * step
    middles = [x + (group * (i + 0.5) - 0.5) * step + cell / 2 for i in range(made)]
    for head in range(heads.n_heads):
        middle = x + head * step + cell / 2
        yield Wire([(middle, up), (middles[head // group], up - 50 + cell)])
        yield Cell(f"{name} query {head}", middle - cell / 2, up, cell, cell, _QUERIES)
    for i, middle in enumerate(middles):
        yield Cell(f"{name} kv {i}", middle - cell / 2, up - 50, cell, cell, _KEYS)
    if isinstance(heads, Latent):
        width = heads.n_heads * step - (step - cell)
        for middle in middles:
            yield Wire([(middle, up - 50), (middle, up - 66)])
        yield Cell(f"{name} latent", x, up - 78, width, 12, _LATENT, f"{heads.kept_width} numbers for all heads")


def _kv_heads(heads: AnyAttention) -> int:
    assert isinstance(heads, MultiHead)
    return heads.n_kv_heads


_TOKENS, _SQUARE_CELL, _BETWEEN = 16, 12, 28
_LEFT = 48
"""Room for the labels of the rows, to the left of a square."""
_PREFIX = 4
"""The sequence is this many times as long as the prefix."""
_MODEL = {"vocab_size": 64, "d_model": 64, "n_layers": 4, "attention": {"n_heads": 4}}


def _drawn(*overrides: str, length: int) -> Svg:
    return visibility(build_config({"model": _MODEL}, overrides).model, length)


def one_visibility(visibility: str, window: int, stride: int, global_tokens: int, length: int) -> Svg:
    """Draw the visible keys of layers that are all alike. 0 is no window and no stride."""
    attention = {"visibility": visibility, "window": window, "stride": stride, "global_tokens": global_tokens}
    overrides = [f"model.attention.{name}={value}" for name, value in attention.items() if value]
    return _drawn(*overrides, length=length)


def window_visibility(window: int, length: int) -> Svg:
    """Draw the visible keys of three layers with a window, and of one layer without."""
    local = f"{{attention.window: {window}}}"
    return _drawn(f"model.layers={{local: {local}, full: {{}}, pattern: [local, local, local, full]}}", length=length)


def sparse_visibility(window: int, stride: int, size: int, summary: int, length: int) -> Svg:
    """Draw the visible keys of layers with a stride beyond a window, and of layers with blocks."""
    strided = f"{{attention: {{window: {window}, stride: {stride}}}}}"
    blocks = f"{{attention.blocks: {{size: {size}, summary: {summary}}}}}"
    return _drawn(f"model.layers={{strided: {strided}, blocks: {blocks}, pattern: [strided, blocks]}}", length=length)


def hybrid_visibility(length: int) -> Svg:
    """Draw the visible keys of three recurrent layers, which see none, and of one layer with attention."""
    recurrent = "recurrent: {attention: none, mixer: gated_delta}"
    pattern = "pattern: [recurrent, recurrent, recurrent, full]"
    return _drawn(f"model.layers={{{recurrent}, full: {{}}, {pattern}}}", length=length)


def encoder_visibility(length: int) -> Svg:
    """Draw the visible keys of a model with an encoder."""
    return _drawn("model.encoder.n_layers=4", length=length)


class _Square(NamedTuple):
    """Components of one kind of layer that see the same keys."""

    name: str
    title: str
    branches: Sequence[Branch]
    color: int
    is_cached: bool = True
    """Whether generation caches the keys of these components. The encoder runs only once, so it has no cache."""

    @property
    def rules(self) -> list[Visibility]:
        return [branch.component for branch in self.branches if isinstance(branch.component, Visibility)]


def visibility(model: ModelConfig, length: int = _TOKENS) -> Svg:
    """Draw one square per kind of layer. Its rows are queries, its columns are keys, and visible keys are colored.

    The first query and the first key have the number 0. The row below each square shows which keys a cache keeps. In a
    model with an encoder, the encoder comes first, and the cross-attention of each kind of decoder layer has a square
    of its own.
    """
    side = length * _SQUARE_CELL
    shapes, x = list[Shape](), float(_LEFT)
    height = side + 118
    for square in _squares(model):
        labels = [
            Label(square.title, x, height - 24, TITLE, bold=True),
            Label(_kept(square, length), x, 14, SMALL, faint=True),
        ]
        shapes += [
            *labels,
            *_axes(length, x, height - 36, square.is_cached),
            *_keys_seen(square, length, x, height - 36),
            *_cache(square, length, x, 32),
        ]
        x += max(side, *(label.width for label in labels)) + _BETWEEN + _LEFT
    return to_svg(
        shapes, x - _BETWEEN - _LEFT + _MARGIN, height, "Keys that a query attends to, and keys that a cache keeps"
    )


def _axes(length: int, x: float, top: float, is_cached: bool) -> Iterator[Label]:
    """Yield the labels of the rows and columns of a square, and of the row below it."""
    side = length * _SQUARE_CELL
    for name, row in (("0", 0), ("query", (length - 1) / 2), (str(length - 1), length - 1)):
        yield Label(name, x - 6, top - (row + 0.8) * _SQUARE_CELL, anchor="end", faint=True)
    for name, column in (("0", 0), ("key", (length - 1) / 2), (str(length - 1), length - 1)):
        yield Label(name, x + (column + 0.5) * _SQUARE_CELL, top - side - 14, anchor="middle", faint=True)
    if is_cached:
        yield Label("cache", x - 6, 34, anchor="end", faint=True)


def _squares(model: ModelConfig) -> Iterator[_Square]:
    encoder, decoder = encoder_of(model), distinct_layers(model)
    if encoder is not None:
        for layer, n_layers in distinct_layers(encoder).items():
            yield _Square("encoder", f"encoder × {n_layers}", layer.branches, len(decoder), is_cached=False)
    for index, (layer, n_layers) in enumerate(decoder.items()):
        kind = "decoder" if encoder is not None and len(decoder) == 1 else layer.kind
        own = [branch for branch in layer.branches if not branch.site.reads_source]
        yield _Square(kind, f"{kind} × {n_layers}", own, index)
        if cross := [branch for branch in layer.branches if branch.site.reads_source]:
            yield _Square(f"{kind} cross", f"{kind} × {n_layers}, cross-attention", cross, index)


def _keys_seen(square: _Square, length: int, x: float, top: float) -> Iterator[Cell]:
    positions = np.arange(length)
    seen = np.zeros((length, length), dtype=bool)
    for rule in square.rules:
        seen |= np.asarray(visible(rule, positions[:, None], positions[None], length // _PREFIX))
    for query, key in np.ndindex(length, length):
        color = square.color if seen[query, key] else None
        name = f"{square.name}: query {query}, key {key}"
        yield Cell(
            name, x + key * _SQUARE_CELL, top - (query + 1) * _SQUARE_CELL, _SQUARE_CELL - 1, _SQUARE_CELL - 1, color
        )


def _n_kept(square: _Square, length: int) -> int:
    return max((keys_kept(rule, length) for rule in square.rules), default=0) if square.is_cached else 0


def _cache(square: _Square, length: int, x: float, up: float) -> Iterator[Cell]:
    n_kept = _n_kept(square, length)
    for key in range(length):
        color = square.color if key >= length - n_kept else None
        yield Cell(
            f"{square.name}: kept key {key}", x + key * _SQUARE_CELL, up, _SQUARE_CELL - 1, _SQUARE_CELL - 1, color
        )


def _kept(square: _Square, length: int) -> str:
    n_kept = _n_kept(square, length)
    if any(branch.site.reads_source for branch in square.branches):
        return f"keeps {n_kept} of {length} source keys"
    state_size = sum(
        math.prod(tensor.shape)
        for branch in square.branches
        for tensor in branch.state(length, length)
        if square.is_cached and not tensor.per_token
    )
    words = [f"{n_kept} of {length} keys"] if n_kept else []
    words += [f"a state of {state_size:,} numbers"] if state_size else []
    return f"keeps {' and '.join(words) or 'nothing'}"
