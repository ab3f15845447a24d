"""What is wrong with a command line: the argument, what was found, what is allowed, the nearest name."""

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


# --- words that people try as commands ---------------------------------------------------------------------

Way: TypeAlias = tuple[str, str]
"""A command without `archlab`, and what it does."""

_GENERATE = ("generate RUN --prompt TEXT", "continue a text; there is no chat")
_EXPORT = ("export RUN --out FOLDER", "a folder for transformers or vLLM")
_GGUF = ("export RUN --gguf --out FILE", "a file for llama.cpp")
_IMPORT = ("import NAME --out RUN", "a run folder of a published model")
_TRAIN = ("train CONFIG --out RUN", "train a model")
_FURTHER = ("train RUN data.path=DATA --out RUN", "train it further")
_RESUME = ("train RUN --out RUN", "go on where the run stopped")
_LONGER = ("train RUN train.tokens=N --out RUN", "a longer run (constant or wsd)")
_STUDY = ("study run STUDY", "train several arms and compare them")
_OWN_STUDY = ("study new --out mine.yaml", "a study's file, to change and run")
_DIFF = ("diff A B", "two configs, field by field")
_COST = ("cost CONFIG", "parameters, FLOPs, memory and time")
_COSTS = ("cost A B", "what they cost, side by side")
_EVAL = ("eval RUN", "bits per byte on held-out text")
_LM_EVAL = ("lm-eval RUN TASK", "scores on tasks of lm_eval")
_REPORT = ("report RUN", "curves of runs, also while they train")
_DRAW = ("draw CONFIG --out X.svg", "a block diagram")
_SHOW = ("show CONFIG", "a config, whole; `> x.yaml` keeps it")
_INSPECT = ("inspect FOLDER", "what a folder with weights is")
_BENCH = ("bench train CONFIG", "measured speed")
_PROFILE = ("profile CONFIG", "where the time of a training step goes")
_LIST = ("list", "presets, hardware, families and studies")
_DATA = ("data TEXT --out DATA", "learn a tokenizer and tokenize a text")
_EXPLAIN = ("explain TOPIC", "a choice: why, who uses it, what it costs")
_LEDGER = ("ledger", "published claims, and what was measured here")
_CHECK = ("check CONFIG", "review the shape of a config")
_STUDY_REPORT = ("study report FOLDER", "the table and the page, from the runs so far")

_ROWS: tuple[tuple[str, Sequence[Way]], ...] = (
    ("finetune fine-tune fine_tune sft lora adapt", (_IMPORT, _FURTHER)),
    ("run fit pretrain learn start launch", (_TRAIN, _STUDY)),
    ("resume continue restart", (_RESUME, _STUDY)),
    ("extend", (_LONGER,)),
    ("compare versus vs ablate ablation experiment experiments", (_DIFF, _COSTS, _STUDY, _OWN_STUDY)),
    ("sweep tune search grid optimize", (_OWN_STUDY, _STUDY)),
    ("chat talk ask prompt complete completion predict sample infer inference", (_GENERATE,)),
    ("serve server deploy api", (_EXPORT, _GGUF)),
    ("save upload push publish", (_EXPORT, _GGUF)),
    ("quantize quantise gguf", (_GGUF,)),
    ("download pull fetch load get", (_IMPORT, _LIST)),
    ("plot chart graph curves dashboard watch monitor tensorboard log logs status", (_REPORT, _STUDY_REPORT, _DRAW)),
    ("visualize visualise diagram picture", (_DRAW, _REPORT)),
    ("evaluate evaluation test score perplexity validate validation", (_EVAL, _LM_EVAL)),
    ("benchmark benchmarks", (_BENCH, _LM_EVAL)),
    ("speed time timing measure", (_BENCH, _PROFILE, ("hardware --measure", "this machine"))),
    ("info describe summary summarize view print config", (_SHOW, _INSPECT)),
    ("new init create edit", (_SHOW, _OWN_STUDY)),
    ("params parameters flops memory count estimate price budget", (_COST,)),
    ("scale shape design", (("size --params 1B", "a shape for a number of parameters"), _CHECK)),
    ("lint review", (_CHECK,)),
    ("models model preset presets families studies ls", (_LIST,)),
    ("tokenize tokenise tokenizer prepare preprocess dataset", (_DATA,)),
    ("why evidence claims", (_EXPLAIN, _LEDGER)),
    ("help", (("--help", "the commands"),)),
    ("version", (("--version", "the version"),)),
    ("docs doc tutorial", (("guide --out DIR", "the documents as a site"),)),
    ("study-start study-train study-resume study-continue", (_STUDY,)),
    ("study-create study-init study-edit", (_OWN_STUDY,)),
    ("study-status study-results study-plot study-compare study-summary", (_STUDY_REPORT,)),
)  # fmt: skip

WORDS: Mapping[str, Sequence[Way]] = {word: ways for words, ways in _ROWS for word in words.split()}
"""Word, after its group and a dash if it has one (`study-resume`) -> the commands that do it."""


def meant(word: str, ways: Sequence[Way]) -> str:
    """The lines that say what to use in place of a word."""
    width = max(len(command) for command, _ in ways)
    return "\n".join(
        [f"no command {word!r}; use:", *(f"  archlab {command:<{width}}  {does}" for command, does in ways)]
    )
