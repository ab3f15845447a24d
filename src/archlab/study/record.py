"""The result of a study, which `summary.json` holds and reports read."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from archlab.config.core.base import Base
from archlab.config.core.text import Shown
from archlab.displayed import Charted, Library, as_frame, report_module
from archlab.study.outcomes.schema import BY_SEED, Better, Source, Unit

_ARM_COLUMNS = ("label", "parameters", "flops_per_token", "kv_cache_bytes", "tokens")
COLUMNS = ("arm", "seed", "diverged", *_ARM_COLUMNS)
"""Columns of `runs.csv` that every study has. Each factor and each outcome has an additional column."""

Verdict = Literal[
    "better", "worse", "differs", "equal", "equivalent", "not distinguishable", "diverged", "reference diverged",
    "too few runs",
]  # fmt: skip
"""Verdict of a comparison. "differs": the outcome has no better direction. "equal": identical values of an outcome that
is computed from the config. "reference diverged", "too few runs": the arm could not be judged."""

Difference = Literal["better", "worse", "differs"]
DIFFERENCES: tuple[Difference, ...] = ("better", "worse", "differs")
"""Verdicts of a difference that is distinguishable from zero."""


class Comparison(Base):
    """Difference between an arm and its reference: arm minus reference, paired by seed, in the outcome's unit."""

    reference: Shown
    """Name of the reference arm. For a contrast, a description of the arms that are subtracted."""
    pairs: int
    """Number of seeds, or rounds of timing, on which all compared arms have a value."""
    folds: int | None = None
    """Number of folds on which these seeds are evaluated, if several seeds share a fold; otherwise null."""
    difference: float | None
    """Mean paired difference; null if no pair exists. Differences of seeds that share a fold are averaged first."""
    low: float | None
    """Lower end of the confidence interval of the difference. null with fewer than two pairs or without scatter."""
    high: float | None
    """Upper end of the confidence interval of the difference."""
    confidence: float | None
    """Confidence level of the interval: 1 minus the level at which Holm's correction judges this comparison. So the
    interval excludes 0 exactly when the verdict is a difference. null if `low` is null."""
    p: float | None
    """Two-sided p-value of the paired test, before correction; null with fewer than two pairs."""
    p_holm: float | None
    """p-value after Holm's correction over all comparisons of the outcome."""
    smallest_effect: float | None
    """Smallest true difference that a new study like this detects with 80% probability (power.py). null if `low` is."""
    smallest_effect_low: float | None = None
    """Lower end of the 95% interval of `smallest_effect`. A wide interval means that the scatter is uncertain."""
    smallest_effect_high: float | None = None
    """Upper end of the 95% interval of `smallest_effect`."""
    margin: float | None = None
    """The study's margin: the largest difference that does not matter. null if the study has no margin."""
    p_equivalent: float | None = None
    """p-value of the equivalence test (the larger of two one-sided tests against the margin), after a separate Holm
    correction. null without a margin, with fewer than two pairs, and for a nonzero difference without scatter."""
    within_low: float | None = None
    """Lower end of the interval for equivalence, which lies within the margin exactly if `p_equivalent` < 0.05."""
    within_high: float | None = None
    """Upper end of the interval for equivalence."""
    within_confidence: float | None = None
    """Confidence level of that interval: 1 - 2 x the level at which Holm's correction judges equivalence."""
    verdict: Verdict

    @property
    def is_difference(self) -> bool:
        """Whether the difference is distinguishable from zero."""
        return self.verdict in DIFFERENCES


class Curve(Base):
    """Learning curve of one seed: all evaluations, starting before the first update, and a summary of the updates."""

    seed: int
    tokens: list[int]
    values: list[float]
    """Score at each evaluation: bits per byte, the fraction of correct answers, or nats per hidden token."""
    trained: list[int] = Field(default_factory=list)
    """Number of training tokens at the end of each part. The updates of a run are divided into at most 100 parts."""
    losses: list[float] = Field(default_factory=list)
    """Mean training loss in each part, in nats per token."""
    gradients: list[float] = Field(default_factory=list)
    """Largest norm of the whole gradient in each part, before clipping."""


class Heading(Base):
    """Description of an outcome."""

    name: Shown
    title: str
    unit: Unit
    better: Better
    source: Source
    """Source of the values. It decides whether there is one value per seed, per round of timing, or per arm."""


class OutcomeStatistics(Base):
    """Statistics of one outcome for one arm."""

    values: dict[int, float | None]
    """Value by seed or round of timing. null if the run diverged; left out if it is missing for another reason."""
    mean: float | None
    """Mean of the known values. Values of seeds that share a fold are averaged first."""
    deviation: float | None
    """Sample standard deviation (n - 1) of the values that `mean` averages; null with fewer than two values."""
    comparison: Comparison | None
    """Comparison with the reference. null for an arm without a reference."""


class FactorContrast(OutcomeStatistics):
    """Average effect of a factor, or interaction of two factors.

    An average effect compares a level of the factor with its first level, averaged over all other factors. An
    interaction is the effect at one level of another factor minus the effect at that factor's first level.
    """

    name: Shown
    """Name of the contrast, for example `warmup=0.1 where norm.placement=post`."""
    factors: dict[str, tuple[Any, Any]]
    """First level and compared level of each factor. An interaction has two: the condition, then the tested factor."""
    effects: tuple[float, float] | None
    """The two effects of an interaction: the effect of the tested factor at each of the two levels of the condition.
    They are means over the seeds on which all arms finished. null without such seeds, and for an average effect."""


Trend = Literal["grows", "shrinks", "flips", "no trend found"]
"""Change of a difference from the smallest model size to the largest."""


class SizeTrend(OutcomeStatistics):
    """Trend over model sizes of the difference between an arm and its reference.

    For each seed, a straight line is fitted to the differences, as a function of log(size). `values` holds the change
    of each seed's line from the smallest size to the largest.
    """

    name: Shown
    label: Shown
    """Label of the arm, without a size."""
    reference: Shown
    """Label of the reference."""
    sizes: list[int]
    """Parameter counts of the reference, in ascending order."""
    arms: list[Shown]
    """Name of the arm at each size. `StudySummary.arms` contains the comparison at each size."""
    line: tuple[float, float] | None
    """Values of the fitted line at the smallest and the largest size; null if a difference is missing."""
    trend: Trend

    @field_validator("trend", mode="before")
    @classmethod
    def _renamed(cls, trend: object) -> object:
        """Accept the old name of a trend, which earlier versions of archlab wrote."""
        return "no trend found" if trend == "cannot be told" else trend


class OutcomeSummary(Base):
    """All results for one outcome. Holm's correction covers only the comparisons of this outcome."""

    outcome: Heading
    arms: dict[str, OutcomeStatistics]
    contrasts: list[FactorContrast] = Field(default_factory=list)
    sizes: list[SizeTrend] = Field(default_factory=list)


class DocumentDifference(Base):
    """Difference between two arms on the evaluated part of one held-out document."""

    begins: Shown
    """First words of the document."""
    difference: float
    """Bits per byte of the arm minus those of the reference."""
    bytes: int


class DocumentView(Base):
    """Comparison of an arm with its reference, document by document, over all seeds."""

    documents: int
    """Number of documents that the arm and its reference scored with the same seed."""
    difference: float
    """Bits per byte of the arm minus those of the reference, over all documents."""
    low: float
    """Lower end of the 95% interval of `difference`, for the choice of documents but not of seeds."""
    high: float
    """Upper end of the 95% interval of `difference`."""
    lowest: list[DocumentDifference]
    """Documents with the lowest differences, on which the arm does best, in ascending order."""
    highest: list[DocumentDifference]
    """Documents with the highest differences, on which the arm does worst, in descending order."""


class ProbedArm(Base):
    """Mean probe values of an arm over seeds, keyed by the names in docs/probes.md. null if a value is not finite."""

    seeds: list[int]
    """Seeds that finished. If none finished: all seeds that diverged."""
    tokens: list[int]
    """Number of training tokens at each probe that all `seeds` have in common; at most 50 probes."""
    at_end: dict[str, list[float | None]]
    """Values of each measure at the last probe, one per layer."""
    over_time: dict[str, list[float | None]]
    """Value of each measure at each probe: a mean over layers, or a maximum for `largest_score` and `largest_load`."""


class ArmSummary(OutcomeStatistics):
    """Results of one arm, with its values of the primary outcome."""

    name: Shown
    label: Shown
    overrides: dict[str, Any]
    """Values of the fields that the study's file changes for this arm."""
    adjusted: dict[str, Any]
    """Field that was adjusted so that the arm matches in the quantity of `equal`: `{model.mlp.d_ff: 352}`."""
    factors: dict[str, Any] = Field(default_factory=dict)
    """The arm's level of each crossed factor. Empty if the study does not cross factors."""
    follows: dict[str, Any] = Field(default_factory=dict)
    """Fields that changed as a consequence of the overrides: the number of heads changes `model.attention.head_dim`."""
    tuned: dict[str, Any]
    """Values of `train` fields that tuning found, in this study or in an earlier one."""
    parameters: int
    flops_per_token: float
    """Training FLOPs per token, forward and backward. They include masked query-key pairs that the kernel computes, and
    exclude the passes of a teacher."""
    kv_cache_bytes: int
    """Bytes of the KV cache for one sequence of `kv_context` tokens in bfloat16. Attention windows lower the number."""
    tokens_per_second: float | None
    """Median training speed over the seeds, measured while other runs were training. null if no run has a speed."""
    tokens: int
    """Number of training tokens of each run."""
    seeds: list[int]
    """Seeds whose runs have ended."""
    diverged: list[int]
    """Seeds whose runs diverged."""
    divergence: tuple[float, float] | None
    """95% interval of the probability that a run diverges (Clopper & Pearson 1934); null until a run has ended."""
    runs: dict[int, str] = Field(default_factory=dict)
    """Run folder by seed, relative to the study's folder (`runs/0123456789ab`). Only ended runs are included."""
    documents: DocumentView | None = None
    """Comparison with the reference by document; null if the arm and its reference scored different documents."""
    curves: list[Curve]
    probes: ProbedArm | None = None
    """Probe values; null if the runs were not probed (`train.probe_every`)."""
    config: dict[str, Any]
    """Resolved config of the arm, without the seed and the fold."""


class TuningPoint(Base):
    """One point of the tuning grid for one arm."""

    arm: Shown
    values: dict[str, Any]
    """Value of each tuned field at this point."""
    results: list[float | None]
    """Bits per byte (for a task: fraction of correct answers) of each tuning seed; null if the run diverged."""
    chosen: bool
    """Whether the comparison uses the values of this point."""


class SweepPoint(Base):
    """One value of the swept field for one arm."""

    arm: Shown
    field: Shown
    value: float
    losses: dict[int, float | None]
    """Final loss by seed, in bits per byte; null if the run diverged."""


class StudySummary(Charted, Base):
    """Summary of a finished or partly finished study."""

    name: Shown
    question: Shown
    claim: Shown | None
    answer: Shown
    """The verdict in a few sentences."""
    warnings: list[Shown]
    """Caveats such as missing runs, few folds, or a best value at the edge of the tuning grid."""
    failed: dict[Shown, Shown] = Field(default_factory=dict)
    """Reason of failure for each failed run. To repeat failed runs, run the study again."""
    outcome: Heading
    """The primary outcome. `arms` holds the values of this outcome."""
    others: list[OutcomeSummary] = Field(default_factory=list)
    """Results for all outcomes except the primary one."""
    evaluated: Unit | None
    """Unit of the learning curves and of the tuning results; null if the scores of the arms mean different things."""
    tuning: list[TuningPoint] = Field(default_factory=list)
    """Points of the tuning grid and their results; empty without tuning."""
    sweep: list[SweepPoint] = Field(default_factory=list)
    """Points of the sweep, arm by arm, with ascending values; empty without a sweep."""
    against: Literal["base", "previous"] | dict[Shown, Shown]
    """Rule that picks the reference of each arm, as in the study's file."""
    equal: str | None
    """Quantity in which all arms match, in words: `parameters within 1%, by model.mlp.d_ff`."""
    seeds: list[int]
    folds: dict[int, int] | None = None
    """Fold on which each seed is evaluated, if several seeds share a fold; otherwise null."""
    arms: list[ArmSummary]
    contrasts: list[FactorContrast] = Field(default_factory=list)
    """Interactions of crossed factors, followed by their average effects."""
    sizes: list[SizeTrend] = Field(default_factory=list)
    """Trend of every arm that has a reference. Empty if the study has one size."""
    kv_context: int
    """Number of tokens for which `kv_cache_bytes` is computed: the smallest `max_seq_len` of all arms."""
    corpus: Shown
    """Description of the corpus: its name, bytes, tokens and held-out fraction."""
    environment: dict[str, Any]
    """Software versions, processor, dtype and number of threads."""
    seconds: float
    """Total time of all training steps in seconds, including tuning but without evaluation."""
    command: Shown
    """Shell command that repeats the study."""
    study: dict[str, Any]
    """Values of the study's file."""

    def by(self, outcome: str) -> "StudySummary":
        """Return a copy of the summary in which the named outcome is the primary one."""
        (other,) = (other for other in self.others if other.outcome.name == outcome)
        arms = [arm.model_copy(update=dict(other.arms[arm.name])) for arm in self.arms]
        return self.model_copy(
            update={"outcome": other.outcome, "arms": arms, "contrasts": other.contrasts, "sizes": other.sizes}
        )

    @property
    def shared_folds(self) -> dict[int, int] | None:
        """Fold of each seed, if seeds share folds and the primary outcome has one value per seed; otherwise None."""
        return self.folds if self.outcome.source in BY_SEED else None

    @property
    def asked_sizes(self) -> list[int]:
        """Parameter counts in the study's file. The arms have approximately these sizes."""
        return list(self.study.get("sizes", ()))

    def frame(self, library: Library | None = None) -> Any:
        """Return one row per arm and ended seed, with all outcomes and factors. If an outcome has no value per seed,
        each row holds the arm's mean.

        `library` is `pandas` or `polars`, for a data frame. None returns a list of dicts. Raise UserError if the
        library is not installed.
        """
        return as_frame(self._rows(), library)

    def latex(self) -> str:
        """Return the table of the arms as LaTeX, for the package booktabs. It has the columns of `archlab study
        report`."""
        return report_module("text").latex_of(self)

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "arm": arm.name,
                "seed": seed,
                **arm.factors,
                "diverged": seed in arm.diverged,
                **{outcome.name: _value(outcome, measured[arm.name], seed) for outcome, measured in self._outcomes()},
                **{name: getattr(arm, name) for name in _ARM_COLUMNS},
            }
            for arm in self.arms
            for seed in arm.seeds
        ]

    def _outcomes(self) -> Iterator[tuple[Heading, Mapping[str, OutcomeStatistics]]]:
        yield self.outcome, {arm.name: arm for arm in self.arms}
        for other in self.others:
            yield other.outcome, other.arms


def _value(outcome: Heading, statistics: OutcomeStatistics, seed: int) -> float | None:
    return statistics.values.get(seed) if outcome.source in BY_SEED else statistics.mean
