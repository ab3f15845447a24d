"""Statistics, compared with scipy's tests, hand formulas, and simulated studies with a known truth."""

import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import optimize, stats

import sample_study
from archlab.study.answer import answer
from archlab.study.outcomes.schema import Source
from archlab.study.power import POWER, pairs_for, smallest_effect, smallest_effect_interval
from archlab.study.record import Comparison
from archlab.study.schema import AddedSeeds
from archlab.study.stats import ALPHA, Better, compare, compare_exact, estimate, holm, pairwise, seeds_in_all, share

BASE = {0: 2.70, 1: 2.72, 2: 2.69, 3: 2.71, 4: 2.73}
ARM = {0: 2.66, 1: 2.69, 2: 2.66, 3: 2.66, 4: 2.70}


def one(arm: dict[int, float | None], base: dict[int, float | None]) -> Comparison:
    return compare({"base": base, "arm": arm}, pairwise({"arm": "base"}))["arm"]


# --- independent computations -----------------------------------------------------------------


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
    found = compare(losses, pairwise({"arm": "base", "gone": "base"}))
    assert found["arm"].p is not None
    assert found["arm"].p_holm == pytest.approx(2 * found["arm"].p), (
        "a comparison that could not be tested still counts"
    )


@given(p_values=st.lists(st.floats(1e-6, 1), min_size=1, max_size=8))
@pytest.mark.slow
def test_an_interval_excludes_zero_exactly_if_the_verdict_is_a_difference(p_values: list[float]) -> None:
    """Return four pairs for each comparison, with the t statistic of this p-value."""
    assume(all(abs(p * k - ALPHA) > 1e-9 for p in p_values for k in range(1, 9)))  # there only rounding decides
    pattern = np.array([-1.0, 1.0, -1.0, 1.0])
    error = float(np.std(pattern, ddof=1)) / 2
    losses: dict[str, dict[int, float | None]] = {"base": dict.fromkeys(range(4), 0.0)}
    for i, p in enumerate(p_values):
        shift = float(stats.t.isf(p / 2, 3)) * error
        losses[f"arm {i}"] = dict(enumerate(map(float, pattern + shift)))
    for found in compare(losses, pairwise({arm: "base" for arm in losses if arm != "base"})).values():
        assert found.low is not None
        assert found.confidence is not None
        assert (found.low > 0) == (found.verdict == "worse")
        assert 0.95 <= found.confidence <= 1 - 0.05 / len(p_values)


@given(
    means=st.lists(st.floats(-0.03, 0.03), min_size=1, max_size=6),
    margin=st.floats(0.005, 0.05),
)
@pytest.mark.slow
def test_an_interval_lies_within_the_margin_exactly_if_equivalence_is_shown(means: list[float], margin: float) -> None:
    pattern = 0.01 * np.array([-1.0, 1.0, -1.0, 1.0, 0.5])
    values: dict[str, dict[int, float | None]] = {"base": dict.fromkeys(range(5), 0.0)}
    values |= {f"arm {i}": dict(enumerate(map(float, pattern + mean))) for i, mean in enumerate(means)}
    for found in compare(values, pairwise({arm: "base" for arm in values if arm != "base"}), margin=margin).values():
        assert found.p_equivalent is not None
        assert found.p_holm is not None
        assert found.within_low is not None
        assert found.within_high is not None
        assume(abs(found.p_equivalent - ALPHA) > 1e-9)  # there only rounding decides
        assert (-margin < found.within_low and found.within_high < margin) == (found.p_equivalent < ALPHA)
        assert (found.verdict == "equivalent") == (found.p_holm >= ALPHA > found.p_equivalent)
        assert (found.verdict in ("better", "worse")) == (found.p_holm < ALPHA), "a margin hides no difference"


def test_equivalence_is_scipys_two_one_sided_tests() -> None:
    d = np.array(list(ARM.values())) - np.array(list(BASE.values()))
    margin = 0.06
    above = stats.ttest_1samp(d, -margin, alternative="greater")
    below = stats.ttest_1samp(d, margin, alternative="less")
    found = compare({"base": {**BASE}, "arm": {**ARM}}, pairwise({"arm": "base"}), margin=margin)["arm"]
    assert found.p_equivalent == pytest.approx(max(float(above.pvalue), float(below.pvalue)), rel=1e-9)  # pyright: ignore[reportAttributeAccessIssue]
    assert (found.margin, found.verdict) == (margin, "better")


def test_equivalence_is_corrected_over_all_comparisons_in_a_family_of_its_own() -> None:
    values: dict[str, dict[int, float | None]] = {"base": {**BASE}, "arm": {**ARM}, "gone": dict.fromkeys(BASE)}
    alone = compare(values, pairwise({"arm": "base"}), margin=0.06)["arm"]
    both = compare(values, pairwise({"arm": "base", "gone": "base"}), margin=0.06)
    assert alone.p_equivalent is not None
    assert both["arm"].p_equivalent == pytest.approx(2 * alone.p_equivalent)
    assert (both["gone"].p_equivalent, both["gone"].within_low) == (None, None)
    widths = [found.within_high - found.within_low for found in (alone, both["arm"])]  # pyright: ignore[reportOptionalOperand]
    assert widths[1] / widths[0] == pytest.approx(stats.t.isf(ALPHA / 2, 4) / stats.t.isf(ALPHA, 4))


def test_the_interval_of_equivalence_has_the_level_that_is_said() -> None:
    """90% for one comparison. Holm's correction judges the most certain of two at half the level, so 95%."""
    d = np.array(list(ARM.values())) - np.array(list(BASE.values()))
    values: dict[str, dict[int, float | None]] = {"base": {**BASE}, "arm": {**ARM}, "gone": dict.fromkeys(BASE)}
    for references, level in (({"arm": "base"}, 0.9), ({"arm": "base", "gone": "base"}, 0.95)):
        found = compare(values, pairwise(references), margin=0.06)["arm"]
        expected = stats.t.interval(level, len(d) - 1, d.mean(), stats.sem(d))
        assert found.within_confidence == pytest.approx(level)
        assert (found.within_low, found.within_high) == pytest.approx(expected)
        assert found.confidence == pytest.approx((1 + level) / 2)
    assert compare(values, pairwise({"arm": "base"}))["arm"].within_confidence is None


def test_without_a_margin_nothing_is_equivalent() -> None:
    found = one({**BASE}, {**BASE})
    assert (found.margin, found.p_equivalent, found.within_low, found.verdict) == (
        None, None, None, "not distinguishable",
    )  # fmt: skip


def test_two_exact_values_are_one_pair_without_a_test() -> None:
    found = compare_exact({"base": {0: 1.0}, "arm": {0: 3.0}}, pairwise({"arm": "base"}), "lower")["arm"]
    assert (found.pairs, found.difference, found.low, found.p, found.verdict) == (1, 2, None, None, "worse")


def test_zeros_are_estimated_exactly() -> None:
    assert estimate([0.0, 0.0, 0.0]) == (0, 0, 0, 1, 0, 0, 2)


def test_exactly_equal_arms_are_equivalent_and_those_without_scatter_are_not_judged() -> None:
    twin = compare({"base": {**BASE}, "arm": {**BASE}}, pairwise({"arm": "base"}), margin=1e-9)["arm"]
    assert (twin.p_equivalent, twin.within_low, twin.within_high, twin.verdict) == (0, 0, 0, "equivalent")
    base = {0: 2.0, 1: 2.1, 2: 2.2}
    shifted = compare(
        {"base": {**base}, "arm": {s: x + 0.3 for s, x in base.items()}}, pairwise({"arm": "base"}), margin=0.5
    )["arm"]
    assert (shifted.p_equivalent, shifted.verdict) == (None, "not distinguishable")


# --- any outcome --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("better", "verdicts"),
    [("lower", ("better", "worse")), ("higher", ("worse", "better")), ("neither", ("differs", "differs"))],
)
def test_the_direction_decides_which_difference_is_better(better: Better, verdicts: tuple[str, str]) -> None:
    values: dict[str, dict[int, float | None]] = {"base": {**BASE}, "arm": {**ARM}}
    found = compare(values, pairwise({"arm": "base", "base": "arm"}), better)
    assert (found["arm"].verdict, found["base"].verdict) == verdicts
    same = compare({"base": {**BASE}, "arm": {**BASE}}, pairwise({"arm": "base"}), better)["arm"]
    assert same.verdict == "not distinguishable"
    assert one({**ARM, 3: None}, {**BASE}).verdict == "diverged", "whatever is better"


@pytest.mark.parametrize("unit", [1e-9 / 7, 1 / 7, 1e5 / 7, 1e12 / 7])
def test_the_unit_decides_nothing(unit: float) -> None:
    """The rounding of sums is proportional to the values, for tokens per second, bytes and seconds."""

    def scaled(values: dict[int, float]) -> dict[int, float | None]:
        return {seed: unit * value for seed, value in values.items()}

    found, plain = one(scaled(ARM), scaled(BASE)), one({**ARM}, {**BASE})
    assert found.p == pytest.approx(plain.p, rel=1e-6)
    assert found.smallest_effect == pytest.approx(unit * (plain.smallest_effect or 0))
    rounded = one(scaled({s: x + 0.3 for s, x in BASE.items()}), scaled(BASE))
    assert (rounded.p, rounded.low) == (2 / 2**5, None), "a constant difference has no scatter but rounding"
    assert one(scaled(BASE), scaled(BASE)).p == 1


# --- seeds that share folds --------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [[0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 0], [0, 0, 0, 0, 1, 1]])
def test_seeds_that_share_a_fold_count_once(folds: list[int]) -> None:
    rng = np.random.default_rng(5)
    d = rng.normal(0.02, 0.01, 6)
    values: dict[str, dict[int, float | None]] = {"base": dict.fromkeys(range(6), 2.0)}
    values["arm"] = {seed: float(2 + x) for seed, x in enumerate(d)}
    found = compare(values, pairwise({"arm": "base"}), folds=dict(enumerate(folds)))["arm"]
    means = [d[np.array(folds) == fold].mean() for fold in sorted(set(folds))]
    expected = stats.ttest_1samp(means, 0)
    assert (found.pairs, found.folds) == (6, len(means))
    assert found.difference == pytest.approx(np.mean(means))
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert found.smallest_effect == pytest.approx(
        smallest_effect(float(np.std(means, ddof=1)), len(means), len(means) - 1, ALPHA)
    )


def test_a_diverged_seed_leaves_its_fold_to_the_others() -> None:
    values: dict[str, dict[int, float | None]] = {"base": {0: 2.0, 1: 2.0, 2: None, 3: 2.0, 4: None}}
    values["arm"] = {0: 2.1, 1: 2.3, 2: 2.9, 3: 2.2, 4: 2.9}
    found = compare(values, pairwise({"arm": "base"}), folds={0: 0, 1: 1, 2: 2, 3: 0, 4: 1})["arm"]
    assert (found.pairs, found.folds) == (3, 2)
    assert found.difference == pytest.approx((0.15 + 0.3) / 2)


# --- seeds that a rule adds ---------------------------------------------------------------------------


def test_with_added_seeds_the_test_keeps_the_first_ones_degrees_of_freedom() -> None:
    d = [0.01, 0.03, 0.02, 0.04, 0.05, 0.03]
    values: dict[str, dict[int, float | None]] = {"base": dict.fromkeys(range(6), 2.0)}
    values["arm"] = {seed: 2 + x for seed, x in enumerate(d)}
    found = compare(values, pairwise({"arm": "base"}), first=range(3))["arm"]
    error = max(np.std(d, ddof=1), np.std(d[:3], ddof=1)) / math.sqrt(6)
    assert found.p == pytest.approx(float(2 * stats.t.sf(np.mean(d) / error, 2)))
    quiet = {**values, "arm": {**values["arm"], 3: 2.02, 4: 2.02, 5: 2.02}}
    found = compare(quiet, pairwise({"arm": "base"}), first=range(3))["arm"]
    assert found.p == pytest.approx(float(2 * stats.t.sf(0.02 / (0.01 / math.sqrt(6)), 2))), "the first ones' scatter"


def test_the_number_of_seeds_is_that_of_the_comparison_that_needs_most() -> None:
    rule = AddedSeeds(until=0.05, at_most=40, first=3)
    values: dict[str, dict[int, float | None]] = {"base": dict.fromkeys(range(3), 2.0)}
    for name, scatter in (("quiet", 0.001), ("loud", 0.02)):
        values[name] = {seed: 2 + scatter * x for seed, x in enumerate((-1.0, 0.0, 1.0))}
    n = seeds_in_all(values, pairwise({"quiet": "base", "loud": "base"}), rule)
    assert smallest_effect(0.02, n, 2, ALPHA / 2) <= 0.05 < smallest_effect(0.02, n - 1, 2, ALPHA / 2)
    assert seeds_in_all(values, pairwise({"quiet": "base"}), rule) == 3
    assert (
        seeds_in_all(values, pairwise({"quiet": "base", "loud": "base"}), rule.model_copy(update={"at_most": 7})) == 7
    )
    lost = {**values, "loud": {0: 2.0, 1: None, 2: None}}
    assert seeds_in_all(lost, pairwise({"quiet": "base", "loud": "base"}), rule) == 3, (
        "one pair tells nothing of scatter"
    )


def test_the_number_of_seeds_never_depends_on_the_means() -> None:
    """Otherwise the test would be wrong, because it would stop when a difference looks large by chance."""
    rule = AddedSeeds(until=0.01, at_most=40, first=3)
    values: dict[str, dict[int, float | None]] = {"base": {0: 2.0, 1: 2.25, 2: 2.5}, "arm": {0: 2.0, 1: 2.25, 2: 2.75}}
    moved = {**values, "arm": {seed: (x or 0) + 8 for seed, x in values["arm"].items()}}
    assert seeds_in_all(values, pairwise({"arm": "base"}), rule) == seeds_in_all(moved, pairwise({"arm": "base"}), rule)


# --- shares -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(0, 3), (1, 3), (3, 3), (2, 12)])
def test_a_share_has_the_exact_interval(k: int, n: int) -> None:
    """Compare with quantiles of the beta distribution, the usual form."""
    low = float(stats.beta.ppf(0.025, k, n - k + 1)) if k else 0.0
    high = float(stats.beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0
    assert share(k, n) == pytest.approx((low, high))


# --- unusual samples -----------------------------------------------------------------------


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
    """Allow four standard errors of a binomial share. A correct procedure fails one such test in 16,000."""
    return abs(found - nominal) < 4 * math.sqrt(nominal * (1 - nominal) / trials)


def covered(samples: np.ndarray, truth: float) -> float:
    found = [estimate(list(sample)) for sample in samples]
    return float(np.mean([e is not None and e.low is not None and e.low <= truth <= (e.high or 0) for e in found]))


@pytest.mark.slow
def test_interval_covers_the_truth_19_times_in_20() -> None:
    samples = np.random.default_rng(0).normal(0.7, 0.2, (2000, 3))
    assert within(covered(samples, 0.7), 0.95, 2000)
    normal = np.abs(samples.mean(1) - 0.7) < 1.96 * samples.std(1, ddof=1) / math.sqrt(3)
    assert not within(float(normal.mean()), 0.95, 2000), "the simulation would see a normal interval's shortness"


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
def test_smallest_effect_is_found_four_times_in_five(pairs: int) -> None:
    """A study states the smallest effect from its scatter. A new study looks for a true difference of that size."""
    rng, studies = np.random.default_rng(pairs), 4000
    seen = rng.normal(0, 0.01, (studies, pairs)).std(1, ddof=1)
    truth = np.array([smallest_effect(float(deviation), pairs, pairs - 1, ALPHA) for deviation in seen])
    noise = rng.normal(0, 0.01, (studies, pairs))

    def found(effect: np.ndarray) -> float:
        return float(np.mean(stats.ttest_1samp(noise + effect[:, None], 0, axis=1).pvalue < ALPHA))  # pyright: ignore[reportAttributeAccessIssue]

    assert within(found(truth), POWER, studies)
    if pairs > 2:  # with the scatter of two seeds, 15% more or less is too little to see
        assert not within(found(0.85 * truth), POWER, studies)


def test_smallest_effect_with_many_pairs_is_that_of_a_known_deviation() -> None:
    """Compare with the textbook's sum of normal quantiles."""
    textbook = (stats.norm.isf(ALPHA / 2) + stats.norm.ppf(POWER)) * 0.01 / math.sqrt(2000)
    assert smallest_effect(0.01, 2000, 1999, ALPHA) == pytest.approx(textbook, rel=0.002)


@pytest.mark.parametrize("pairs", [3, 5, 10])
@pytest.mark.slow
def test_the_interval_of_the_smallest_effect_covers_what_the_true_scatter_allows(pairs: int) -> None:
    """Compare with the noncentral t distribution, and with samples of known scatter."""
    critical = stats.t.isf(ALPHA / 2, pairs - 1)

    def power(effect: float) -> float:
        mean = effect / (0.01 / math.sqrt(pairs))
        return float(stats.nct.sf(critical, pairs - 1, mean) + stats.nct.cdf(-critical, pairs - 1, mean))

    truth = float(optimize.brentq(lambda effect: power(effect) - POWER, 1e-4, 0.07 / math.sqrt(pairs)))  # pyright: ignore[reportArgumentType]
    seen = np.random.default_rng(pairs).normal(0, 0.01, (4000, pairs)).std(1, ddof=1)
    ends = [smallest_effect_interval(float(deviation), pairs, pairs - 1, ALPHA) for deviation in seen]
    assert within(float(np.mean([low <= truth <= high for low, high in ends])), 0.95, 4000)
    deviation = float(seen[0])
    assert ends[0][0] < smallest_effect(deviation, pairs, pairs - 1, ALPHA) < ends[0][1]


def test_pairs_for_an_effect_make_it_the_smallest() -> None:
    n = pairs_for(0.004, 0.01, 4, ALPHA)
    assert smallest_effect(0.01, n, 4, ALPHA) <= 0.004 < smallest_effect(0.01, n - 1, 4, ALPHA)


def test_the_level_of_the_smallest_effect_relaxes_with_what_others_found() -> None:
    rng = np.random.default_rng(3)
    arms: dict[str, dict[int, float | None]] = {
        "base": {**BASE},
        "same": {s: x + rng.normal(0, 0.01) for s, x in BASE.items()},
    }
    clear: dict[str, dict[int, float | None]] = {"clear": {s: x - 0.5 + rng.normal(0, 0.001) for s, x in BASE.items()}}
    alone = compare(arms, pairwise({"same": "base"}))["same"].smallest_effect
    assert compare({**arms, **clear}, pairwise({"same": "base", "clear": "base"}))[
        "same"
    ].smallest_effect == pytest.approx(alone)
    unclear: dict[str, dict[int, float | None]] = {"clear": {s: x + rng.normal(0, 0.01) for s, x in BASE.items()}}
    stricter = compare({**arms, **unclear}, pairwise({"same": "base", "clear": "base"}))["same"].smallest_effect
    assert stricter is not None
    assert alone is not None
    assert stricter > 1.1 * alone


# --- the answer ---------------------------------------------------------------------------------------


def test_answer_of_a_ladder() -> None:
    text = sample_study.ladder().answer
    assert text.startswith("At 1.21M parameters and 1M tokens, Pre-norm lowered the loss by 1.1")
    assert "RoPE by 0.7" in text
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
    assert "Pre-norm finished, but Post-norm 2017 diverged." in text


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


def test_answer_of_equivalent_arms() -> None:
    arms = {"a": ("SwiGLU", 2.600, {}), "b": ("GEGLU", 2.601, {})}
    text = sample_study.study(arms, [0, 1, 2, 3, 4], "base", margin=0.05).answer
    assert re.search(
        r"GEGLU and SwiGLU are equivalent within 0.05 bits per byte "
        r"\(difference -?0.00\d, 90% interval \[-?0.0\d+, 0.0\d+\] over 5 paired seeds, Holm p [=<] 0.00\d\)\.",
        text,
    )
    more = {**arms, "c": ("ReGLU", 2.601, {}), "d": ("far", 2.9, {})}
    text = sample_study.study(more, [0, 1, 2, 3, 4], "base", margin=0.05).answer
    assert re.search(r"GEGLU and ReGLU are equivalent to SwiGLU within 0.05 bits per byte \(5 paired seeds, each", text)
    assert "far loses to SwiGLU by 0.3" in text or "far loses to SwiGLU by 0.29" in text


def test_answer_says_that_a_difference_is_real_but_smaller_than_the_margin() -> None:
    arms = {"a": ("SwiGLU", 2.600, {}), "b": ("GEGLU", 2.7, {})}
    text = sample_study.study(arms, [0, 1, 2, 3, 4], "base", margin=0.2).answer
    assert "GEGLU loses to SwiGLU by " in text
    assert "; the difference of GEGLU is significant, but smaller than the margin of 0.2 bits per byte" in text
    assert "real" not in sample_study.study(arms, [0, 1, 2, 3, 4], "base", margin=0.1).answer


def test_answer_of_an_outcome_without_a_better_direction() -> None:
    arms = {"a": ("SwiGLU", 2.600, {}), "b": ("GEGLU", 2.3, {})}
    text = sample_study.study(arms, [0, 1, 2, 3, 4], "base", better="neither").answer
    assert "GEGLU differs from SwiGLU by -0." in text
    text = sample_study.study(arms, [0, 1, 2, 3, 4], "previous", better="neither").answer
    assert "GEGLU changed the loss by -0." in text


def test_answer_of_an_outcome_for_which_higher_is_better() -> None:
    arms = {"a": ("SwiGLU", 2.600, {}), "b": ("GEGLU", 2.9, {})}
    text = sample_study.study(arms, [0, 1, 2, 3, 4], "base", better="higher").answer
    assert re.search(r"GEGLU beats SwiGLU by (0.3|0.29)", text)


def test_answer_leaves_labels_as_they_are_written() -> None:
    arms = {"a": ("rmsnorm", 2.6, {}), "b": ("nGPT", 2.601, {}), "c": ("layernorm", 2.9, {})}
    text = sample_study.study(arms, [0, 1, 2], "base", diverged={("b", 1)}).answer
    assert "(3 paired seeds, Holm p = 0.0" in text or "Holm p < " in text
    assert ". nGPT diverged on 1 of 3 seeds." in text


def test_answer_tells_identical_arms_apart_from_undecided_ones() -> None:
    arms = {"a": ("full", 2.6, {}), "b": ("GEGLU", 2.601, {}), "c": ("window", 2.602, {})}
    study = sample_study.study(arms, [0, 1, 2, 3, 4], "base")
    reference, undecided, window = study.arms
    same = one({**reference.values}, {**reference.values}).model_copy(update={"reference": "a"})
    twin = window.model_copy(update={"values": reference.values, "comparison": same})
    text = answer([reference, undecided, twin], "base", study.outcome)
    assert "window is not distinguishable from full (identical results on 5 paired seeds)" in text
    assert re.search(r"GEGLU is not distinguishable from full \(.*smallest detectable difference", text)


def test_answer_of_identical_arms() -> None:
    study = sample_study.pair()
    a, b = study.arms
    twin = b.model_copy(update={"values": a.values, "comparison": one({**a.values}, {**a.values})})
    twin = twin.model_copy(
        update={"comparison": twin.comparison and twin.comparison.model_copy(update={"reference": "a"})}
    )
    assert "GEGLU is not distinguishable from SwiGLU (identical results on 5 paired seeds)." in answer(
        [a, twin], "base", study.outcome
    )


def test_answer_of_a_single_arm() -> None:
    study = sample_study.ladder()
    assert "nothing to compare" in answer(study.arms[:1], "base", study.outcome)


@pytest.mark.parametrize(("folds", "source", "said"), [
    (None, "log", "over 5 paired seeds;"), (4, "log", "over 5 paired seeds on 4 folds;"),
    (None, "timing", "over 5 paired rounds;"),
])  # fmt: skip
def test_an_answer_says_what_was_paired(folds: int | None, source: Source, said: str) -> None:
    study = sample_study.pair()
    arms = [arm.model_copy(update={"comparison": arm.comparison and arm.comparison.model_copy(update={"folds": folds})})
            for arm in study.arms]  # fmt: skip
    assert said in answer(arms, "base", study.outcome.model_copy(update={"source": source}))


def test_an_answer_names_an_outcome_that_is_not_the_usual_one() -> None:
    study = sample_study.pair()
    other = study.outcome.model_copy(update={"name": "sensitivity", "title": "learning-rate sensitivity"})
    assert answer(study.arms, "base", other).startswith(
        "At 1.21M parameters and 1M tokens, by learning-rate sensitivity, "
    )
    assert "by " not in answer(study.arms, "base", study.outcome)
