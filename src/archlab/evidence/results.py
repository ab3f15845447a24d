"""Results of studies that are committed to the repository as `results/NAME.jsonl`. Verdicts are computed from them.

The first line of a file describes the study and the machine on which it was run. Each run has one line with its arm,
its seed, its fold of the corpus and the value of every outcome. In addition, each arm has one line per round of timing,
and one line for outcomes that are computed from the config. Values that can be computed from other lines are not
stored.
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
from archlab.study.comparisons import (
    comparisons,
    effects,
    factor_contrasts,
    outcome_statistics,
    planned_trends,
    size_trends,
)
from archlab.study.design import arms
from archlab.study.outcomes.schema import BY_SEED
from archlab.study.record import Heading, OutcomeStatistics, SizeTrend, StudySummary
from archlab.study.schema import AddedSeeds, StudyConfig
from archlab.study.stats import Estimate, Folds, Values, independent, shared_folds, t_test
from archlab.study.study_file import AS_IT_STANDS, scales_of, unloaded_study

_WITHOUT_EFFECT = {"question", "claim", "labels", "scales", "checks"}


class ArmOfResults(Base):
    """Description of an arm in a results file."""

    name: str
    label: str
    reference: str | None
    """Name of the arm that this arm is compared with. null for the first arm."""
    factors: dict[str, Any]
    """The level that this arm has for each factor. Empty if the study lists its arms by name."""
    tuned: dict[str, Any]
    """The value that was chosen for each tuned field."""
    parameters: int
    tokens: int
    """Number of training tokens per run."""
    size: int | None = None
    """Parameter count to which the base was scaled. null if the study has one size."""
    plain_label: str = ""
    """Label without the size. Empty if the study has one size."""


A_TASK = "a task"
"""Name of the text of a study that trains on a task."""


class ResultsHeader(Base):
    """First line of a results file. It describes the study and the machine on which it was run."""

    study: str
    """Name of a study that comes with archlab."""
    scale: str
    """Scale at which the study was run. cpu is the default scale."""
    digest: str
    """Hash of all fields of the study that can affect a result."""
    date: str
    """Date on which the last run ended, such as 2026-11-23."""
    command: str
    """Command that repeats the study."""
    environment: dict[str, Any]
    """Software versions, processor and number of threads."""
    corpus: str
    """Description of the corpus. It begins with the name of the text and a colon. A task has no colon."""
    margin: float | None
    """Margin for the primary outcome, which is the first of `outcomes`."""
    first: list[int] | None
    """Seeds that were run first. The variation between them determined the total number of seeds. null if the total
    number was fixed in advance."""
    outcomes: list[Heading]
    arms: list[ArmOfResults]

    @property
    def text(self) -> str:
        """Name of the text on which the models were trained, such as `python-stdlib 3.11.7`, or `a task`."""
        name, colon, _ = self.corpus.partition(":")
        return name if colon else A_TASK

    def arms_compared(self, name: str) -> list[ArmOfResults]:
        """Return the arm with this name and the one that it is compared with; all arms if `name` is a contrast."""
        arms = {arm.name: arm for arm in self.arms}
        arm = arms.get(name)
        if arm is None:
            return self.arms
        return [arm] if arm.reference is None else [arms[arm.reference], arm]


class RunInfo(Base):
    """Description of a study that was run, without the measured values."""

    about: ResultsHeader
    seeds: int
    """Number of seeds. An arm of the largest model size may have fewer."""
    fewest_seeds: int
    """Number of seeds of the arm that has the fewest."""


class Results(Base):
    """Contents of a results file."""

    about: ResultsHeader
    values: dict[str, dict[str, dict[int, float | None]]]
    """Measured values, keyed by outcome, then by arm, then by seed or round of timing. A value is null if the run
    diverged. Missing values have no entry."""
    folds: dict[int, int]
    """Map each seed to its held-out fold of the corpus."""

    def compared(
        self,
        outcome: str | None = None,
        margin: float | None = None,
        only: str | None = None,
        level: float | None = None,
    ) -> dict[str, OutcomeStatistics]:
        """Return the statistics of each arm, each contrast and each change over model sizes. They include comparisons
        that are corrected for multiple testing.

        The statistics are the same as in the summary of the study. If `outcome` is None, the primary outcome is used.
        If `margin` is None, the primary outcome has the study's margin, and other outcomes have none. If `only` names
        an arm or a contrast, it is the only comparison. It is then judged at `level`; None means without a correction.
        The result is empty if the outcome was not measured.
        """
        if outcome is not None and outcome not in self.values:
            return {}
        heading = self.heading(outcome)
        is_primary = heading.name == self.about.outcomes[0].name
        first, folds = self._design(heading)
        return outcome_statistics(
            heading,
            self.values[heading.name],
            {name: contrast for name, contrast in comparisons(self.about.arms).items() if only in (None, name)},
            margin or (self.about.margin if is_primary else None),
            first,
            folds,
            level,
        )

    def trends(self, outcome: str | None = None) -> list[SizeTrend]:
        """Return the trend of each arm over the model sizes. The list is empty if the study has one size, or if the
        outcome was not measured."""
        planned = planned_trends(self.about.arms)
        if not planned or (outcome is not None and outcome not in self.values):
            return []
        return size_trends(planned, self.compared(outcome), self._design(self.heading(outcome))[1])

    def mean(self, outcome: str | None, arm: str) -> float | None:
        """Return the mean of an arm, as in `compared`. Return None if no run has a value."""
        heading = self.heading(outcome)
        known = independent(self.values[heading.name][arm], self._design(heading)[1])
        return fmean(known) if known else None

    def t_test(self, outcome: str | None, name: str) -> Estimate | None:
        """Return the test of one comparison, without a correction. Return None if it has fewer than two pairs."""
        heading = self.heading(outcome)
        contrast = comparisons(self.about.arms)[name]
        return t_test(self.values[heading.name], contrast, *self._design(heading))

    def effects(self, outcome: str | None, name: str) -> tuple[float, float] | None:
        """Return the two effects that an interaction of two factors compares.

        Both are effects of the contrast's last factor. The first is measured at the first level of the other factor,
        and the second at its second level. Return None if the comparison is not an interaction.
        """
        contrast = factor_contrasts(self.about.arms).get(name)
        if contrast is None or (outcome is not None and outcome not in self.values):
            return None
        heading = self.heading(outcome)
        return effects(contrast, self.values[heading.name], self._design(heading)[1])

    @property
    def run_info(self) -> RunInfo:
        """Description of the study that was run, without the measured values."""
        by_arm = self.values[self.heading(None).name].values()
        fewest = min(len(self.folds.keys() & values.keys()) for values in by_arm)
        return RunInfo(about=self.about, seeds=len(self.folds), fewest_seeds=fewest)

    @property
    def names(self) -> set[str]:
        """Names of the arms and contrasts that are compared. A study may compare different arms at different scales."""
        return {arm.name for arm in self.about.arms if arm.reference} | factor_contrasts(self.about.arms).keys()

    def heading(self, outcome: str | None) -> Heading:
        """Return the `Heading` of the outcome with this name, or of the primary outcome if the name is None."""
        return next(heading for heading in self.about.outcomes if outcome in (None, heading.name))

    def _design(self, heading: Heading) -> tuple[list[int] | None, Folds]:
        """Return the seeds that were run first and the shared folds. Both are None if the outcome has no value per
        seed."""
        return (self.about.first, shared_folds(self.folds)) if heading.source in BY_SEED else (None, None)


class _Outcome(NamedTuple):
    heading: Heading
    values: Mapping[str, Values]


def results_name(study: str, scale: str) -> str:
    """Return the name under which the results of a study at one scale are stored. The folder of these runs has the same
    name."""
    return study if scale == AS_IT_STANDS else f"{study}-{scale}"


def digest(study: StudyConfig) -> str:
    """Return a hash of everything in a study that can affect a result.

    For plug-ins, only the file names are hashed, because their folders differ between machines.
    """
    values = study.model_dump(mode="json", exclude_defaults=True, exclude=_WITHOUT_EFFECT)
    if study.plugins:
        values["plugins"] = [Path(plugin).name for plugin in study.plugins]
    return config_hash(values)


def in_library(summary: StudySummary) -> tuple[str, str] | None:
    """Return the name and the scale of the library study to which a summary belongs.

    Return None if the study is not in archlab's library, or if this version of archlab cannot read it.
    """
    try:
        wanted = digest(StudyConfig.model_validate(summary.study))
    except ValidationError:
        return None
    candidates = ((name, scale) for name in studies() for scale in scales_of(name))
    return next((candidate for candidate in candidates if digest(unloaded_study(*candidate)) == wanted), None)


def identified(summary: StudySummary) -> tuple[str, str]:
    """Return the name and the scale of the library study to which a summary belongs. Raise UserError if there is
    none."""
    if found := in_library(summary):
        return found
    raise UserError(
        f"{summary.name}: no study that comes with archlab has the same settings; run one of `archlab study list`"
    )


def record(summary: StudySummary, study: str, scale: str, date: str) -> Iterator[str]:
    """Yield the lines of a results file. Raise UserError if runs are missing."""
    config = StudyConfig.model_validate(summary.study)
    sizes = {arm.name: arm.size for arm in arms(config)} if config.sizes else {}
    wanted = {
        arm.name: [seed for seed in summary.seeds if config.has_run(sizes.get(arm.name), seed)] for arm in summary.arms
    }
    if unfinished := [arm.name for arm in summary.arms if len(arm.seeds) < len(wanted[arm.name])]:
        raise UserError(f"{summary.name}: runs of {', '.join(unfinished)} are missing; run the study again")
    yield _line(_about(summary, config, study, scale, date).model_dump(mode="json"))
    outcomes = [_Outcome(summary.outcome, {arm.name: arm.values for arm in summary.arms})]
    outcomes += [_Outcome(o.outcome, {name: arm.values for name, arm in o.arms.items()}) for o in summary.others]
    for arm in summary.arms:
        for seed in arm.seeds:
            labels = {"arm": arm.name, "seed": seed, "fold": seed % _n_folds(config)}
            yield _line({**labels, "values": _at_index(outcomes, ("log", "weights", "sweep"), arm.name, seed)})
    for source, index in (("timing", "round"), ("config", None)):
        for arm in summary.arms:
            rounds = {n for outcome in outcomes if outcome.heading.source == source for n in outcome.values[arm.name]}
            for n in sorted(rounds):
                labels = {"arm": arm.name, **({index: n} if index else {})}
                yield _line({**labels, "values": _at_index(outcomes, (source,), arm.name, n)})


def read_results(lines: str) -> Results:
    """Parse the contents of a results file."""
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
    """Return all results that come with archlab, keyed by name."""
    return {name: read_results(file.read_text(encoding="utf-8")) for name, file in results_files().items()}


def results_files() -> dict[str, Traversable]:
    """Return the results files, keyed by name without the suffix."""
    home = resources.files("archlab.evidence") / "results"
    files = home.iterdir() if home.is_dir() else iter(())
    return {file.name.removesuffix(".jsonl"): file for file in files if file.name.endswith(".jsonl")}


def _about(summary: StudySummary, config: StudyConfig, study: str, scale: str, date: str) -> ResultsHeader:
    designed = {arm.name: arm for arm in arms(config)} if config.sizes else {}
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
                size=designed[arm.name].size if arm.name in designed else None,
                plain_label=designed[arm.name].plain_label if arm.name in designed else "",
            )
            for arm in summary.arms
        ],
    )


def _at_index(outcomes: Sequence[_Outcome], sources: tuple[str, ...], arm: str, index: int) -> dict[str, float | None]:
    chosen = {outcome.heading.name: outcome.values[arm] for outcome in outcomes if outcome.heading.source in sources}
    return {name: values[index] for name, values in chosen.items() if index in values}


def _n_folds(config: StudyConfig) -> int:
    """Return the number of folds. The seeds use the folds in turn, each as held-out data. By default, the number is the
    largest that archlab allows."""
    return config.folds or n_test_folds(MOST_FOLDS)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
