"""The runs of studies as they are committed: `results/NAME.jsonl`, a line per run, from which verdicts are computed.

A file begins with a line that says what was run where. Then follow a line per run (arm, seed, fold, every outcome's
value), a line per arm and round of timing, and a line per arm of what is counted. Nothing that could be computed from
these lines is in them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pydantic import ValidationError

from archlab.config.core.base import Base
from archlab.config.identity import config_hash
from archlab.config.io import studies
from archlab.data.split import MOST_FOLDS, n_test_folds
from archlab.errors import UserError
from archlab.pricing.work import computed_training_flops
from archlab.study.comparisons import effects, factor_contrasts, outcome_statistics
from archlab.study.design import arms
from archlab.study.record import Heading, OutcomeStatistics, StudySummary
from archlab.study.schema import AddedSeeds, StudyConfig
from archlab.study.stats import Folds, Values
from archlab.study.study_file import AS_IT_STANDS, library_study, scales_of

_NOT_MEANING = {"question", "claim", "labels", "scales"}
"""Fields of a study that change no result."""


class ArmOfResults(Base):
    """What a reader must know of an arm."""

    name: str
    label: str
    reference: str | None
    """The arm that it is compared with; null for the first."""
    factors: dict[str, Any]
    """Factor -> its level; empty where the study names its arms."""
    tuned: dict[str, Any]
    """Values that tuning found."""
    parameters: int
    tokens: int
    """Of training, per run."""


class ResultsHeader(Base):
    """The first line of a file."""

    study: str
    """The name of a study that comes with archlab."""
    scale: str
    """One of its scales; cpu: as it stands."""
    digest: str
    """Of all fields of the study that can change a result."""
    date: str
    """On which its last run ended, as in 2026-11-23."""
    command: str
    """What repeats it."""
    environment: dict[str, Any]
    """Versions, processor, threads."""
    corpus: str
    """What text was read."""
    margin: float | None
    """Of the outcome that the answer is about, which is the first one."""
    first: list[int] | None
    """Seeds whose scatter decided how many there are; null where that was planned."""
    outcomes: list[Heading]
    arms: list[ArmOfResults]


class Ran(Base):
    """What was run, without what came of it."""

    about: ResultsHeader
    seeds: int
    """Of each arm."""


class Results(Base):
    """One file."""

    about: ResultsHeader
    values: dict[str, dict[str, dict[int, float | None]]]
    """Outcome -> arm -> seed or round -> value; null where the run diverged, left out where there is none."""
    folds: dict[int, int]
    """Seed -> the part of the text that judges it."""

    def compared(self, outcome: str | None = None, margin: float | None = None) -> dict[str, OutcomeStatistics]:
        """Arms and contrasts with what they are compared to, corrected for each other, as in the study's own summary.

        `outcome` None: the one that the answer is about; none of one that was not measured. `margin` None: the study's
        own, which is of the answer's outcome alone.
        """
        if outcome is not None and outcome not in self.values:
            return {}
        heading = self.heading(outcome)
        is_primary = heading.name == self.about.outcomes[0].name
        by_seed = heading.source not in ("timing", "config")
        return outcome_statistics(
            heading,
            self.values[heading.name],
            {arm.name: arm.reference for arm in self.about.arms if arm.reference},
            margin or (self.about.margin if is_primary else None),
            self.about.first if by_seed else None,
            {name: planned.sum for name, planned in factor_contrasts(self.about.arms).items()},
            self._shared_folds() if by_seed else None,
        )

    def effects(self, outcome: str | None, name: str) -> tuple[float, float] | None:
        """Of an interaction of two factors: what the last one does at the first level of the other one, and at the
        other level; the comparison is of their difference. None of all else."""
        contrast = factor_contrasts(self.about.arms).get(name)
        if contrast is None or (outcome is not None and outcome not in self.values):
            return None
        heading = self.heading(outcome)
        by_seed = heading.source not in ("timing", "config")
        return effects(contrast, self.values[heading.name], self._shared_folds() if by_seed else None)

    @property
    def ran(self) -> Ran:
        """Beside the values."""
        return Ran(about=self.about, seeds=len(self.folds))

    @property
    def names(self) -> set[str]:
        """Of the arms and contrasts that are compared; at another scale a study may compare others."""
        return {arm.name for arm in self.about.arms if arm.reference} | factor_contrasts(self.about.arms).keys()

    def heading(self, outcome: str | None) -> Heading:
        """What the outcome of that name is; the answer's where it is None."""
        return next(one for one in self.about.outcomes if outcome in (None, one.name))

    def _shared_folds(self) -> Folds:
        return self.folds if 1 < len(set(self.folds.values())) < len(self.folds) else None


class _Outcome(NamedTuple):
    heading: Heading
    values: Mapping[str, Values]
    """By arm."""


def results_name(study: str, scale: str) -> str:
    """What the results of a study at a scale are called, as its folder is."""
    return study if scale == AS_IT_STANDS else f"{study}-{scale}"


def digest(study: StudyConfig) -> str:
    """Of what can change a result. Plug-ins count by their files' names, for the folder differs by machine."""
    values = study.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_MEANING)
    if study.plugins:
        values["plugins"] = [Path(plugin).name for plugin in study.plugins]
    return config_hash(values)


def in_library(summary: StudySummary) -> tuple[str, str] | None:
    """Which study that comes with archlab was run, and at which scale; None where it is none of them, or where another
    version of archlab wrote what this one cannot read."""
    try:
        wanted = digest(StudyConfig.model_validate(summary.study))
    except ValidationError:
        return None
    every = ((name, scale) for name in studies() for scale in scales_of(name))
    return next((one for one in every if digest(library_study(*one)) == wanted), None)


def identified(summary: StudySummary) -> tuple[str, str]:
    """As `in_library`, but UserError for none."""
    if found := in_library(summary):
        return found
    raise UserError(f"{summary.name}: no study that comes with archlab asks for the same runs; run one as it stands")


def record(summary: StudySummary, study: str, scale: str, date: str) -> Iterator[str]:
    """The lines of a results file. UserError for runs that are missing, and for a study over sizes."""
    config = StudyConfig.model_validate(summary.study)
    if unfinished := [arm.name for arm in summary.arms if len(arm.seeds) < len(summary.seeds)]:
        raise UserError(f"{summary.name}: runs of {', '.join(unfinished)} are missing; run the study again")
    if summary.sizes:
        raise UserError(f"{summary.name}: a study over sizes; results are kept of studies of one size")
    yield _line(_about(summary, config, study, scale, date).model_dump(mode="json"))
    every = [_Outcome(summary.outcome, {arm.name: arm.values for arm in summary.arms})]
    every += [_Outcome(other.outcome, {arm: one.values for arm, one in other.arms.items()}) for other in summary.others]
    for arm in summary.arms:
        for seed in arm.seeds:
            where = {"arm": arm.name, "seed": seed, "fold": seed % _n_folds(config)}
            yield _line({**where, "values": _of_index(every, ("log", "weights", "sweep"), arm.name, seed)})
    for source, index in (("timing", "round"), ("config", None)):
        for arm in summary.arms:
            rounds = {n for outcome in every if outcome.heading.source == source for n in outcome.values[arm.name]}
            for n in sorted(rounds):
                where = {"arm": arm.name, **({index: n} if index else {})}
                yield _line({**where, "values": _of_index(every, (source,), arm.name, n)})


def read_results(lines: str) -> Results:
    """A results file's text."""
    first, *rows = map(json.loads, lines.splitlines())
    about = ResultsHeader.model_validate(first)
    values = {heading.name: {arm.name: dict[int, float | None]() for arm in about.arms} for heading in about.outcomes}
    for row in rows:
        for outcome, value in row["values"].items():
            values[outcome][row["arm"]][row.get("seed", row.get("round", 0))] = value
    folds = {row["seed"]: row["fold"] for row in rows if "fold" in row}
    return Results(about=about, values=values, folds=folds)


@cache
def committed() -> dict[str, Results]:
    """All that come with archlab, by name."""
    return {name: read_results(file.read_text(encoding="utf-8")) for name, file in results_files().items()}


def results_files() -> dict[str, Traversable]:
    """Name -> its file."""
    home = resources.files("archlab.evidence") / "results"
    files = home.iterdir() if home.is_dir() else iter(())
    return {file.name.removesuffix(".jsonl"): file for file in files if file.name.endswith(".jsonl")}


def _about(summary: StudySummary, config: StudyConfig, study: str, scale: str, date: str) -> ResultsHeader:
    scaled = f"archlab study run {study}" + (f" --scale {scale}" if scale != AS_IT_STANDS else "")
    return ResultsHeader(
        study=study,
        scale=scale,
        digest=digest(config),
        date=date,
        command=scaled,
        environment=summary.environment,
        corpus=summary.corpus,
        margin=config.margin,
        first=config.seed_list if isinstance(config.seeds, AddedSeeds) else None,
        outcomes=[summary.outcome, *(other.outcome for other in summary.others)],
        arms=[
            ArmOfResults(
                name=arm.name,
                label=arm.label,
                reference=arm.comparison.reference if arm.comparison else None,
                factors=arm.factors,
                tuned=arm.tuned,
                parameters=arm.parameters,
                tokens=arm.tokens,
            )
            for arm in summary.arms
        ],
    )


def _of_index(every: Sequence[_Outcome], sources: tuple[str, ...], arm: str, index: int) -> dict[str, float | None]:
    chosen = {one.heading.name: one.values[arm] for one in every if one.heading.source in sources}
    return {name: values[index] for name, values in chosen.items() if index in values}


def _n_folds(config: StudyConfig) -> int:
    """On which seeds take turns; our text has as many folds as a text can have, and so has a task."""
    return config.folds or n_test_folds(MOST_FOLDS)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


_STUDY, _ARM = "norm-kind", "rms"
"""Its runs are timed, and this arm is mini-llama as it is, the base of most studies."""


class Pace(Base):
    """Of a machine."""

    flops_per_second: float
    """Of training, as computed."""
    tokens_per_second: float
    """Of that model."""
    processor: str


def committed_pace() -> Pace | None:
    """None where no such results are committed."""
    results = committed().get(results_name(_STUDY, AS_IT_STANDS))
    if results is None:
        return None
    (arm,) = (arm for arm in arms(library_study(_STUDY, AS_IT_STANDS)) if arm.name == _ARM)
    speed = fmean(value for value in results.values["training_speed"][_ARM].values() if value is not None)
    return Pace(
        flops_per_second=speed * computed_training_flops(arm.config),
        tokens_per_second=speed,
        processor=results.about.environment["processor"],
    )
