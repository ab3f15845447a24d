"""Comparisons of arms that were trained with different objectives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from archlab.config.check import validate
from archlab.config.core.yaml_text import to_yaml
from archlab.data.continuation import continuations
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.report.study.page import drawn, render
from archlab.study.checks import arm_notes
from archlab.study.design import arms
from archlab.study.executors.local import Local
from archlab.study.outcomes.chosen import outcomes_of
from archlab.study.outcomes.final_weights import measure, read_measured
from archlab.study.outcomes.kinds import Continuation, WindowPart
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from archlab.study.study_file import with_kinds
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.evaluate import predict
from archlab.training.train import train
from tiny import MODEL, TRAIN, config, run_here

pytestmark = pytest.mark.usefixtures("shared_cache")

CPU = Device("cpu", torch.float32)
RESERVE = "data.reserve=[mask, sentinels:3, mode:S]"
ENCODER = ("model.encoder.n_layers=1",)
VISIBLE = ("model.attention.visibility=prefix",)
PARTS = "{r: {objective.kind: span_corruption, share: 2}, s: {objective.kind: prefix, mode: S}}"
OBJECTIVES = {
    "next_token": (),
    "packed": ("train.document_mask=true",),
    "prefix": ("train.objective.kind=prefix", *VISIBLE),
    "prefix, encoder": ("train.objective.kind=prefix", *ENCODER),
    "spans": ("train.objective.kind=span_corruption", *VISIBLE),
    "spans, encoder": ("train.objective.kind=span_corruption", *ENCODER),
    "prefix, mode": (f"train.objective={{kind: mixture, parts: {PARTS}}}", *VISIBLE),
    "prefix, mode, encoder": (f"train.objective={{kind: mixture, parts: {PARTS}}}", *ENCODER),
    "one visible": ("train.objective={kind: mixture, parts: {a: {objective.kind: next_token}}}", *VISIBLE),
}


def one_by_one(model: Decoder, name: str, row: list[int], n_read: int, data: Any) -> np.ndarray:
    """Return the loss of each token of the window after the first `n_read`, given these."""
    begin, rest = row[:n_read], row[n_read:]
    (sentinel, *_), end = data.special.sentinels, data.special.documents[0]
    spans = "spans" in name
    source = [*begin, sentinel, end] if spans else [*([data.special.modes["S"]] if "mode" in name else []), *begin]
    lead = [sentinel] if spans else []
    inputs: dict[str, Any] = {}
    if "encoder" in name:
        read, inputs["source"] = [end, *lead, *rest], torch.tensor([source])
    else:
        read = [*source, *lead, *rest]
        if name not in ("next_token", "packed"):
            inputs["prefix"] = torch.tensor([1 if name == "one visible" else len(source)])
        if name == "packed":
            inputs["documents"] = (torch.tensor([read]) == end).cumsum(-1)[:, :-1]
    with torch.no_grad():
        logits = model(torch.tensor([read[:-1]]), **inputs)[0, -len(rest) :].double()
    return F.cross_entropy(logits, torch.tensor(rest), reduction="none").numpy()


@pytest.fixture(scope="module")
def documents(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file whose documents are shorter than a window."""
    file = tmp_path_factory.mktemp("documents") / "lines.jsonl"
    file.write_text("\n".join(json.dumps({"text": line}) for line in text.read_text().splitlines()[:800]))
    return file


@pytest.mark.parametrize("given", [0.5, 0.2, 0.99])
def test_every_objective_continues_the_same_tokens_given_the_same_tokens(given: float, documents: Path) -> None:
    counted, n_bytes = set[int](), set[int]()
    for name, fields in OBJECTIVES.items():
        settings = config(RESERVE, "model.max_seq_len=32", "train.seq_len=16", *fields, data=documents)
        data = open_training_data(settings.data, settings.model.vocab_size)
        model = Decoder(settings.model, seed=1).eval()
        windows = data.held_out(16, 256)
        assert windows.bytes is not None
        assert windows.scored is not None
        held_out = continuations(Batches.of(settings, data), 16, 256, given)
        found = predict(model, held_out, CPU, batch_tokens=100)
        first = min(round(given * 16), 15)
        scored = windows.scored[:, first:]
        losses = np.stack([one_by_one(model, name, row, first + 1, data) for row in windows.tokens.tolist()])
        assert found.nats.sum() == pytest.approx(losses[scored].sum(), rel=1e-5), name
        expected = losses[scored].sum() / np.log(2) / windows.bytes[:, first:][scored].sum()
        assert found.score(held_out).bits_per_byte == pytest.approx(expected, rel=1e-5)
        assert held_out.bytes is not None
        counted.add(int(held_out.counted.sum()))
        n_bytes.add(int(held_out.bytes.sum()))
    assert (len(counted), len(n_bytes)) == (1, 1)
    assert 0 < counted.pop() < 256


def test_for_the_next_token_the_continuation_is_a_part_of_the_window(text: Path, tmp_path: Path) -> None:
    settings = config("train.tokens=64", data=text)
    train(settings, tmp_path / "run", Callback())
    outcomes = [Continuation(given=0.25), WindowPart(first=0.25), Continuation(), WindowPart(first=0.5)]
    measure(outcomes, settings, tmp_path / "run")
    values = [read_measured(outcomes, tmp_path / "run")[outcome] for outcome in outcomes]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert values[2] == pytest.approx(values[3], rel=1e-6)
    assert values[0] != pytest.approx(values[2], rel=1e-4)


def test_learned_positions_of_an_encoder_end_too(text: Path, tmp_path: Path) -> None:
    fields = (
        "train.objective={kind: span_corruption, rate: 0.5}",
        "model.encoder={n_layers: 1, position.kind: learned}",
    )
    settings = config(RESERVE, "train.tokens=64", *fields, data=text)
    train(settings, tmp_path / "run", Callback())
    outcomes = [Continuation(given=0.5), Continuation(given=0.95)]  # the encoder reads 11 or 18 tokens of at most 16
    measure(outcomes, settings, tmp_path / "run")
    half, most = (read_measured(outcomes, tmp_path / "run")[outcome] for outcome in outcomes)
    assert half is not None
    assert most is None


# --- studies ------------------------------------------------------------------------------------------------------

ARMS: dict[str, Any] = {
    "causal": {},
    "prefix": {"model.attention.visibility": "prefix", "train.objective.kind": "prefix"},
    "spans": {"model.encoder.n_layers": 1, "train.objective.kind": "span_corruption"},
}
RECALL = {"data.task": {"kind": "recall", "pairs": 2}, "data.reserve": ["mask"]}
MASKED = {"model.attention.visibility": "two_sided", "train.objective.kind": "masked"}


def study(text: Path, **values: Any) -> StudyConfig:
    raw = {
        "question": "Which objective?",
        "base": "base.yaml",
        "set": {"data.path": str(text), "data.reserve": ["mask", "sentinels:3"]},
        "budget": {"tokens": 640},
        "seeds": 2,
        "arms": ARMS,
    }
    Path("base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
    return validate(StudyConfig, with_kinds({**raw, **values}), "study.yaml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {},
            r"measure +prefix and spans predict other tokens than causal, so their scores mean different things; allowed: "
            r"an outcome for any objective \(continuation\), or arms whose objectives predict the same tokens$",
        ),
        ({"measure": ["state_bytes"]}, r"prefix and spans predict other tokens than causal"),
        (
            {"measure": ["continuation", "gap"]},
            r"measure\.gap +means different things .*; allowed: continuation, or an outcome that is timed or computed",
        ),
        ({"measure": ["continuation"], "primary": "bits_per_byte"}, r"primary .*not measured .*allowed: continuation"),
        (
            {"measure": ["continuation"], "arms": {**ARMS, "masked": MASKED}},
            r"measure\.continuation +continues a text, but a model trained with masked reads tokens on both sides; "
            "allowed: next_token, prefix, span_corruption",
        ),
        (
            {"measure": ["continuation"], "set": {"data.task.kind": "recall"}, "arms": {"a": {}, "b": {"train.lr": 1}}},
            r"measure\.continuation +needs text",
        ),
        (
            {"measure": ["linear_probe"], "arms": {"a": {}, "b": {"train.lr": 1}}},
            r"measure\.linear_probe +needs a task",
        ),
        (
            {"set": RECALL, "arms": {"causal": {}, "masked": MASKED}},
            r"masked predicts other .*any objective \(linear_probe\)",
        ),
        (
            {"set": {**RECALL, **MASKED}, "measure": ["accuracy"], "arms": {"a": {}, "b": {"train.lr": 1}}},
            r"measure\.accuracy +needs an objective that predicts all answers; allowed: denoising_accuracy",
        ),
        ({"measure": {"half": {"kind": "continuation", "given": 0}}}, r"measure\.half\.given .*0"),
    ],
)
def test_scores_that_mean_different_things_are_not_compared(
    values: dict[str, Any], message: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        arms(study(text, **values))


def test_an_outcome_that_compares_nothing_has_one_problem(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        arms(study(text, measure=["bits_per_byte", "continuation"]))
    assert str(error.value).count("measure.bits_per_byte") == 1
    assert "measure.bits_per_byte  means different things for these arms" in str(error.value)


def test_a_shared_outcome_comes_first(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mixed = study(text, measure=["state_bytes", "continuation", "training_speed"])
    assert list(outcomes_of(mixed, arms(mixed))) == ["continuation", "state_bytes", "training_speed"]
    alike = study(text, measure=["continuation"], arms={"a": {}, "b": {"train.lr": 1}})
    assert list(outcomes_of(alike, arms(alike))) == ["bits_per_byte", "continuation"]
    assert arm_notes([Continuation()], arms(alike)) == []
    parts = {name: {"objective.kind": name} for name in ("span_corruption", "prefix")}
    for kind, continues in (("prefix", True), ("span_corruption", False)):
        objective = {"train.objective": {"kind": "mixture", "parts": {"only": parts[kind]}}}
        arm = study(text, measure=["continuation"], arms={"a": {**objective, "model.encoder.n_layers": 1}})
        assert (arm_notes([Continuation()], arms(arm)) == []) is continues
    fast = study(text, measure=["training_speed"], arms={**ARMS, "masked": MASKED})
    assert list(outcomes_of(fast, arms(fast))) == ["training_speed"]


def test_masked_and_causal_training_are_compared_by_a_linear_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Local, "run_all", run_here)
    two, probe = {"causal": {}, "masked": MASKED}, {"linear_probe": {"windows": 200}}
    compared = study(tmp_path, set=RECALL, arms=two, measure=probe)
    summary = Study("probe", compared, tmp_path / "out", Local(1)).run(lambda runs: lambda progress: None)
    assert (summary.outcome.name, summary.outcome.unit, summary.others) == ("linear_probe", "share", [])
    assert all(0 <= value <= 1 for arm in summary.arms for value in arm.values.values() if value is not None)
    assert "the initial weights and the examples" in render(summary)


def test_a_study_of_objectives_ends_in_a_report_without_their_own_scores(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Local, "run_all", run_here)
    tuned = study(text, measure=["continuation"], tune={"train.lr": [1e-3, 1e-2]})
    summary = Study("objectives", tuned, tmp_path / "out", Local(1)).run(lambda runs: lambda progress: None)
    assert (summary.outcome.name, summary.evaluated, summary.others) == ("continuation", None, [])
    assert all(len(arm.values) == 2 and None not in arm.values.values() for arm in summary.arms)
    (note,) = (warning for warning in summary.warnings if "continue a text" in warning)
    assert note.startswith("spans: train.objective.kind=span_corruption does not train")
    page = render(summary)
    assert "their losses mean different things during training" in page
    assert "tuned by scores that mean different things" in page
    assert all(f'"{chart}"' not in page for chart in ("curves", "curves-end", "losses", "gradients", "tuning-0"))
    assert "Whole training" not in str(drawn(summary)[0])
    assert "by loss of the text after the first 50% of each window" in summary.answer


def test_a_router_that_the_loss_does_not_train_is_named(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = {"model.mlp": {"kind": "moe", "experts": 4, "active": 1, "d_ff": 16}}
    scaled = {"model.mlp": {**one["model.mlp"], "router": {"normalise": False}}}
    notes = arm_notes([], arms(study(text, arms={"dense": {}, "one": one, "scaled": scaled})))
    assert [note.split(":")[0] for note in notes] == ["one"]
    assert "does not train the router" in notes[0]
