"""Learning rates compared with formulas that are independent of schedule.py."""

import math

import pytest

from archlab.config.core.registry import kinds
from archlab.config.optimizer import Schedule
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.training.schedule import learning_rate, warmup_steps

STEPS, PEAK = 100, 2e-3


def settings(**values):
    fixed = {"tokens": STEPS * 64 + 63, "batch_tokens": 64, "seq_len": 64, "lr": PEAK}
    overrides = (f"train.{k}={'null' if v is None else v}" for k, v in (fixed | values).items())
    return resolve_train(load_config("tiny-llama", *overrides))


def rates(**values):
    train = settings(**values)
    return [learning_rate(train, step) for step in range(STEPS)]


def test_steps_are_whole_batches():
    assert settings().steps == STEPS


@pytest.mark.parametrize(("batch", "tokens"), [(8192, 1_000_000), (4_194_304, 4_194_304)])
def test_a_run_that_says_no_length_is_short_but_has_a_batch(batch, tokens):
    assert settings(tokens=None, batch_tokens=batch).tokens == tokens


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (7, 7), (1, 1), (0.0, 0), (0.02, 2), (0.25, 25), (0.999, 100)])
def test_warmup_counts_steps_or_a_share_of_them(warmup, steps):
    assert warmup_steps(settings(warmup=warmup)) == steps


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "wsd"])
@pytest.mark.parametrize("warmup", [10, 0.1])
def test_warmup_is_linear_and_reaches_the_peak(schedule, warmup):
    found = rates(schedule=schedule, warmup=warmup)
    assert found[:10] == pytest.approx([PEAK * n / 10 for n in range(1, 11)], rel=1e-12)
    assert found[10] == pytest.approx(PEAK, rel=1e-12)
    assert max(found) == pytest.approx(PEAK, rel=1e-12)


def test_every_schedule_has_a_formula_here():
    assert kinds(Schedule).keys() == {"cosine", "linear", "constant", "wsd"}


def test_constant_stays():
    assert rates(schedule="constant", warmup=0) == [PEAK] * STEPS


@pytest.mark.parametrize(("final_lr", "end"), [(None, 0.1), (0.0, 0.0), (0.3, 0.3), (1.0, 1.0)])
def test_linear_goes_straight_from_the_peak_to_the_end(final_lr, end):
    expected = [PEAK * ((90 - n) / 90 + end * n / 90) for n in range(90)]
    assert rates(schedule="linear", warmup=10, final_lr=final_lr)[10:] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("final_lr", "end"), [(None, 0.1), (0.0, 0.0), (0.3, 0.3)])
def test_cosine_is_half_a_wave(final_lr, end):
    wave = [0.5 + 0.5 * math.cos(math.radians(180 * n / 90)) for n in range(90)]
    expected = [PEAK * (end + w * (1 - end)) for w in wave]
    found = rates(schedule="cosine", warmup=10, final_lr=final_lr)[10:]
    assert found == pytest.approx(expected, rel=1e-12)
    assert found[45] == pytest.approx(PEAK * (1 + end) / 2, rel=1e-12)


@pytest.mark.parametrize(("decay", "hold"), [(None, 80), (0.2, 80), (0.5, 50), (1 / 4, 75)])
def test_wsd_holds_then_falls_in_a_straight_line(decay, hold):
    """The decay is a share of the steps after the warm-up."""
    expected = [PEAK] * hold + [PEAK * (1 - 0.9 * n / (STEPS - hold)) for n in range(STEPS - hold)]
    assert rates(schedule="wsd", warmup=0, decay=decay) == pytest.approx(expected, rel=1e-12)


def test_wsd_after_a_warmup():
    found = rates(schedule="wsd", warmup=0.2, decay=0.5, final_lr=0.0)
    assert found[20:60] == [PEAK] * 40
    assert found[60:] == pytest.approx([PEAK * (1 - n / 40) for n in range(40)], rel=1e-9, abs=1e-18)


def test_no_decay_phase_holds_the_peak():
    assert rates(schedule="wsd", warmup=0, decay=0.0) == [PEAK] * STEPS


def test_a_run_that_is_all_warmup():
    assert rates(warmup=STEPS)[-1] == PEAK
    with pytest.raises(UserError, match="200 warm-up steps, but the run has only 100 steps; allowed: up to 100"):
        rates(warmup=2 * STEPS)
