"""From the runs of a study to its summary."""

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from archlab.config.identity import resolved
from archlab.config.io import studies
from archlab.config.study_schema import AddedSeeds, StudyConfig
from archlab.config.text import visible
from archlab.config.training import resolve_train
from archlab.cost.flops import computed_training_flops
from archlab.cost.memory import kv_cache_bytes
from archlab.cost.params import parameters
from archlab.study.answer import answer
from archlab.study.design import Arm
from archlab.study.formatting import plural
from archlab.study.match import describe_equal
from archlab.study.provenance import mixed
from archlab.study.record import ArmSummary, Comparison, Curve, StudySummary
from archlab.study.runs import Ended, Run
from archlab.study.stats import compare
from archlab.study.study_file import read_study


def summarise(
    name: str,
    study: StudyConfig,
    arms: Sequence[Arm],
    runs: Mapping[str, Mapping[int, Run]],
    ended: Mapping[str, Ended],
    folder: Path,
    corpus: str,
    failed: Mapping[str, str],
    warnings: Sequence[str],
) -> StudySummary:
    """The study's summary.

    `runs` are those that are compared, by arm and seed; `ended`, by name, are the ones that have ended, of these and of
    its tuning.
    """
    found = {
        arm: {seed: ended[run.name] for seed, run in seeds.items() if run.name in ended} for arm, seeds in runs.items()
    }
    values = {arm: {seed: e.summary.bits_per_byte for seed, e in seeds.items()} for arm, seeds in found.items()}
    comparisons = compare(
        values,
        {arm.name: arm.reference for arm in arms if arm.reference},
        margin=study.margin,
        first=study.seed_list if isinstance(study.seeds, AddedSeeds) else None,
    )
    context = min(arm.config.model.max_seq_len for arm in arms)
    table = [_arm(arm, found[arm.name], runs[arm.name], comparisons.get(arm.name), context) for arm in arms]
    missing = sum(len(runs[arm]) - len(found[arm]) for arm in runs)
    return StudySummary(
        name=name,
        question=study.question,
        claim=study.claim,
        answer=answer(table, study.against),
        warnings=[
            *([f"{plural(missing, 'run')} not finished, and left out"] if missing else []),
            *(f"{label} failed: {why}" for label, why in failed.items()),
            *warnings,
            *mixed(e.environment for e in ended.values()),
        ],
        failed=dict(failed),
        against=study.against,
        equal=describe_equal(study.equal) if study.equal else None,
        seeds=list(runs[arms[0].name]),
        arms=table,
        kv_context=context,
        corpus=corpus,
        environment=_environment(ended.values()),
        seconds=sum(map(_seconds, ended.values())),
        command=f"archlab study run {shlex.quote(name if _is_ours(name, study) else visible(str(folder)))}",
        study={**study.model_dump(mode="json", exclude_defaults=True), "base": visible(study.base)},
    )


def _is_ours(name: str, study: StudyConfig) -> bool:
    """Whether it is the study that comes with archlab, not only called like it."""
    return name in studies() and read_study(name)[1] == study


def _arm(
    arm: Arm,
    ended: Mapping[int, Ended],
    runs: Mapping[int, Run],
    comparison: Comparison | None,
    context: int,
) -> ArmSummary:
    config = arm.config
    summaries = {seed: e.summary for seed, e in ended.items()}
    scores = [s.bits_per_byte for s in summaries.values() if s.bits_per_byte is not None]
    speeds = [s.tokens_per_second for s in summaries.values() if s.tokens_per_second is not None]
    plain = resolved(config)
    del plain["train"]["seed"]
    return ArmSummary(
        name=arm.name,
        label=arm.label,
        overrides=arm.overrides,
        adjusted=arm.adjusted,
        follows=arm.follows,
        tuned=arm.tuned,
        parameters=parameters(config.model).total,
        flops_per_token=computed_training_flops(config),
        kv_cache_bytes=kv_cache_bytes(config.model, context),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        tokens=resolve_train(config).trained,
        bits_per_byte={seed: s.bits_per_byte for seed, s in summaries.items()},
        mean=statistics.fmean(scores) if scores else None,
        deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        divergences=sum(s.status == "diverged" for s in summaries.values()),
        comparison=comparison,
        runs={seed: str(run.folder(Path())) for seed, run in runs.items() if seed in ended},
        curves=[_curve(seed, e) for seed, e in ended.items()],
        config=plain,
    )


def _curve(seed: int, run: Ended) -> Curve:
    """Without the evaluation before the first update, which stands at no token."""
    points = [m for m in run.metrics if "bits_per_byte" in m and m["tokens"]]
    return Curve(seed=seed, tokens=[m["tokens"] for m in points], bits_per_byte=[m["bits_per_byte"] for m in points])


def _environment(runs: Iterable[Ended]) -> dict[str, Any]:
    """Of the first run that has one; a warning says where others differ."""
    return next((run.environment for run in runs if run.environment), {})


def _seconds(run: Ended) -> float:
    """Time spent in training steps."""
    per_step = [m["tokens_per_second"] for m in run.metrics if "tokens_per_second" in m]
    tokens = next((m["tokens"] for m in run.metrics if "tokens_per_second" in m), 0)
    return sum(tokens / speed for speed in per_step)
