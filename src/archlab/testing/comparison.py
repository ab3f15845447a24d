"""`compare`: hand-written code against archlab's, in outputs, gradients and behavior.

Shapes: B batch, T tokens, S keys.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from torch import nn

from archlab.config.core.text import note_once
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import choose
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.testing import Part
from archlab.testing.candidate import Candidate, MaskForm
from archlab.testing.checks import all_checks
from archlab.testing.explanation import mistakes_in, tries_pairs
from archlab.testing.matching import Mapped, match
from archlab.testing.pair import Pair, pairs
from archlab.testing.planting import Mistake
from archlab.testing.reference import Reference
from archlab.testing.result import Comparison


def compare(
    target: nn.Module | Callable[..., Any],
    part: Part,
    config: str | Path | Config | ModelConfig,
    *overrides: str | Mapping[str, Any],
    layer: int = 0,
    mapping: Mapped | None = None,
    arguments: Mapping[str, Any] | None = None,
    mask: MaskForm = "visible",
    numpy: bool | None = None,
    make_cache: Callable[[], Any] | None = None,
) -> Comparison:
    """Compare hand-written code with archlab's part of a config.

    `target` is a module, a class of modules, or a function of the input and its weights. archlab makes an instance of a
    class, and its argument names (`d_model`, `num_heads`, `eps`) decide which values of the config they get. A function
    may use NumPy. A function without arguments makes the module. The code gets archlab's weights, and then both compute
    in float64.

    Inputs: token ids [B, T] for a model; [B, T, head_dim], [B, 1, T, head_dim] or [B, T, 1, head_dim] for the rotation;
    otherwise [B, T, d_model]. A module is changed: it gets archlab's weights, float64 and evaluation mode.

    `layer` is the index of the layer that is compared. `mapping` holds archlab's parameter names by yours; a list of
    names means a fused matrix. `arguments` holds values for further arguments of the code. `mask` says what the mask
    means, if the code takes one. `numpy` says whether the code needs NumPy arrays (default: as its names suggest).
    `make_cache` makes an empty cache, if the code changes its cache in place.

    Raise UserError if the code cannot be called, if it is not deterministic, or if its parameters do not match those of
    the config.
    """
    target = getattr(target, "_orig_mod", target)  # a compiled module contains the module
    if part not in get_args(Part):
        raise UserError(f"part: {part!r} is unknown{choose(str(part), get_args(Part))}")
    if mask not in get_args(MaskForm):
        raise UserError(f"mask: {mask!r} is unknown{choose(str(mask), get_args(MaskForm))}")
    if not isinstance(config, Config | ModelConfig):
        config = load_config(config, *overrides)
    elif overrides:
        raise UserError("overrides: need a config that is named or in a file; change the config itself")
    reference = Reference(config.model if isinstance(config, Config) else config, part, layer)
    candidate = Candidate(target, reference, arguments or {}, mask, uses_numpy=numpy)
    ours = {name: tuple(weight.shape) for name, weight in reference.weights.items()}
    matches = match(candidate.shapes, ours, part, mapping or {}, candidate.in_torch_modules)
    pair, mistakes = _best(pairs(candidate, reference, matches))
    parameters = {name: matched.names for name, matched in pair.matches.by_name.items()}
    name = getattr(target, "__name__", type(target).__name__)
    checks = tuple(all_checks(pair, make_cache))
    return Comparison(part, name, parameters, checks, mistakes, tries_pairs(reference))


def _best(choices: Sequence[Pair]) -> tuple[Pair, tuple[Mistake, ...]]:
    """Return the first pair whose outputs are equal, or else the first that a known mistake explains, or else the
    first."""
    if equal := next((pair for pair in choices if pair.is_equal), None):
        best, found = equal, ()
    else:
        if choices[0].reference.part == "model":
            note_once("the outputs differ; known mistakes are tried, which can take minutes")
        explained = ((pair, mistakes_in(pair)) for pair in choices)
        best, found = next((entry for entry in explained if entry[1]), (choices[0], ()))
    best.load()
    return best, found
