"""Rates of operations: known rates are recovered, times are added up and shown, and missing kinds are refused."""

import numpy as np
import pytest

from archlab.cli import app
from archlab.exchange.configs import load_config
from archlab.measuring import measure as calibrate
from archlab.measuring.clock import Clocked
from archlab.pricing.hardware import Measurements, Rate, Rates, keep_measured, load_hardware
from archlab.pricing.pass_time import features, predicted, untimed
from archlab.pricing.summary import cost
from archlab.pricing.work import Work

PRICES = {"products": (2e-11, 3e-11, 7e-11, 4e-6), "norms": (0.0, 5e-11, 9e-11, 1e-5)}
CALLS, CLOCK_OVERHEAD = 3, 2e-6
"""Calls of torch per counted operation, and seconds that the clock adds to each call."""


def a_pass(rng: np.random.Generator) -> list[Work]:
    """Return the work of two kinds of operations, with amounts of very different magnitudes."""
    moved = {kind: 10 ** rng.uniform(5, 9) for kind in ("products", "norms")}
    return [
        Work(kind=kind, count=int(rng.integers(1, 200)), flops=10 ** rng.uniform(6, 10), weight_bytes=0, kept_bytes=0,
             moved_bytes=moved[kind], large_bytes=moved[kind] * rng.integers(2))
        for kind in moved
    ]  # fmt: skip


def seconds(work: Work) -> float:
    """Return the seconds that a machine with exactly these rates needs."""
    return sum(p * x for p, x in zip(PRICES[work.kind], features(work), strict=True))


def timed(passed: list[Work], noise: float = 1.0) -> calibrate.Timed:
    """Return the timing by a clock with an overhead for every call."""
    found = {
        work.kind: Clocked(noise * seconds(work) + CLOCK_OVERHEAD * CALLS * work.count, CALLS * work.count)
        for work in passed
    }
    return calibrate.Timed({work.kind: work for work in passed}, found, noise * sum(map(seconds, passed)))


def test_known_rates_are_recovered_without_the_overhead_of_the_clock():
    rng = np.random.default_rng(0)
    rates = calibrate.fit([timed(a_pass(rng)) for _ in range(12)])
    for kind, prices in PRICES.items():
        found = rates.by_kind[kind]
        assert tuple(dict(found).values()) == pytest.approx(prices, rel=1e-6, abs=1e-15)


def test_noise_of_the_clock_changes_an_estimate_by_less_than_the_noise():
    rng = np.random.default_rng(1)
    rates = calibrate.fit([timed(a_pass(rng), noise=rng.uniform(0.95, 1.05)) for _ in range(60)])
    for passed in [a_pass(rng) for _ in range(20)]:
        assert predicted(passed, rates, 1).seconds == pytest.approx(sum(map(seconds, passed)), rel=0.1)


def test_an_estimate_is_the_sum_of_its_kinds():
    work = [Work(kind="norms", count=3, flops=7, weight_bytes=1, kept_bytes=2, moved_bytes=4, large_bytes=3)]
    rates = Rates(by_kind={"norms": Rate(per_flop=1, per_byte=10, per_large_byte=1000, per_operation=100)})
    found = predicted(work, rates, tokens=11)
    assert found.seconds_by_kind == {"norms": 70 + 3000 + 300}
    assert (found.seconds, found.tokens_per_second, found.latency) == (3370, 11 / 3370, 300)
    assert untimed([*work, work[0].model_copy(update={"kind": "scans"})], rates) == ["scans"]


@pytest.mark.parametrize("name", ["training", "decoding"])
def test_every_kind_of_a_decoder_without_recurrence_is_timed(name, monkeypatch):
    """The test uses the smallest of the models, so that it takes a second."""
    monkeypatch.setattr(calibrate, "TRAINED", calibrate.TRAINED[:1])
    monkeypatch.setattr(calibrate, "DECODED", calibrate.DECODED[:1])
    monkeypatch.setitem(calibrate.STEPS, name, 1)
    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    rates = calibrate.calibrate(name, "float32", "cpu")
    found = cost(load_config("tiny-llama", "model.norm.kind=layernorm"), context=64, dtype="float32")
    assert untimed(found.work[name], rates) == []
    assert predicted(found.work[name], rates, found.tokens[name]).tokens_per_second > 0
    changes = ("model.attention=none", "model.mixer.kind=mamba2", "model.position.kind=none")
    recurrent = cost(load_config("tiny-llama", *changes), context=64)
    assert "scans" in untimed(recurrent.work[name], rates)


def test_what_cost_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path))
    price = Rate(per_flop=1e-11, per_byte=1e-10, per_large_byte=0, per_operation=1e-5)
    kinds = ("products", "attention", "softmax", "norms", "activations", "element-wise", "embedding")
    rates = Rates(by_kind=dict.fromkeys(kinds, price))
    measured = Measurements(
        products={"float32": {"256": 1e11}}, copy_bandwidth=1e10, read_bandwidth=1e10, cached_read_bandwidth=1e11,
        dispatch=1e-6, threads=2, passes={"training": {"float32": rates}, "decoding": {"float32": rates}},
    )  # fmt: skip
    here = load_hardware("h100").model_copy(update={"measured": measured})
    keep_measured(here)
    assert app.main(["cost", "tiny-llama", "--hardware", "this", "--dtype", "float32"]) == 0
    shown = capsys.readouterr().out
    assert "latency" in shown
    assert "not timed: loss, optimiser" in " ".join(shown.split()), "training has what was not timed"
    assert app.main(["cost", "tiny-llama", "--hardware", "this", "--dtype", "bfloat16"]) == 0
    assert "latency" not in capsys.readouterr().out
