"""Which keys a query sees in each kind of layer, and what a cache keeps of them, by the rules that the model asks."""

from collections.abc import Iterator

import numpy as np

from archlab.config.components.visibility import Visibility, keys_kept, visible
from archlab.config.io import build_config
from archlab.config.layers import LayerConfig, distinct_layers
from archlab.config.model_schema import ModelConfig
from archlab.report.drawings.svg import SMALL, TITLE, Cell, Label, Shape, Svg, to_svg

_TOKENS, _CELL, _MARGIN, _BESIDE = 16, 12, 16, 36
_PREFIX = 4
"""Under a rule with a prefix it is a quarter of the text."""
_MODEL = {"vocab_size": 64, "d_model": 64, "n_layers": 4, "attention": {"n_heads": 4}}
CYCLES = {
    "window": "{local: {attention.window: 4}, full: {}, pattern: [local, local, local, full]}",
    "sparse": "{strided: {attention: {window: 4, stride: 4}}, blocks: {attention.blocks: {size: 4, summary: 1}}, "
    "pattern: [strided, blocks]}",
    "hybrid": "{recurrent: {attention: none, mixer: gated_delta}, full: {}, "
    "pattern: [recurrent, recurrent, recurrent, full]}",
}
"""What is drawn of each: layer kinds in a cycle, with windows that fit a picture of 16 tokens."""


def cycle(name: str) -> Svg:
    """One of CYCLES."""
    return visibility(build_config({"model": _MODEL}, (f"model.layers={CYCLES[name]}",)).model)


def visibility(model: ModelConfig, length: int = _TOKENS) -> Svg:
    """A square for every kind of layer, queries downwards and keys across; under it the keys that a cache keeps."""
    side = length * _CELL
    shapes, x = list[Shape](), float(_MARGIN)
    height = side + 100
    for index, (layer, n) in enumerate(distinct_layers(model).items()):
        labels = [
            Label(f"{layer.kind} × {n}", x, height - 24, TITLE, bold=True),
            Label(_kept(layer, length), x, 14, SMALL, faint=True),
        ]
        shapes += [*labels, *_square(layer, length, index, x, height - 36), *_cache(layer, length, index, x, 32)]
        x += max(side, *(label.width for label in labels)) + _BESIDE
    return to_svg(shapes, x - _BESIDE + _MARGIN, height, "Which keys a query sees, and which a cache keeps")


def _rules(layer: LayerConfig) -> list[Visibility]:
    return [branch.component for branch in layer.branches if isinstance(branch.component, Visibility)]


def _square(layer: LayerConfig, length: int, index: int, x: float, top: float) -> Iterator[Cell]:
    """Filled where a query sees a key; a layer without attention sees none."""
    positions = np.arange(length)
    seen = np.zeros((length, length), dtype=bool)
    for rule in _rules(layer):
        seen |= np.asarray(visible(rule, positions[:, None], positions[None], length // _PREFIX))
    for query, key in np.ndindex(length, length):
        colour = index if seen[query, key] else None
        name = f"{layer.kind}: query {query}, key {key}"
        yield Cell(name, x + key * _CELL, top - (query + 1) * _CELL, _CELL - 1, _CELL - 1, colour)


def _cache(layer: LayerConfig, length: int, index: int, x: float, up: float) -> Iterator[Cell]:
    """Of the tokens so far, those whose keys are kept for the next one."""
    kept = max((keys_kept(rule, length) for rule in _rules(layer)), default=0)
    for key in range(length):
        colour = index if key >= length - kept else None
        yield Cell(f"{layer.kind}: kept key {key}", x + key * _CELL, up, _CELL - 1, _CELL - 1, colour)


def _kept(layer: LayerConfig, length: int) -> str:
    """In words."""
    kept = max((keys_kept(rule, length) for rule in _rules(layer)), default=0)
    fixed = sum(
        np.prod(tensor.shape)
        for branch in layer.branches
        for tensor in branch.component.state(layer.site, length)
        if not tensor.per_token
    )
    words = [f"{kept} of {length} keys"] if kept else []
    words += [f"a state of {int(fixed):,} numbers"] if fixed else []
    return f"keeps {' and '.join(words) or 'nothing'}"
