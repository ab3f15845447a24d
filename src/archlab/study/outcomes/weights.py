"""Outcomes of a run's last weights. Each is measured once and kept in the run's folder."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archlab.config.components.position import Learned
from archlab.config.identity import config_hash
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.open import open_training_data
from archlab.data.tasks.task_data import TaskData
from archlab.data.training_data import HeldOut, TrainingData
from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.infer.generate import generate
from archlab.infer.load import load_run
from archlab.model.decoder import Decoder
from archlab.study.outcome_schema import Answers, Beyond, Outcome, PlugInOutcome, Repetition, TokensPerByte, WindowPart
from archlab.training.device import Device, choose_device
from archlab.training.evaluate import predict


class FinishedRun(NamedTuple):
    """A run that has ended, with its last weights."""

    folder: Path
    config: Config
    model: Decoder
    """Ready for inference, on the run's device."""
    tokens: Tensor
    """[windows, T + 1] int64, of held-out text, on the same device: each is predicted from those before it."""


def own_value(outcome: PlugInOutcome, run: FinishedRun) -> float | None:
    """UserError where the plug-in gives no finite number, and not None either."""
    found = outcome.registered.make(run, outcome.own)
    if found is None or (isinstance(found, int | float) and math.isfinite(found)):
        return None if found is None else float(found)
    raise UserError(f"outcome {outcome.name}: its function gave {found!r}; allowed: a finite number, or None")


_RUN = 4
"""Tokens; what a text repeats are runs of so many."""


def kept(outcomes: Sequence[Outcome], run: Path) -> dict[Outcome, float | None]:
    """What was measured of the run in this folder; None for what it cannot have. Others are left out."""
    return {outcome: _read(file) for outcome in outcomes if (file := run / _file(outcome)).is_file()}


def _read(file: Path) -> float | None:
    verify(file, "delete it, and it is measured again")
    return json.loads(file.read_text())["value"]


def measure(outcomes: Sequence[Outcome], config: Config, run: Path) -> None:
    """Measure what is not yet kept of a finished run, and keep it."""
    missing = [outcome for outcome in outcomes if not (run / _file(outcome)).is_file()]
    if not missing:
        return
    device = choose_device(config.train)
    data = open_training_data(config.data, config.model.vocab_size)
    _, model = load_run(run, config.model)
    model = model.to(device.type).eval()
    for outcome in missing:
        if isinstance(outcome, PlugInOutcome):
            value = own_value(outcome, _finished(run, config, model, data, device))
        else:
            value = _value(outcome, config, model, data, device)
        found = {"outcome": outcome.meaning, "value": value}
        write_with_digests(run, {_file(outcome): json.dumps(found)})


def _file(outcome: Outcome) -> str:
    return f"outcome-{config_hash(outcome.meaning)}.json"


def _finished(run: Path, config: Config, model: Decoder, data: TrainingData, device: Device) -> FinishedRun:
    train = resolve_train(config)
    held_out = data.held_out(train.eval_seq_len, train.eval_tokens, masked=train.document_mask)
    return FinishedRun(run, config, model, torch.from_numpy(held_out.tokens).to(device.type))


def _value(outcome: Outcome, config: Config, model: Decoder, data: TrainingData, device: Device) -> float | None:
    train = resolve_train(config)
    length = train.eval_seq_len  # the same for all arms of a study; that of training unless a config says otherwise

    def held_out(seq_len: int) -> HeldOut:
        return data.held_out(seq_len, train.eval_tokens, masked=train.document_mask)

    match outcome:
        case WindowPart():
            begin, end = (round(share * length) for share in (outcome.first, outcome.last))
            return _bits_per_byte(model, held_out(length), slice(begin, end), device)
        case Beyond():
            if _ends_before(outcome.times * length, model):
                return None
            return _bits_per_byte(model, held_out(outcome.times * length), slice(length, None), device)
        case Repetition():
            if _ends_before(max(length // 2, 1) + outcome.tokens, model):
                return None
            prompts = held_out(length).tokens[: outcome.prompts, : max(length // 2, 1)]
            written = generate(model, torch.from_numpy(prompts).to(device.type), max_new_tokens=outcome.tokens)
            return float(np.mean([_repeated(row) for row in written[:, prompts.shape[1] :].tolist()]))
        case Answers(task=task):
            asked = TaskData(task, model.config.vocab_size, config.data.fold)
            if _ends_before(outcome.seq_len or task.smallest[0], model):
                return None
            windows = asked.held_out(outcome.seq_len or task.smallest[0], train.eval_tokens, masked=False)
            return predict(model, windows, device).score(windows).accuracy
        case TokensPerByte():
            some = held_out(length)
            return None if some.bytes is None else some.scored.sum() / some.bytes.sum()
        case _:
            raise TypeError(f"weights do not tell a {type(outcome).__name__}")


def _ends_before(length: int, model: Decoder) -> bool:
    """Whether its learned positions end before so many tokens."""
    return isinstance(model.config.position, Learned) and length > model.config.max_seq_len


def _bits_per_byte(model: Decoder, held_out: HeldOut, part: slice, device: Device) -> float | None:
    """Over one part of every window."""
    if held_out.bytes is None:
        raise UserError("measure: bits per byte are of text; a task has none; allowed: accuracy")
    nats = predict(model, held_out, device).nats[:, part].sum(dtype=np.float64)
    found = float(nats) / np.log(2) / held_out.bytes[:, part].sum()
    return float(found) if np.isfinite(found) else None


def _repeated(tokens: Sequence[int]) -> float:
    """Share of the runs of four that are not the first of their kind; 0 where there is none."""
    runs = [tuple(tokens[i : i + _RUN]) for i in range(len(tokens) - _RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
