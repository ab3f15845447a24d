"""Simulated studies of benchmarks/calibration.py and designs.py, in smaller number: promises hold within four
standard errors.
"""

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archlab

STUDIES = 1000


@pytest.fixture(scope="module")
def calibration() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(archlab.__file__).parents[2] / "benchmarks")
        module = importlib.import_module("calibration")
        patch.setattr(module, "CHECKED", 4)
        yield module


@pytest.fixture(scope="module")
def designs(calibration: Any) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module("designs")
        patch.setattr(module, "SEEDS", (3,))
        patch.setattr(module, "DESIGNS", {name: module.DESIGNS[name] for name in ("2 x 3", "2 arms, 3 sizes")})
        yield module


def error(rate: float) -> float:
    """Return four standard errors of a share of STUDIES. A correct procedure fails one such test in 30,000."""
    return 4 * math.sqrt(rate * (1 - rate) / STUDIES)


@pytest.mark.parametrize("promise", ["false_differences", "false_equivalence"])
def test_at_most_one_study_in_twenty_is_wrong(calibration: Any, promise: str) -> None:
    found = getattr(calibration, promise)(np.random.default_rng(1), STUDIES)
    assert max(row["rate"] for row in found.values()) < 0.05 + error(0.05)
    if promise == "false_differences":
        for borrowing in ("moderated", "pooled"):
            assert max(row.get(borrowing, 0) for row in found.values()) > 0.05 + error(0.05), (
                "the same studies must show the excess of what was not taken"
            )


def test_the_rule_for_seeds_keeps_the_error_rate(calibration: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "AGAINST", ("previous",))
    found = calibration.rule_errors(np.random.default_rng(2), STUDIES)
    assert max(row["rate"] for row in found.values()) < 0.05 + error(0.05)
    for other in ("Stein's", "all seeds' scatter and degrees"):
        assert max(row[other] for row in found.values()) > 0.05 + error(0.05)


def test_stated_effects_are_found_four_times_in_five(calibration: Any) -> None:
    """This holds for normal noise. With heavy tails, 20,000 studies found at least 74%."""
    found = calibration.smallest_effects(np.random.default_rng(3), STUDIES)
    assert len(found) == 18
    for name, row in found.items():
        promised = (0.8, 0.8) if name.endswith("normal") else (0.74, 0.8)
        assert promised[0] - error(0.8) < row["rate"] < promised[1] + error(0.8), name


def test_seeds_added_after_a_look_find_too_much(calibration: Any) -> None:
    first, second, third = calibration.added_by_hand(np.random.default_rng(4), STUDIES).values()
    assert first["rate"] < 0.05 + error(0.05) < third["rate"]
    assert first["rate"] < second["rate"] < third["rate"]


def test_contrasts_and_trends_are_wrong_in_one_study_of_twenty(designs: Any) -> None:
    found = designs.false_findings(np.random.default_rng(5), STUDIES)
    assert max(row["rate"] for row in found.values()) < 0.05 + error(0.05)
    found = designs.stated_effects(np.random.default_rng(6), STUDIES)
    assert min(row["rate"] for row in found.values()) > 0.8 - error(0.8)


def test_seeds_that_share_folds_find_no_more_than_folds_do(designs: Any) -> None:
    found = designs.shared_folds(np.random.default_rng(7), STUDIES)
    assert max(row["rate"] for row in found.values()) < 0.05 + error(0.05)
    assert max(row["seed by seed"] for row in found.values()) > 0.5, "what the test of all seeds would have found"
