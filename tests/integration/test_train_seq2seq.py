"""Tasks of pairs, learned by a causal stack, by a stack that sees the source, and by an encoder-decoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archlab.config.check import validate
from archlab.config.core import trust
from archlab.config.core.yaml_text import to_yaml
from archlab.config.schema import Config
from archlab.config.tasks import Task
from archlab.config.tasks.recall import Recall
from archlab.config.tasks.transduction import Reverse
from archlab.data.tasks.task_data import TaskData
from archlab.data.tasks.windows import windows
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.infer.generate import generate
from archlab.infer.load import load_run
from archlab.model.decoder import Decoder
from archlab.study.design import arms
from archlab.study.executors.local import Local
from archlab.study.outcomes.chosen import outcomes_of
from archlab.study.outcomes.final_weights import measure, read_measured
from archlab.study.outcomes.kinds import Answers, WholeAnswers
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from archlab.training.callback import Callback
from archlab.training.checks import check_data_can_be_divided
from archlab.training.train import train
from plugin_files import write
from scores import score
from tiny import MODEL, TRAIN, Killed, config, losses, run_here

pytestmark = pytest.mark.usefixtures("shared_cache")

ARMS: dict[str, dict[str, Any]] = {
    "causal": {},
    "one stack": {"model.attention.visibility": "prefix", "train.objective.kind": "seq2seq"},
    "encoder": {"model.encoder.n_layers": 1, "train.objective.kind": "seq2seq"},
}
MODELS = {name: [f"{field}={value}" for field, value in fields.items()] for name, fields in ARMS.items()}
EVERY = pytest.mark.parametrize("name", MODELS)


def of_task(name: str, *overrides: str) -> Config:
    task = "data.task={kind: reverse, shortest: 1, longest: 3}"
    return config("model.vocab_size=10", task, "train.seq_len=8", *MODELS[name], *overrides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Config, Path]]:
    """Return a run of 150 steps of each model, with its config."""
    found = dict[str, tuple[Config, Path]]()
    for name in MODELS:
        settings = of_task(
            name, "train.batch_tokens=256", "train.tokens=38400", "train.lr=1e-2", "train.warmup=10", "train.eval_tokens=400"
        )  # fmt: skip
        found[name] = settings, tmp_path_factory.mktemp("seq2seq") / "run"
        train(settings, found[name][1], Callback())
    return found


@EVERY
def test_every_model_learns_to_reverse(name: str, trained: dict[str, tuple[Config, Path]]) -> None:
    settings, folder = trained[name]
    accuracy = score(str(folder), (), settings.train.eval_tokens).accuracy
    assert accuracy is not None
    assert accuracy > 0.9 > 7 * Reverse().chance(10)


def greedy(model: Decoder, source: list[int], n_target: int) -> list[int]:
    """Write a target with greedy decoding, as a user would."""
    text = torch.tensor([source])
    if model.encoder is not None:
        return generate(model, torch.tensor([[0]]), n_target, source=text)[0, 1:].tolist()
    prefix = [len(source)] if model.config.attention.visibility == "prefix" else None  # pyright: ignore
    return generate(model, text, n_target, prefix=prefix)[0, len(source) :].tolist()


def rows(found: Windows) -> list[tuple[list[int], list[int]]]:
    """Return the source and the target of each window."""
    assert found.source_lengths is not None
    assert found.lengths is not None
    ends = zip(found.tokens.tolist(), found.source_lengths.tolist(), found.lengths.tolist(), strict=True)
    return [(row[:given], row[given:length]) for row, given, length in ends]


@EVERY
@pytest.mark.parametrize("task", [Reverse(shortest=1, longest=3), Reverse(shortest=3, longest=5)], ids=repr)
def test_answers_of_another_task_are_those_of_the_run_itself(
    name: str, task: Task, trained: dict[str, tuple[Config, Path]]
) -> None:
    """Compare with greedy decoding, window by window. Sources may be longer than in training."""
    settings, folder = trained[name]
    outcomes = [Answers(task=task), WholeAnswers(task=task)]
    measure(outcomes, settings, folder)
    found = read_measured(outcomes, folder)
    _, model = load_run(folder, settings.model)
    seq_len = task.smallest[0]
    held_out = windows(task, settings.data.fold, 0, 400 // seq_len, seq_len, 10, "held_out")
    whole, right, n_answers = list[bool](), 0, 0
    for source, target in rows(held_out):
        whole.append(greedy(model.eval(), source, len(target)) == target)
        for t in range(len(target)):  # after the right tokens
            if model.encoder is not None:
                logits = model(torch.tensor([[0, *target[:t]]]), source=torch.tensor([source]))
            elif name == "one stack":
                logits = model(torch.tensor([[*source, *target[:t]]]), prefix=torch.tensor([len(source)]))
            else:
                logits = model(torch.tensor([[*source, *target[:t]]]))
            right += int(logits[0, -1].argmax()) == target[t]
            n_answers += 1
    assert found[outcomes[0]] == pytest.approx(right / n_answers)
    assert found[outcomes[1]] == pytest.approx(np.mean(whole))


@EVERY
def test_a_killed_run_continues_exactly(name: str, tmp_path: Path) -> None:
    settings = of_task(name, "train.checkpoint_every=3", "train.micro_batch_tokens=32", "model.dropout.branch=0.1")
    whole = train(settings, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    assert train(settings, tmp_path / "parts", Callback()).accuracy == whole.accuracy
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.parametrize("name", ["one stack", "encoder"])
def test_micro_batches_do_not_change_the_losses(name: str, tmp_path: Path) -> None:
    """Windows have targets of different lengths, so micro-batches have different weights."""
    for kind, overrides in (("plain", ()), ("other", ("train.micro_batch_tokens=16",))):
        train(of_task(name, "train.tokens=256", *overrides), tmp_path / kind, Callback())
    assert losses(tmp_path / "other") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)


def test_learned_positions_need_room_for_half_a_window(tmp_path: Path) -> None:
    """The encoder and the decoder read at most 8 of 16 tokens. Sources of 12 tokens have no positions."""
    settings = config(
        *MODELS["encoder"], "model.vocab_size=10", "data.task={kind: reverse, longest: 7}", "train.seq_len=16",
        "model.position.kind=learned", "model.max_seq_len=8", "train.tokens=64",
    )  # fmt: skip
    train(settings, tmp_path / "run", Callback())
    outcomes = [Answers(task=Reverse(longest=7)), Answers(task=Reverse(longest=12))]
    measure(outcomes, settings, tmp_path / "run")
    found = read_measured(outcomes, tmp_path / "run")
    assert found[outcomes[0]] is not None
    assert found[outcomes[1]] is None


@pytest.mark.parametrize(("task", "counted"), [(Reverse(), "targets of pairs"), (Recall(), "answers of a task")])
def test_context_parallelism_refuses_data_whose_tokens_do_not_all_count(task: Task, counted: str) -> None:
    check_data_can_be_divided(TaskData(task, 20, 0), 1)
    with pytest.raises(UserError, match=rf"parallel\.context +2; only the {counted} count"):
        check_data_can_be_divided(TaskData(task, 20, 0), 2)


# --- studies ------------------------------------------------------------------------------------------------------


def study(**values: Any) -> StudyConfig:
    raw = {
        "question": "Which?",
        "base": "base.yaml",
        "budget": {"tokens": 1280},
        "seeds": 2,
        "set": {"data.task": {"kind": "reverse", "longest": 7}, "train.lr": 1e-2},
        "arms": ARMS,
    }
    return validate(StudyConfig, {**raw, **values}, "study.yaml")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(to_yaml({"model": {**MODEL, "vocab_size": 20}, "train": TRAIN}))


@pytest.mark.usefixtures("base")
def test_one_study_compares_the_three_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    longer = {"kind": "answers", "task": {"kind": "reverse", "shortest": 8, "longest": 12}}
    exact = {"kind": "whole_answers", "task": {"kind": "reverse", "longest": 7}}
    measured = study(measure={"longer": longer, "exact": exact})
    assert list(outcomes_of(measured, arms(measured))) == ["accuracy", "longer", "exact"]
    monkeypatch.setattr(Local, "run_all", run_here)
    done = Study("which", measured, tmp_path / "out", Local(None)).run(lambda runs: lambda progress: None)
    assert done.failed == {}
    values = {found.outcome.name: [arm.values for arm in found.arms.values()] for found in done.others}
    assert values.keys() == {"longer", "exact"}
    for of_arms in values.values():
        assert [len(of_seeds) for of_seeds in of_arms] == [2, 2, 2]
        assert all(value is not None for of_seeds in of_arms for value in of_seeds.values())


@pytest.mark.usefixtures("base")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"measure": {"x": {"kind": "answers", "task": {"kind": "recall"}}}},
            r"measure\.x\.task\.kind .*recall has no pairs .*; allowed: .*reverse",
        ),
        ({"measure": ["repetition"]}, r"measure\.repetition .*allowed: train\.objective\.kind=next_token"),
        ({"set": {"data.task.kind": "recall"}}, r"seq2seq needs pairs .*data\.task = recall has none"),
    ],
)
def test_outcomes_and_tasks_that_do_not_fit_pairs_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        arms(study(**values))


@pytest.mark.usefixtures("base")
def test_an_arm_with_another_objective_is_refused() -> None:
    """Text can be read by next_token and prefix, but their scores mean different things."""
    prefix = {"model.attention.visibility": "prefix", "train.objective.kind": "prefix"}
    with pytest.raises(UserError, match="prefix predicts other tokens than causal"):
        arms(study(arms={"causal": {}, "prefix": prefix}, set={}))


DOUBLED = '''
from typing import Literal

import archlab
import numpy as np


class Doubled(archlab.Transduction):
    """Sources and targets of the same symbol."""

    kind: Literal["doubled"] = "doubled"

    def describe(self):
        return "Repeat a symbol."


@archlab.implements(Doubled)
def doubled(task, dice, length, vocab_size):
    tokens = np.zeros((dice.count, length), dtype=np.int64)
    tokens[:, :2] = tokens[:, 3:5] = 2 + dice.below("symbol", 1, vocab_size - 2)
    tokens[:, 2] = 1
    is_answer = np.zeros(tokens.shape, dtype=bool)
    is_answer[:, 3:5] = True
    return tokens, is_answer
'''


def task_of(text: str) -> Task:
    """Return the task of a plug-in with this text, from a config that trains an encoder-decoder on it."""
    write(text, "doubled.py")
    trust.accept("doubled.py")
    settings = config(*MODELS["encoder"], "plugins=[doubled.py]", "data.task={kind: doubled, longest: 4}")
    assert isinstance(settings.data.task, Task)
    return settings.data.task


@pytest.mark.usefixtures("new_process")
def test_a_plug_in_can_bring_pairs() -> None:
    task = task_of(DOUBLED)
    found = windows(task, 0, 0, 3, 10, 300)
    assert [(len(source), target) for source, target in rows(found)] == [(3, row[:2].tolist()) for row in found.tokens]
    assert TaskData(task, 300, 0).form == "pairs"


@pytest.mark.usefixtures("new_process")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("is_answer[:, [3, 5]]", "answers that are not one target after a source"),
        ("is_answer[:, :]", "answers that are not one target after a source"),
        ("is_answer[:, 3:9]", "a source of 3 tokens and a target of 6; allowed: up to 5 each, half of the window"),
    ],
)
def test_wrong_pairs_of_a_plug_in_are_refused(wrong: str, message: str) -> None:
    with pytest.raises(UserError, match=f"task doubled: its function returned {message}"):
        windows(task_of(DOUBLED.replace("is_answer[:, 3:5]", wrong)), 0, 0, 3, 10, 300)


def test_a_task_without_pairs_stays_a_task_of_next_token(tmp_path: Path) -> None:
    settings = of_task("causal", "train.tokens=64")
    train(settings, tmp_path / "run", Callback())
    outcome = Answers(task=Recall(pairs=2))
    measure([outcome], settings, tmp_path / "run")
    assert read_measured([outcome], tmp_path / "run")[outcome] is not None
