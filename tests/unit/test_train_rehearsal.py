"""Timed steps do the same work as the steps of a run."""

import numpy as np

from archlab.config.check import validate
from archlab.config.schema import Config
from archlab.data.tasks.task_data import TaskData
from archlab.measuring import speed as rehearsal
from tiny import MODEL, TRAIN


def test_a_task_is_timed_on_what_it_asks(monkeypatch):
    """Only its answers have a loss; otherwise the head would be timed on every token."""
    task = {"kind": "recall", "pairs": 2}
    config = validate(Config, {"model": MODEL, "train": TRAIN, "data": {"task": task}}, "config")
    seen, update = [], rehearsal.update
    monkeypatch.setattr(rehearsal, "update", lambda *given, **how: (seen.append(given[2]), update(*given, **how)))
    run = rehearsal.rehearse(config)
    run.step()
    read = TaskData(config.data.task, config.model.vocab_size, 0).windows(
        run.train.seed, 0, run.train.rows, run.train.seq_len
    )
    np.testing.assert_array_equal(seen[0].targets, read.tokens[:, 1:])
    np.testing.assert_array_equal(seen[0].counted, read.scored)
    assert 0 < seen[0].counted.mean() < 0.5
