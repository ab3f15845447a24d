"""Plans for several devices, compared with what torch allocates and sends on a fake process group.

benchmarks/plans.py makes the same comparison for up to 1,024 ranks.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest

import archlab
from archlab.pricing.partition import Parallel


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(archlab.__file__).parents[2] / "benchmarks")
    return importlib.import_module("plans")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "recompute"), [("dense", False), ("dense", True), ("mixture of experts", False), ("hybrid", False)]
)
def test_a_plan_is_what_torch_allocates_and_sends(model: str, recompute: bool, plans: Any) -> None:
    case = plans.Case(model, Parallel(replicate=2, shard=4), recompute)
    (found,), plan = plans.side_by_side(1, plans.dry_run, [case]), plans.planned(case)
    for way in ("shard", "replicate"):
        assert plan.sent[way] == pytest.approx(found["sent"][way], abs=100)  # fractions of a byte in each collective
    assert plan.total_memory == pytest.approx(found["memory"], rel=0.1)
