"""From the runs of a study to its summary."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archlab.config.identity import resolved
from archlab.config.io import studies
from archlab.config.study_schema import StudyConfig
from archlab.config.training import resolve_train
from archlab.cost.flops import training_flops
from archlab.cost.memory import kv_bytes_per_token
from archlab.cost.params import parameters
from archlab.files import printable
from archlab.study.answer import answer
from archlab.study.design import Arm
from archlab.study.match import in_words
from archlab.study.record import ArmSummary, Comparison, Curve, StudySummary
from archlab.study.runs import Run
from archlab.study.source import load_study
from archlab.study.stats import compare
from archlab.study.wording import plural
from archlab.train.run_folder import RunFolder, RunSummary

Summaries = Mapping[str, Mapping[int, RunSummary]]
"""Arm -> seed -> how the run ended; runs that have not ended are left out."""


def summarise(
    name: str,
    study: StudyConfig,
    arms: Sequence[Arm],
    runs: Mapping[str, Mapping[int, Run]],
    folder: Path,
    corpus: str,
    warnings: Sequence[str],
) -> StudySummary:
    """The study's summary from the runs that have ended."""
    ended: Summaries = {
        arm: {seed: s for seed, run in seeds.items() if (s := RunFolder(run.folder(folder)).summary())}
        for arm, seeds in runs.items()
    }
    losses = {arm: {seed: s.bits_per_byte for seed, s in seeds.items()} for arm, seeds in ended.items()}
    comparisons = compare(losses, {arm.name: arm.reference for arm in arms if arm.reference})
    table = [_arm(arm, ended[arm.name], runs[arm.name], comparisons.get(arm.name), folder) for arm in arms]
    missing = sum(len(runs[arm]) - len(ended[arm]) for arm in runs)
    all_runs = {run.name: run.folder(folder) for seeds in runs.values() for run in seeds.values()}
    return StudySummary(
        name=name,
        question=study.question,
        claim=study.claim,
        answer=answer(table, study.against),
        warnings=[*([f"{plural(missing, 'run')} not finished, and left out"] if missing else []), *warnings],
        against=study.against,
        equal=in_words(study.equal) if study.equal else None,
        seeds=study.seed_list,
        arms=table,
        corpus=corpus,
        environment=_environment(all_runs.values()),
        seconds=sum(map(_seconds, all_runs.values())),
        command=f"archlab study run {name if _is_ours(name, study) else printable(folder)}",
        study={**study.model_dump(mode="json", exclude_defaults=True), "base": printable(study.base)},
    )


def _is_ours(name: str, study: StudyConfig) -> bool:
    """Whether it is the study that comes with archlab, not only called like it."""
    return name in studies() and load_study(name)[1] == study


def _arm(
    arm: Arm,
    ended: Mapping[int, RunSummary],
    runs: Mapping[int, Run],
    comparison: Comparison | None,
    folder: Path,
) -> ArmSummary:
    config = arm.config
    scores = [s.bits_per_byte for s in ended.values() if s.bits_per_byte is not None]
    speeds = [s.tokens_per_second for s in ended.values() if s.tokens_per_second is not None]
    plain = resolved(config)
    del plain["train"]["seed"]
    return ArmSummary(
        name=arm.name,
        label=arm.label,
        overrides=arm.overrides,
        adjusted=arm.adjusted,
        tuned=arm.tuned,
        parameters=parameters(config.model).total,
        flops_per_token=training_flops(config.model, plain["train"]["seq_len"]),
        kv_bytes_per_token=kv_bytes_per_token(config.model),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        tokens=resolve_train(config).trained,
        bits_per_byte={seed: s.bits_per_byte for seed, s in ended.items()},
        mean=statistics.fmean(scores) if scores else None,
        deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        divergences=sum(s.status == "diverged" for s in ended.values()),
        comparison=comparison,
        curves=[_curve(seed, RunFolder(runs[seed].folder(folder))) for seed in ended],
        config=plain,
    )


def _curve(seed: int, run: RunFolder) -> Curve:
    points = [m for m in run.metrics() if "bits_per_byte" in m]
    return Curve(seed=seed, tokens=[m["tokens"] for m in points], bits_per_byte=[m["bits_per_byte"] for m in points])


def _environment(folders: Any) -> dict[str, Any]:
    """Of the first run that has one; the hash in their names makes them agree on what matters."""
    files = [folder / "env.json" for folder in folders if (folder / "env.json").exists()]
    return json.loads(files[0].read_text()) if files else {}


def _seconds(folder: Path) -> float:
    """Time spent in training steps."""
    metrics = RunFolder(folder).metrics()
    per_step = [m["tokens_per_second"] for m in metrics if "tokens_per_second" in m]
    tokens = next((m["tokens"] for m in metrics if "tokens" in m), 0)
    return sum(tokens / speed for speed in per_step)
