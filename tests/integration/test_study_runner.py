"""Runs and results of a study. A table of results replaces the training."""

import csv
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats
from scipy.stats import t
from tokenizers import normalizers
from torch.utils.flop_counter import FlopCounterMode

from archlab import digests
from archlab.code import normalized
from archlab.config.check import validate
from archlab.config.core.yaml_text import to_yaml
from archlab.data import tokenizer as bpe
from archlab.errors import UserError
from archlab.evidence.results import read_results, record
from archlab.model.decoder import Decoder
from archlab.pricing.work import training_flops
from archlab.report.study.arms import level_rows
from archlab.report.study.factors import factor_rows, pairs
from archlab.report.study.grids import aligned, sweep, sweep_rows
from archlab.report.study.page import render, write_page
from archlab.report.study.sizes import line_rows, over_sizes, size_rows
from archlab.report.study.tables import factor_table, size_table, sweep_table
from archlab.study import folder as study_folder
from archlab.study.executors import executor as task
from archlab.study.executors import local
from archlab.study.executors.executor import RunProgress
from archlab.study.executors.local import Local
from archlab.study.folder import claim_folder
from archlab.study.formatting import amount
from archlab.study.plan import fold_warnings
from archlab.study.power import pairs_for
from archlab.study.progress import StudyProgress
from archlab.study.record import Curve, StudySummary
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from archlab.study.study_file import read_study
from archlab.study.summary_file import load_study
from archlab.training import code_digest as code_digest_module
from archlab.training import compiling
from archlab.training.callback import Callback
from archlab.training.code_digest import code_digest
from archlab.training.device import choose_device, environment
from archlab.training.run_folder import RunFolder
from archlab.training.summary import RunSummary
from tiny import MODEL, TRAIN, write_text


def silent(runs):
    """Replace the progress in the terminal by silence."""
    return lambda progress: None


def summary_of(score: float | None) -> RunSummary:
    """Return the summary of a run with this score; None means that it diverged."""
    return RunSummary(
        status="finished" if score else "diverged",
        steps=10,
        tokens=640,
        bits_per_byte=score,
        loss=score,
        train_loss=score,
        tokens_per_second=1e3,
        mfu=0.1,
        parameters=9,
        device="a CPU",
        dtype="float32",
    )


class Laboratory:
    """Studies in a folder. `score` gives the score of each run from its config, and `ran` lists the runs."""

    def __init__(self, folder, text):
        self.folder, self.text, self.ran = folder, text, []
        self.score = lambda config: 2.0 + config.train.seed / 100
        self.fails = lambda config: None

    def study(self, workers=None, **values):
        raw = {
            "question": "Which?",
            "base": "base.yaml",
            "set": {"data.path": str(self.text)},
            "budget": {"tokens": 640},
            "seeds": 2,
            "arms": {"a": {}, "b": {"model.norm.kind": "layernorm"}},
        }
        config = validate(StudyConfig, {**raw, **values}, "study.yaml")
        return Study("which", config, self.folder / "out", Local(workers))

    def run(self, **values):
        self.ran = []
        return self.study(**values).run(silent)

    def run_all(self, runs, folder, on_progress):
        failed = [RunProgress(run, 0.0, failed=why) for run in runs if (why := self.fails(run.config))]
        for run in (run for run in runs if not self.fails(run.config)):
            self.ran.append((run.config.model.norm.kind, run.config.train.seed, run.config.train.lr))
            run.folder(folder).mkdir(parents=True)
            score = self.score(run.config)
            summary = summary_of(score)
            update = {
                "step": 1,
                "tokens": 640,
                "loss": score or 9,
                "lr": 1e-3,
                "grad_norm": 1,
                "tokens_per_second": 1e3,
            }
            RunFolder(run.folder(folder)).log(**update)
            RunFolder(run.folder(folder)).finish(summary)
        return failed


@pytest.fixture
def lab(tmp_path, monkeypatch, text, tmp_path_factory):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
    laboratory = Laboratory(tmp_path, text)
    monkeypatch.setattr(Local, "run_all", laboratory.run_all)
    return laboratory


def printed(table):
    """Return the lines of a table in 80 columns."""
    out = Console(width=80, record=True, file=io.StringIO(), markup=False)
    out.print(table)
    return [line.rstrip() for line in out.export_text().splitlines()]


RMS, LAYER = "rmsnorm", "layernorm"


def test_every_arm_runs_with_every_seed_and_never_again(lab):
    summary = lab.run()
    assert lab.ran == [(RMS, 0, 1e-3), (LAYER, 0, 1e-3), (RMS, 1, 1e-3), (LAYER, 1, 1e-3)]
    assert summary.arms[0].values == {0: 2.0, 1: 2.01}
    assert lab.run() == summary
    assert lab.ran == []


def test_one_more_seed_runs_only_that_seed(lab):
    lab.run()
    lab.run(seeds=3)
    assert lab.ran == [(RMS, 2, 1e-3), (LAYER, 2, 1e-3)]
    lab.run(seeds=[1, 7])
    assert lab.ran == [(RMS, 7, 1e-3), (LAYER, 7, 1e-3)]


def test_seeds_are_added_as_the_first_ones_scatter(lab):
    """The differences are 0.09, 0.1 and 0.11. Three seeds find 0.06; a smaller difference needs more seeds."""
    lab.score = lambda config: (
        2.0 + (config.model.norm.kind == "layernorm") * (0.1 + 0.01 * (-1, 0, 1)[config.train.seed % 3])
    )
    rule = {"first": 3, "at_most": 12}
    assert lab.run(seeds={"until": 0.06, **rule}, folds=1).seeds == [0, 1, 2]
    more = lab.run(seeds={"until": 0.03, **rule}, folds=1)
    expected = pairs_for(0.03, 0.01, 2, 0.05)
    assert 3 < expected < 12
    assert more.seeds == list(range(expected))
    compared = more.arms[1].comparison
    assert compared.pairs == expected
    reach = t.isf(0.025, 2) * 0.01 / expected**0.5  # the scatter of the first three seeds is the larger one
    assert compared.high - compared.low == pytest.approx(2 * reach, rel=1e-6)
    assert lab.study(seeds={"until": 0.03, **rule}, folds=1).read().seeds == more.seeds
    assert lab.run(seeds={"until": 0.001, **rule}, folds=1).seeds == list(range(12))


def test_the_margin_is_that_of_the_study(lab):
    lab.score = lambda config: 2.0 + config.train.seed / 100 * (1 + (config.model.norm.kind == LAYER) / 10)
    assert lab.run(margin=0.1, seeds=4).arms[1].comparison.verdict == "equivalent"
    assert lab.run(seeds=4).arms[1].comparison.margin is None


def test_no_seed_is_added_before_all_first_ones_have_ended(lab):
    lab.score = lambda config: 2.0 + config.train.seed * (1 + (config.model.norm.kind == "layernorm"))
    lab.fails = lambda config: "no memory" if config.train.seed == 2 else None
    rule = {"until": 0.001, "first": 3, "at_most": 5}
    assert lab.run(seeds=rule).seeds == [0, 1, 2]
    lab.fails = lambda config: None
    found = lab.run(seeds=rule)
    assert found.seeds == [0, 1, 2, 3, 4]
    assert found.warnings == [], "the rule was there from the start"


def test_seeds_that_are_added_after_a_look_are_named(lab):
    assert lab.run(seeds=2).warnings == []
    said = "1 of the 3 compared seeds was not planned before the first result"
    assert said in lab.run(seeds=3).warnings[0]
    assert said in lab.study(seeds=3).read().warnings[0]
    assert "1 of the 2 compared seeds was not planned" in lab.run(seeds=[1, 2]).warnings[0]
    assert lab.run(seeds=2).warnings == []


def test_seeds_that_are_added_before_the_first_result_are_planned(lab):
    study = lab.study(seeds=2)
    claim_folder(study.folder, study.config, study.corpora)
    assert lab.run(seeds=3).warnings == []


def test_one_more_arm_runs_only_that_arm(lab):
    lab.run(arms={"a": {}})
    lab.run()
    assert {norm for norm, *_ in lab.ran} == {LAYER}


@pytest.mark.parametrize(("pays_from", "compiled"), [(0, True), (1.8e8, False), (1e9, False)])
def test_arms_are_compiled_alike(lab, monkeypatch, pays_from, compiled):
    """The middle threshold alone would compile only the second arm."""
    monkeypatch.setitem(compiling.PAYS_FROM, "cpu", pays_from)
    monkeypatch.setattr(compiling, "has_compiler", lambda: True)
    found = lab.study(arms={"a": {}, "b": {"model.n_layers": 6}}).arms
    flops = [training_flops(arm.config.model, 16) * 640 for arm in found]
    assert 0 < flops[0] < 1.8e8 < flops[1] < 1e9
    assert [arm.config.train.compile for arm in found] == [compiled] * 2


def test_what_does_not_decide_a_result_repeats_no_run(lab):
    """Fewer workers, as after running out of memory, and other checkpoints."""
    lab.run()
    before = {path.name for path in (lab.folder / "out" / "runs").iterdir()}
    lab.study(workers=1).run(silent)
    lab.run(set={"data.path": str(lab.text), "train.checkpoint_every": 3, "train.eval_every": 5})
    assert lab.ran == []
    assert {path.name for path in (lab.folder / "out" / "runs").iterdir()} == before


@pytest.mark.parametrize(
    "change",
    [
        {"set": {"train.lr": 2e-3}},
        {"set": {"train.dtype": "bfloat16"}},
        {"set": {"model.dropout": 0.1}},
        {"set": {"data.held_out": 0.2}},
        {"budget": {"tokens": 704}},
    ],
)
def test_runs_repeat_if_a_setting_of_the_result_changes(lab, change):
    lab.run()
    lab.run(**{**change, "set": {"data.path": str(lab.text), **change.get("set", {})}})
    assert len(lab.ran) == 4


def test_arms_of_other_vocabularies_get_tokens_of_their_own(lab):
    study = lab.study(arms={"a": {}, "b": {"model.vocab_size": 280}})
    assert study.corpora["a"].fingerprint != study.corpora["b"].fingerprint
    assert {len(run.corpus) for run in (study.plan.compared(arm, 0) for arm in study.arms)} == {16}
    assert study.plan.compared(study.arms[1], 0).corpus == study.corpora["b"].fingerprint


# --- tuning ---------------------------------------------------------------------------------------

GRID = {"train.lr": [0.5, 0.1, 0.2, 0.3]}


def far_from(best):
    """Return a score that grows with the distance of the learning rate from the arm's best, the same for all seeds."""
    return lambda config: 2.0 + abs(config.train.lr - best[config.model.norm.kind])


def test_every_arm_gets_its_best_value_and_a_warning_at_the_edge(lab):
    lab.score = far_from({RMS: 0.2, LAYER: 0.5})
    summary = lab.run(tune=GRID, labels={"b": "LayerNorm"})
    assert [arm.tuned for arm in summary.arms] == [{"train.lr": 0.2}, {"train.lr": 0.5}]
    assert summary.warnings == [
        "LayerNorm: train.lr = 0.5 is best, at the edge of its grid; a wider grid may find a better value"
    ]
    assert [seed for _, seed, _ in lab.ran] == [1000] * 8 + [0, 0, 1, 1]
    assert lab.ran[8:] == [(RMS, 0, 0.2), (LAYER, 0, 0.5), (RMS, 1, 0.2), (LAYER, 1, 0.5)]


def test_the_lowest_value_is_an_edge_wherever_it_stands(lab):
    lab.score = far_from({RMS: 0.1, LAYER: 0.3})
    assert [w.partition(":")[0] for w in lab.run(tune=GRID).warnings] == ["a"]


def test_words_have_no_edge(lab):
    lab.score = lambda config: 1.0
    assert (
        lab.run(tune={"train.schedule": ["cosine", "linear"], "train.decay_embeddings": [True, False]}).warnings == []
    )


def test_tuning_averages_over_its_seeds_which_are_never_the_comparisons(lab):
    """0.2 is best on average but not on the first seed."""
    scores = {(0.1, 1001): 1.0, (0.1, 1003): 3.0, (0.2, 1001): 1.5, (0.2, 1003): 1.6}
    lab.score = lambda config: scores.get((config.train.lr, config.train.seed), 2.0)
    summary = lab.run(tune={"train.lr": [0.1, 0.2, 0.3]}, tune_seeds=2, seeds=[1000, 1002], arms={"a": {}})
    assert summary.arms[0].tuned == {"train.lr": 0.2}
    assert sorted({seed for _, seed, _ in lab.ran}) == [1000, 1001, 1002, 1003]


def test_a_study_whose_check_is_not_met_says_that_it_cannot_answer(lab):
    lab.score = lambda config: 2.0 + config.train.seed / 100  # a mean of 2.005 over the seeds 0 and 1
    check = {"because": "Only a model that has learned can lose."}
    summary = lab.run(checks=[{**check, "arm": "a", "at_most": 2.0}, {**check, "arm": "b", "at_most": 2.01}])
    assert summary.warnings == [
        "the study cannot answer its question: loss on held-out text, a: 2.005 bits per byte; required: at most 2.000 "
        "bits per byte. Only a model that has learned can lose."
    ]


def test_a_value_that_diverged_is_not_chosen(lab):
    lab.score = lambda config: None if config.train.lr > 0.15 else 2.0
    summary = lab.run(tune={"train.lr": [0.05, 0.1, 0.2]})
    assert {arm.tuned["train.lr"] for arm in summary.arms} == {0.05}


def test_an_arm_that_diverges_everywhere_is_counted(lab):
    lab.score = lambda config: None if config.model.norm.kind == LAYER else 2.0 + config.train.seed / 100
    summary = lab.run(tune=GRID)
    assert summary.arms[1].diverged == [0, 1]
    assert summary.arms[1].comparison.verdict == "diverged"
    assert "b: diverged at every value of the tuning grid; the first value is used" in summary.warnings
    assert not any("b: train.lr" in warning for warning in summary.warnings)


# --- sweeps ---------------------------------------------------------------------------------------

RATES = [0.1, 0.2, 0.4, 0.8]
SWEPT = {"sweep": {"train.lr": RATES}, "measure": ["best_loss", "best_rate"]}


def swept_score(config):
    """LayerNorm's best rate is the largest one; RMSNorm's is 0.2, and with seed 1 it diverges at 0.8."""
    rms, lr, seed = config.model.norm.kind == RMS, config.train.lr, config.train.seed
    return None if rms and lr == 0.8 and seed == 1 else 2 + seed / 10 + (abs(lr - 0.2) if rms else 1 - lr)


def test_a_study_keeps_and_shows_every_point_of_its_sweep(lab):
    lab.score = swept_score
    summary = lab.run(**SWEPT)
    assert {point.field for point in summary.sweep} == {"train.lr"}
    assert [(point.arm, point.value) for point in summary.sweep] == [(arm, lr) for arm in "ab" for lr in RATES]
    kinds = {"a": RMS, "b": LAYER}
    for point in summary.sweep:
        for seed, loss in point.losses.items():
            found = SimpleNamespace(kind=kinds[point.arm])
            config = SimpleNamespace(
                model=SimpleNamespace(norm=found), train=SimpleNamespace(lr=point.value, seed=seed)
            )
            assert loss == swept_score(config)
    best = next(other for other in summary.others if other.outcome.name == "best_loss")
    for arm, measured in best.arms.items():
        points = [point.losses for point in summary.sweep if point.arm == arm]
        lowest = {seed: min(p[seed] for p in points if p[seed] is not None) for seed in (0, 1)}
        assert measured.values == lowest
    marks = {(row["arm"], row["value"]): row["mark"] for row in sweep_rows(summary) if row["mark"]}
    assert marks == {("a", 0.2): "optimum", ("b", 0.8): "edge"}
    lost = [row for row in sweep_rows(summary) if row["mean"] is None]
    assert [(row["arm"], row["value"]) for row in lost] == [("a", 0.8)]
    assert "1 of 2 seeds diverged" in lost[0]["text"]
    page = render(summary)
    assert page.count('id="chart-sweep"') == 1
    assert "train.lr, logarithmic axis" in page
    assert lab.study(**SWEPT).read() == summary == load_study(lab.folder / "out")
    assert printed(sweep_table(summary, 80)) == [
        "train.lr    0.1     0.2    0.4             0.8",
        "a         2.150 [2.050]  2.250 1 of 2 diverged",
        "b         2.950   2.850  2.650         [2.250]",
    ]


def test_the_picture_of_a_sweep_ends_at_the_loss_of_an_untrained_model(lab):
    lab.score = swept_score
    summary = lab.run(**SWEPT)
    curve = Curve(seed=0, tokens=[0, 640], values=[2.5, 2.1])
    arms = [arm.model_copy(update={"curves": [curve]}) for arm in summary.arms]
    high = [
        sweep(study).to_dict()["layer"][1]["encoding"]["y"]["scale"]["domain"][1]
        for study in (summary, summary.model_copy(update={"arms": arms}))
    ]
    assert 2.9 < high[0] < 3.1
    assert 2.5 < high[1] < 2.6


def test_seeds_are_drawn_without_what_they_do_to_all_alike():
    """One seed is 0.3 above the other. If it is missing, the point stays at its place."""
    rows = [
        {"arm": arm, "value": lr, "seed": seed, "loss": lr + 0.3 * seed}
        for arm in "ab"
        for lr in (1.0, 2.0)
        for seed in (0, 1)
    ]
    assert [row["loss"] for row in aligned(rows)] == pytest.approx([1.15, 1.15, 2.15, 2.15] * 2)
    rows[-1]["loss"] = None
    assert [row["loss"] for row in aligned(rows)][:-1] == pytest.approx([1.15, 1.15, 2.15, 2.15, 1.15, 1.15, 2.15])


def test_one_point_does_not_tell_what_a_seed_does_to_all_alike():
    """Its scatter would disappear if the seeds' own differences counted as effects on all points."""
    rows = [{"arm": "a", "value": 1.0, "seed": seed, "loss": seed + 1.0} for seed in range(3)]
    assert aligned(rows) == rows
    incomplete = [*rows, {"arm": "b", "value": 1.0, "seed": 0, "loss": 4.0}]
    assert aligned(incomplete) == incomplete


def test_a_summary_of_an_older_version_loads(lab):
    lab.run()
    file = lab.folder / "out" / "summary.json"
    found = json.loads(file.read_text())
    del found["sweep"]
    for arm in found["arms"]:
        del arm["probes"]
    old = StudySummary.model_validate_json(json.dumps(found))
    assert (old.sweep, old.arms[0].probes) == ([], None)
    assert "Sweep" not in render(old)
    assert "Inside the arms" not in render(old)


# --- failed runs -------------------------------------------------------------------------------


def test_a_run_that_fails_is_named_left_out_and_tried_again(lab):
    lab.fails = lambda config: (
        "too little memory" if (config.model.norm.kind, config.train.seed) == (LAYER, 1) else None
    )
    summary = lab.run(seeds=3)
    assert summary.failed == {"b, seed 1": "too little memory"}
    assert summary.warnings[:2] == ["1 run not finished and left out", "b, seed 1 failed: too little memory"]
    assert (summary.arms[1].comparison.pairs, list(summary.arms[1].values)) == (2, [0, 2])
    assert list(summary.arms[1].runs) == [0, 2]
    lab.fails = lambda config: None
    assert (lab.run(seeds=3).failed, lab.ran) == ({}, [(LAYER, 1, 1e-3)])


@pytest.mark.parametrize(("seeds", "compared"), [(2, {0, 1}), ({"until": 1, "at_most": 4, "first": 3}, {0, 1, 2})])
def test_a_failed_tuning_run_keeps_no_other_arm_from_its_runs(lab, seeds, compared):
    lab.fails = lambda config: (
        "too little memory" if (config.model.norm.kind, config.train.lr) == (LAYER, 0.5) else None
    )
    with pytest.raises(
        UserError, match=r"tuning is not finished(?s:.*)b, train.lr=0.5, seed 1000: failed: too little memory"
    ):
        lab.run(tune=GRID, seeds=seeds)
    assert {seed for norm, seed, _ in lab.ran if norm == RMS} == {*compared, 1000}
    assert {seed for norm, seed, _ in lab.ran if norm == LAYER} == {1000}


def test_no_seed_is_added_while_the_reference_is_not_tuned(lab):
    lab.fails = lambda config: "no memory" if (config.model.norm.kind, config.train.lr) == (RMS, 0.5) else None
    with pytest.raises(UserError, match="tuning is not finished"):
        lab.run(tune=GRID, seeds={"until": 0.001, "at_most": 4, "first": 3})
    assert {seed for norm, seed, _ in lab.ran if norm == LAYER} == {0, 1, 2, 1000}


def test_a_study_without_a_finished_run_has_no_summary(lab):
    lab.fails = lambda config: "too little memory"
    with pytest.raises(UserError, match=r"no run finished\n  a, seed 0: failed: too little memory"):
        lab.run()
    assert not (lab.folder / "out" / "summary.json").exists()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (UserError("no such device"), "no such device"),
        (OSError(28, "No space left on device", "run/metrics.jsonl"), "run/metrics.jsonl: No space left on device"),
        (MemoryError(), "too little memory; try a smaller"),
        (torch.OutOfMemoryError("CUDA out of memory."), "too little memory; try a smaller"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "too little memory; try a smaller"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_whatever_happens_in_a_worker_is_reported_of_its_run(lab, monkeypatch, error, why):
    def failing(*_):
        raise error

    monkeypatch.setattr(task, "train", failing)
    study = lab.study()
    progress = task.train_run(study.plan.compared(study.arms[0], 0), lab.folder, Callback())
    assert (progress.summary, progress.run.label) == (None, "a, seed 0")
    assert progress.failed.startswith(why)


def test_what_many_runs_note_is_printed_once(lab, monkeypatch, capsys):
    """The source of their weights is not printed, because the heading names it."""

    def noting(config, folder, callback, corpus):
        callback.on_note("rows from 256 on are never used")
        callback.on_note(f"checkpoint of seed {config.train.seed}: damaged")
        callback.on_weights("from run, step 3 of 10")
        raise UserError("out of patience")

    monkeypatch.setattr(task, "train", noting)
    study, sent = lab.study(), SimpleNamespace()
    with StudyProgress() as progress:
        for seed in (0, 1):
            run = study.plan.compared(study.arms[0], seed)
            sent.send = progress([run])
            sent.send(task.train_run(run, lab.folder, local._SendProgress(run, sent)))
    heading = "comparing: 1 run, from random weights"
    assert [line for line in capsys.readouterr().err.splitlines() if line != heading] == [
        "note: a, seed 0: rows from 256 on are never used",
        "note: a, seed 0: checkpoint of seed 0: damaged",
        "note: a, seed 0: failed: out of patience",
        "note: a, seed 1: checkpoint of seed 1: damaged",
        "note: a, seed 1: failed: out of patience",
    ]


def test_what_many_runs_from_trained_weights_note_is_printed_for_each_model(lab, capsys):
    """It may be the change of their logits, which is reported for every arm, also if it is 0 for several of them."""
    study = lab.study()
    text = "the logits differ by 0"
    runs = [study.plan.compared(arm, seed) for arm in study.arms[:2] for seed in (0, 1)]
    assert runs[0].config.model != runs[2].config.model
    begun = [replace(run, start=runs[0]) for run in runs]
    with StudyProgress() as progress:
        for run in begun:
            progress([run])(RunProgress(run, 0.0, note=text))
    lines = [line for line in capsys.readouterr().err.splitlines() if text in line]
    assert lines == [f"note: {begun[i].label}: {text}" for i in (0, 2)]


def test_lines_say_how_long_the_rest_takes_as_it_went_so_far(lab, capsys, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("archlab.progress.time.monotonic", lambda: clock.now)
    study = lab.study()
    runs = [study.plan.compared(study.arms[0], seed) for seed in (0, 1, 2, 3)]
    with StudyProgress() as progress:
        watch = progress(runs)
        for run in runs:
            clock.now += 90.0
            watch(RunProgress(run, 1.0, summary=summary_of(2.0)))
        progress.timing("training speed")(0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "comparing: 4 runs, from random weights"
    assert [line.partition("; ")[2] for line in lines[1:]] == ["", "3 min left", "90 s left", "", ""]
    assert lines[-1] == "timing, with nothing else running: training speed"


def forward_flops(config):
    with FlopCounterMode(display=False) as counter:
        Decoder(config.model)(torch.zeros(1, config.model.max_seq_len, dtype=torch.int64))
    return counter.get_total_flops()


def test_a_larger_model_counts_more_in_the_time_left(lab, capsys, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("archlab.progress.time.monotonic", lambda: clock.now)
    study = lab.study(arms={"small": {}, "large": {"model.n_layers": 12}})
    small, large = (study.plan.compared(arm, 0) for arm in study.arms)
    ratio = forward_flops(large.config) / forward_flops(small.config)
    with StudyProgress() as progress:
        watch = progress([small, large])
        watch(RunProgress(small, 0.5))
        clock.now += 60.0
        watch(RunProgress(small, 1.0, summary=summary_of(2.0)))
    minutes, *unit = capsys.readouterr().err.splitlines()[1].partition("; ")[2].split()
    assert ratio > 2
    assert unit == ["min", "left"]
    assert float(minutes) == pytest.approx(2 * ratio, rel=0.05)  # torch also counts hidden pairs


def test_code_is_compared_without_its_comments_and_layout():
    code = 'class A:\n    """One."""\n\n    x = 1\n    """Two."""\n\n    def f(self):\n        """Three."""\n        return 2  # why\n'
    reworded = (
        'class A:\n    """Other words."""\n    x = 1\n\n    def f(self):\n        return (\n            2\n        )\n'
    )
    assert normalized(code) == normalized(reworded)
    assert normalized(code) != normalized(code.replace("return 2", "return 3"))
    assert normalized(code) != normalized(code.replace("x = 1", 'x = "text"'))


def test_the_digest_of_the_code_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(code_digest_module, "HOME", tmp_path)
    file, digest = tmp_path / "model" / "a.py", code_digest.__wrapped__  # without what this process remembers
    file.parent.mkdir()
    file.write_text("x = 1\n")
    first = digest()
    file.write_text("x = 1  # a word more\n")
    assert digest() == first
    file.write_text("x = 2\n")
    assert digest() != first


def test_a_run_is_named_by_what_is_trained_not_by_where(lab, monkeypatch):
    before = lab.study().plan.compared(lab.study().arms[0], 0)
    monkeypatch.setattr("archlab.training.code_digest.code_digest", lambda: "another version")
    monkeypatch.setattr("torch.__version__", "0.0")
    monkeypatch.setattr("archlab.training.device.Device.name", "another processor")
    study = lab.study(workers=7)
    study.threads = 99
    assert study.plan.compared(study.arms[0], 0).name == before.name
    assert study.plan.compared(study.arms[0], 1).name != before.name


def environments(lab, *changes):
    """Write the environment of each of the study's runs."""
    for folder, change in zip(sorted((lab.folder / "out" / "runs").iterdir()), changes, strict=True):
        known = {"code": code_digest(), "torch": "2.13", "processor": "a CPU", "threads": 1}
        (folder / "env.json").write_text(json.dumps(known | change))
        (folder / "config.yaml").touch()


def test_runs_that_were_made_in_several_places_are_named(lab):
    lab.run()
    environments(lab, {}, {}, {}, {})
    assert lab.study().read().warnings == []
    environments(lab, {}, {"processor": "another CPU"}, {"threads": 2}, {"code": "other"})
    assert [text.partition(" (")[0].partition(";")[0] for text in lab.study().read().warnings] == [
        "the runs differ in the code of archlab",
        "the runs differ in the processor",
        "the runs differ in the number of threads",
        "another version of archlab's code made some runs",
    ]


def test_runs_of_other_code_are_repeated_on_request(lab):
    lab.run()
    now = environment(choose_device(lab.study().arms[0].config.train)) | {"threads": lab.study().threads}
    environments(lab, now, now | {"code": "other"}, now, now | {"threads": 99})
    for renew, ran in ((False, 0), (True, 2)):
        lab.ran = []
        lab.study().run(silent, renew=renew)
        assert len(lab.ran) == ran


# --- crossed factors and named references -----------------------------------------------

NAMED = {"a": {}, "b": {"model.norm.kind": "layernorm"}, "c": {"model.mlp.kind": "plain"}, "d": {"train.lr": 0.1}}
PLACED = {"model.norm.placement": ["pre", "post"], "train.warmup": [0, 0.1]}


def test_a_study_names_its_references_in_its_answer(lab):
    """b is 0.1 worse than d, and c is 0.2 better than b."""
    scores = {"layernorm": 2.3, "plain": 2.1}

    def score(config):
        found = scores.get(config.model.norm.kind) or scores.get(config.model.mlp.kind) or 2.2
        return found + config.train.seed / 10 + (config.train.seed % 2) / 1000 * (found > 2.2)

    lab.score = score
    summary = lab.run(arms=NAMED, against={"b": "d", "c": "b"}, seeds=5)
    assert summary.against == {"b": "d", "c": "b"}
    assert {arm.name: arm.comparison.reference for arm in summary.arms[1:]} == {"b": "d", "c": "b", "d": "a"}
    assert "b loses to d by 0.100 bits per byte" in summary.answer
    assert "c beats b by 0.200 bits per byte" in summary.answer
    assert "d is not distinguishable from a" in summary.answer
    page = render(summary)
    assert "from its reference" in page
    assert "b vs d" in page


def planted(config):
    post, warm = config.model.norm.placement == "post", config.train.warmup > 0
    return 2 + config.train.seed / 10 - 0.3 * (post and warm) * (1 + config.train.seed / 100)


def test_a_study_records_its_factors_and_contrasts(lab):
    lab.score = planted
    crossing = {"arms": {}, "cross": PLACED, "measure": ["largest_gradient"], "seeds": 4}
    summary = lab.run(**crossing)
    assert summary.arms[3].factors == {"model.norm.placement": "post", "train.warmup": 0.1}
    row = summary.frame()[-1]
    assert (row["model.norm.placement"], row["train.warmup"], row["seed"]) == ("post", 0.1, 3)
    assert (lab.folder / "out" / "runs.csv").read_text().startswith("arm,seed,model.norm.placement,train.warmup,")
    assert summary.contrasts[0].name == "warmup=0.1 where norm.placement=post"
    assert summary.contrasts[0].comparison.difference == pytest.approx(-0.3045)
    other = summary.by("largest_gradient")
    assert [contrast.comparison.difference for contrast in other.contrasts] == [0, 0, 0]
    assert set(summary.others[-1].arms) == {arm.name for arm in summary.arms}
    said = "warmup=0.1 helps by 0.304 bits per byte more with norm.placement=post than with norm.placement=pre"
    assert said in summary.answer
    assert lab.study(**crossing).read() == summary


def test_the_page_and_the_terminal_show_contrasts_if_factors_are_crossed(lab):
    lab.score = planted
    summary = lab.run(arms={}, cross=PLACED, seeds=4)
    page = render(summary)
    assert page.count("warmup=0.1 on average") == 1
    assert "corrected for all 6 comparisons" in page
    shown = Console(width=200, record=True, file=io.StringIO())
    shown.print(factor_table(summary, 200))
    line = next(line for line in shown.export_text().splitlines() if line.startswith("warmup=0.1 with"))
    assert re.search(r"with norm.placement=pre +-0.304 \[-0.3\d\d, -0.\d+\] < 0.001 better", line)
    lab.folder /= "plain"
    assert "The factors" not in render(lab.run())


def test_every_two_factors_have_a_picture_whose_lines_are_apart_as_their_contrasts_say(lab):
    lab.score = planted
    summary = lab.run(arms={}, cross=PLACED, seeds=4)
    (pair,) = pairs(summary)
    assert pair == ("model.norm.placement", "train.warmup")
    means = {(row["arm"], row["value"]): row["mean"] for row in factor_rows(summary, pair)}
    assert sorted(means.values()) == pytest.approx(sorted(arm.mean for arm in summary.arms))
    steps = {line: means[line, "0.1"] - means[line, "0"] for line in ("pre", "post")}
    assert steps["post"] - steps["pre"] == pytest.approx(summary.contrasts[0].comparison.difference)
    page = render(summary)
    assert page.count('id="chart-factors-0"') == 1
    assert "One line per level of model.norm.placement." in page


def test_with_three_factors_a_picture_averages_over_the_third(lab):
    def score(config):
        layer, warm = config.model.norm.kind == LAYER, config.train.warmup > 0
        lost = layer and warm and config.model.norm.placement == "post" and config.train.seed == 1
        return None if lost else 2 + layer / 2 + warm

    lab.score = score
    summary = lab.run(arms={}, cross={**PLACED, "model.norm.kind": [RMS, LAYER]})
    assert len(pairs(summary)) == 3
    shown = "an average is of arms that all have a value"
    assert [row["mean"] for row in factor_rows(summary, pairs(summary)[0])] == pytest.approx([2.25, 3.25] * 2), shown
    assert [row["mean"] for row in factor_rows(summary, pairs(summary)[2])] == pytest.approx([2, 2.5, 3, 3.5])


def test_a_line_of_factors_has_no_point_if_every_seed_diverged(lab):
    lab.score = lambda config: None if config.train.warmup == 0 and config.model.norm.placement == "post" else 2.0
    summary = lab.run(arms={}, cross=PLACED)
    lost = [row for row in factor_rows(summary, pairs(summary)[0]) if row["mean"] is None]
    assert [(row["arm"], row["value"]) for row in lost] == [("post", "0")]
    assert lost[0]["text"] == "no value at train.warmup=0, 2 runs diverged"
    assert "chart-factors-0" in render(summary)


def test_a_rule_adds_no_seeds_beyond_the_folds_that_judge_them(lab):
    lab.score = lambda config: 2.0 + (config.model.norm.kind == "layernorm") * (config.train.seed % 3)
    rule = {"until": 0.001, "first": 3, "at_most": 30}
    text = {"data.path": str(lab.text), "data.held_out": 0.05}
    found = lab.run(seeds=rule, set=text)
    n_folds = lab.study(seeds=rule, set=text).plan.n_folds
    assert 3 < n_folds < 30
    assert len(found.seeds) == n_folds
    assert found.arms[1].comparison.folds is None


@pytest.mark.parametrize(("seeds", "folds", "said"), [
    (4, None, "4 seeds are evaluated on 3 folds, so the test has only 3 values; more folds (up to 6) would find smaller differences"),
    ([0, 3, 6], None, "all seeds are evaluated on fold 0, so the intervals hold only for that part of the text"),
    (3, None, None), (4, 1, None),
])  # fmt: skip
def test_few_folds_for_many_seeds_are_named(lab, seeds, folds, said):
    study = lab.study(seeds=seeds, set={"data.path": str(lab.text), "data.held_out": 0.15}, folds=folds)
    assert list(fold_warnings(study.plan, study.config.seed_list)) == ([said] if said else [])


def test_a_mean_over_shared_folds_is_one_over_folds(lab):
    lab.score = lambda config: 2.0 + config.data.fold + config.train.seed / 100
    found = lab.run(seeds=4, set={"data.path": str(lab.text), "data.held_out": 0.15})
    assert found.folds == {0: 0, 1: 1, 2: 2, 3: 0}
    by_fold = [2 + (0 + 0.03) / 2, 3.01, 4.02]
    assert found.arms[0].mean == pytest.approx(np.mean(by_fold))
    assert found.arms[0].deviation == pytest.approx(np.std(by_fold, ddof=1))
    (row, _) = level_rows(found)
    assert (row["low"], row["high"]) == pytest.approx(
        tuple(stats.t.interval(0.95, 2, np.mean(by_fold), stats.sem(by_fold)))
    )


def test_a_rule_for_seeds_counts_contrasts_too(lab):
    """Interactions scatter more than arms, and there are more comparisons."""

    def noisy(config):
        random = np.random.default_rng(
            [config.train.seed, len(config.model.norm.placement), int(config.train.warmup > 0)]
        )
        return 2 + random.normal(0, 0.01)

    lab.score = noisy
    rule = {"until": 0.03, "first": 5, "at_most": 200}
    summary = lab.run(arms={}, cross=PLACED, seeds=rule, folds=1)
    firsts = [[values for seed, values in one.values.items() if seed < 5] for one in summary.contrasts]
    loudest = max(np.std(values, ddof=1) for values in firsts)
    assert len(summary.seeds) >= pairs_for(0.03, loudest, 4, 0.05 / 6) > 5


def test_a_study_has_fewer_seeds_at_its_largest_size_and_its_lines_give_the_same_trends(lab):
    """The trend uses the seeds that all sizes have in common. It is computed from the lines as from the runs."""
    lab.score = lambda config: (
        2.0
        + config.train.seed / 100
        + (config.model.norm.kind == LAYER) * config.model.d_model * (7 + config.train.seed) / 5e3
    )
    summary = lab.run(sizes=["100K", "200K", "300K"], seeds=4, largest_seeds=3)
    assert {arm.name: arm.seeds for arm in summary.arms if "300K" in arm.name} == {
        "a at 300K": [0, 1, 2],
        "b at 300K": [0, 1, 2],
    }
    assert all(arm.seeds == [0, 1, 2, 3] for arm in summary.arms if "300K" not in arm.name)
    assert len(lab.ran) == 2 * (4 + 4 + 3)
    assert summary.warnings == []
    (trend,) = summary.sizes
    assert sorted(trend.values) == [0, 1, 2]
    lines = list(record(summary, "own", "cpu", "2026-01-01"))
    assert read_results("\n".join(lines)).trends() == [trend]
    short = summary.arms[-1].model_copy(update={"seeds": [0, 1]})
    with pytest.raises(UserError, match="runs of b at 300K are missing"):
        list(record(summary.model_copy(update={"arms": [*summary.arms[:-1], short]}), "own", "cpu", "2026-01-01"))


def test_a_study_over_sizes_says_whether_its_difference_carries_over(lab):
    def score(config):
        worse = config.model.norm.kind == LAYER
        wider = config.model.n_layers * config.model.d_model**2 / 1e5
        return 2 + config.train.seed / 10 + worse * wider * (1 + config.train.seed % 2 / 50)

    lab.score = score
    summary = lab.run(sizes=["100K", "300K"], seeds=4, measure=["largest_gradient"])
    (trend,) = summary.sizes
    assert trend.arms == ["b at 100K", "b at 300K"]
    assert trend.trend == "grows"
    assert trend.name == "b at 100K to 300K"
    assert re.search(r"The difference between b and a grows from 99.1K to 301K parameters \(change ", summary.answer)
    assert summary.by("largest_gradient").sizes[0].trend == "no trend found"
    assert lab.study(sizes=["100K", "300K"], seeds=4, measure=["largest_gradient"]).read() == summary
    points = size_rows(summary)
    assert [row["value"] for row in points] == [arm.comparison.difference for arm in summary.arms if arm.comparison]
    page = render(summary)
    assert page.count('id="chart-sizes"') == 1
    assert [row["value"] for row in line_rows(summary)] == list(trend.line)
    assert over_sizes(summary.model_copy(update={"sizes": []})) is None
    heading, *line = printed(size_table(summary, 80))
    assert heading.split() == ["difference", "100K", "300K", "change", "[interval]", "p", "Holm", "trend"]
    differences = [amount(summary.arms[i].comparison.difference, "bits per byte") for i in (1, 3)]
    assert line[0].split()[:5] == ["b", "minus", "a", *differences]
    assert line[0].endswith("< 0.001 grows")
    for cell in (*differences, "grows"):
        assert cell in page
    lab.ran = []
    assert lab.run(sizes=["100K", "300K"], seeds=4, measure=["largest_gradient"]) == summary
    assert lab.ran == []


# --- folds ----------------------------------------------------------------------------------------


def test_seeds_are_judged_on_folds_in_turn(lab):
    for values, folds in (({}, [0, 1, 2, 0]), ({"folds": 1}, [0] * 4), ({"folds": 2}, [0, 1, 0, 1])):
        study = lab.study(seeds=4, set={"data.path": str(lab.text), "data.held_out": 0.15}, **values)
        assert study.corpora["a"].n_folds == 6
        configs = [study.plan.compared(study.arms[1], seed).config for seed in range(4)]
        assert [(config.train.seed, config.data.fold) for config in configs] == list(enumerate(folds))
        shared = 1 < len(set(folds)) < 4
        assert study.plan.shared_folds(range(4)) == (dict(enumerate(folds)) if shared else None)
        assert len({study.plan.compared(study.arms[1], seed).name for seed in range(4)}) == 4


def test_the_fold_for_tuning_judges_no_comparison(lab):
    settings = {"seeds": 8, "tune": {"train.lr": [0.1, 0.2]}, "tune_seeds": 2}
    study = lab.study(**settings)
    n_folds = study.corpora["a"].n_folds
    assert {run.config.data.fold for run in study.plan.all_tuning()} == {n_folds - 1}
    compared = {study.plan.compared(arm, seed).config.data.fold for arm in study.arms for seed in range(8)}
    assert n_folds - 1 not in compared
    with pytest.raises(UserError, match=f"folds is {n_folds}; .* the last one is for tuning; allowed: up to"):
        lab.run(folds=n_folds, **settings)
    with pytest.raises(UserError, match="the text has 1 fold, and the last one is for tuning; allowed: up to 0"):
        lab.run(set={"data.path": str(lab.text), "data.held_out": 0.6}, **settings)


def test_too_few_folds_are_refused_before_the_text_is_prepared(lab, monkeypatch):
    monkeypatch.setattr("archlab.study.runner.open_corpora", lambda arms: pytest.fail("the text was prepared"))
    with pytest.raises(UserError, match="folds is 50"):
        lab.run(folds=50)


def test_an_objective_that_cannot_read_the_text_is_refused_before_any_run(lab):
    """The tokenizer changes the text, so its bytes cannot be counted. A masked objective does not count them."""
    tokenizer = bpe.train([lab.text.read_text()], MODEL["vocab_size"])
    tokenizer.normalizer = normalizers.Replace("e", "E")
    tokenizer.save(str(lab.folder / "tokenizer.json"))
    settings = {"set": {"data.path": str(lab.text), "data.tokenizer": str(lab.folder / "tokenizer.json")}}
    with pytest.raises(UserError, match=r"arm a: train\.objective\.kind: next_token is scored in bits per byte"):
        lab.run(**settings)
    assert lab.ran == []


# --- folders --------------------------------------------------------------------------------------


def test_the_summary_is_written_and_read_again(lab):
    summary = lab.run()
    assert json.loads((lab.folder / "out" / "summary.json").read_text())["answer"] == summary.answer
    assert lab.study().read() == summary
    with (lab.folder / "out" / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"]) for row in rows] == [(r["arm"], str(r["seed"])) for r in summary.frame()]
    assert [float(row["bits_per_byte"]) for row in rows] == [r["bits_per_byte"] for r in summary.frame()]
    assert summary.command.endswith(f"archlab study run {lab.folder / 'out'}")


def test_the_command_can_be_pasted_into_a_shell(lab):
    lab.folder /= "it's; rm -r *"
    assert shlex.split(lab.run().command) == ["archlab", "study", "run", str(lab.folder / "out")]


def test_the_cache_is_that_of_a_text_and_ends_at_the_window(lab):
    """Keys and values of 2 layers with 2 heads of 8 and 2 bytes each, for 16 tokens or a window of 4."""
    summary = lab.run(arms={"a": {}, "b": {"model.attention.window": 4}})
    per_token = 2 * 2 * 2 * 8 * 2
    assert summary.kv_context == 16
    assert [arm.kv_cache_bytes for arm in summary.arms] == [16 * per_token, 4 * per_token]


def test_the_summary_says_where_each_run_is_and_what_tuning_cost(lab):
    lab.score = far_from({RMS: 0.2, LAYER: 0.5})
    plain = lab.run()
    for arm in plain.arms:
        for seed, run in arm.runs.items():
            found = RunFolder(lab.folder / "out" / run).summary()
            assert (found.bits_per_byte, list(arm.runs)) == (arm.values[seed], [0, 1])
    assert plain.seconds == pytest.approx(4 * 640 / 1e3)
    assert lab.run(tune=GRID).seconds == pytest.approx((4 + 2 * 4) * 640 / 1e3)


def test_an_unfinished_study_says_what_is_missing(lab):
    lab.run(arms={"a": {}})
    summary = lab.study().read()
    assert summary.warnings == ["2 runs not finished and left out"]
    assert summary.arms[1].comparison.verdict == "too few runs"


def test_nothing_is_written_when_there_is_nothing_to_report(lab):
    study = lab.study()
    claim_folder(study.folder, study.config, study.corpora)
    with pytest.raises(UserError, match="no finished run"):
        study.read()
    assert sorted(path.name for path in study.folder.iterdir()) == [
        "base.yaml", "corpus.json", "digests.json", "planned.json", "study.yaml",
    ]  # fmt: skip
    with pytest.raises(UserError, match="tuning is not finished"):
        lab.study(tune=GRID).read()


@pytest.mark.parametrize("name", ["thesis.tex", "runs", "summary.json"])
def test_a_folder_with_something_else_is_refused(lab, name):
    (lab.folder / "out").mkdir()
    (lab.folder / "out" / name).write_text("mine")
    with pytest.raises(UserError, match=f"out contains other files \\({name}\\); choose an empty or new folder"):
        lab.run()
    assert [path.name for path in (lab.folder / "out").iterdir()] == [name]


def test_another_question_needs_another_folder(lab):
    lab.run()
    with pytest.raises(UserError, match=r"contains another study \('Which\?'\); choose another folder"):
        lab.run(question="Why?")


def test_what_changed_since_the_folder_was_made_is_known(lab):
    assert lab.study().changed() == []
    lab.run()
    assert lab.study().changed() == []
    assert lab.study(seeds=3, labels={"a": "A"}).changed() == ["labels", "seeds"]


def test_a_study_folder_holds_its_base(lab):
    first = lab.run()
    (base,) = lab.folder.glob("*.yaml")
    base.unlink()
    name, study = read_study(str(lab.folder / "out"))
    again = Study(name, study, lab.folder / "out").read()
    assert [arm.values for arm in again.arms] == [arm.values for arm in first.arms]
    assert (name, again.name) == ("out", first.name)


def test_a_report_needs_no_corpus(lab, monkeypatch, tmp_path_factory):
    text = write_text(lab.folder)
    values = {"set": {"data.path": str(text)}, "arms": {"a": {}, "b": {"model.vocab_size": 280}}}
    first = lab.run(**values)
    text.unlink()
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path_factory.mktemp("empty")))
    assert lab.study(**values).read() == first
    with pytest.raises(UserError, match=r"text.txt: no such file or folder"):
        lab.run(**values)
    for damage in ("{", "[{}]", "[]"):
        (lab.folder / "out" / "corpus.json").write_text(damage)
        with pytest.raises(UserError, match=r"corpus.json: damaged: .*; delete it, and archlab reads the text again"):
            lab.study(**values).read()
    (lab.folder / "out" / "digests.json").unlink()
    for damage in ("{", "[{}]", "[]"):
        (lab.folder / "out" / "corpus.json").write_text(damage)
        with pytest.raises(UserError, match=r"text.txt: no such file or folder"):
            lab.study(**values).read()


def test_a_damaged_base_is_named_and_another_one_mends_it(lab):
    first, folder = lab.run(), lab.folder / "out"
    whole = (folder / "base.yaml").read_text()
    (folder / "base.yaml").write_text(whole.replace("n_layers: 2", "n_layers: 1"))
    for begin in (lambda: read_study(str(folder)), lab.run):
        with pytest.raises(UserError, match=r"base.yaml: damaged: .*or name another file in .*study.yaml"):
            begin()
    study = folder / "study.yaml"
    study.write_text(study.read_text().replace("base.yaml", str(lab.folder / "base.yaml")))
    assert lab.run() == first
    assert lab.ran == []
    assert (folder / "base.yaml").read_text() == whole


@pytest.mark.parametrize("kill_before", ["base.yaml", "study.yaml"])
def test_a_kill_during_the_claim_leaves_a_folder_that_can_be_claimed(lab, monkeypatch, kill_before):
    with monkeypatch.context() as patch:
        write = digests.write_atomic

        def killed(path, content):
            if path.name == kill_before:
                raise KeyboardInterrupt
            write(path, content)

        patch.setattr(digests, "write_atomic", killed)
        patch.setattr(study_folder, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            lab.run()
    assert not (lab.folder / "out" / "study.yaml").exists()
    lab.run()
    assert len(lab.ran) == 4


def test_a_study_made_elsewhere_is_read_from_its_summary(lab):
    first = lab.run()
    shutil.rmtree(lab.folder / "out" / "runs")
    found = lab.study().read()
    assert (found.arms, found.answer) == (first.arms, first.answer)
    assert "its runs are missing" in found.warnings[-1]
    (lab.folder / "out" / "summary.json").write_text("{")
    with pytest.raises(UserError, match=r"summary.json: damaged"):
        lab.study().read()


@pytest.mark.parametrize(("file", "remedy"), [("summary.json", "the file"), ("metrics.jsonl", ".*summary.json")])
def test_a_damaged_run_is_named_and_left_out_while_the_others_count(lab, file, remedy):
    first = lab.run(seeds=3)
    progress = []
    run = lab.folder / "out" / first.arms[1].runs[1]
    whole = (run / file).read_text()
    (run / file).write_text(whole.replace("640", "641"))
    lab.ran = []
    for summary in (lab.study(seeds=4).run(lambda runs: progress.append), lab.study(seeds=3).read()):
        ((label, why),) = summary.failed.items()
        assert label == "b, seed 1"
        assert re.search(f"{run / file}: damaged: .*; delete {remedy} and run the command again", why)
        assert summary.warnings[:2] == ["1 run not finished and left out", f"{label} failed: {why}"]
        assert {k: v for k, v in summary.arms[1].values.items() if k < 3} == {0: 2.0, 2: 2.02}
    assert [news.failed for news in progress] == [why]
    assert lab.ran == [(RMS, 3, 1e-3), (LAYER, 3, 1e-3)]
    (run / file).write_text(whole)
    assert lab.study(seeds=3).read() == first


def test_damaged_runs_are_not_hidden_by_an_old_summary(lab):
    lab.run()
    for run in (lab.folder / "out" / "runs").iterdir():
        (run / "summary.json").write_text("{")
    with pytest.raises(UserError, match=r"no run finished(\n  ., seed .: failed: .*summary.json: damaged.*){4}"):
        lab.study().read()


def test_what_an_unfinished_run_has_written_so_far_is_not_read(lab):
    first = lab.run(tune={"train.lr": [0.1, 0.2]})
    run = lab.folder / "out" / first.arms[1].runs[1]
    (run / "summary.json").unlink()
    for file in ("metrics.jsonl", "env.json"):
        (run / file).write_text("7\n")
    assert lab.study(tune={"train.lr": [0.1, 0.2]}).read().seconds == pytest.approx(first.seconds - 0.64)


def test_a_file_is_refused_as_a_folder(lab):
    (lab.folder / "out").write_text("mine")
    with pytest.raises(UserError, match="is a file; allowed: a folder"):
        lab.run()


def test_the_path_of_a_study_may_be_invalid_utf8(lab):
    """The names are Latin-1. In texts, numbers replace the bytes that are not UTF-8."""
    folder = lab.folder / "caf\udce9"
    folder.mkdir()
    (lab.folder / "base.yaml").rename(folder / "base.yaml")
    (folder / "text.txt").write_bytes(lab.text.read_bytes())
    raw = {"question": "Which?", "base": "base.yaml", "set": {"data.path": "text.txt"}, "budget": {"tokens": 640}}
    (folder / "th\udce9.yaml").write_text(to_yaml({**raw, "seeds": 2, "arms": {"a": {}, "b": {"train.lr": 2e-3}}}))
    name, config = read_study(str(folder / "th\udce9.yaml"))
    summary = Study(name, config, folder / "out\udce9").run(silent)
    assert summary.name == r"th\udce9"
    assert Study(*read_study(str(folder / "out\udce9")), folder / "out\udce9").read().arms == summary.arms
    write_page(summary, folder / "out\udce9")
    assert r"th\udce9" in (folder / "out\udce9" / "report.html").read_text()
