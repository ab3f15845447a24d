"""Study of the differences of two configs, on a model that trains on a laptop."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from archlab.config.core.merge import Raw
from archlab.config.identity import flatten, resolved
from archlab.config.layers import sees_as
from archlab.config.problems import ConfigError, Problem, is_under
from archlab.config.reserve import MASK
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.study.authoring import comment, template
from archlab.study.design import arms
from archlab.study.schema import StudyConfig
from archlab.study.study_file import study_from_values
from archlab.ui.compare.small import SMALL, in_small_model, is_size, section_of_kind
from archlab.ui.configs import ComparedConfigs, Variant, load

_NOT_TAKEN: Mapping[str, str] = {
    "model.layers": "all layers of the small model are alike",
    "model.encoder": "the small model has no encoder",
}
"""Sections that a study does not take over, with the reason."""


class DifferencesStudy(NamedTuple):
    """Study file whose arms are the differences of two configs."""

    text: str
    notes: list[str]
    """Differences that the study leaves out, each with the reason. The text contains them, too."""


def differences_study(compared: ComparedConfigs, root: Path) -> DifferencesStudy:
    """Return a study of the differences of two configs on a model that trains on a laptop.

    The first arm makes all choices of the first config in which they differ, and the last one all those of the second.
    Between them is an arm for each section. If both configs see both sides, all arms do, and they train with the first
    config's objective. Sizes are those of the small model (`in_small_model`). A kind that both configs have is set in
    all arms if fields of its part differ. Differences that the small model cannot have are left out. Raise UserError if
    none is left.
    """
    small = flatten(resolved(load(Variant(SMALL, {}), root).config))
    first, second = (load(variant, root).config for variant in compared.pair())
    before = in_small_model(first, [small])
    after = in_small_model(second, [small, before])
    draft = _Draft.of(compared.titles, small, before, after)
    draft.shared |= _both_sides(first, second)
    draft.leave_out_impossible()
    text = template(StudyConfig.model_validate(draft.study()).model_dump(mode="json", exclude_unset=True))
    return DifferencesStudy("\n".join([*map(comment, draft.notes), text]), draft.notes)


@dataclass
class _Draft:
    """Study from which differences are removed until the small model can have all others."""

    titles: list[str]
    shared: Raw
    """Kinds that both configs have, with their sizes."""
    before: Raw
    """Values of the first config in the differing fields."""
    after: Raw
    """Values of the second config in the differing fields."""
    left_out: dict[str, str]
    """Reason for each difference that was left out, by its field or section."""
    not_alone: dict[str, str] = field(default_factory=dict)
    """Reason why a section has no arm of its own, by its name."""

    @classmethod
    def of(cls, titles: list[str], small: Raw, before: Raw, after: Raw) -> "_Draft":
        absent = object()
        differing = [p for p in {**before, **after} if before.get(p, absent) != after.get(p, absent)]
        left_out = {root: why for root, why in _NOT_TAKEN.items() if any(is_under([p], [root]) for p in differing)}
        differing = [path for path in differing if not is_under([path], [*_NOT_TAKEN])]
        kinds = [
            path.removesuffix(".kind")
            for path, value in before.items()
            if path.endswith(".kind") and value == after.get(path) and value != small.get(path)
        ]
        kinds = [section for section in kinds if any(path.startswith(f"{section}.") for path in differing)]
        shared = {
            path: value
            for path, value in before.items()
            if section_of_kind(path, before) in kinds
            and (path.endswith(".kind") or (is_size(path) and value is not None))
            and path not in differing
        }
        set_before = {path: before[path] for path in differing if path in before and _sets(path, before[path], small)}
        set_after = {path: after[path] for path in differing if path in after and _sets(path, after[path], before)}
        return cls(titles, shared, set_before, set_after, left_out)

    @property
    def sections(self) -> dict[str, Raw]:
        """Values of the second config, by section of the model."""
        sections: dict[str, Raw] = {}
        for path, value in self.after.items():
            sections.setdefault(path.split(".")[1], {})[path] = value
        return sections if len(sections) > 1 else {}

    @property
    def notes(self) -> list[str]:
        """Sentences about the differences that the study leaves out."""
        left_out = (f"{path} is left out: {reason}" for path, reason in self.left_out.items())
        return [*left_out, *(f"{name} has no arm of its own: {reason}" for name, reason in self.not_alone.items())]

    def study(self) -> Raw:
        """Return the values of the study file."""
        alone = {name: values for name, values in self.sections.items() if name not in self.not_alone}
        return self._study({**alone, "second": self.after})

    def leave_out_impossible(self) -> None:
        """Leave out differences until all arms are valid. Raise UserError if none is left."""
        while self.after and (problem := next(_problems(self._study({"second": self.after})), None)):
            self._leave_out(problem)
        if not self.after:
            reasons = "; ".join(self.notes) or "they differ only in sizes, and the small model has its own"
            raise UserError(f"{' and '.join(self.titles)} give no study: {reasons}")
        for name, values in self.sections.items():
            if problem := next(_problems(self._study({name: values})), None):
                self.not_alone[name] = problem.message

    def _leave_out(self, problem: Problem) -> None:
        """Leave out the field that a problem names or, if it is not set, all fields of its part of the model."""
        field = problem.path[problem.path.find("model.") :].removesuffix(".kind")
        part = ".".join(field.split(".")[:2])
        for root in (field, part):
            if found := [path for path in (*self.shared, *self.before, *self.after) if is_under([path], [root])]:
                break
        else:
            raise ConfigError([problem], f"a study of {' and '.join(self.titles)}")
        for path in found:
            for values in (self.shared, self.before, self.after):
                values.pop(path, None)
        self.left_out[root] = problem.message

    def _study(self, others: Mapping[str, Raw]) -> Raw:
        first, second = self.titles
        labels = {"first": f"choices of {first}", "second": f"all choices of {second}"}
        return {
            "question": f"Which of the choices in which {second} differs from {first} matter at a small size?",
            "base": SMALL,
            "set": {"train.seq_len": 128, "train.batch_tokens": 1024, **self.shared, **self.before},
            "budget": {"tokens": "1M"},
            "seeds": 3,
            "arms": {"first": {}, **others},
            "labels": {name: label for name, label in labels.items() if name == "first" or name in others},
        }


def _both_sides(first: Config, second: Config) -> Raw:
    """Return the values with which all arms see both sides and learn to fill gaps, if both configs do so."""
    if not all(sees_as(config.model, "two_sided") for config in (first, second)):
        return {}
    objective = flatten(first.train.objective.model_dump(mode="json"), "train.objective.")
    return {"model.attention.visibility": "two_sided", "data.reserve": [MASK], **objective}


def _sets(path: str, value: Any, below: Mapping[str, Any]) -> bool:
    """Return whether a value changes `below`: null changes nothing that is not set."""
    return value is not None or any(is_under([p], [path]) and v is not None for p, v in below.items())


def _problems(values: Raw) -> Iterator[Problem]:
    """Yield the problems of a study."""
    try:
        arms(study_from_values(values))
    except ConfigError as error:
        yield from error.problems
