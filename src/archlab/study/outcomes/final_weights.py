"""Outcomes that are measured on a run's final weights. Each is measured once and stored in the run folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from archlab.config.components.position import Learned
from archlab.config.core.registry import implements, make
from archlab.config.identity import config_hash
from archlab.config.layers import stacks
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.batch import HeldOut
from archlab.data.continuation import continuations
from archlab.data.last_answer import last_answers
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.data.tasks.task_data import TaskData
from archlab.data.training_data import TrainingData
from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.infer.generate import generate
from archlab.infer.load import load_run
from archlab.model.decoder import Decoder
from archlab.study.outcomes.kinds import (
    Answers,
    AnyAnswers,
    Beyond,
    Continuation,
    LinearProbe,
    Repetition,
    TokensPerByte,
    WholeAnswers,
    WindowPart,
)
from archlab.study.outcomes.linear_probe import probe_accuracy
from archlab.study.outcomes.schema import Outcome
from archlab.study.outcomes.value import check_value
from archlab.training.device import Device, choose_device
from archlab.training.evaluate import predict
from archlab.training.run_folder import RunFolder
from archlab.training.step import hidden_and_targets


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended, with its final weights."""

    folder: Path
    config: Config
    model: Decoder
    """Model in evaluation mode, on the run's device."""
    data: TrainingData
    device: Device

    @property
    def length(self) -> int:
        """Number of tokens per evaluation window, the same for all arms. It is the training length unless the config
        sets `train.eval_seq_len`."""
        return resolve_train(self.config).eval_seq_len

    @cached_property
    def tokens(self) -> Tensor:
        """Token ids of the held-out windows, int64 [windows, T + 1], on the run's device. In each window, the first T
        tokens are the input and the last T tokens are the targets."""
        return torch.from_numpy(self.held_out(self.length).windows.tokens).to(self.device.type)

    @property
    def batches(self) -> Batches:
        """Batches of the run's objective."""
        return Batches.of(self.config, self.data)

    def held_out(self, seq_len: int) -> HeldOut:
        """Return windows of held-out text with `train.eval_tokens` tokens in total."""
        return self.batches.held_out(seq_len, resolve_train(self.config).eval_tokens)

    def ends_before(self, length: int, source: int = 0) -> bool:
        """Return whether the model has learned position embeddings, but for fewer than `length` tokens. In a model with
        an encoder, `source` is the number of tokens that the encoder reads."""
        lengths = zip(reversed(stacks(self.model.config)), (length, source), strict=False)
        return any(isinstance(stack.position, Learned) and n > stack.max_seq_len for stack, n in lengths)


_BATCH_TOKENS = 8192
"""Maximum number of tokens of a forward pass, unless a single window has more."""

_RUN = 4
"""Number of tokens in the sequences whose repetition is counted."""


def read_measured(outcomes: Sequence[Outcome], run: Path) -> dict[Outcome, float | None]:
    """Return the outcomes that are stored in a run folder, with their values. The value is None if the outcome does not
    apply to the run."""
    return {outcome: _read(file) for outcome in outcomes if (file := run / _file(outcome)).is_file()}


def _read(file: Path) -> float | None:
    verify(file, "delete it, and archlab measures it again")
    return json.loads(file.read_text())["value"]


def measure(outcomes: Sequence[Outcome], config: Config, run: Path) -> None:
    """Measure the missing outcomes of a finished run, and store them in its folder."""
    missing = [outcome for outcome in outcomes if not (run / _file(outcome)).is_file()]
    if not missing:
        return
    device = choose_device(config.train, RunFolder(run).environment().get("dtype"))
    data = open_training_data(config.data, config.model.vocab_size)
    _, model = load_run(run, config.model)
    model = model.to(device.type).eval()
    finished = FinishedRun(run, config, model, data, device)
    for outcome in missing:
        record = {"outcome": outcome.meaning, "value": make(outcome, finished, check=check_value)}
        write_with_digests(run, {_file(outcome): json.dumps(record)})


def _file(outcome: Outcome) -> str:
    return f"outcome-{config_hash(outcome.meaning)}.json"


@implements(WindowPart)
def _window_part(outcome: WindowPart, run: FinishedRun) -> float | None:
    begin, end = (round(share * run.length) for share in (outcome.first, outcome.last))
    return _bits_per_byte(run, run.held_out(run.length), slice(begin, end))


@implements(Beyond)
def _beyond(outcome: Beyond, run: FinishedRun) -> float | None:
    if run.ends_before(outcome.times * run.length):
        return None
    return _bits_per_byte(run, run.held_out(outcome.times * run.length), slice(run.length, None))


@implements(Continuation)
def _continuation(outcome: Continuation, run: FinishedRun) -> float | None:
    n_tokens = resolve_train(run.config).eval_tokens
    held_out = continuations(run.batches, run.length, n_tokens, outcome.given)
    batch = held_out.batch
    if run.ends_before(batch.tokens.shape[1], 0 if batch.source is None else batch.source.shape[1]):
        return None
    return _bits_per_byte(run, held_out)


@implements(LinearProbe)
@torch.no_grad()
def _linear_probe(outcome: LinearProbe, run: FinishedRun) -> float | None:
    batch, rows = last_answers(run.batches, run.length, outcome.windows), max(1, _BATCH_TOKENS // run.length)
    parts = [
        hidden_and_targets(run.model, batch.rows(slice(start, start + rows)), run.device)
        for start in range(0, outcome.windows, rows)
    ]
    hidden_ND, answers_N = (torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True))
    if not hidden_ND.isfinite().all():
        return None
    return probe_accuracy(hidden_ND.double().numpy(), answers_N.numpy(), outcome.windows // 2)


@implements(Repetition)
def _repetition(outcome: Repetition, run: FinishedRun) -> float | None:
    half = max(run.length // 2, 1)
    if run.ends_before(half + outcome.tokens):
        return None
    prompts = run.tokens[: outcome.prompts, :half]
    continuations = generate(run.model, prompts, max_new_tokens=outcome.tokens)
    return float(np.mean([_repeated(row) for row in continuations[:, prompts.shape[1] :].tolist()]))


@implements(Answers, WholeAnswers)
def _answers(outcome: AnyAnswers, run: FinishedRun) -> float | None:
    seq_len, has_encoder = outcome.seq_len or outcome.task.smallest[0], run.config.model.encoder is not None
    if run.ends_before(max(run.config.train.objective.tokens_read(seq_len, has_encoder=has_encoder))):
        return None
    data = run.config.data
    task_data = TaskData(outcome.task, run.model.config.vocab_size, data.fold, data.reserve)
    held_out = Batches.of(run.config, task_data).held_out(seq_len, resolve_train(run.config).eval_tokens)
    predictions = predict(run.model, held_out, run.device)
    if isinstance(outcome, WholeAnswers):
        return float((predictions.right | ~held_out.counted).all(1).mean())
    return predictions.score(held_out).accuracy


@implements(TokensPerByte)
def _tokens_per_byte(outcome: TokensPerByte, run: FinishedRun) -> float | None:
    held_out = run.held_out(run.length)
    return None if held_out.bytes is None else held_out.counted.sum() / held_out.bytes.sum()


def _bits_per_byte(run: FinishedRun, held_out: HeldOut, part: slice = slice(None)) -> float | None:
    if held_out.bytes is None:
        raise UserError("measure: bits per byte need text, but the study has a task; allowed: accuracy")
    nats = predict(run.model, held_out, run.device).nats[:, part].sum(dtype=np.float64)
    bits = float(nats) / np.log(2) / held_out.bytes[:, part].sum()
    return float(bits) if np.isfinite(bits) else None


def _repeated(tokens: Sequence[int]) -> float:
    """Return the fraction of 4-token sequences that occurred before in the text. Return 0 for a text of fewer than 4
    tokens."""
    runs = [tuple(tokens[i : i + _RUN]) for i in range(len(tokens) - _RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
