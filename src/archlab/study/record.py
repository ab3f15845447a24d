"""What a study leaves behind: `summary.json`, the only file that the report reads, and `runs.csv`."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from archlab.config.core.base import Base
from archlab.config.core.text import Shown
from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.study.outcome_schema import BY_SEED, Better, Source, Unit

_FILE = "summary.json"
_RUNS = "runs.csv"
"""For other programs, a row per run: nothing reads it here."""

_OF_ARMS = ("label", "parameters", "flops_per_token", "kv_cache_bytes", "tokens")
COLUMNS = ("arm", "seed", "diverged", *_OF_ARMS)
"""Of that table, beside factors and outcomes."""

Verdict = Literal[
    "better", "worse", "differs", "equal", "equivalent", "not distinguishable", "diverged", "reference diverged",
    "too few runs",
]  # fmt: skip
"""What stats.py can say. "differs": of an outcome where neither lower nor higher is better; "equal": of one that is
counted, not measured; the last two where nothing could be tested."""


class Comparison(Base):
    """An arm against its reference, paired by seed. Differences are arm minus reference, in the outcome's unit."""

    reference: Shown
    """Name of the arm it is compared with; of a contrast, what is subtracted, in words."""
    pairs: int
    """Seeds, or rounds of timing, for which all the arms that are compared have a value."""
    folds: int | None = None
    """Parts of the text that judge them, where several seeds share one: their differences are averaged, and tested as
    one. null where each seed is tested by itself."""
    difference: float | None
    """Mean paired difference, of the parts where seeds share them; null with fewer than one pair."""
    low: float | None
    """Lower end of the interval of the difference; null with fewer than two pairs or no scatter."""
    high: float | None
    """Upper end."""
    confidence: float | None
    """Of this interval alone: 1 less the level at which Holm judges the comparison, so that 0 lies outside where the
    verdict says that there is a difference, and nowhere else. What all cover together is not claimed. null where `low`
    is."""
    p: float | None
    """Two-sided p-value of the paired test, before correction; null with fewer than two pairs."""
    p_holm: float | None
    """After Holm's correction over the study's comparisons."""
    smallest_effect: float | None
    """The smallest true difference that a new study of this design finds with 80% probability. It allows for the
    uncertainty of the observed scatter (power.py); null where `low` is, and for arms that gave identical results."""
    smallest_effect_low: float | None = None
    """Lower end of the 95% interval of the difference that such a study finds with 80% probability, were the true
    scatter known."""
    smallest_effect_high: float | None = None
    """Upper end."""
    margin: float | None = None
    """Of the study: the largest difference that does not matter; null where none was named."""
    p_equivalent: float | None = None
    """The larger p-value of two one-sided tests that the true difference is beyond the margin, after a Holm correction
    of their own. null without a margin, with fewer than two pairs, and for a difference without scatter."""
    within_low: float | None = None
    """Lower end of the interval that lies within the margin where `p_equivalent` is below 0.05 and nowhere else: of 1 -
    2 x the level at which Holm judges equivalence."""
    within_high: float | None = None
    """Upper end."""
    verdict: Verdict


class Curve(Base):
    """One seed's evaluations over the training tokens, the one before the first update included; and its updates."""

    seed: int
    tokens: list[int]
    values: list[float]
    """Bits per byte of held-out text, or the share of a task's answers that are right."""
    trained: list[int] = Field(default_factory=list)
    """Training tokens at the ends of the parts, at most 100, into which the run's updates are cut."""
    losses: list[float] = Field(default_factory=list)
    """The mean loss in training over each part, in nats per token."""
    gradients: list[float] = Field(default_factory=list)
    """The largest norm of the whole gradient, before clipping, in each part."""


class Heading(Base):
    """What an outcome is."""

    name: Shown
    title: str
    unit: Unit
    better: Better
    source: Source
    """Whether values are by seed, by round of timing, or one for the arm."""


class OutcomeStatistics(Base):
    """One outcome of one arm."""

    values: dict[int, float | None]
    """By seed, or by round of timing; null where the run diverged, left out where there is no value."""
    mean: float | None
    """Over those that there are; where seeds share parts of the text, over the parts."""
    deviation: float | None
    """Standard deviation over the same (n - 1); null with fewer than two."""
    comparison: Comparison | None
    """null for the arm that all others start from."""


class FactorContrast(OutcomeStatistics):
    """What one level of a factor does over its first one: on average over all other factors, or, of an interaction, at
    one level of another factor more than at the first level of that. `values` are these differences by seed."""

    name: Shown
    """`warmup=0.1 where norm.placement=post`."""
    factors: dict[str, tuple[Any, Any]]
    """Factor -> its first level and the other one. Of an interaction two: the one that decides, and the one whose
    effect is told."""
    effects: tuple[float, float] | None
    """Of an interaction: the mean effect of the last factor, at the first level of the other one and at the other
    level, over the seeds on which all arms finished. null without such seeds, and of an average."""


Trend = Literal["grows", "shrinks", "flips", "cannot be told"]
"""Of a difference from the smallest size to the largest."""


class SizeTrend(OutcomeStatistics):
    """The difference of one arm to its reference over a ladder of sizes. `values` are, by seed, how much the straight
    line through the differences over the logarithm of the size changes from the smallest size to the largest."""

    name: Shown
    label: Shown
    """Of the arm, without a size."""
    reference: Shown
    """The label of the arm that it is compared with."""
    sizes: list[int]
    """Parameters of the reference, ascending."""
    arms: list[Shown]
    """The names of the arm at these sizes, whose comparisons are in the study's `arms`."""
    line: tuple[float, float] | None
    """The line at the smallest and the largest size; null where a difference is missing."""
    trend: Trend


class OutcomeSummary(Base):
    """All that is said of one outcome. Its comparisons are corrected for each other alone."""

    outcome: Heading
    arms: dict[str, OutcomeStatistics]
    contrasts: list[FactorContrast] = Field(default_factory=list)
    sizes: list[SizeTrend] = Field(default_factory=list)


class DocumentDifference(Base):
    """One held-out document, as far as it was evaluated."""

    begins: Shown
    """Its first words."""
    difference: float
    """Arm minus reference, in bits per byte."""
    bytes: int


class DocumentView(Base):
    """An arm against its reference, document by document, over all seeds."""

    documents: int
    """Those that both have scored with the same seed."""
    difference: float
    """Bits per byte over all of them."""
    low: float
    """Lower end of the 95% interval over the choice of documents, the trained models being what they are: it covers
    no noise of seeds."""
    high: float
    """Upper end."""
    lowest: list[DocumentDifference]
    """Where the arm does best beside its reference, most of all first."""
    highest: list[DocumentDifference]
    """Where it does worst."""


class ProbedArm(Base):
    """What probes found while an arm was trained: the mean over its seeds, with four digits, by the names of
    docs/probes.md. null where a seed has none that is finite."""

    seeds: list[int]
    """Those that finished; where none did, all that diverged."""
    tokens: list[int]
    """Training tokens before each probe that all these seeds have, at most 50 of them."""
    at_end: dict[str, list[float | None]]
    """At the last of these probes, by layer."""
    over_time: dict[str, list[float | None]]
    """At each of these probes: the mean over the layers (of `largest_score` and `largest_load` the largest), and what
    is measured of the whole model."""


class ArmSummary(OutcomeStatistics):
    """One arm of a study, with the outcome that the answer is about."""

    name: Shown
    label: Shown
    """What tables and pictures call it."""
    overrides: dict[str, Any]
    """The fields that the study's file changes for it, relative to its reference."""
    adjusted: dict[str, Any]
    """What was adjusted to hold the study's quantity equal (`model.mlp.d_ff`)."""
    factors: dict[str, Any] = Field(default_factory=dict)
    """Factor -> the arm's level of it; empty where the study's file names its arms."""
    follows: dict[str, Any] = Field(default_factory=dict)
    """Derived fields that changed with them (`model.attention.head_dim` with the number of heads)."""
    tuned: dict[str, Any]
    """Values found by tuning, here or in an earlier study."""
    parameters: int
    flops_per_token: float
    """Training FLOPs per token, forward and backward, with the hidden pairs that the kernel multiplies."""
    kv_cache_bytes: int
    """KV cache of one text of the study's `kv_context` tokens, all layers, each bounded by its window, at bf16."""
    tokens_per_second: float | None
    """Median over the seeds, as measured beside the study's other runs; null when none finished."""
    tokens: int
    """Training tokens per run."""
    seeds: list[int]
    """Whose runs have ended."""
    diverged: list[int]
    """Those of them whose runs diverged."""
    divergence: tuple[float, float] | None
    """The 95% interval of the share of seeds that diverge (Clopper & Pearson 1934); null before a run has ended."""
    runs: dict[int, str] = Field(default_factory=dict)
    """Seed -> the folder of its run, below the study's (`runs/0123456789ab`); runs that have not ended are left out."""
    documents: DocumentView | None = None
    """Where it differs from its reference; null where both did not score the same documents."""
    curves: list[Curve]
    probes: ProbedArm | None = None
    """null where its runs were not probed (`train.probe_every`)."""
    config: dict[str, Any]
    """The resolved config, without the seed."""


class TuningPoint(Base):
    """One point of the grid, tried for one arm."""

    arm: Shown
    values: dict[str, Any]
    """Field -> value."""
    results: list[float | None]
    """By tuning seed: bits per byte, or the share of right answers; null where the run diverged."""
    chosen: bool
    """Whether the arm is compared with these values."""


class SweepPoint(Base):
    """One value of the swept field, tried for one arm."""

    arm: Shown
    field: Shown
    value: float
    losses: dict[int, float | None]
    """By seed: bits per byte at the end; null where the run diverged."""


class StudySummary(Base):
    """A finished (or partly finished) study."""

    name: Shown
    question: Shown
    claim: Shown | None
    answer: Shown
    """The verdict in a sentence or two."""
    warnings: list[Shown]
    """What a reader must know before believing it: the tuning grid's edge won, runs missing, few seeds."""
    failed: dict[Shown, Shown] = Field(default_factory=dict)
    """Run -> why it failed; running the study again tries it again."""
    outcome: Heading
    """What the arms' values are."""
    others: list[OutcomeSummary] = Field(default_factory=list)
    """What else was measured."""
    evaluated: Literal["bits per byte", "share"]
    """Unit of the learning curves, and of tuning."""
    tuning: list[TuningPoint] = Field(default_factory=list)
    """What was tried to find the arms' `tuned` values; empty where nothing was tuned here."""
    sweep: list[SweepPoint] = Field(default_factory=list)
    """What the outcomes of a sweep are made of, arm by arm, values ascending; empty where nothing was swept."""
    against: Literal["base", "previous"] | dict[Shown, Shown]
    """As in the study's file: how arms are compared."""
    equal: str | None
    """For people: `parameters within 1%, by model.mlp.d_ff`."""
    seeds: list[int]
    folds: dict[int, int] | None = None
    """Seed -> the part of the text that judges it, where several seeds share one; else null."""
    arms: list[ArmSummary]
    contrasts: list[FactorContrast] = Field(default_factory=list)
    """Interactions of crossed factors, then what each does on average."""
    sizes: list[SizeTrend] = Field(default_factory=list)
    """Of every arm with a reference; empty where the study has one size."""
    kv_context: int
    """Tokens of the text whose KV cache is compared: the shortest `max_seq_len` of the arms."""
    corpus: Shown
    """What text it is, how many bytes and tokens it has, and how much of it is held out."""
    environment: dict[str, Any]
    """Versions, processor, dtype, threads."""
    seconds: float
    """Time of all runs' training steps, one after the other, those of tuning too; evaluation left out."""
    command: Shown
    """What reproduces it, quoted for a shell."""
    study: dict[str, Any]
    """The study file's values."""

    def by(self, outcome: str) -> "StudySummary":
        """The same study with that one of its outcomes as the one that the arms' values are."""
        (other,) = (other for other in self.others if other.outcome.name == outcome)
        arms = [arm.model_copy(update=dict(other.arms[arm.name])) for arm in self.arms]
        return self.model_copy(
            update={"outcome": other.outcome, "arms": arms, "contrasts": other.contrasts, "sizes": other.sizes}
        )

    @property
    def shared_folds(self) -> dict[int, int] | None:
        """Seed -> its part of the text, where seeds share some and the arms' values are by seed."""
        return self.folds if self.outcome.source in BY_SEED else None

    @property
    def asked_sizes(self) -> list[int]:
        """Parameters, as the study's file says; each arm comes near."""
        return list(self.study.get("sizes", ()))

    def frame(self) -> list[dict[str, Any]]:
        """One row per arm and seed that ended, with every outcome and every factor's level, as `pandas.DataFrame`
        and `polars.DataFrame` take it. What is not by seed is the arm's mean in each of its rows."""
        return [
            {
                "arm": arm.name,
                "seed": seed,
                **arm.factors,
                "diverged": seed in arm.diverged,
                **{outcome.name: _value(outcome, found[arm.name], seed) for outcome, found in self._outcomes()},
                **{name: getattr(arm, name) for name in _OF_ARMS},
            }
            for arm in self.arms
            for seed in arm.seeds
        ]

    def _outcomes(self) -> Iterator[tuple[Heading, Mapping[str, OutcomeStatistics]]]:
        yield self.outcome, {arm.name: arm for arm in self.arms}
        for other in self.others:
            yield other.outcome, other.arms


def _value(outcome: Heading, measured: OutcomeStatistics, seed: int) -> float | None:
    return measured.values.get(seed) if outcome.source in BY_SEED else measured.mean


def load_study(folder: str | Path) -> StudySummary:
    """What `archlab study run` found and wrote into its folder; UserError where it is missing or damaged."""
    if not has_summary(Path(folder)):
        raise UserError(f"{Path(folder) / _FILE}: missing; `archlab study run` writes it when all runs have ended")
    return read_summary(Path(folder))


def has_summary(folder: Path) -> bool:
    """Whether a study's folder has one."""
    return (folder / _FILE).is_file()


def write_summary(folder: Path, summary: StudySummary) -> None:
    """Write it into a study's folder, with the table of its runs, over older ones if there are any."""
    # json can write the name of a file that is no UTF-8; pydantic cannot.
    text = json.dumps(summary.model_dump(mode="json"), indent=2)
    write_with_digests(folder, {_RUNS: csv_of_runs(summary), _FILE: text})


def csv_of_runs(summary: StudySummary) -> str:
    """`StudySummary.frame` with a heading; what is null is empty."""
    rows, written = summary.frame(), io.StringIO()
    table = csv.DictWriter(written, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return written.getvalue()


def read_summary(folder: Path) -> StudySummary:
    """As it was written; UserError for damage."""
    file = folder / _FILE
    remedy = "remove it, and `archlab study report` writes it again from the runs"
    verify(file, remedy)
    try:
        return StudySummary.model_validate_json(file.read_bytes())
    except ValueError:
        raise UserError(f"{file}: damaged, or written by another version of archlab; {remedy}") from None
