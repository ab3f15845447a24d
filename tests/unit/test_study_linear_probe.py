"""Linear probes of a task's answers, and the masked objective on tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from archlab.config.objective import Masked, NextToken, Objective
from archlab.config.tasks import Task
from archlab.config.tasks.recall import Recall
from archlab.config.tasks.states import StateTracking
from archlab.data.batch import HeldOut, next_token
from archlab.data.last_answer import last_answer, last_answers
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.data.tasks.task_data import TaskData
from archlab.infer.load import load_run
from archlab.model.decoder import Decoder
from archlab.study.outcomes.final_weights import measure, read_measured
from archlab.study.outcomes.kinds import LinearProbe
from archlab.study.outcomes.linear_probe import PENALTY, fit, probe_accuracy
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.run_folder import RunFolder
from archlab.training.step import hidden_and_targets
from archlab.training.train import train
from tiny import Killed, config, losses

CPU = Device("cpu", torch.float32)
MASKED = ("model.attention.visibility=two_sided", "train.objective.kind=masked")
STATES = ("data.task={kind: state_tracking, group: parity, steps: 3}", "model.vocab_size=12", "data.reserve=[mask]")
TASKS = (Recall(pairs=3), StateTracking(group="s3", steps=4))


# --- the classifier -----------------------------------------------------------------------------------------------


def test_a_class_in_the_features_is_read_and_independent_features_are_at_chance() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(10, 18, 4000)
    noise = draw.normal(size=(4000, 12))
    one_hot = np.eye(8)[labels - 10]
    assert probe_accuracy(one_hot, labels, 2000) == 1.0
    assert probe_accuracy(1e4 * np.concatenate([noise, one_hot], axis=1) + 7, labels, 2000) == 1.0
    assert probe_accuracy(noise, labels, 2000) == pytest.approx(1 / 8, abs=0.03)
    assert probe_accuracy(np.zeros((4000, 3)), labels, 2000) == pytest.approx(1 / 8, abs=0.03)


def test_a_class_that_was_never_fitted_is_wrong() -> None:
    labels = np.array([0, 1] * 20 + [0, 1, 2, 2])
    assert probe_accuracy(np.eye(3)[labels], labels, 40) == 0.5


def test_the_fit_is_the_minimum_of_the_penalized_cross_entropy() -> None:
    """At the minimum, torch finds no gradient, and any step away has a higher loss."""
    draw = np.random.default_rng(1)
    x, labels = draw.normal(size=(300, 5)), draw.integers(0, 4, 300)
    weights, bias = (torch.from_numpy(values).requires_grad_() for values in fit(x, labels, 4))

    def loss(weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        cross_entropy = F.cross_entropy(torch.from_numpy(x) @ weights + bias, torch.from_numpy(labels))
        return cross_entropy + PENALTY / 2 * weights.square().sum()

    found = loss(weights, bias)
    gradients = torch.autograd.grad(found, (weights, bias))
    assert max(gradient.abs().max().item() for gradient in gradients) < 2e-6
    assert loss(weights + 0.01, bias) > found
    assert loss(weights * 1.01, bias) > found


# --- the hidden states --------------------------------------------------------------------------------------------


def held_out(task: Task, objective: Objective) -> Any:
    data = TaskData(task, 40, 0, ("mask",))
    return Batches(data, objective, document_mask=False).held_out(24, 24 * 6), data.special


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_only_the_last_answer_counts_and_only_a_two_sided_model_reads_a_mask(task: Task) -> None:
    windows, special = held_out(task, NextToken())
    for objective in (NextToken(), Masked()):
        made = last_answer(objective, held_out(task, objective)[0], special)
        for n, row in enumerate(windows.windows.tokens.tolist()):
            last = max(i for i in range(24) if windows.windows.scored[n, i])
            assert [i for i in range(24) if made.counted[n, i]] == [last]
            assert made.targets[n, last] == row[last + 1]
            if isinstance(objective, Masked):
                assert made.tokens[n].tolist() == [*row[1 : last + 1], special.mask, *row[last + 2 :]]
            else:
                assert made.tokens[n].tolist() == row[:-1]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
@pytest.mark.parametrize("visibility", ["causal", "two_sided"])
def test_the_hidden_state_does_not_depend_on_the_answer(visibility: str, task: Task) -> None:
    objective = NextToken() if visibility == "causal" else Masked()
    model = Decoder(config("model.vocab_size=40", f"model.attention.visibility={visibility}").model, seed=2).eval()
    before, special = held_out(task, objective)
    batch = last_answer(objective, before, special)
    tokens = before.windows.tokens.copy()
    tokens[:, 1:][batch.counted] = 1 + (tokens[:, 1:][batch.counted] + 5) % 38
    changed = replace(before.windows, tokens=tokens)
    after = last_answer(objective, HeldOut(next_token(changed), changed), special)
    (states, answers), (other_states, other_answers) = (hidden_and_targets(model, made, CPU) for made in (batch, after))
    assert torch.equal(states, other_states)
    assert (answers != other_answers).all()


# --- runs ---------------------------------------------------------------------------------------------------------


def test_reserved_tokens_are_the_ids_that_a_task_leaves_free() -> None:
    for task in TASKS:
        with_mask, without = TaskData(task, 41, 5, ("mask",)), TaskData(task, 40, 5)
        assert (with_mask.special.mask, with_mask.special.vocab_size) == (40, 41)
        assert without.special.mask is None
        for seed in range(3):
            np.testing.assert_array_equal(
                with_mask.windows(seed, 1, 4, 24).tokens, without.windows(seed, 1, 4, 24).tokens
            )
        assert with_mask.fingerprint != without.fingerprint


def test_a_masked_run_on_a_task_hides_answers_and_resumes_exactly(tmp_path: Path) -> None:
    settings = config(*MASKED, *STATES, "train.checkpoint_every=3", "train.objective.rate=0.5")
    data = open_training_data(settings.data, settings.model.vocab_size)
    batches = Batches.of(settings, data)
    windows, made = data.windows(0, 2, 4, 16), batches.training(0, 2, 4, 16)
    assert windows.scored is not None
    assert made.counted is not None
    assert not (made.counted & ~windows.scored).any()
    assert made.counted.sum(1).tolist() == [max(round(0.5 * n), 1) for n in windows.scored.sum(1).tolist()]
    assert 11 in made.tokens[made.counted]
    whole = train(settings, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    assert train(settings, tmp_path / "parts", Callback()).denoising_loss == whole.denoising_loss
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert {"denoising_accuracy"} <= RunFolder(tmp_path / "whole").metrics()[-1].keys()


@pytest.mark.parametrize("fields", [(), MASKED], ids=["causal", "masked"])
def test_the_probe_reads_the_hidden_states_of_single_windows(fields: tuple[str, ...], tmp_path: Path) -> None:
    settings = config(*fields, *STATES)
    train(settings, tmp_path / "run", Callback())
    outcome = LinearProbe(windows=300)
    measure([outcome], settings, tmp_path / "run")
    _, model = load_run(tmp_path / "run")
    data = open_training_data(settings.data, settings.model.vocab_size)
    batch = last_answers(Batches.of(settings, data), 16, 300)
    assert batch.counted is not None
    rows = []
    for tokens, counted in zip(batch.tokens, batch.counted, strict=True):
        with torch.no_grad():
            rows.append(model.hidden(torch.from_numpy(tokens[None]))[0, int(counted.argmax())].numpy())
    expected = probe_accuracy(np.stack(rows).astype(float), batch.targets[batch.counted], 150)
    assert read_measured([outcome], tmp_path / "run") == {outcome: pytest.approx(expected, abs=0.01)}
    assert expected > 0.4  # of two answers
