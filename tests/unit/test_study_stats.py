"""The statistics against scipy's own tests, hand formulas, and simulated studies whose truth is known."""

import math
import re

import numpy as np
import pytest
import sample_study
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from archlab.study.answer import answer
from archlab.study.power import POWER, smallest_effect
from archlab.study.record import Comparison
from archlab.study.stats import ALPHA, compare, estimate, holm

BASE = {0: 2.70, 1: 2.72, 2: 2.69, 3: 2.71, 4: 2.73}
ARM = {0: 2.66, 1: 2.69, 2: 2.66, 3: 2.66, 4: 2.70}


def one(arm: dict[int, float | None], base: dict[int, float | None]) -> Comparison:
    return compare({"base": base, "arm": arm}, {"arm": "base"})["arm"]


# --- against independent computations -----------------------------------------------------------------


def test_paired_t_test_is_scipys() -> None:
    found = one({**ARM}, {**BASE})
    expected = stats.ttest_rel(list(ARM.values()), list(BASE.values()))
    low, high = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)
    assert found.difference == pytest.approx(np.mean(list(ARM.values())) - np.mean(list(BASE.values())))
    assert (found.pairs, found.verdict) == (5, "better")


def test_pairs_are_made_by_seed_not_by_order() -> None:
    shuffled: dict[int, float | None] = {seed: ARM[seed] for seed in (4, 2, 0, 1, 3)}
    assert one(shuffled, {**BASE}) == one({**ARM}, {**BASE})


def test_only_common_seeds_count() -> None:
    found = one({**ARM, 9: 1.0}, {**BASE, 8: 9.0})
    assert found == one({**ARM}, {**BASE})


def test_holm_is_the_hand_formula() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_runs_over_every_comparison_of_the_study() -> None:
    losses: dict[str, dict[int, float | None]] = {
        "base": {**BASE},
        "arm": {**ARM},
        "gone": dict.fromkeys(BASE),
    }
    found = compare(losses, {"arm": "base", "gone": "base"})
    assert found["arm"].p is not None
    assert found["arm"].p_holm == pytest.approx(2 * found["arm"].p), (
        "a comparison that could not be tested still counts"
    )


@given(p_values=st.lists(st.floats(1e-6, 1), min_size=1, max_size=8))
def test_an_interval_leaves_out_zero_where_the_verdict_says_so_and_nowhere_else(p_values: list[float]) -> None:
    """Four pairs for each comparison, with the t that has this p."""
    assume(all(abs(p * k - ALPHA) > 1e-9 for p in p_values for k in range(1, 9)))  # rounding decides there
    pattern = np.array([-1.0, 1.0, -1.0, 1.0])
    error = float(np.std(pattern, ddof=1)) / 2
    losses: dict[str, dict[int, float | None]] = {"base": dict.fromkeys(range(4), 0.0)}
    for i, p in enumerate(p_values):
        shift = float(stats.t.isf(p / 2, 3)) * error
        losses[f"arm {i}"] = dict(enumerate(map(float, pattern + shift)))
    for found in compare(losses, {arm: "base" for arm in losses if arm != "base"}).values():
        assert found.low is not None
        assert found.confidence is not None
        assert (found.low > 0) == (found.verdict == "worse")
        assert 0.95 <= found.confidence <= 1 - 0.05 / len(p_values)


# --- what is no ordinary sample -----------------------------------------------------------------------


def test_one_config_under_two_names() -> None:
    found = one({**BASE}, {**BASE})
    assert (found.difference, found.low, found.high, found.p, found.p_holm) == (0, 0, 0, 1, 1)
    assert (found.verdict, found.smallest_effect) == ("not distinguishable", None)


@pytest.mark.parametrize(("seeds", "p", "verdict"), [(3, 0.25, "not distinguishable"), (6, 0.03125, "worse")])
def test_equal_differences_are_judged_by_their_signs_alone(seeds: int, p: float, verdict: str) -> None:
    base = {seed: 2.0 + 0.1 * seed for seed in range(seeds)}
    found = one({seed: loss + 0.3 for seed, loss in base.items()}, {**base})
    assert found.difference == pytest.approx(0.3)
    assert (found.low, found.high, found.confidence, found.smallest_effect) == (None, None, None, None)
    assert (found.p, found.verdict) == (p, verdict)


def test_divergence_outweighs_the_seeds_that_survived() -> None:
    assert one({**ARM, 3: None}, {**BASE}).verdict == "diverged"
    assert one({**ARM, 3: None}, {**BASE}).pairs == 4
    assert one({**ARM, 3: None}, {**BASE, 3: None}).verdict == "better", "both diverged there: the rest decides"
    assert one({**ARM}, {**BASE, 3: None}).verdict == "better"
    assert one(dict.fromkeys(BASE), dict.fromkeys(BASE)).verdict == "diverged"
    assert one({**ARM}, dict.fromkeys(BASE)).verdict == "reference diverged"
    assert one({**BASE}, {**ARM, 3: None}).verdict == "reference diverged", "the seeds it lost count for the arm"
    assert one({**BASE}, {**ARM}).verdict == "worse"


def test_too_few_runs() -> None:
    found = one({0: 2.6}, {**BASE})
    assert (found.pairs, found.low, found.p, found.p_holm, found.verdict) == (
        1,
        None,
        None,
        None,
        "too few runs",
    )
    assert found.difference == pytest.approx(-0.1)
    assert one({}, {**BASE}).difference is None


# --- simulated studies --------------------------------------------------------------------------------


def within(found: float, nominal: float, trials: int) -> bool:
    """Four standard errors of a binomial share: a right procedure fails one such test in 16,000."""
    return abs(found - nominal) < 4 * math.sqrt(nominal * (1 - nominal) / trials)


def covered(samples: np.ndarray, truth: float) -> float:
    found = [estimate(list(sample)) for sample in samples]
    return float(np.mean([e is not None and e.low is not None and e.low <= truth <= (e.high or 0) for e in found]))


def test_interval_covers_the_truth_19_times_in_20() -> None:
    samples = np.random.default_rng(0).normal(0.7, 0.2, (2000, 3))
    assert within(covered(samples, 0.7), 0.95, 2000)
    normal = np.abs(samples.mean(1) - 0.7) < 1.96 * samples.std(1, ddof=1) / math.sqrt(3)
    assert not within(float(normal.mean()), 0.95, 2000), "the simulation would see a normal interval's shortness"


def false_verdicts(rng: np.random.Generator, studies: int, arms: int) -> tuple[float, float]:
    """Shares of null studies with any verdict, with and without Holm; the arms share their base."""
    with_holm = without = 0
    for _ in range(studies):
        seeds = rng.normal(0, 1, 4)
        losses = {str(arm): dict(enumerate(map(float, 3 + seeds + rng.normal(0, 0.3, 4)))) for arm in range(arms + 1)}
        found = compare(losses, {str(arm): "0" for arm in range(1, arms + 1)}).values()
        with_holm += any(c.verdict in ("better", "worse") for c in found)
        without += any(c.p is not None and c.p < ALPHA for c in found)
    return with_holm / studies, without / studies


def test_family_wise_error_under_the_null() -> None:
    with_holm, without = false_verdicts(np.random.default_rng(1), studies=600, arms=5)
    limit = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / 600)
    assert with_holm < limit, "at most nominal: a shared base makes Holm conservative, never lenient"
    assert without > limit, "uncorrected, the same studies must show the excess that Holm removes"


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
def test_smallest_effect_is_found_four_times_in_five(pairs: int) -> None:
    """A study of arms that are equal states it, from the scatter it saw; a new one, where it is true, looks for it."""
    rng, studies = np.random.default_rng(pairs), 4000
    seen = rng.normal(0, 0.01, (studies, pairs)).std(1, ddof=1)
    truth = np.array([smallest_effect(float(deviation), pairs, pairs - 1, ALPHA) for deviation in seen])
    noise = rng.normal(0, 0.01, (studies, pairs))

    def found(effect: np.ndarray) -> float:
        return float(np.mean(stats.ttest_1samp(noise + effect[:, None], 0, axis=1).pvalue < ALPHA))

    assert within(found(truth), POWER, studies)
    if pairs > 2:  # where the scatter of two seeds is all that is known, a tenth more or less is nothing
        assert not within(found(0.85 * truth), POWER, studies)


def test_smallest_effect_with_many_pairs_is_that_of_a_known_deviation() -> None:
    """By the textbook's sum of normal quantiles."""
    textbook = (stats.norm.isf(ALPHA / 2) + stats.norm.ppf(POWER)) * 0.01 / math.sqrt(2000)
    assert smallest_effect(0.01, 2000, 1999, ALPHA) == pytest.approx(textbook, rel=0.002)


def test_smallest_effect_counts_the_correction() -> None:
    """An arm among five, four of them null: under Holm the stated effect is found in 80% of studies."""
    rng, studies, hits = np.random.default_rng(5), 600, 0
    base = dict.fromkeys(range(5), 3.0)
    for _ in range(studies):
        losses: dict[str, dict[int, float | None]] = {"base": {**base}}
        truth = smallest_effect(float(rng.normal(0, 0.01, 5).std(ddof=1)), 5, 4, ALPHA / 5)
        for arm in range(5):
            losses[str(arm)] = dict(enumerate(map(float, rng.normal(3.0 - (truth if arm == 0 else 0), 0.01, 5))))
        hits += compare(losses, {str(arm): "base" for arm in range(5)})["0"].verdict == "better"
    assert within(hits / studies, POWER, studies)


def test_the_level_of_the_smallest_effect_relaxes_with_what_others_found() -> None:
    rng = np.random.default_rng(3)
    arms: dict[str, dict[int, float | None]] = {
        "base": {**BASE},
        "same": {s: x + rng.normal(0, 0.01) for s, x in BASE.items()},
    }
    clear: dict[str, dict[int, float | None]] = {"clear": {s: x - 0.5 + rng.normal(0, 0.001) for s, x in BASE.items()}}
    alone = compare(arms, {"same": "base"})["same"].smallest_effect
    assert compare({**arms, **clear}, {"same": "base", "clear": "base"})["same"].smallest_effect == pytest.approx(alone)
    unclear: dict[str, dict[int, float | None]] = {"clear": {s: x + rng.normal(0, 0.01) for s, x in BASE.items()}}
    stricter = compare({**arms, **unclear}, {"same": "base", "clear": "base"})["same"].smallest_effect
    assert stricter is not None
    assert alone is not None
    assert stricter > 1.1 * alone


# --- the answer ---------------------------------------------------------------------------------------


def test_answer_of_a_ladder() -> None:
    text = sample_study.ladder().answer
    assert text.startswith("At 1.21M parameters and 1M tokens, Pre-norm bought 1.1")
    assert "RoPE 0.7" in text
    assert "(3 paired seeds, each Holm p ≤ 0.0" in text
    assert re.search(
        r"RMSNorm, No biases and GQA are not distinguishable from the steps before them \(3 paired seeds; smallest "
        r"detectable difference in bits per byte: 0.0\d+ for RMSNorm, 0.0\d+ for No biases and 0.0\d+ for GQA\)\.",
        text,
    )
    assert text.count(". ") <= 2, "three sentences at most"


def test_answer_says_who_diverged_and_how_often() -> None:
    text = sample_study.diverging_ladder().answer
    assert "RoPE diverged on 1 of 3 seeds" in text
    assert "Pre-norm finished where Post-norm 2017 diverged." in text


def test_answer_of_one_comparison() -> None:
    text = sample_study.pair().answer
    assert "GEGLU is not distinguishable from SwiGLU (difference 0.00" in text
    assert "bits per byte over 5 paired seeds; smallest detectable difference 0.0" in text


def test_answer_of_many_arms_names_the_best_and_counts_the_rest() -> None:
    text = sample_study.many().answer
    assert " of 11 arms beat ReLU" in text
    assert "most of all SwiGLU" in text


def test_answer_of_many_arms_alike_gives_those_it_counts_a_range() -> None:
    arms = {name: (name, 2.6, {}) for name in ("one", "two", "three", "four", "five", "six")}
    text = sample_study.study(arms, [0, 1, 2, 3, 4], "base").answer
    said = re.search(r"two, three, four and 2 other arms are not distinguishable from one \((.*)\)", text)
    assert said
    effects = {n: c.smallest_effect for n, c in compared(arms).items()}
    low, high = sorted(f"{effects[n]:.3f}" for n in ("five", "six"))
    assert said[1].endswith(f", {effects['four']:.3f} for four and {low} to {high} for the others")


def compared(arms: sample_study.Arms) -> dict[str, Comparison]:
    study = sample_study.study(arms, [0, 1, 2, 3, 4], "base")
    return {arm.name: arm.comparison for arm in study.arms if arm.comparison}


def test_answer_leaves_labels_as_they_are_written() -> None:
    arms = {"a": ("rmsnorm", 2.6, {}), "b": ("nGPT", 2.601, {}), "c": ("layernorm", 2.9, {})}
    text = sample_study.study(arms, [0, 1, 2], "base", diverged={("b", 1)}).answer
    assert "(3 paired seeds, Holm p = 0.0" in text or "Holm p < " in text
    assert ". nGPT diverged on 1 of 3 seeds." in text


def test_answer_of_identical_arms() -> None:
    study = sample_study.pair()
    a, b = study.arms
    twin = b.model_copy(
        update={"bits_per_byte": a.bits_per_byte, "comparison": one({**a.bits_per_byte}, {**a.bits_per_byte})}
    )
    twin = twin.model_copy(
        update={"comparison": twin.comparison and twin.comparison.model_copy(update={"reference": "a"})}
    )
    assert "GEGLU is not distinguishable from SwiGLU (identical results on 5 paired seeds)." in answer(
        [a, twin], "base"
    )


def test_answer_of_a_single_arm() -> None:
    assert "nothing to compare" in answer(sample_study.ladder().arms[:1], "base")
