"""Messages about wrong command lines: the argument, the value found, the allowed values and the nearest name."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

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

from archlab.config.problems import choose, nearest

_LONGEST_NAME, _NEAR = 60, 0.7
"""Limits for suggestions: only this number of first characters is compared, and a suggested name has at least this
similarity (0 to 1)."""

_TEXT_OPTIONS = ("--prompt", "--text")
"""Options whose value users write without the option."""

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "the option without a value",
    Path: "a path",
    tuple[int, ...]: "whole numbers separated by commas",
}


def usage(error: CycloptsError) -> str:
    match error:
        case UnknownCommandError(unused_tokens=[word, *_]):
            return _unknown_command(error, word)
        case UnknownOptionError():
            return _unknown_option(error, error.token.keyword or error.token.value)
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            return _too_many(error, word)
        case MissingArgumentError(argument=Argument() as argument):
            return _missing(error, argument)
        case RepeatArgumentError():
            return f"{error.token.keyword} occurs twice; allowed: once"
        case CoercionError(argument=Argument() as argument) | ValidationError(argument=Argument() as argument):
            return _wrong_value(error, argument)
        case _:
            return f"{_command(error)}: {error}"


def _unknown_command(error: CycloptsError, unknown: str) -> str:
    """Return the message about an unknown command.

    The unknown command is compared with the names of commands and with the words in WORDS. If a word is the most
    similar, the message suggests the commands for that word, otherwise the command with the most similar name. The
    message of cyclopts is not used, because creating it would import every subcommand, and thus torch.
    """
    names = [name for name in error.app or () if not name.startswith("-")]
    group = "".join(f"{name}-" for name in error.command_chain or ())
    words = {word.removeprefix(group): ways for word, ways in WORDS.items() if word.startswith(group)}
    near = get_close_matches(unknown[:_LONGEST_NAME].lower(), [*names, *words], n=1, cutoff=_NEAR)
    if near and near[0] not in names:
        return suggest(unknown, words[near[0]])
    verb = f" of {_command(error)}" if error.command_chain else ""
    meanings = f"{_command(error)[:-1]} --help` says what they do"
    return f"unknown command {_short(unknown)}{verb}{choose(unknown, names)}. {meanings}"


def _unknown_option(error: CycloptsError, token: str) -> str:
    name, _, value = token.partition("=")
    if "." in name:
        hint = f"; to change a field, leave out the dashes: {name.lstrip('-')}={value or '…'}"
    else:
        options = _options(_arguments(error))
        hint = choose(name, options) if options else "; it has no options"
    return f"{name}: unknown option of {_command(error)}{hint}"


def _too_many(error: CycloptsError, word: str) -> str:
    arguments = _arguments(error)
    names = [argument.name for argument in arguments if not _options([argument])]
    text = next((f"; a text belongs after {option}" for option in _options(arguments) if option in _TEXT_OPTIONS), "")
    takes = " and ".join(names) or "no arguments"
    return f"{_short(word)} is one argument too many; {_command(error)} takes {takes}{text}"


def _missing(error: MissingArgumentError, argument: Argument) -> str:
    """Return the message about a missing argument.

    If an option is misspelled, return the message about that option, because the missing argument may be a consequence.
    """
    if error.keyword:
        return f"{error.keyword} has no value; allowed: {_allowed(argument)}"
    arguments = _arguments(error)
    for token in error.unused_tokens or ():
        if token.startswith("--") and token.partition("=")[0] not in _options(arguments):
            return _unknown_option(error, token)
    texts = [" ".join(str(a.parameter.help).split()) for a in arguments if a.name == argument.name and a.parameter.help]
    meaning = (texts or [_allowed(argument)])[0].partition(". ")[0].removesuffix(".")
    return f"{argument.name} is missing; {_command(error)} needs it: {meaning[0].lower()}{meaning[1:]}"


def _wrong_value(error: CoercionError | ValidationError, argument: Argument) -> str:
    token = (error.token if isinstance(error, CoercionError) else None) or next(iter(argument.tokens), None)
    value = _short(token.value if token else "")
    choices = [str(choice) for choice in _choices(argument.hint)]
    hint = nearest(token.value, choices) if token else ""
    return f"{argument.name} is {value}{hint or ';'} allowed: {_allowed(argument)}"


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
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((get_args(part) for part in get_args(hint) if get_origin(part) is Literal), ())


def _arguments(error: CycloptsError) -> list[Argument]:
    plain = Parameter(negative=())
    return list(
        error.app.assemble_argument_collection(default_parameter=plain, parse_docstring=True) if error.app else ()
    )


def _options(arguments: Iterable[Argument]) -> list[str]:
    return [name for argument in arguments for name in argument.names if name.startswith("--")]


def _command(error: CycloptsError) -> str:
    return f"`{' '.join(('archlab', *(error.command_chain or ())))}`"


def _short(word: str) -> str:
    return repr(word if len(word) <= _LONGEST_NAME else f"{word[:57]}...")


# --- words that people try as commands ---------------------------------------------------------------------

Way: TypeAlias = tuple[str, str]
"""A command to suggest (without `archlab`), and its description."""

_GENERATE = ("generate RUN --prompt TEXT", "continue a text (not a chat)")
_EXPORT = ("export RUN --out FOLDER", "a folder for transformers or vLLM")
_GGUF = ("export RUN --gguf --out FILE", "a file for llama.cpp")
_IMPORT = ("import NAME --out RUN", "a run folder of a published model")
_TRAIN = ("train CONFIG --out RUN", "train a model")
_FURTHER = ("train RUN data.path=DATA --out RUN", "train it further")
_RESUME = ("train RUN --out RUN", "resume a run")
_LONGER = ("train RUN train.tokens=N --out RUN", "a longer run (constant or wsd)")
_STUDY = ("study run STUDY", "train several arms and compare them")
_OWN_STUDY = ("study new --out mine.yaml", "a study file to change and run")
_DIFF = ("diff A B", "the fields in which two configs differ")
_COST = ("cost CONFIG", "parameters, FLOPs, memory and time")
_COSTS = ("cost A B", "the costs of several models, side by side")
_EVAL = ("eval RUN", "bits per byte on held-out text")
_LM_EVAL = ("lm-eval RUN TASK", "scores on tasks of lm_eval")
_REPORT = ("report RUN", "training curves of runs, also during training")
_DRAW = ("draw CONFIG --out X.svg", "a block diagram")
_SHOW = ("show CONFIG", "every field; `> x.yaml` saves the config")
_INSPECT = ("inspect FOLDER", "what a model folder contains")
_BENCH = ("bench train CONFIG", "measured speed")
_PROFILE = ("profile CONFIG", "where the time of a training step goes")
_LIST = ("list", "presets, hardware, families and studies")
_DATA = ("data TEXT --out DATA", "learn a tokenizer and tokenize a text")
_EXPLAIN = ("explain TOPIC", "reasons, users and cost of a choice")
_LEDGER = ("ledger", "published claims, and what our runs found")
_CHECK = ("check CONFIG", "review the shape of a config")
_STUDY_REPORT = ("study report FOLDER", "table and page of the runs so far")

_ROWS: tuple[tuple[str, Sequence[Way]], ...] = (
    ("finetune fine-tune fine_tune sft lora adapt", (_IMPORT, _FURTHER)),
    ("run fit pretrain learn start launch", (_TRAIN, _STUDY)),
    ("resume continue restart", (_RESUME, _STUDY)),
    ("extend", (_LONGER,)),
    ("compare versus vs ablate ablation experiment experiments", (_DIFF, _COSTS, _STUDY, _OWN_STUDY)),
    ("sweep tune search grid optimize", (_OWN_STUDY, _STUDY)),
    ("chat talk ask prompt complete predict sample infer inference", (_GENERATE,)),
    ("serve server deploy api", (_EXPORT, _GGUF)),
    ("save upload push publish", (_EXPORT, _GGUF)),
    ("quantize gguf", (_GGUF,)),
    ("download pull fetch load get", (_IMPORT, _LIST)),
    ("plot chart graph curves dashboard watch monitor tensorboard log logs status", (_REPORT, _STUDY_REPORT, _DRAW)),
    ("visualize diagram picture", (_DRAW, _REPORT)),
    ("evaluate evaluation test score perplexity validate validation", (_EVAL, _LM_EVAL)),
    ("benchmark benchmarks", (_BENCH, _LM_EVAL)),
    ("speed time timing measure", (_BENCH, _PROFILE, ("hardware --measure", "measure this machine"))),
    ("info describe summary summarize view print config", (_SHOW, _INSPECT)),
    ("new init create edit", (_SHOW, _OWN_STUDY)),
    ("params parameters flops memory count estimate price budget", (_COST,)),
    ("scale shape design", (("size --params 1B", "a shape for a number of parameters"), _CHECK)),
    ("lint review", (_CHECK,)),
    ("models model preset presets families studies ls", (_LIST,)),
    ("tokenize tokenizer prepare preprocess dataset", (_DATA,)),
    ("why evidence claims", (_EXPLAIN, _LEDGER)),
    ("help", (("--help", "all commands"),)),
    ("version", (("--version", "the version"),)),
    ("docs doc tutorial", (("guide --out DIR", "the documentation as a website"),)),
    ("study-start study-train study-resume study-continue", (_STUDY,)),
    ("study-create study-init study-edit", (_OWN_STUDY,)),
    ("study-status study-results study-plot study-compare study-summary", (_STUDY_REPORT,)),
)  # fmt: skip

WORDS: Mapping[str, Sequence[Way]] = {word: ways for words, ways in _ROWS for word in words.split()}
"""Mapping from words that a user might type as a command to the commands to suggest.

A word that the user types after `archlab study` has the prefix `study-`: `archlab study resume` is the key
`study-resume`.
"""


def suggest(word: str, ways: Sequence[Way]) -> str:
    """Return a message which says that `word` is unknown and lists the commands in `ways`."""
    width = max(len(command) for command, _ in ways)
    return "\n".join(
        [
            f"unknown command {word!r}; use:",
            *(f"  archlab {command:<{width}}  {description}" for command, description in ways),
        ]
    )
