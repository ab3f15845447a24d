"""Outcomes of a study: from logs written by hand, from weights (compared with sums over tokens), and from sweeps."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from archlab.config.check import validate
from archlab.config.core.registry import kinds
from archlab.config.tasks.recall import Recall
from archlab.data.open import open_training_data
from archlab.errors import UserError
from archlab.infer.load import load_run
from archlab.pricing.params import parameters
from archlab.study.comparisons import outcome_statistics
from archlab.study.design import arms
from archlab.study.details import compare_documents
from archlab.study.outcomes import gather as gathering
from archlab.study.outcomes import timing
from archlab.study.outcomes.chosen import outcomes_of
from archlab.study.outcomes.final_weights import measure, read_measured
from archlab.study.outcomes.gather import StudyRuns, gather
from archlab.study.outcomes.kinds import (
    Answers,
    BestLoss,
    BestRate,
    Beyond,
    BitsPerByte,
    Gap,
    Intensity,
    LargestGradient,
    OnTheWay,
    Probe,
    Repetition,
    Sensitivity,
    Spikes,
    StateBytes,
    TokensPerByte,
    TokensTo,
    TrainingSpeed,
    WholeAnswers,
    WindowPart,
)
from archlab.study.outcomes.log import from_log, from_sweep
from archlab.study.outcomes.schema import Outcome
from archlab.study.runs import Ended
from archlab.study.schema import StudyConfig
from archlab.study.stats import pairwise
from archlab.study.study_file import with_kinds
from archlab.training.callback import Callback
from archlab.training.summary import PROBES, DocumentScore, RunSummary
from archlab.training.train import train
from tiny import config, write_text


def ended(
    score: float | None = 2.0,
    gradients: tuple[float, ...] = (),
    evaluations: tuple[tuple[int, float], ...] = (),
    **values: Any,
) -> Ended:
    """Return an ended run with this log and summary."""
    summary = RunSummary(
        status="finished" if score is not None else "diverged", steps=10, tokens=640, bits_per_byte=score,
        loss=score and 2 * score, train_loss=3.0, tokens_per_second=1e3, mfu=0.1, parameters=9, device="a CPU",
        dtype="float32", spikes=values.get("spikes", 0),
    )  # fmt: skip
    updates = [{"step": i + 1, "lr": 1e-3, "grad_norm": norm} for i, norm in enumerate(gradients)]
    updates += [{"step": i, PROBES: found} for i, found in enumerate(values.get("probes", ()))]
    scores = [{"step": 0, "tokens": tokens, "bits_per_byte": bits} for tokens, bits in evaluations]
    return Ended(summary, [*scores, *updates], {}, [], values.get("measured", {}))


# --- logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "run", "expected"),
    [
        (BitsPerByte(), ended(2.5), 2.5),
        (Gap(), ended(2.5), 5.0 - 3.0),
        (LargestGradient(), ended(gradients=(99, *[1] * 18, 5)), 5),
        (Spikes(), ended(spikes=3), 3),
        (TokensTo(bits_per_byte=2.5), ended(evaluations=((0, 4.0), (100, 3.0), (200, 2.0), (300, 2.4))), 150),
        (TokensTo(bits_per_byte=3.0), ended(evaluations=((0, 4.0), (100, 3.0))), 100),
        (TokensTo(bits_per_byte=1.9), ended(evaluations=((0, 4.0), (100, 2.0))), None),
    ],
)
def test_what_is_read_off_a_log(outcome: Outcome, run: Ended, expected: float | None):
    assert from_log(outcome, run) == (None if expected is None else pytest.approx(expected))


PROBED = ended(
    probes=(
        {"gradient": [0.5, 1.0, 2.0], "log_z": 7.0},
        {"gradient": [1.0, 2.5, 4.0], "log_z": 6.0, "entropy": [None], "drift": [1.0, None], "dead_units": [0.5, None]},
    )
)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Probe(of="gradient"), 2.5),
        (Probe(of="gradient", layers="largest"), 4.0),
        (Probe(of="gradient", layers="smallest"), 1.0),
        (Probe(of="gradient", layers="last_over_first", at="start"), 4.0),
        (Probe(of="log_z"), 6.0),
        (Probe(of="drift"), None),
        (Probe(of="dead_units"), 0.5),
        (Probe(of="entropy"), None),
        (Probe(of="largest_load"), None),
        (OnTheWay(share=0.8), None),
    ],
)
def test_what_probes_found(outcome: Outcome, expected: float | None):
    assert from_log(outcome, PROBED) == expected


def test_the_loss_before_the_rate_falls_is_that_of_the_last_evaluation_before_it():
    run = ended(evaluations=((0, 9.0), (256, 4.0), (512, 3.0), (640, 2.0)))
    assert [from_log(OnTheWay(share=share), run) for share in (0.3, 0.4, 0.8, 0.99)] == [None, 4.0, 3.0, 3.0]


def test_a_run_that_diverged_has_no_value():
    assert all(from_log(o, ended(None, gradients=(1.0, 2.0))) is None for o in (BitsPerByte(), Gap(), Spikes()))


# --- sweeps ---------------------------------------------------------------------------------------


def swept(**losses: float | None) -> dict[float, Ended]:
    """Return runs that began at 4 bits per byte."""
    return {float(rate[1:]): ended(loss, evaluations=((0, 4.0),)) for rate, loss in losses.items()}


def test_sensitivity_is_the_mean_excess_over_the_best_and_no_run_is_worse_than_its_start():
    runs = swept(r1=2.5, r2=2.0, r3=7.0, r4=None)
    assert from_sweep(Sensitivity(), runs) == pytest.approx((0.5 + 0 + 2 + 2) / 4)
    assert (from_sweep(BestLoss(), runs), from_sweep(BestRate(), runs)) == (2.0, 2.0)
    assert from_sweep(Sensitivity(), swept(r1=None, r2=None)) is None


# --- weights --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a run of a few steps, with its config and its model."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHLAB_CACHE", str(folder / "cache"))
        text = write_text(folder)
        settings = config(
            "train.tokens=1280", "train.eval_tokens=512", "model.max_seq_len=64", "train.seq_len=16", data=text
        )
        train(settings, folder / "run", Callback())
        _, model = load_run(folder / "run", settings.model)
        yield SimpleNamespace(config=settings, run=folder / "run", model=model.eval())


def by_hand(trained: SimpleNamespace, length: int, part: slice) -> float:
    """Return bits per byte over a part of every window, computed token by token."""
    settings = trained.config
    held_out = open_training_data(settings.data, settings.model.vocab_size).held_out(length, 512)
    bits = n_bytes = 0.0
    with torch.no_grad():
        for row, counted in zip(held_out.tokens, held_out.bytes, strict=True):
            logits = trained.model(torch.from_numpy(row[None, :-1]))[0].double()
            losses = F.cross_entropy(logits, torch.from_numpy(row[1:]), reduction="none").numpy()
            inside = (counted > 0) & (np.isin(np.arange(length), np.arange(length)[part]))
            bits += losses[inside].sum() / math.log(2)
            n_bytes += counted[inside].sum()
    return bits / n_bytes


@pytest.mark.slow
def test_parts_of_windows_and_longer_ones_against_single_tokens(trained: SimpleNamespace):
    outcomes = [WindowPart(first=0.0, last=0.5), WindowPart(first=0.5), Beyond(times=2), Beyond(times=4)]
    measure(outcomes, trained.config, trained.run)
    found = read_measured(outcomes, trained.run)
    expected = [
        by_hand(trained, 16, slice(0, 8)),
        by_hand(trained, 16, slice(8, 16)),
        by_hand(trained, 32, slice(16, 32)),
        by_hand(trained, 64, slice(16, 64)),
    ]
    assert [found[outcome] for outcome in outcomes] == pytest.approx(expected, rel=1e-4)
    assert len({round(value, 6) for value in expected}) == 4


def test_what_is_measured_is_kept_and_not_measured_again(trained: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    outcome = Repetition(tokens=8, prompts=2)
    assert read_measured([outcome], trained.run) == {}
    measure([outcome], trained.config, trained.run)
    first = read_measured([outcome], trained.run)
    monkeypatch.setattr("archlab.study.outcomes.final_weights.load_run", lambda *_: pytest.fail("measured again"))
    measure([outcome], trained.config, trained.run)
    assert read_measured([outcome], trained.run) == first
    (file,) = (p for p in trained.run.glob("outcome-*.json") if '"repetition"' in p.read_text())
    file.write_text(file.read_text().replace("value", "valve"))
    with pytest.raises(UserError, match=r"outcome-\w+\.json: .* delete it, and archlab measures it again"):
        read_measured([outcome], trained.run)
    file.unlink()


@pytest.mark.parametrize(
    ("tokens", "repeated"), [([1, 2, 3], 0), ([1, 2, 3, 4], 0), ([7] * 10, 6 / 7), ([1, 2, 3, 4] * 3, 5 / 9)]
)
def test_repetition_counts_runs_of_four(tokens: list[int], repeated: float):
    from archlab.study.outcomes.final_weights import _repeated

    assert _repeated(tokens) == pytest.approx(repeated)


def test_learned_positions_end_where_they_end(trained: SimpleNamespace, tmp_path: Path):
    learned = config("model.position.kind=learned", "train.tokens=64", data=trained.config.data.path)
    train(learned, tmp_path / "run", Callback())
    outcomes = [Beyond(times=2), Repetition(tokens=64, prompts=1), TokensPerByte()]
    measure(outcomes, learned, tmp_path / "run")
    found = read_measured(outcomes, tmp_path / "run")
    assert (found[outcomes[0]], found[outcomes[1]]) == (None, None)
    held_out = open_training_data(learned.data, learned.model.vocab_size).held_out(16, 256)
    assert found[outcomes[2]] == pytest.approx(held_out.scored.sum() / held_out.bytes.sum())


# --- documents ------------------------------------------------------------------------------------


def scored(*documents: tuple[float, int]) -> Ended:
    found = ended()
    scores = [
        DocumentScore(begins=f"document {i}", bits=float(bits), bytes=int(n)) for i, (bits, n) in enumerate(documents)
    ]
    return Ended(found.summary, [], {}, scores, {})


def test_the_interval_over_documents_is_that_of_a_ratio_and_covers_it():
    """Compare with the jackknife, and with the truth for documents drawn at random."""
    draw, inside = np.random.default_rng(0), 0
    for trial in range(200):
        n_bytes = draw.integers(50, 2000, 60)
        change = draw.normal(-0.02, 0.1, 60) * n_bytes
        bits = 2.0 * n_bytes
        view = compare_documents(
            {0: scored(*zip(bits + change, n_bytes, strict=True))}, {0: scored(*zip(bits, n_bytes, strict=True))}
        )
        assert view is not None
        inside += view.low < -0.02 < view.high
        if trial == 0:
            left_out = [(change.sum() - c) / (n_bytes.sum() - n) for c, n in zip(change, n_bytes, strict=True)]
            error = math.sqrt(59 / 60 * ((np.array(left_out) - np.mean(left_out)) ** 2).sum())
            assert view.difference == pytest.approx(change.sum() / n_bytes.sum())
            assert view.high - view.difference == pytest.approx(2.0 * error, rel=0.05)
            assert view.lowest[0].begins == f"document {np.argmin(change / n_bytes)}"
            assert view.highest[0].begins == f"document {np.argmax(change / n_bytes)}"
    assert 180 <= inside <= 199


def test_documents_are_paired_by_seed_and_only_if_they_are_the_same():
    ours = {0: scored((10, 5), (20, 10), *[(3, 2)] * 4), 1: scored(*[(9, 3)] * 6), 2: scored(*[(1, 1)] * 6)}
    theirs = {0: scored((11, 5), (24, 10), *[(3, 2)] * 4), 1: scored(*[(9, 4)] * 6), 3: scored(*[(1, 1)] * 6)}
    view = compare_documents(ours, theirs)
    assert view is not None
    assert (view.documents, view.difference) == (6, pytest.approx(-5 / 23))
    assert compare_documents({1: ours[1]}, theirs) is None


def test_a_document_that_judges_several_seeds_counts_once():
    ours, theirs = scored(*[(i, 2) for i in range(8)]), scored(*[(5, 2)] * 8)
    once, thrice = (compare_documents(dict.fromkeys(s, ours), dict.fromkeys(s, theirs)) for s in ([0], [0, 1, 2]))
    assert once == thrice
    assert once is not None
    assert once.documents == 8


# --- a study's outcomes ---------------------------------------------------------------------------


ARMS = {"a": {}, "b": {"model.norm.kind": "layernorm"}}


def study(**values: Any) -> StudyConfig:
    raw = {"question": "?", "base": "tiny-llama", "budget": {"tokens": "1M"}, "arms": ARMS}
    return validate(StudyConfig, with_kinds({**raw, **values}), "s.yaml")


def test_an_outcome_without_a_name_is_named_by_its_kind():
    assert study(measure=["gap", "spikes"]).measure == {"gap": Gap(), "spikes": Spikes()}
    found = study(measure={"spikes": None, "far": {"kind": "beyond", "times": 8}, "gap": None}).measure
    assert found == {"spikes": Spikes(), "far": Beyond(times=8), "gap": Gap()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"measure": ["gapp"]}, r"measure\.gapp\.kind .*'gapp'; did you mean gap"),
        ({"measure": {"beyond": {"tims": 5}}}, r"measure\.beyond\.tims .*did you mean times"),
        ({"measure": {"x": {"kind": "beyond", "times": 1}}}, r"measure\.x\.times"),
        ({"measure": ["gap"], "primary": "gab"}, r"primary .*did you mean gap"),
        ({"measure": ["sensitivity"]}, r"measure\.sensitivity .*add `sweep` with the learning rates"),
        ({"sweep": {"train.lr": [1e-3, 1e-2]}}, r"sweep\.train\.lr .*no outcome uses this sweep"),
        ({"sweep": {"model.d_model": [64, 128]}, "measure": ["best_loss"]}, r"sweep\.model\.d_model .*cannot be swept"),
        (
            {"measure": {"x": {"kind": "probe", "of": "entropy"}}},
            r"measure\.x .*needs probes; .*train\.probe_every",
        ),
        (
            {"measure": {"x": {"kind": "probe", "of": "encoder.entropy"}}, "set": {"train.probe_every": 5}},
            r"measure\.x\.of .*encoder\.entropy needs an encoder, but \w+ has none; allowed: measures of one stack, such as entropy",
        ),
        ({"measure": {"seed": {"kind": "gap"}}}, r"measure\.seed .*is already a column of runs.csv"),
        (
            {"measure": {"accuracy": {"kind": "gap"}}},
            r"measure\.accuracy .*accuracy is a kind of outcome, but `kind` is different",
        ),
        (
            {"measure": ["best_loss"], "sweep": {"train.lr": [1e-3, 1e-2]}, "arms": {"a": {}, "b": {"train.lr": 1}}},
            r"arms\.b\.train\.lr .*is also in `sweep`",
        ),
        (
            {"measure": {"x": {"kind": "answers", "task": {"kind": "recall"}}}},
            r"measure\.x .*needs a task",
        ),
        (
            {"measure": ["best_rate"], "sweep": {"train.lr": [1e-3, 1e-2]}, "set": {"data.task.kind": "recall"}},
            r"measure\.best_rate .*needs text",
        ),
        ({"measure": ["accuracy"]}, r"measure\.accuracy .*text has no answers"),
        ({"primary": "accuracy"}, r"primary +'accuracy' is not measured in this study; allowed: bits_per_byte"),
        (
            {"measure": ["beyond"], "set": {"data.task.kind": "recall"}},
            r"measure\.beyond .*needs text",
        ),
    ],
)
def test_outcomes_that_cannot_be_are_refused(values: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        arms(study(**values))


def test_wrong_outcomes_and_wrong_arms_are_reported_together():
    with pytest.raises(UserError, match="2 problems") as wrong:
        arms(study(measure=["accuracy"], arms={"a": {}, "b": {"train.seed": 1}}))
    assert all(place in str(wrong.value) for place in ("measure.accuracy", "arms.b.train.seed"))


def test_the_primary_outcome_comes_first_and_a_task_has_its_own():
    text = study(measure=["gap", "state_bytes"], primary="gap")
    found = outcomes_of(text, arms(text))
    assert list(found) == ["gap", "bits_per_byte", "state_bytes"]
    assert found["state_bytes"] == StateBytes(context=arms(text)[0].config.model.max_seq_len)
    task = study(set={"data.task.kind": "recall"})
    assert list(outcomes_of(task, arms(task))) == ["accuracy"]


def test_every_outcome_says_what_it_is():
    for kind in kinds(Outcome).values():
        needed = {
            TokensTo: {"bits_per_byte": 2.0},
            Answers: {"task": Recall()},
            WholeAnswers: {"task": Recall()},
            OnTheWay: {"share": 0.5},
            Probe: {"of": "log_z"},
        }
        fields: dict[str, Any] = needed.get(kind, {})
        outcome = kind(**fields)
        assert "{" not in outcome.title
        assert outcome.source in ("log", "weights", "timing", "config", "sweep")


def test_values_by_seed_leave_out_what_is_missing_and_keep_what_diverged():
    found = study()
    outcome = Beyond()
    runs = {
        "a": {0: ended(2.0, measured={outcome: 2.5}), 1: ended(None), 2: ended(2.0, measured={outcome: None})},
        "b": {0: ended(2.0, measured={outcome: 2.25}), 1: ended(2.1, measured={outcome: 3.0})},
    }
    values = gather(outcome, StudyRuns(arms(found), runs, {}, {}))
    assert values == {"a": {0: 2.5, 1: None}, "b": {0: 2.25, 1: 3.0}}
    assert outcome_statistics(outcome, values, pairwise({"b": "a"}))["b"].comparison.verdict == "reference diverged"


def test_what_is_counted_is_compared_without_a_test():
    found = study(arms={"a": {}, "less": {"model.attention.n_kv_heads": 1}, "same": {"model.norm.eps": 1e-4}})
    outcome = StateBytes(context=100)
    designed = arms(found)
    values = gather(outcome, StudyRuns(designed, {}, {}, {}))
    a = designed[0].config.model
    assert values["a"] == {0: 2 * 2 * a.n_layers * a.attention.n_kv_heads * (a.d_model // a.attention.n_heads) * 100}
    compared = outcome_statistics(outcome, values, pairwise({"less": "a", "same": "a"}))
    assert (compared["less"].comparison.verdict, compared["same"].comparison.verdict) == ("better", "equal")
    assert compared["less"].comparison.p is None


def test_what_cannot_be_counted_or_timed_is_not_compared(monkeypatch):
    """An outcome of a plug-in may return None. Such a value is missing; only a run can diverge."""
    monkeypatch.setattr(gathering, "make", lambda outcome, config, check: None if config.model.d_model == 96 else 1.0)
    designed = arms(study(arms={"a": {}, "wide": {"model.d_model": 96, "model.attention.n_heads": 6}}))
    counted, timed = StateBytes(context=100), TrainingSpeed()
    runs = StudyRuns(designed, {}, {}, {timed: {"a": {0: 5.0, 1: 5.5}, "wide": {0: None, 1: None}}})
    for outcome, known in ((counted, {0: 1.0}), (timed, {0: 5.0, 1: 5.5})):
        values = gather(outcome, runs)
        assert values == {"a": known, "wide": {}}
        found = outcome_statistics(outcome, values, pairwise({"wide": "a"}))["wide"].comparison
        assert (found.verdict, found.pairs, found.difference) == ("too few runs", 0, None)


def test_the_intensity_of_decoding_is_flops_over_bytes():
    """Count the matrix products by hand. All weights are read once for the batch, and keys and values once for each
    sequence, with 2 bytes each. Small terms are left out."""
    long = {"model.max_seq_len": 1 << 16, "model.attention.n_heads": 4, "model.attention.n_kv_heads": 4}
    designed = arms(study(arms={"mha": long, "mqa": {**long, "model.attention.n_kv_heads": 1}}))
    batch, context = 8, 50_000
    values = gather(Intensity(batch=batch, context=context), StudyRuns(designed, {}, {}, {}))
    for arm in designed:
        m = arm.config.model
        weights, heads = parameters(m).total, m.attention.n_kv_heads
        head_dim = m.d_model // 4
        flops = 2 * weights * batch + 4 * batch * context * m.d_model * m.n_layers
        n_bytes = 2 * weights + 2 * 2 * batch * context * heads * head_dim * m.n_layers
        assert values[arm.name][0] == pytest.approx(flops / n_bytes, rel=0.15), "scores are written and read, too"


def test_arms_are_timed_in_turn_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []

    def timer(outcome: Outcome, settings: Any, check: Any) -> Any:
        def time() -> float:
            calls.append(settings.model.norm.kind)
            return 100.0 + len(calls)

        return time

    monkeypatch.setattr(timing, "make", timer)
    designed = arms(study(arms={"a": {}, "b": {"model.norm.kind": "layernorm"}}))
    outcome = TrainingSpeed()
    seen = list[str | int]()
    timing.time_all([outcome], designed, tmp_path, lambda title: seen.append(title) or seen.append)
    assert seen == ["training speed", *range(timing.ROUNDS + 1)]
    assert calls == ["rmsnorm", "layernorm"] * 2 + ["layernorm", "rmsnorm", "rmsnorm", "layernorm"] * 4
    first = timing.read_timings([outcome], designed, tmp_path)
    assert [sorted(first[outcome][arm]) for arm in ("a", "b")] == [list(range(timing.ROUNDS))] * 2
    timing.time_all([outcome], designed, tmp_path, timing.no_progress)
    assert len(calls) == 2 + 2 * timing.ROUNDS
    assert timing.read_timings([outcome], designed[:1], tmp_path) == {}
    swapped = [replace(designed[0], name="b"), replace(designed[1], name="a")]
    assert timing.read_timings([outcome], swapped, tmp_path) == {}, "other arms under these names"
    timing.forget_timings(tmp_path)
    assert timing.read_timings([outcome], designed, tmp_path) == {}


@pytest.mark.parametrize(
    ("of", "layers", "at", "title"),
    [
        ("first_token", "mean", "end", "attention on the first token (mean of the layers)"),
        ("largest_load", "largest", "end", "largest load in any layer"),
        (
            "gradient",
            "last_over_first",
            "start",
            "gradient of the last layer over that of the first at the start of training",
        ),
    ],
)
def test_the_title_of_a_probe_is_a_phrase(of, layers, at, title):
    assert Probe(of=of, layers=layers, at=at).title == title
