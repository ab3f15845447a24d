"""Fields of a config that a command reads. An override of any other field would change nothing."""

from collections.abc import Iterator, Mapping, Sequence

from archlab.config.core.merge import expand, fields_below
from archlab.config.core.registry import cache_of_kinds
from archlab.config.core.text import note
from archlab.config.identity import flatten
from archlab.config.io import parse_overrides
from archlab.config.problems import Problem, is_under, raise_problems
from archlab.config.schema import Config


def _of_train(names: str) -> list[str]:
    return [f"train.{name}" for name in names.split()]


_OF_OBJECTIVE = ("train.objective", "data.task", "data.reserve", "data.pairs")
_PROBED = ("model", *_OF_OBJECTIVE, *_of_train("seq_len seed device"))
_STEPS = ("model", "train", *_OF_OBJECTIVE[1:], "data.fold")
READ_FIELDS: Mapping[str, Sequence[str]] = {
    "bench decode": ("model", "train.device"),
    "bench train": _STEPS,
    "convert": ("model", *_of_train("start_layers seed")),
    "cost": (
        "model",
        *_OF_OBJECTIVE,
        *_of_train("tokens batch_tokens micro_batch_tokens seq_len document_mask optimizer lora teacher"),
    ),
    "draw": ("model",),
    "eval": ("model", "data", *_of_train("objective document_mask seq_len eval_seq_len seed dtype device")),
    "flatten": ("model",),
    "probe": _PROBED,
    "probe --widths": (
        *_PROBED,
        *_of_train("lr optimizer lr_multipliers weight_decay decay_embeddings betas eps grad_clip z_loss teacher lora"),
    ),
    "profile": _STEPS,
}
"""Sections and fields that each command reads, besides `plugins`. Commands that show or check a whole config, and
`train`, are not listed."""

_INSTEAD: Mapping[str, Mapping[str, str]] = {
    "bench decode": {
        "train.seq_len": "use --context",
        "train.batch_tokens": "use --batch",
        "train.dtype": "use --dtype",
        "train.compile": "use --compile",
    },
    "convert": dict.fromkeys(("train", "data", "parallel"), "`archlab train` takes it"),
    "cost": {"parallel": "use --parallel", "train.dtype": "use --dtype", "train.recompute": "both ways are shown"},
    "eval": {"train.eval_tokens": "use --tokens", "train.start": "give it as a model"},
}
"""Advice about overrides that a command does not read, by section or field."""


def check_effect(overrides: Sequence[str], command: str) -> None:
    """Print a note about overrides that a command does not read, so that they would change nothing.

    Raise ConfigError for fields about which there is advice, such as the option of the command to use instead.
    """
    reads, instead = READ_FIELDS[command], _INSTEAD.get(command, {})
    problems, unread = list[Problem](), list[str]()
    for field in _without_effect(overrides, reads):
        if better := next((text for name, text in instead.items() if is_under([field], [name])), None):
            problems.append(Problem(field, f"has no effect on this command; {better}"))
        else:
            unread.append(field)
    raise_problems(problems, f"archlab {command}")
    if unread:
        note(f"no effect on archlab {command}: {', '.join(unread)}")


def with_effect(overrides: Sequence[str], command: str) -> list[str]:
    """Return the overrides that the command reads."""
    return [text for text in overrides if not list(_without_effect([text], READ_FIELDS[command]))]


def _without_effect(overrides: Sequence[str], reads: Sequence[str]) -> Iterator[str]:
    """Yield the fields that are set but not read. Unknown fields are left to `build_config`, which knows what may be
    meant."""
    for field in flatten(expand(parse_overrides(overrides)[0])):
        if is_under([field], _known_fields()) and not is_under([field], (*reads, "plugins")):
            yield field


@cache_of_kinds
def _known_fields() -> list[str]:
    return [place.path for place in fields_below(Config) if "." in place.path]
