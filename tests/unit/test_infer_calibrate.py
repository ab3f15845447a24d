"""Prices of operations: found again where they are known, added up, shown, and refused where nothing was timed."""

import numpy as np
import pytest

from archlab.cli import app
from archlab.cost.calibrated import Rate, Rates, predicted, untimed
from archlab.cost.hardware import Measured, keep_measured, load_hardware
from archlab.cost.summary import cost
from archlab.cost.work import Work
from archlab.exchange.configs import load_config
from archlab.infer import calibrate

PRICES = {"products": (2e-11, 3e-11, 4e-6), "norms": (0.0, 5e-11, 1e-5)}
PER_OPERATION, PER_PASS = 3e-6, 2e-4


def a_pass(rng: np.random.Generator) -> list[Work]:
    """Of two kinds, with work of every order of magnitude."""
    return [
        Work(kind=kind, count=int(rng.integers(1, 200)), flops=10 ** rng.uniform(6, 10), weight_bytes=0, kept_bytes=0,
             moved_bytes=10 ** rng.uniform(5, 9))
        for kind in ("products", "norms")
    ]  # fmt: skip


def timed(passed: list[Work], noise: float = 1.0) -> calibrate.Timed:
    """As a machine with exactly these prices would time it."""
    seconds = {
        work.kind: noise * sum(p * x for p, x in zip(PRICES[work.kind], (work.flops, work.n_bytes, work.count), strict=True))
        for work in passed
    }  # fmt: skip
    between = PER_PASS + PER_OPERATION * sum(work.count for work in passed)
    return calibrate.Timed({work.kind: work for work in passed}, seconds, sum(seconds.values()) + between)


def test_prices_are_found_again():
    rng = np.random.default_rng(0)
    rates = calibrate.fit([timed(a_pass(rng)) for _ in range(12)])
    for kind, prices in PRICES.items():
        found = rates.by_kind[kind]
        assert (found.per_flop, found.per_byte, found.per_operation) == pytest.approx(prices, rel=1e-6, abs=1e-15)
    assert (rates.per_operation, rates.per_pass) == pytest.approx((PER_OPERATION, PER_PASS), rel=1e-6)


def test_a_noisy_clock_moves_an_estimate_less_than_itself():
    rng = np.random.default_rng(1)
    rates = calibrate.fit([timed(a_pass(rng), noise=rng.uniform(0.9, 1.1)) for _ in range(30)])
    unseen = [a_pass(rng) for _ in range(20)]
    for passed in unseen:
        assert predicted(passed, rates, 1).seconds == pytest.approx(timed(passed).whole, rel=0.1)


def test_an_estimate_is_the_sum_of_its_kinds_and_what_is_between():
    work = [Work(kind="norms", count=3, flops=7, weight_bytes=1, kept_bytes=2, moved_bytes=4)]
    rates = Rates(by_kind={"norms": Rate(per_flop=1, per_byte=10, per_operation=100)}, per_operation=5, per_pass=50)
    found = predicted(work, rates, tokens=11)
    assert found.seconds_by_kind == {"norms": 7 + 70 + 300}
    assert found.seconds == 377 + 15 + 50
    assert found.tokens_per_second == 11 / 442
    assert untimed([*work, work[0].model_copy(update={"kind": "scans"})], rates) == ["scans"]


@pytest.mark.parametrize("name", ["training", "decoding"])
def test_every_kind_of_a_decoder_without_recurrence_is_timed(name, monkeypatch):
    """The smallest of the models that are run, so that it takes a second."""
    monkeypatch.setattr(calibrate, "TRAINED", calibrate.TRAINED[:1])
    monkeypatch.setattr(calibrate, "DECODED", calibrate.DECODED[:1])
    monkeypatch.setattr(calibrate, "STEPS", 1)
    rates = calibrate.calibrate(name, "float32", "cpu")
    found = cost(load_config("tiny-llama", "model.norm.kind=layernorm"), context=64, dtype="float32")
    assert untimed(found.work[name], rates) == []
    assert predicted(found.work[name], rates, found.tokens[name]).tokens_per_second > 0
    changes = ("model.attention=none", "model.mixer.kind=mamba2", "model.position.kind=none")
    recurrent = cost(load_config("tiny-llama", *changes), context=64)
    assert "scans" in untimed(recurrent.work[name], rates)


def test_what_cost_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path))
    price = Rate(per_flop=1e-11, per_byte=1e-10, per_operation=1e-5)
    kinds = ("products", "attention", "softmax", "norms", "activations", "element-wise", "embedding")
    rates = Rates(by_kind=dict.fromkeys(kinds, price), per_operation=1e-6, per_pass=1e-4)
    measured = Measured(
        products={"float32": {"256": 1e11}}, copy_bandwidth=1e10, read_bandwidth=1e10, cached_read_bandwidth=1e11,
        dispatch=1e-6, threads=2, passes={"training": {"float32": rates}, "decoding": {"float32": rates}},
    )  # fmt: skip
    here = load_hardware("h100").model_copy(update={"measured": measured})
    keep_measured(here)
    assert app.main(["cost", "tiny-llama", "--hardware", "this", "--dtype", "float32"]) == 0
    shown = capsys.readouterr().out
    assert "as operations were timed here" in shown
    assert "not timed: loss, optimiser" in " ".join(shown.split()), "training has what was not timed"
    assert app.main(["cost", "tiny-llama", "--hardware", "this", "--dtype", "bfloat16"]) == 0
    assert "as operations were timed" not in capsys.readouterr().out
