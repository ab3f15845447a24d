"""From the runs of a study to its summary."""

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from archlab.config.core.text import visible
from archlab.config.identity import resolved
from archlab.config.io import studies
from archlab.config.tasks import Task
from archlab.config.training import resolve_train
from archlab.pricing.memory import kv_cache_bytes
from archlab.pricing.params import parameters
from archlab.pricing.work import computed_training_flops
from archlab.study.answer import answer
from archlab.study.arm import Arm
from archlab.study.comparisons import (
    contrast_summaries,
    factor_contrasts,
    heading,
    outcome_statistics,
    planned_trends,
    size_trends,
)
from archlab.study.contrast_answer import contrast_answer, trend_answer
from archlab.study.details import compare_documents, curve_of, probed_arm
from archlab.study.fit import describe_equal
from archlab.study.folder import mixed
from archlab.study.formatting import listed, plural
from archlab.study.outcome_schema import BY_SEED, Outcome
from archlab.study.outcomes.gather import StudyRuns, gather
from archlab.study.outcomes.log import sweep_points
from archlab.study.plan import StudyPlan, doubts_of_folds
from archlab.study.record import ArmSummary, OutcomeStatistics, OutcomeSummary, StudySummary, TuningPoint
from archlab.study.runs import Ended, Run
from archlab.study.schema import AddedSeeds, StudyConfig
from archlab.study.stats import share
from archlab.study.study_file import read_study


def summarise(
    name: str,
    plan: StudyPlan,
    found: StudyRuns,
    runs: Mapping[str, Mapping[int, Run]],
    every: Sequence[Ended],
    folder: Path,
    failed: Mapping[str, str],
    tuning: Sequence[TuningPoint],
    warnings: Sequence[str],
) -> StudySummary:
    """The study's summary.

    `runs` are those that are compared, by arm and seed; `every` are all that have ended, of these, of its tuning and of
    its sweep.
    """
    study, arms = plan.config, found.arms
    references = {arm.name: arm.reference for arm in arms if arm.reference}
    first = study.seed_list if isinstance(study.seeds, AddedSeeds) else None
    (about, outcome), *others = plan.outcomes.items()
    planned = factor_contrasts(arms)
    trends = planned_trends(arms)
    contrasts = {name: contrast.sum for name, contrast in planned.items()}
    contrasts |= {name: trend.change for name, trend in trends.items()}
    seeds = list(runs[arms[0].name])
    folds = plan.shared_folds(seeds)

    def judged(name: str, outcome: Outcome, margin: float | None = None) -> OutcomeSummary:
        values = gather(outcome, found)
        by_seed = outcome.source in BY_SEED
        shared = folds if by_seed else None
        tested = outcome_statistics(outcome, values, references, margin, first if by_seed else None, contrasts, shared)
        return OutcomeSummary(
            outcome=heading(name, outcome),
            arms={arm: tested[arm] for arm in values},
            contrasts=contrast_summaries(planned, values, tested, shared),
            sizes=size_trends(trends, tested, shared),
        )

    primary = judged(about, outcome, study.margin)
    against = "previous" if study.against == "previous" else "base"
    context = min(arm.config.model.max_seq_len for arm in arms)
    documents = {arm: compare_documents(found.ended[arm], found.ended[other]) for arm, other in references.items()}
    table = [
        _arm(arm, found.ended[arm.name], runs[arm.name], primary.arms[arm.name], context).model_copy(
            update={"documents": documents.get(arm.name)}
        )
        for arm in arms
    ]
    about = plan.corpora[arms[0].name].about
    missing = sum(len(runs[arm]) - len(found.ended[arm]) for arm in runs)
    is_task = any(isinstance(arm.config.data.task, Task) for arm in arms)
    return StudySummary(
        name=name,
        question=study.question,
        claim=study.claim,
        answer=" ".join(
            [
                answer(table, against, primary.outcome, about.short() if about else None),
                *contrast_answer(primary.contrasts, primary.outcome),
                *trend_answer(primary.sizes, primary.outcome),
            ]
        ),
        warnings=[
            *([f"{plural(missing, 'run')} not finished, and left out"] if missing else []),
            *(f"{label} failed: {why}" for label, why in failed.items()),
            *warnings,
            *doubts_of_folds(plan, seeds),
            *(warning for name, other in plan.outcomes.items() for warning in _without_a_value(name, other, found)),
            *mixed(run.environment for run in every),
        ],
        failed=dict(failed),
        outcome=primary.outcome,
        others=[judged(name, other) for name, other in others],
        evaluated="share" if is_task else "bits per byte",
        against=study.against,
        equal=describe_equal(study.equal) if study.equal else None,
        seeds=seeds,
        folds=None if folds is None else dict(folds),
        arms=table,
        contrasts=primary.contrasts,
        sizes=primary.sizes,
        kv_context=context,
        tuning=list(tuning),
        sweep=[point for field in study.sweep for point in sweep_points(field, found.swept)],
        corpus="; ".join(dict.fromkeys(record.description for record in plan.corpora.values())),
        environment=next((run.environment for run in every if run.environment), {}),
        seconds=sum(map(_seconds, every)),
        command=f"archlab study run {shlex.quote(name if _is_ours(name, study) else visible(str(folder)))}",
        study={**study.model_dump(mode="json", exclude_defaults=True), "base": visible(study.base)},
    )


def _without_a_value(name: str, outcome: Outcome, found: StudyRuns) -> Iterator[str]:
    """Of arms that have no value on seeds whose runs finished: the comparison is of the others."""
    if outcome.source not in ("log", "weights"):
        return
    labels = {arm.name: arm.label for arm in found.arms}
    gathered = gather(outcome, found)
    if never := [labels[arm] for arm, values in gathered.items() if found.ended[arm] and not values]:
        yield f"{name}: no value on any seed, and so not compared: {listed(never)}"
    for arm, values in gathered.items():
        ended = len(found.ended[arm])
        if values and (missing := ended - len(values)):
            seeds = f"{missing} of {plural(ended, 'seed')}"
            yield f"{name}: {labels[arm]} has no value on {seeds}; it is compared on the others, which may not be alike"


def _is_ours(name: str, study: StudyConfig) -> bool:
    """Whether it is the study that comes with archlab, not only called like it."""
    return name in studies() and read_study(name)[1] == study


def _arm(
    arm: Arm, ended: Mapping[int, Ended], runs: Mapping[int, Run], primary: OutcomeStatistics, context: int
) -> ArmSummary:
    config = arm.config
    summaries = {seed: e.summary for seed, e in ended.items()}
    diverged = [seed for seed, s in summaries.items() if s.status == "diverged"]
    speeds = [s.tokens_per_second for s in summaries.values() if s.tokens_per_second is not None]
    plain = resolved(config)
    del plain["train"]["seed"], plain["data"]["fold"]
    return ArmSummary(
        **dict(primary),
        name=arm.name,
        label=arm.label,
        overrides=arm.overrides,
        adjusted=arm.adjusted,
        factors=arm.factors,
        follows=arm.follows,
        tuned=arm.tuned,
        parameters=parameters(config.model).total,
        flops_per_token=computed_training_flops(config),
        kv_cache_bytes=kv_cache_bytes(config.model, context),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        tokens=resolve_train(config).trained,
        seeds=list(summaries),
        diverged=diverged,
        divergence=share(len(diverged), len(summaries)) if summaries else None,
        runs={seed: str(run.folder(Path())) for seed, run in runs.items() if seed in ended},
        curves=[curve_of(seed, e) for seed, e in ended.items()],
        probes=probed_arm(ended),
        config=plain,
    )


def _seconds(run: Ended) -> float:
    """Time spent in training steps."""
    per_step = [m["tokens_per_second"] for m in run.metrics if "tokens_per_second" in m]
    tokens = next((m["tokens"] for m in run.metrics if "tokens_per_second" in m), 0)
    return sum(tokens / speed for speed in per_step)
