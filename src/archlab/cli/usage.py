"""What is wrong with a command line: the argument, what was found, what is allowed, the nearest name."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import CycloptsError, Parameter, UnknownCommandError
from cyclopts.argument import Argument
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)
from cyclopts.validators import Number

from archlab.cli.words import WORDS, meant
from archlab.config.problems import choose, nearest

_LONGEST_NAME, _NEAR = 60, 0.7
"""Characters of a word that are compared with names and words, and the share of them that are alike in a near one."""

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "nothing, the name alone says it",
    Path: "a path",
    tuple[int, ...]: "whole numbers between commas",
}


def usage(error: CycloptsError) -> str:
    """The message for a command line that cyclopts refuses."""
    match error:
        case UnknownCommandError(unused_tokens=[found, *_]):
            return _unknown_command(error, found)
        case UnknownOptionError():
            return _unknown_option(error, error.token.keyword or error.token.value)
        case UnusedCliTokensError(unused_tokens=[found, *_]):
            taken = [a.name for a in _arguments(error) if not _options([a])]
            return f"{_short(found)}: one argument too many; {_command(error)} takes {' and '.join(taken) or 'none'}"
        case MissingArgumentError(argument=Argument() as argument):
            return _missing(error, argument)
        case RepeatArgumentError():
            return f"{error.token.keyword}: given twice; allowed: once"
        case CoercionError(argument=Argument() as argument) | ValidationError(argument=Argument() as argument):
            return _wrong_value(error, argument)
        case _:
            return f"{_command(error)}: {error}"


def _unknown_command(error: CycloptsError, found: str) -> str:
    """If the word is in WORDS, list the commands that do it. Otherwise suggest the nearest command, or list the
    commands of the nearest word of WORDS if that is nearer.

    Cyclopts' own message imports every verb, and torch with them, to list their names.
    """
    names = [name for name in error.app or () if not name.startswith("-")]
    group = "".join(f"{name}-" for name in error.command_chain or ())
    words = {word.removeprefix(group): ways for word, ways in WORDS.items() if word.startswith(group)}
    near = get_close_matches(found[:_LONGEST_NAME].lower(), [*names, *words], n=1, cutoff=_NEAR)
    if near and near[0] not in names:
        return meant(found, words[near[0]])
    of = f" of {_command(error)}" if error.command_chain else ""
    return f"no command {_short(found)}{of}{choose(found, names)}"


def _unknown_option(error: CycloptsError, token: str) -> str:
    name, _, value = token.partition("=")
    if "." in name:
        hint = f"; a field is changed without dashes: {name.lstrip('-')}={value or '…'}"
    else:
        options = _options(_arguments(error))
        hint = choose(name, options) if options else "; it has none"
    return f"{name}: no option of {_command(error)}{hint}"


def _missing(error: MissingArgumentError, argument: Argument) -> str:
    """Of a misspelt option and a missing one, the misspelt one explains more."""
    if error.keyword:
        return f"{error.keyword}: no value after it; allowed: {_allowed(argument)}"
    arguments = _arguments(error)
    for token in error.unused_tokens or ():
        if token.startswith("--") and token.partition("=")[0] not in _options(arguments):
            return _unknown_option(error, token)
    texts = [" ".join(str(a.parameter.help).split()) for a in arguments if a.name == argument.name and a.parameter.help]
    what = (texts or [_allowed(argument)])[0].partition(". ")[0].removesuffix(".")
    return f"{argument.name}: missing; {_command(error)} needs it: {what[0].lower()}{what[1:]}"


def _wrong_value(error: CoercionError | ValidationError, argument: Argument) -> str:
    token = (error.token if isinstance(error, CoercionError) else None) or next(iter(argument.tokens), None)
    found = _short(token.value if token else "")
    choices = [str(choice) for choice in _choices(argument.hint)]
    hint = nearest(token.value, choices) if token else ""
    return f"{argument.name}: {found}{hint or ';'} allowed: {_allowed(argument)}"


def _allowed(argument: Argument) -> str:
    hint = next((part for part in get_args(argument.hint) if part is not type(None)), argument.hint)
    if choices := _choices(argument.hint):
        return ", ".join(map(str, choices))
    validators = argument.parameter.validator
    numbers = [v for v in validators if isinstance(v, Number)] if isinstance(validators, tuple) else []
    bounds = [f", {word} {limit:,}" for v in numbers for word, limit in _bounds(v) if limit is not None]
    return _KINDS.get(hint, "text") + "".join(bounds)


def _bounds(number: Number) -> tuple[tuple[str, object], ...]:
    return ("at least", number.gte), ("more than", number.gt), ("at most", number.lte), ("less than", number.lt)


def _choices(hint: Any) -> tuple[object, ...]:
    """Of a Literal, or of one that may be left out."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((get_args(part) for part in get_args(hint) if get_origin(part) is Literal), ())


def _arguments(error: CycloptsError) -> list[Argument]:
    """Those of the command that was meant."""
    plain = Parameter(negative=())
    return list(
        error.app.assemble_argument_collection(default_parameter=plain, parse_docstring=True) if error.app else ()
    )


def _options(arguments: Iterable[Argument]) -> list[str]:
    return [name for argument in arguments for name in argument.names if name.startswith("--")]


def _command(error: CycloptsError) -> str:
    return f"`{' '.join(('archlab', *(error.command_chain or ())))}`"


def _short(found: str) -> str:
    return repr(found if len(found) <= _LONGEST_NAME else f"{found[:57]}...")
