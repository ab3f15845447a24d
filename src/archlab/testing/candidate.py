"""Hand-written code as something that can be called: a module, a class of modules, or a function.

The names of arguments decide what they get. Shapes: B batch, T tokens.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from archlab.config.components.multi_head import MultiHead
from archlab.config.problems import choose
from archlab.errors import UserError
from archlab.testing.matching import Shape
from archlab.testing.reference import Reference

MaskForm = Literal["visible", "hidden", "added", "none"]
"""Meaning of the mask that hand-written code takes. `visible`: true if the query sees the key. `hidden`: true if not.
`added`: 0 or -inf, to add to the scores. `none`: the code gets no mask."""

_POSITION_ROWS = ("position_ids", "pos_ids")
"""Arguments for positions of the shape [1, T], as in transformers."""

_POSITIONS = ("token_positions", "positions", "pos", "input_pos", *_POSITION_ROWS)
"""Arguments for positions. Without a batch axis, they have the shape [T]."""

_INPUTS = ("in_features", "in_query_or_key", "in_indices")
"""Names of the input in the course CS336, whose functions take sizes and weights first. Otherwise, the first argument
is the input."""

_MASKS = ("mask", "attn_mask", "attention_mask", "causal_mask")
_CACHES = ("cache", "kv_cache", "past_key_values", "past_key_value", "past_kv", "layer_past", "past")
_SAME_INPUT = ("q", "k", "v", "query", "key", "value", "queries", "keys", "values", "x_q", "x_k", "x_v")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Candidate:
    """Hand-written code with its parameters.

    `user_arguments` holds the arguments that the user names. Raise UserError if an argument has no known meaning.
    """

    def __init__(
        self,
        target: Any,
        reference: Reference,
        user_arguments: Mapping[str, Any],
        form: MaskForm,
        *,
        uses_numpy: bool | None,
    ) -> None:
        self.form, self.settings = form, {**_settings(reference), **user_arguments}
        if not callable(target):
            raise UserError(f"target: is a {type(target).__name__}; allowed: a module, a class or a function")
        of_class = []
        if inspect.isclass(target):
            of_class = _arguments(target)
            target = self._made(target)
        elif not isinstance(target, nn.Module) and not _arguments(target):
            target = _called(target, {})
        self.target = target.double().eval() if isinstance(target, nn.Module) else target
        called = target.forward if isinstance(target, nn.Module) else target
        self.uses_numpy = uses_numpy
        if uses_numpy is None:  # a module of torch may have methods whose wrappers use NumPy
            self.uses_numpy = not isinstance(target, nn.Module) and _uses_numpy(called)
        self.arguments = _arguments(called)
        if not self.arguments:
            raise UserError(f"{_name(target)}: takes no input; the first argument must be the input")
        known = [*dict.fromkeys([*of_class, *self.arguments])]
        if unknown := [name for name in user_arguments if name not in known]:
            raise UserError(f"arguments: {_name(target)} has no argument {unknown[0]!r}{choose(unknown[0], known)}")
        self.input = self.argument(_INPUTS) or next(iter(self.arguments))
        others = [name for name in self.arguments if name != self.input]
        special = (*_POSITIONS, *_MASKS, *_CACHES, "use_cache", "start_pos")
        free = [name for name in others if name not in special and name not in self.settings]
        repeats = self.input in _SAME_INPUT
        self.inputs = [self.input, *(name for name in free if repeats and name in _SAME_INPUT)]
        own = [name for name in free if name not in self.inputs and self._is_required(name)]
        self.leaves: dict[str, Tensor] = {}
        self.shapes: dict[str, Shape | None] = dict.fromkeys([] if isinstance(target, nn.Module) else own)
        if isinstance(target, nn.Module):
            self.leaves = dict(target.named_parameters())
            self.shapes = {name: tuple(parameter.shape) for name, parameter in self.leaves.items()}
            if own:
                raise UserError(
                    f"{_name(target)}.forward: argument {own[0]!r} has no known meaning; pass it in arguments"
                )

    @property
    def name(self) -> str:
        """Name of the function or of the module's class."""
        return _name(self.target)

    @property
    def in_torch_modules(self) -> set[str]:
        """Names of the parameters in torch's linear layers and embeddings, whose axes are known."""
        if not isinstance(self.target, nn.Module):
            return set()
        own = {name for name, module in self.target.named_modules() if isinstance(module, nn.Linear | nn.Embedding)}
        return {name for name in self.leaves if name.rpartition(".")[0] in own}

    def argument(self, *kinds: tuple[str, ...]) -> str | None:
        """Return the name of the argument of one of these kinds, or None if the code has none."""
        return next((name for names in kinds for name in self.arguments if name in names), None)

    @property
    def positions(self) -> str | None:
        """Name of the argument for the positions of tokens."""
        return self.argument(_POSITIONS)

    @property
    def mask(self) -> str | None:
        """Name of the argument for the mask."""
        return None if self.form == "none" else self.argument(_MASKS)

    @property
    def cache(self) -> str | None:
        """Name of the argument for the cache."""
        return self.argument(_CACHES)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set all parameters."""
        if not isinstance(self.target, nn.Module):
            self.leaves = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
            return
        with torch.no_grad():
            for name, value in values.items():
                self.leaves[name].copy_(value)

    def call(self, x: Tensor, positions_T: Tensor | None = None, seen_BTS: Tensor | None = None, **special: Any) -> Any:
        """Return what the code returns for an input [B, T, ...].

        `seen_BTS` is true if the query sees the key. `special` holds further arguments, such as a cache.
        """
        values: dict[str, Any] = dict.fromkeys(self.inputs, x)
        if self.positions is not None:
            T = x.shape[1] if x.dtype == torch.int64 else x.shape[-2]
            positions_T = torch.arange(T) if positions_T is None else positions_T
            values[self.positions] = positions_T[None] if self.positions in _POSITION_ROWS else positions_T
        if self.mask is not None and seen_BTS is not None:
            values[self.mask] = self._mask(seen_BTS[:, None], x.dtype)
        values |= {name: self.settings[name] for name in self.arguments if name in self.settings}
        if not isinstance(self.target, nn.Module):
            values |= {name: leaf.to(x.dtype) if leaf.dtype != x.dtype else leaf for name, leaf in self.leaves.items()}
        values |= special
        if self.uses_numpy:
            values = {name: v.detach().numpy() if isinstance(v, Tensor) else v for name, v in values.items()}
        return _called(self.target, values)

    def output(self, *arguments: Any, **special: Any) -> Tensor:
        """Return the output of `call` as a tensor. If the code returns several values, this is the first."""
        returned = self.call(*arguments, **special)
        first = returned[0] if isinstance(returned, tuple | list) else getattr(returned, "logits", returned)
        if isinstance(first, numpy.ndarray):
            first = torch.from_numpy(numpy.ascontiguousarray(first))
        if not isinstance(first, Tensor):
            raise UserError(f"{_name(self.target)}: returned a {type(first).__name__}; allowed: a tensor or an array")
        return first

    def _mask(self, seen: Tensor, dtype: torch.dtype) -> Tensor:
        if self.form == "visible":
            return seen
        wide = dtype if dtype.is_floating_point else torch.float64
        return ~seen if self.form == "hidden" else torch.zeros(seen.shape, dtype=wide).masked_fill(~seen, float("-inf"))

    def _is_required(self, name: str) -> bool:
        return self.arguments[name].default is inspect.Parameter.empty

    def _made(self, kind: type) -> Any:
        """Return an instance of a class. The names of its arguments decide what they get."""
        arguments = _arguments(kind)
        known = {name: self.settings[name] for name in arguments if name in self.settings}
        for name, argument in arguments.items():
            if argument.default is inspect.Parameter.empty and name not in known:
                allowed = choose(name, sorted(self.settings))
                raise UserError(f"{kind.__name__}: argument {name!r} has no known meaning{allowed}; or pass it by name")
        return _called(kind, known)


class _Heads(NamedTuple):
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None


_NO_HEADS = _Heads()


def _settings(reference: Reference) -> dict[str, Any]:
    """Return the values for arguments of constructors and functions, by each name that such an argument may have."""
    config, layer = reference.config, reference.layer_config
    heads = layer.attention if isinstance(layer.attention, MultiHead) else _NO_HEADS
    width = reference.rotary_width if reference.part == "rotary" else config.d_model
    values = (
        ("d_model dim hidden_size embed_dim embedding_dim n_embd emb_dim normalized_shape features ndim d", width),
        ("n_heads num_heads n_head heads h num_attention_heads n_q_heads num_q_heads num_query_heads", heads.n_heads),
        ("n_kv_heads num_kv_heads n_kv_head kv_heads num_key_value_heads n_groups num_groups", heads.n_kv_heads),
        ("head_dim d_k d_head dim_head head_size", heads.head_dim),
        ("d_ff ffn_dim intermediate_size d_hidden hidden_dim dim_ff dim_feedforward", getattr(layer.mlp, "d_ff", None)),
        ("eps norm_eps epsilon rms_norm_eps layer_norm_eps variance_epsilon", getattr(layer.norm, "eps", None)),
        ("theta rope_theta rotary_base base", getattr(layer.position, "theta", None)),
        (
            "max_seq_len context_length context_len block_size max_len max_position_embeddings seq_len max_length",
            config.max_seq_len,
        ),
        ("vocab_size n_vocab", config.vocab_size),
        ("n_layers num_layers n_layer num_hidden_layers", config.n_layers),
        ("dropout p dropout_p", 0.0),
    )
    return {name: value for names, value in values if value is not None for name in names.split()}


def _arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise UserError(f"{_name(function)}: has no signature that Python can read; wrap it in a function") from None
    return {name: parameter for name, parameter in parameters.items() if parameter.kind not in _VARIADIC}


def _called(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call the code by position as far as needed. Raise UserError with its error if it fails."""
    called = function.forward if isinstance(function, nn.Module) else function
    only_position = [
        name for name, p in _arguments(called).items() if p.kind is inspect.Parameter.POSITIONAL_ONLY and name in values
    ]
    named = {name: value for name, value in values.items() if name not in only_position}
    try:
        return function(*(values[name] for name in only_position), **named)
    except UserError:
        raise
    except Exception as error:
        kinds = {parameter.kind for parameter in inspect.signature(called).parameters.values()}
        is_variadic = inspect.Parameter.VAR_POSITIONAL in kinds
        hint = "; archlab passes arguments by name, so give those in *args names" if is_variadic else ""
        raise UserError(f"{_name(function)}{_place(error, called)}: {type(error).__name__}: {error}{hint}") from error
    except SystemExit as error:  # otherwise, its exit code would look like a result of `archlab verify`
        raise UserError(f"{_name(function)}{_place(error, called)}: exits Python when it is called") from None


def _place(error: BaseException, function: Callable[..., Any]) -> str:
    """Return the last line of the function's file that the error passed, as in `, line 12 of mine.py`."""
    with suppress(TypeError):  # it has no file
        file = inspect.getfile(function)
        if lines := [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]:
            return f", line {lines[-1]} of {Path(file).name}"
    return ""


def _uses_numpy(function: Callable[..., Any]) -> bool:
    """Return whether a function uses NumPy and not torch: in its own code or, if it uses neither, in its file."""
    call = function if isinstance(function, FunctionType | MethodType) else type(function).__call__
    code, names = getattr(call, "__code__", None), getattr(call, "__globals__", {})
    if code is None:
        return False
    own = [value for value in map(names.get, _names_in(code)) if value is numpy or value is torch]
    used = own or [value for value in names.values() if value is numpy or value is torch]
    return bool(used) and torch not in used


def _names_in(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names_in(constant)


def _name(target: Any) -> str:
    return getattr(target, "__name__", type(target).__name__)
