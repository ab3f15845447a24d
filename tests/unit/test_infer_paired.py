"""Intervals of the difference of two scores over windows, against a direct computation, a bootstrap and their coverage."""

import math

import numpy as np
import pytest

from archlab.infer.paired import interval
from archlab.training.evaluate import WindowSums

T_OF_20 = 2.085963447265837
"""97.5% quantile of Student's t with 20 degrees of freedom, from a table."""


def drawn(rng: np.random.Generator, n: int, shift: float = 0.05) -> tuple[WindowSums, WindowSums]:
    """Return two models whose scores differ by `shift`. Windows have unequal bytes, and their difficulty is shared."""
    weights = rng.integers(20, 120, n).astype(float)
    difficulty = rng.normal(1.5, 0.4, n)
    first = (difficulty + rng.normal(0, 0.1, n)) * weights
    other = (difficulty + shift + rng.normal(0, 0.1, n)) * weights
    return WindowSums(first, weights), WindowSums(other, weights)


def test_the_interval_is_that_of_a_ratio_estimator():
    first, other = drawn(np.random.default_rng(0), 21)
    pairs = list(zip(first.amounts.tolist(), other.amounts.tolist(), first.weights.tolist(), strict=True))
    total = sum(w for _, _, w in pairs)
    difference = sum(b - a for a, b, _ in pairs) / total
    squares = sum((b - a - difference * w) ** 2 for a, b, w in pairs)
    half_width = T_OF_20 * math.sqrt(21 / 20 * squares) / total
    assert interval(first, other) == pytest.approx((difference - half_width, difference + half_width), rel=1e-10)


def test_a_bootstrap_over_windows_agrees():
    rng = np.random.default_rng(1)
    first, other = drawn(rng, 300)
    drawn_again = rng.integers(0, 300, (4000, 300))
    weights = first.weights[drawn_again].sum(1)
    differences = (other.amounts[drawn_again].sum(1) - first.amounts[drawn_again].sum(1)) / weights
    expected = np.quantile(differences, [0.025, 0.975])
    low, high = interval(first, other) or (0, 0)
    assert [low, high] == pytest.approx(expected, abs=0.1 * (expected[1] - expected[0]))  # 4,000 resamples, 300 windows


def test_models_that_read_other_amounts_of_text_are_paired_too():
    """The reference leaves out one window at a time (jackknife)."""
    rng = np.random.default_rng(2)
    first, other = drawn(rng, 200)
    other = WindowSums(other.amounts * 0.5, other.weights * rng.uniform(0.45, 0.55, 200))
    left_out = [
        np.delete(other.amounts, i).sum() / np.delete(other.weights, i).sum()
        - np.delete(first.amounts, i).sum() / np.delete(first.weights, i).sum()
        for i in range(200)
    ]
    error = math.sqrt(199 * np.var(left_out))
    low, high = interval(first, other) or (0, 0)
    assert (high - low) / 2 == pytest.approx(1.972 * error, rel=0.02)  # the jackknife is not linearized
    assert (low + high) / 2 == pytest.approx(other.score - first.score)


def test_95_of_100_intervals_cover_the_true_difference():
    rng, covered = np.random.default_rng(3), 0
    for _ in range(2000):
        low, high = interval(*drawn(rng, 40)) or (0, 0)
        covered += low <= 0.05 <= high
    assert 0.935 <= covered / 2000 <= 0.965  # three standard errors


def test_equal_models_and_windows_without_pairs():
    first, other = drawn(np.random.default_rng(4), 30)
    assert interval(first, first) == (0, 0)
    assert interval(first, WindowSums(other.amounts[:-1], other.weights[:-1])) is None
    assert (
        interval(WindowSums(first.amounts[:1], first.weights[:1]), WindowSums(other.amounts[:1], other.weights[:1]))
        is None
    )
