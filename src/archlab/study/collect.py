"""Collect the results of a study's runs in a summary."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from archlab.config.core.text import command_line, visible
from archlab.config.identity import resolved
from archlab.config.io import studies
from archlab.config.training import resolve_train
from archlab.pricing.memory import kv_cache_bytes
from archlab.pricing.params import parameters
from archlab.pricing.units import plural
from archlab.pricing.work import computed_training_flops
from archlab.study.answer import answer
from archlab.study.arm import Arm
from archlab.study.checks import arm_notes
from archlab.study.comparisons import (
    comparisons,
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
from archlab.study.folder import environment_warnings
from archlab.study.formatting import listed
from archlab.study.manipulation import unmet
from archlab.study.outcomes.chosen import default_outcome, scores_mean_the_same
from archlab.study.outcomes.gather import StudyRuns, gather
from archlab.study.outcomes.log import sweep_points
from archlab.study.outcomes.schema import BY_SEED
from archlab.study.plan import StudyPlan, fold_warnings
from archlab.study.record import ArmSummary, Heading, OutcomeStatistics, OutcomeSummary, StudySummary, TuningPoint
from archlab.study.runs import Ended, Run
from archlab.study.schema import AddedSeeds, StudyConfig
from archlab.study.stats import share
from archlab.study.study_file import AS_IT_STANDS, library_study


def summarize_study(
    name: str,
    plan: StudyPlan,
    study_runs: StudyRuns,
    runs: Mapping[str, Mapping[int, Run]],
    all_ended: Sequence[Ended],
    folder: Path,
    failed: Mapping[str, str],
    tuning: Sequence[TuningPoint],
    warnings: Sequence[str],
) -> StudySummary:
    """Return the summary of a study.

    `runs` holds the runs of the comparison, by arm and seed. `all_ended` holds the results of all ended runs, including
    those of tuning and of the sweep.
    """
    study, arms = plan.config, study_runs.arms
    seeds = list(runs[arms[0].name])
    folds = plan.shared_folds(seeds)
    judged = list(_judged(plan, study_runs, folds))
    primary = judged[0]
    context = min(arm.config.model.max_seq_len for arm in arms)
    table = list(_table(study_runs, runs, primary, context))
    against = "previous" if study.against == "previous" else "base"
    text = plan.corpora[arms[0].name].about
    return StudySummary(
        name=name,
        question=study.question,
        claim=study.claim,
        answer=" ".join(
            [
                answer(table, against, primary.outcome, text.short() if text else None),
                *contrast_answer(primary.contrasts, primary.outcome),
                *trend_answer(primary.sizes, primary.outcome),
            ]
        ),
        warnings=[
            *_warnings_about_runs(runs, study_runs, failed),
            *_unmet_checks(study, judged),
            *warnings,
            *fold_warnings(plan, seeds),
            *arm_notes(plan.outcomes.values(), arms),
            *_missing_value_warnings(plan, study_runs),
            *environment_warnings(run.environment for run in all_ended),
        ],
        failed=dict(failed),
        outcome=primary.outcome,
        others=judged[1:],
        evaluated=default.unit if (default := default_outcome(arms)) else None,
        against=study.against,
        equal=describe_equal(study.equal) if study.equal else None,
        seeds=seeds,
        folds=None if folds is None else dict(folds),
        arms=table,
        contrasts=primary.contrasts,
        sizes=primary.sizes,
        kv_context=context,
        tuning=list(tuning),
        sweep=[point for field in study.sweep for point in sweep_points(field, study_runs.swept)],
        corpus="; ".join(dict.fromkeys(record.description for record in plan.corpora.values())),
        environment=next((run.environment for run in all_ended if run.environment), {}),
        seconds=sum(map(_seconds, all_ended)),
        command=command_line("study run", name if _comes_with_archlab(name, study) else visible(str(folder))),
        study={**study.model_dump(mode="json", exclude_defaults=True), "base": visible(study.base)},
    )


def _judged(plan: StudyPlan, study_runs: StudyRuns, folds: Mapping[int, int] | None) -> Iterator[OutcomeSummary]:
    """Yield the comparisons of each outcome. The primary outcome is the first one; the study's margin is its alone."""
    study, arms = plan.config, study_runs.arms
    planned, trends = factor_contrasts(arms), planned_trends(arms)
    first_seeds = study.seed_list if isinstance(study.seeds, AddedSeeds) else None
    primary = next(iter(plan.outcomes))
    for name, outcome in plan.outcomes.items():
        values = gather(outcome, study_runs)
        margin = study.margin if name == primary else None
        first, shared = (first_seeds, folds) if outcome.source in BY_SEED else (None, None)
        tested = outcome_statistics(outcome, values, comparisons(arms), margin, first, shared)
        yield OutcomeSummary(
            outcome=heading(name, outcome),
            arms={arm: tested[arm] for arm in values},
            contrasts=contrast_summaries(planned, values, tested, shared),
            sizes=size_trends(trends, tested, shared),
        )


def _table(
    study_runs: StudyRuns, runs: Mapping[str, Mapping[int, Run]], primary: OutcomeSummary, context: int
) -> Iterator[ArmSummary]:
    """Yield the summary of each arm. Documents are compared with those of the reference, if their scores are alike."""
    ended, named = study_runs.ended, {arm.name: arm for arm in study_runs.arms}
    for name, arm in named.items():
        other = arm.reference
        comparable = other is not None and scores_mean_the_same([arm, named[other]])
        documents = compare_documents(ended[name], ended[other]) if other and comparable else None
        summary = _arm(arm, ended[name], runs[name], primary.arms[name], context)
        yield summary.model_copy(update={"documents": documents})


def _warnings_about_runs(
    runs: Mapping[str, Mapping[int, Run]], study_runs: StudyRuns, failed: Mapping[str, str]
) -> Iterator[str]:
    if missing := sum(len(runs[arm]) - len(study_runs.ended[arm]) for arm in runs):
        yield f"{plural(missing, 'run')} not finished and left out"
    yield from (f"{label} failed: {why}" for label, why in failed.items())


def _unmet_checks(study: StudyConfig, judged: Sequence[OutcomeSummary]) -> Iterator[str]:
    by_name = {one.outcome.name: one for one in judged}

    def measured(name: str | None, arm: str) -> tuple[Heading, float | None] | None:
        one = judged[0] if name is None else by_name[name]
        return (one.outcome, one.arms[arm].mean) if arm in one.arms else None

    for check in unmet(study.checks, study.labels, measured):
        yield f"the study cannot answer its question: {check.text}"


def _missing_value_warnings(plan: StudyPlan, study_runs: StudyRuns) -> Iterator[str]:
    labels = {arm.name: arm.label for arm in study_runs.arms}
    by_arm = {
        name: outcome
        for name, outcome in plan.outcomes.items()
        if outcome.source == "config" or outcome in study_runs.timed
    }
    for name, outcome in by_arm.items():
        if without := [labels[arm] for arm, values in gather(outcome, study_runs).items() if not values]:
            yield f"{name}: not compared, because these arms have no value: {listed(without)}"
    of_runs = {name: outcome for name, outcome in plan.outcomes.items() if outcome.source in ("log", "weights")}
    for name, outcome in of_runs.items():
        gathered = gather(outcome, study_runs)
        if without := [labels[arm] for arm, values in gathered.items() if study_runs.ended[arm] and not values]:
            yield f"{name}: not compared, because these arms have no value on any seed: {listed(without)}"
        for arm, values in gathered.items():
            ended = len(study_runs.ended[arm])
            if values and (missing := ended - len(values)):
                seeds = f"{missing} of {plural(ended, 'seed')}"
                used = "it is compared on the other seeds, which may be a biased selection"
                yield f"{name}: {labels[arm]} has no value on {seeds}; {used}"


def _comes_with_archlab(name: str, study: StudyConfig) -> bool:
    return name in studies() and library_study(name, AS_IT_STANDS) == study


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
    per_step = [m["tokens_per_second"] for m in run.metrics if "tokens_per_second" in m]
    tokens = next((m["tokens"] for m in run.metrics if "tokens_per_second" in m), 0)
    return sum(tokens / speed for speed in per_step)
