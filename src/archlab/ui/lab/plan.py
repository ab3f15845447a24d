"""A new study, before it runs: the check of its text, its arms, its size, and what it could find."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from statistics import median, stdev
from typing import Any, NamedTuple

from archlab.config.core.merge import Raw
from archlab.config.core.yaml_text import parse_yaml, to_yaml
from archlab.config.io import parse_overrides, presets, studies
from archlab.config.problems import Problem, nearest, raise_problems
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.evidence.pace import training_pace
from archlab.evidence.results import committed
from archlab.hf.folder import is_hub_id
from archlab.machine import total_memory
from archlab.pricing.params import parameters
from archlab.pricing.run_memory import host_memory
from archlab.pricing.units import binary, count, plural, seconds
from archlab.study.arm import Arm
from archlab.study.authoring import EXAMPLE, template
from archlab.study.design import arms
from archlab.study.forecast import forecast
from archlab.study.power import smallest_effect
from archlab.study.schema import StudyConfig
from archlab.study.study_file import AS_IT_STANDS, library_values, scales_of, study_from_values, unloaded_study
from archlab.ui.configs import find, stays_below
from archlab.ui.values import typed

MOST_ARMS = 50
"""Maximum number of arms, at all sizes together. Arms of equal size are searched, which takes up to 0.1 s for each."""

_PLUGINS = "plugins: a study from the browser cannot run plug-ins; use `archlab study run` in a terminal"

_WORDS = ("question", "claim", "labels")
"""Fields of a study with free text, which may contain anything."""


class PlannedArm(NamedTuple):
    """One arm of a planned study."""

    name: str
    changes: str
    parameters: str
    tokens: str


class Plan(NamedTuple):
    """A study before it runs."""

    question: str
    arms: list[PlannedArm]
    facts: list[tuple[str, str]]


def first_text(source: str, scale: str | None) -> str:
    """Return the text of a study file to start from: a study that comes with archlab, or a small example."""
    if not source:
        return template(EXAMPLE)
    if source not in studies():
        raise UserError(f"unknown study {source!r}{nearest(source, studies()) or ';'} the page Studies lists all")
    return to_yaml(unloaded_study(source, scale or AS_IT_STANDS).model_dump(mode="json", exclude_unset=True))


def text_of_answers(answers: Mapping[str, str]) -> str:
    """Return the text of a study file with the `question`, the `base`, the training `tokens`, the number of `seeds` and
    the `arms`.

    Each line of `arms` is an arm with its changes, as in `gelu: model.mlp.activation=gelu`. Raise UserError if a line
    cannot be read. Whether the study is valid is checked later, with the whole text.
    """
    designed, problems = dict[str, Raw](), list[Problem]()
    for line in filter(str.strip, answers["arms"].splitlines()):
        name, colon, changes = line.partition(":")
        try:
            settings = shlex.split(changes)
        except ValueError as error:
            raise UserError(f"arms: {line.strip()!r}: {error}") from None
        if not colon or not name.strip():
            raise UserError(
                f"arms: {line.strip()!r} has no name; allowed: lines such as 'gelu: model.mlp.activation=gelu'"
            )
        if name.strip() in designed:
            raise UserError(f"arms: {name.strip()} is named twice; give each arm its own name")
        designed[name.strip()], found = parse_overrides(settings)
        problems += found
    raise_problems(problems, "arms")
    words = {name: answers[name] for name in ("question", "base")}
    numbers = {
        "seeds": parse_yaml(answers["seeds"], "seeds"),
        "budget": {"tokens": parse_yaml(answers["tokens"], "tokens")},
    }
    values = {**EXAMPLE, **words, **numbers, "arms": designed}
    if answers["base"] not in presets():  # a config of the user has training settings of its own
        del values["set"]
    return template(values)


def example_answers() -> dict[str, str]:
    """Return the answers that give the example of a study."""
    lines = [
        f"{name}: {' '.join(f'{path}={typed(value)}' for path, value in arm.items())}"
        for name, arm in EXAMPLE["arms"].items()
    ]
    words = {name: str(EXAMPLE[name]) for name in ("question", "base", "seeds")}
    return {**words, "tokens": EXAMPLE["budget"]["tokens"], "arms": "\n".join(lines)}


def scales_to_start(name: str) -> list[str]:
    """Return the scales at which a study that comes with archlab can be started in the browser. A study with plug-ins
    has none."""
    return [] if "plugins" in library_values(name) else scales_of(name)


def checked(text: str, root: Path) -> StudyConfig:
    """Return the study in a text from the browser. Raise UserError if it is not valid, or if it names files outside the
    folder `root` or plug-ins, which would run code."""
    values = parse_yaml(text, "the study")
    if not isinstance(values, dict):
        raise UserError("the study is not a mapping of fields; the example shows the form")
    if "plugins" in values:
        raise UserError(_PLUGINS)
    for field, value in _texts({key: value for key, value in values.items() if key not in _WORDS}, ""):
        if value.startswith(("/", "~")) or not stays_below(value, root):
            raise UserError(f"{field} is {value!r}; allowed in the browser: names, and paths below the current folder")
        if is_hub_id(value) and not (root / value).exists():
            raise UserError(
                f"{field} is {value!r}, which is not below the current folder; the browser downloads nothing"
            )
    if isinstance(base := values.get("base"), str):
        values["base"] = str(find(base, root))
    study = study_from_values(values)
    if study.plugins:  # of a study that it extends
        raise UserError(_PLUGINS)
    if (n := max(len(study.arms), prod(map(len, study.cross.values()))) * max(1, len(study.sizes))) > MOST_ARMS:
        raise UserError(f"{n} arms; allowed in the browser: up to {MOST_ARMS}; use `archlab study run` in a terminal")
    arms(study)  # a base of the folder may name plug-ins, which only the configs of the arms import
    return study


def plan(study: StudyConfig) -> Plan:
    """Return the arms of a study and what its runs would take. Nothing is trained."""
    designed = arms(study)
    pace = training_pace()
    total = forecast(study, designed, pace.clock)
    facts = [("Runs", f"{total.runs}, with {plural(len(study.seed_list), 'seed')} per arm")]
    if total.seconds is not None:
        facts.append(("Time of all runs, without start-up", f"about {seconds(total.seconds)} {pace.source}"))
    facts.append(("Smallest difference it could find", _smallest(study, designed)))
    needed = max(host_memory(arm.config, "cpu", "float32") for arm in designed)
    too_large = f"; this machine has {binary(total_memory())}" if needed > total_memory() else ""
    facts.append(("Memory of a run on a CPU, in float32", f"up to {binary(needed)}{too_large}"))
    return Plan(study.question, [_planned(arm) for arm in designed], facts)


def _planned(arm: Arm) -> PlannedArm:
    changes = ", ".join(f"{path}: {typed(value)}" for path, value in {**arm.overrides, **arm.adjusted}.items())
    n = parameters(arm.config.model).total
    return PlannedArm(arm.label, changes or "nothing", count(n), count(resolve_train(arm.config).trained))


def _smallest(study: StudyConfig, designed: Sequence[Arm]) -> str:
    n = len(study.seed_list)
    if n < 2 or len(designed) < 2:
        return "none: a comparison needs two arms and two seeds"
    effect = smallest_effect(_usual_scatter(), n, n - 1, 0.05 / (len(designed) - 1))
    return f"about {effect:.3f} bits per byte, if the runs scatter like those of archlab's own studies"


@cache
def _usual_scatter() -> float:
    """Return the median standard deviation of paired differences in bits per byte, over archlab's committed studies."""
    return median(_scatters())


def _scatters() -> Iterator[float]:
    for results in committed().values():
        heading = results.about.outcomes[0]
        if heading.name != "bits_per_byte":
            continue
        first, *others = results.values[heading.name].values()
        for other in others:
            pairs = [(first[seed], other[seed]) for seed in first.keys() & other.keys()]
            differences = [b - a for a, b in pairs if a is not None and b is not None]
            if len(differences) > 2:
                yield stdev(differences)


def _texts(value: Any, at: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield at, value
        case Mapping():
            for key, inner in value.items():
                yield from _texts(inner, f"{at}.{key}".lstrip("."))
        case list():
            for inner in value:
                yield from _texts(inner, at)
        case _:
            pass
