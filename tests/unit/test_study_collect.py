"""The parts of a run's log in a summary."""

from statistics import fmean
from typing import Any, cast

import pytest

from archlab.study.details import curve_of
from archlab.study.record import Curve
from archlab.study.runs import Ended
from archlab.training.summary import RunSummary


def kept(metrics: list[dict[str, Any]]) -> Curve:
    return curve_of(7, Ended(cast("RunSummary", None), metrics, {}, [], {}))


def updates(n: int) -> list[dict[str, Any]]:
    return [{"step": i, "tokens": 10 * i, "loss": 1 / i, "lr": 0.1, "grad_norm": float(i % 7)} for i in range(1, n + 1)]


def test_a_long_log_is_divided_into_parts_without_losing_an_update() -> None:
    spiked = updates(950)
    spiked[412]["grad_norm"] = 99.0
    curve = kept(spiked)
    assert len(curve.trained) == len(curve.losses) == len(curve.gradients) == 100
    assert curve.trained[-1] == 9500
    assert curve.gradients.count(99.0) == 1, "a spike is still seen"
    assert curve.losses[-1] == pytest.approx(fmean(1 / i for i in range(941, 951)), rel=1e-3)
    ends = [0, *curve.trained]
    whole = sum(loss * (b - a) / 10 for loss, a, b in zip(curve.losses, ends, ends[1:], strict=False))
    assert whole == pytest.approx(sum(m["loss"] for m in spiked), rel=1e-3), "every update is in one part"


def test_a_short_log_is_kept_as_it_is() -> None:
    evaluated = {"step": 0, "tokens": 0, "bits_per_byte": 4.0, "held_out_loss": 8.0}
    curve = kept([evaluated, *updates(3), {"step": 4, "diverged": True, "loss": "nan", "grad_norm": "inf"}])
    assert (curve.tokens, curve.values) == ([0], [4.0])
    assert curve.trained == [10, 20, 30]
    assert curve.losses == pytest.approx([1, 0.5, 0.3333])
    assert kept([]) == Curve(seed=7, tokens=[], values=[])
