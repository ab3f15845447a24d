"""Sampling: each step compared with NumPy and transformers, draws with their distribution, and seeds."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import softmax
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from archlab.errors import UserError
from archlab.infer import sampling as steps
from archlab.infer.sampling import Sampling, sample

RNG = np.random.default_rng(0)
LOGITS = torch.from_numpy(RNG.normal(size=(6, 40)) * 3)
NO_TOKENS = torch.zeros(6, 0, dtype=torch.int64)
NO_PADDING = torch.zeros(6, dtype=torch.int64)
LENGTHS = [0] * 6


def kept(logits: Tensor) -> np.ndarray:
    return torch.isfinite(logits).numpy()


@pytest.mark.parametrize("k", [1, 2, 7, 39, 40, 100])
def test_top_k(k: int) -> None:
    got = steps.keep_top_k(LOGITS, k)
    order = np.argsort(-LOGITS.numpy(), axis=-1)
    expected = np.zeros(LOGITS.shape, dtype=bool)
    np.put_along_axis(expected, order[:, :k], True, axis=-1)
    np.testing.assert_array_equal(kept(got), expected)
    assert torch.equal(got, TopKLogitsWarper(k)(NO_TOKENS, LOGITS))


def test_top_k_keeps_what_is_as_likely_as_the_last() -> None:
    assert kept(steps.keep_top_k(torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]]), 2)).tolist() == [
        [False, True, True, True, False]
    ]


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_top_p(p: float) -> None:
    got = steps.keep_top_p(LOGITS, p)
    expected = np.zeros(LOGITS.shape, dtype=bool)
    for row, probability in enumerate(softmax(LOGITS.numpy(), axis=-1)):
        reached = 0.0
        for token in sorted(range(40), key=lambda t: -probability[t]):
            expected[row, token] = True
            reached += probability[token]
            if reached >= p:
                break
    np.testing.assert_array_equal(kept(got), expected)
    assert torch.equal(got, TopPLogitsWarper(p)(NO_TOKENS, LOGITS))


def test_top_p_stops_when_it_is_reached_exactly() -> None:
    half = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()
    assert kept(steps.keep_top_p(half, 0.5)).tolist() == [[True, False, False]]


def test_top_p_of_1_keeps_all() -> None:
    wide = torch.from_numpy(RNG.normal(size=(4, 5000)) * 9)
    assert kept(steps.keep_top_p(wide, 1.0)).all()


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 1.0])
def test_min_p(p: float) -> None:
    got = steps.keep_min_p(LOGITS, p)
    probability = softmax(LOGITS.numpy(), axis=-1)
    np.testing.assert_array_equal(kept(got), probability >= p * probability.max(-1, keepdims=True) * (1 - 1e-12))
    assert torch.equal(got, MinPLogitsWarper(p)(NO_TOKENS, LOGITS))
    assert kept(steps.keep_min_p(LOGITS, 0.0)).all()


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty(penalty: float) -> None:
    tokens = torch.from_numpy(RNG.integers(0, 40, size=(6, 9)))
    expected = LOGITS.numpy().copy()
    for row in range(6):
        for token in set(tokens[row].tolist()):
            z = LOGITS[row, token].item()
            expected[row, token] = z / penalty if z > 0 else z * penalty
    got = steps.apply_repetition_penalty(LOGITS, steps.occurring(tokens, NO_PADDING, 40), penalty)
    np.testing.assert_allclose(got, expected, rtol=1e-15)
    assert torch.equal(got, RepetitionPenaltyLogitsProcessor(penalty)(tokens, LOGITS))


def test_padding_does_not_count_as_a_token_of_the_text() -> None:
    tokens = torch.tensor([[0, 0, 3], [0, 5, 5], [0, 4, 0]])
    found = steps.occurring(tokens, torch.tensor([2, 1, 0]), 7)
    assert [row.nonzero().flatten().tolist() for row in found] == [[3], [5], [0, 4]]


def test_the_order_is_that_of_transformers() -> None:
    tokens = torch.from_numpy(RNG.integers(0, 40, size=(6, 30)))
    expected = LOGITS
    for step in (
        RepetitionPenaltyLogitsProcessor(1.7), TemperatureLogitsWarper(1.9), TopKLogitsWarper(12),
        TopPLogitsWarper(0.8), MinPLogitsWarper(0.2),
    ):  # fmt: skip
        expected = step(tokens, expected)
    seen = []
    sampling = Sampling(temperature=1.9, top_k=12, top_p=0.8, min_p=0.2, repetition_penalty=1.7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "draw", lambda logits, _: seen.append(logits))
        sample(LOGITS, sampling, tokens, NO_PADDING, 0, LENGTHS)
    torch.testing.assert_close(seen[0].softmax(-1), expected.softmax(-1), rtol=1e-12, atol=1e-15)
    assert 1 < kept(seen[0]).sum(-1).max() < 12


def drawn(logits: list[float], n: int, seed: int = 0, **settings: Any) -> np.ndarray:
    """Return how often each token is drawn in n texts that differ only in their row of the batch."""
    tokens = sample(
        torch.tensor(logits).expand(n, -1), Sampling(**{"temperature": 1.0} | settings),
        torch.zeros(n, 1, dtype=torch.int64), torch.zeros(n, dtype=torch.int64), seed, [1] * n,
    )  # fmt: skip
    return np.bincount(tokens, minlength=len(logits))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.5, 0.2, 0.1, 0.2]),
        ({"temperature": 0.5}, [25 / 34, 4 / 34, 1 / 34, 4 / 34]),
        ({"top_k": 3}, [5 / 9, 2 / 9, 0, 2 / 9]),
        ({"top_p": 0.6}, [5 / 7, 2 / 7, 0, 0]),
        ({"min_p": 0.3}, [5 / 9, 2 / 9, 0, 2 / 9]),
    ],
)
@pytest.mark.slow
def test_draws_follow_the_distribution(settings: dict[str, float], expected: list[float]) -> None:
    counts = drawn([math.log(p) for p in (0.5, 0.2, 0.1, 0.2)], 20_000, **settings)
    possible = np.array(expected) > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], np.array(expected)[possible] * 20_000).pvalue > 0.01


def test_the_numbers_drawn_are_uniform_over_places_lengths_and_seeds() -> None:
    for numbers in (
        steps.uniform(0, [7] * 5000),
        torch.cat([steps.uniform(0, [n]) for n in range(5000)]),
        torch.cat([steps.uniform(seed, [7]) for seed in range(5000)]),
    ):
        assert stats.kstest(numbers.numpy(), "uniform").pvalue > 0.01
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.04


def test_every_token_is_drawn_at_its_share_of_the_line() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]], dtype=torch.float64)
    got = [int(steps.draw(logits, torch.tensor([u], dtype=torch.float64))) for u in (0, 0.49, 0.5, 1 - 2**-53)]
    assert got == [1, 1, 2, 2]


def test_temperature_0_is_greedy_and_a_tiny_one_too() -> None:
    for temperature in (0, 1e-307, 1e-6):
        got = sample(LOGITS * 1e4, Sampling(temperature), NO_TOKENS, NO_PADDING, 0, LENGTHS)
        np.testing.assert_array_equal(got, LOGITS.numpy().argmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_greedy_takes_the_first_of_equally_likely_tokens(dtype: torch.dtype) -> None:
    """With a penalty, which has no effect here, the logits are converted to float64 first. Without, they are not."""
    logits = torch.randn(6, 700, generator=torch.Generator().manual_seed(0)).round().to(dtype)
    for penalty in (1.0, 2.0):
        got = sample(logits, Sampling(0, repetition_penalty=penalty), NO_TOKENS, NO_PADDING, 0, LENGTHS)
        np.testing.assert_array_equal(got, logits.float().numpy().argmax(-1))


def test_a_rows_draw_does_not_depend_on_the_others() -> None:
    sampling, changed = Sampling(temperature=1.5), LOGITS.clone()
    changed[1:] = changed[1:].flip(-1)
    flat = torch.zeros(6, 40)
    for seed in range(50):
        whole, other, alone = (
            sample(
                x, sampling, torch.zeros(len(x), 5, dtype=torch.int64), NO_PADDING[: len(x)], seed, LENGTHS[: len(x)]
            )
            for x in (LOGITS, changed, LOGITS[:1])
        )
        assert whole[0] == other[0] == alone[0]
    same = sample(flat, Sampling(1.0), torch.zeros(6, 5, dtype=torch.int64), NO_PADDING, 0, LENGTHS)
    assert len(set(same.tolist())) > 1


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("temperature", [-0.1, math.nan, math.inf, "hot", None, True], r"allowed: 0 \(greedy\) or more"),
        ("top_k", [0, -1, 2.5, "3"], "allowed: a whole number from 1, or none"),
        ("top_p", [0, -0.1, 1.01, math.nan], "allowed: above 0, up to 1, or none"),
        ("min_p", [-0.1, 1.01], "allowed: 0 to 1, or none"),
        ("repetition_penalty", [0, -1, math.inf, None], r"allowed: above 0 \(1 means no penalty\)"),
        ("seed", [-1, 0.5], "allowed: a whole number from 0, or none"),
    ],
)
def test_values_out_of_range_are_refused(field: str, values: list[Any], message: str) -> None:
    for value in values:
        with pytest.raises(UserError, match=f"{field}: {value!r}; {message}"):
            Sampling(**{field: value})


def test_values_in_range_are_accepted() -> None:
    taken = Sampling(temperature=2, top_k=np.int64(3), top_p=1, min_p=0, repetition_penalty=np.float32(1.5), seed=0)
    assert (taken.temperature, taken.top_k, taken.top_p, taken.min_p) == (2, 3, 1, 0)
    assert (taken.repetition_penalty, taken.seed) == (1.5, 0)
