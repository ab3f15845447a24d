"""Check the statistics of a study in simulated studies whose true effects are known.

Usage:
    python benchmarks/calibration.py            # 20,000 studies of each kind; takes a few minutes
    python benchmarks/calibration.py --check    # exit code 1 if a rate is a tenth worse than in the record.

The promises:
1. If all arms are equal, at most 5 in 100 studies find a difference (the family-wise error).
2. If a study states a smallest effect, 80 in 100 new studies find an effect of that size.
3. If all differences are as large as the margin, at most 5 in 100 studies call any of them equivalent.
4. The rule that adds seeds keeps all of this.

The noise is normal, heavy-tailed (Student's t with 3 degrees of freedom), normal with standard deviations that differ
between arms up to five times, or "as measured". Measured noise is drawn from 40 runs that differ only in the seed
(null.py). Its standard deviations differ between arms as in one of the committed studies
(src/archlab/evidence/results).

Comparisons share their reference ("base") or form a chain ("previous"). The rejected alternatives are measured too:
moderated variances (Smyth 2004), pooled residuals, other rules for seeds, and seeds added by hand after a look.

All studies of a kind are computed at once with NumPy. The first few of each kind are compared with archlab's own code.
"""

import sys
from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import numpy as np
from null import FOLDS, TABLE
from rounds import finish, options
from scipy import special, stats

from archlab.evidence.results import committed
from archlab.study.power import POWER, smallest_effect
from archlab.study.schema import AddedSeeds
from archlab.study.stats import ALPHA, compare, pairwise, seeds_in_all, share

Against = Literal["base", "previous"]
AGAINST: tuple[Against, ...] = ("base", "previous")

STUDIES = 20_000
CHECKED = 20
"""Number of studies of each kind that archlab's own code judges, too."""

SEEDS, COMPARISONS = (3, 5, 10), (1, 6)

NOISE: dict[str, Callable[[int], np.ndarray]] = {
    "normal": np.ones,
    "t3": np.ones,
    "sd 1 to 5": lambda arms: np.geomspace(1, 5, arms),
    "sd 5 to 1": lambda arms: np.geomspace(5, 1, arms),
    "sd 5 in one arm": lambda arms: np.r_[np.ones(arms - 1), 5.0],
    "sd 5 in the first arm": lambda arms: np.r_[5.0, np.ones(arms - 1)],
    "as measured": np.ones,
}
"""Name -> standard deviation of each arm. For "as measured": the root of the mean variance of a study's arms."""

STATED: tuple[str, ...] = ("normal", "t3", "as measured")
"""Kinds of noise for the check of smallest effects: all arms have the same noise, or the noise measured here."""


def measured_shapes() -> np.ndarray:
    """Return the residuals of 40 runs that differ only in the seed (null.py).

    Each residual is taken from the mean of its fold and divided by the standard deviation.
    """
    runs = np.genfromtxt(TABLE, delimiter=",", names=True)
    left, folds = runs["bits_per_byte"].copy(), runs["seed"] % FOLDS
    for fold in range(FOLDS):
        left[folds == fold] -= left[folds == fold].mean()
    return left / left.std()


def measured_scales() -> list[np.ndarray]:
    """Return, for each committed study, the relative standard deviation of each arm after removing the effect of
    seeds.

    They are divided by their root mean square. With only five seeds they differ by more than the true values do.
    """
    found = list[np.ndarray]()
    for results in committed().values():
        by_arm = results.values[results.about.outcomes[0].name]
        seeds = set.intersection(*({s for s, v in runs.items() if v is not None} for runs in by_arm.values()))
        if len(by_arm) < 3 or len(seeds) < 5:  # too few to remove the effect of seeds
            continue
        values = np.array([[runs[seed] for seed in sorted(seeds)] for runs in by_arm.values()])
        left = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
        found.append(left.std(1) / left.std())
    return found


SMOOTHING = 0.3
"""Standard deviation of the normal noise added to the measured values, so that more than forty values are possible."""

SHAPES, SCALES = measured_shapes(), measured_scales()


def noise(rng: np.random.Generator, kind: str, studies: int, arms: int, seeds: int) -> np.ndarray:
    """Return the results of runs whose arms are equal: (studies, arms, seeds)."""
    shape = studies, arms, seeds
    if kind == "as measured":
        chosen = rng.integers(len(SCALES), size=studies)
        scales = np.stack([rng.choice(SCALES[study], arms) for study in chosen])
        smooth = (rng.choice(SHAPES, shape) + SMOOTHING * rng.normal(size=shape)) / np.hypot(1, SMOOTHING)
        return smooth * scales[:, :, None]
    drawn = rng.standard_t(3, shape) / np.sqrt(3) if kind == "t3" else rng.normal(size=shape)
    return drawn * NOISE[kind](arms)[:, None]


def paired(values: np.ndarray, against: Against) -> np.ndarray:
    """Return differences: (studies, comparisons, seeds)."""
    return values[:, 1:] - (values[:, :1] if against == "base" else values[:, :-1])


def holm(p: np.ndarray) -> np.ndarray:
    """Return corrected p-values: (studies, comparisons)."""
    order, n = np.argsort(p, 1), p.shape[1]
    corrected = np.maximum.accumulate(np.take_along_axis(p, order, 1) * (n - np.arange(n)), 1)
    found = np.empty_like(p)
    np.put_along_axis(found, order, np.minimum(1, corrected), 1)
    return found


def two_sided(mean: np.ndarray, error: np.ndarray, freedom: Any) -> np.ndarray:
    return 2 * stats.t.sf(np.abs(mean) / error, freedom)


def t_test(values: np.ndarray, against: Against) -> np.ndarray:
    """Return the p-values of the paired t-test, as archlab computes them."""
    d = paired(values, against)
    n = d.shape[2]
    return two_sided(d.mean(2), d.std(2, ddof=1) / np.sqrt(n), n - 1)


def moderated(values: np.ndarray, against: Against) -> np.ndarray:
    """Return p-values with moderated variances: the prior is estimated from the variances of all comparisons (Smyth
    2004)."""
    d = paired(values, against)
    n, freedom, variance = d.shape[2], d.shape[2] - 1, d.var(2, ddof=1)
    logs = np.log(variance) - special.digamma(freedom / 2) + np.log(freedom / 2)
    spread = np.maximum(logs.var(1, ddof=1, keepdims=True) - special.polygamma(1, freedom / 2), 1e-6)
    grid = np.geomspace(1e-3, 1e7, 4000)  # half the prior's degrees of freedom; trigamma decreases along it
    prior = 2 * np.exp(np.interp(-np.log(spread), -np.log(special.polygamma(1, grid)), np.log(grid)))
    center = np.exp(logs.mean(1, keepdims=True) + special.digamma(prior / 2) - np.log(prior / 2))
    posterior = (prior * center + freedom * variance) / (prior + freedom)
    # The limit of limma: at most the degrees of freedom of all comparisons together.
    return two_sided(d.mean(2), np.sqrt(posterior / n), np.minimum(prior + freedom, freedom * d.shape[1]))


def pooled(values: np.ndarray, against: Against) -> np.ndarray:
    """Return p-values with one variance for all arms: the variance of the residuals of arms x seeds."""
    _, arms, n = values.shape
    both = values.mean((1, 2), keepdims=True)
    residuals = values - values.mean(1, keepdims=True) - values.mean(2, keepdims=True) + both
    freedom = (arms - 1) * (n - 1)
    variance = (residuals**2).sum((1, 2)) / freedom
    return two_sided(paired(values, against).mean(2), np.sqrt(2 * variance / n)[:, None], freedom)


def equivalence(d: np.ndarray, margin: float) -> np.ndarray:
    """Return the larger p-value of the two one-sided tests."""
    n = d.shape[2]
    return stats.t.sf((margin - np.abs(d.mean(2))) / (d.std(2, ddof=1) / np.sqrt(n)), n - 1)


def seeds_by_rule(d: np.ndarray, rule: AddedSeeds) -> np.ndarray:
    """Return the number of seeds of each study, given differences for `rule.at_most` seeds."""
    times = smallest_effect(1, 1, rule.first - 1, ALPHA / d.shape[1])
    needed = np.ceil((times * d[:, :, : rule.first].std(2, ddof=1) / rule.until) ** 2).max(1)
    return needed.clip(rule.first, rule.at_most).astype(int)


def rule_tests(d: np.ndarray, rule: AddedSeeds) -> dict[str, np.ndarray]:
    """Return test name -> p-values after the rule added seeds: archlab's test and two rejected ones."""
    n = seeds_by_rule(d, rule)[:, None]

    def upto(values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values.cumsum(2), (n - 1)[:, :, None], 2)[:, :, 0]

    mean = upto(d) / n
    first = d[:, :, : rule.first].std(2, ddof=1)
    final = np.sqrt(np.maximum(upto(d**2) - n * mean**2, 0) / (n - 1))
    root = np.sqrt(n)
    return {
        "ours": two_sided(mean, np.maximum(first, final) / root, rule.first - 1),
        "Stein's": two_sided(mean, first / root, rule.first - 1),
        "all seeds' scatter and degrees": two_sided(mean, final / root, n - 1),
    }


# --- the code itself ---------------------------------------------------------------------------------


def studied(values: np.ndarray) -> dict[str, dict[int, float | None]]:
    """Convert one study's values (arms, seeds) to archlab's format."""
    return {str(arm): dict(enumerate(map(float, row))) for arm, row in enumerate(values)}


def references(arms: int, against: Against) -> dict[str, str]:
    """Return arm -> the arm it is compared with."""
    return {str(arm): "0" if against == "base" else str(arm - 1) for arm in range(1, arms)}


def agree(values: np.ndarray, against: Against, expected: np.ndarray, **options: Any) -> None:
    """Raise AssertionError if archlab's corrected p-values differ from the expected ones."""
    for study, p in zip(values[:CHECKED], expected, strict=False):
        found = compare(studied(study), pairwise(references(len(study), against)), **options).values()
        ours = [c.p_equivalent if "margin" in options else c.p_holm for c in found]
        np.testing.assert_allclose(np.array(ours, float), p, rtol=1e-6)


# --- the promises ------------------------------------------------------------------------------------


def rate(hits: np.ndarray) -> dict[str, Any]:
    """Return a share of studies with its exact 95% interval."""
    low, high = share(int(hits.sum()), len(hits))
    return {"rate": round(float(hits.mean()), 5), "interval": [round(low, 5), round(high, 5)]}


def any_below(p: np.ndarray) -> np.ndarray:
    """Return a mask of the studies that find something."""
    return np.any(p < ALPHA, axis=1)


def cells() -> list[tuple[int, int, Against, str]]:
    """Return all combinations of seeds, comparisons, reference and noise."""
    return list(product(SEEDS, COMPARISONS, AGAINST, NOISE))


def false_differences(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often studies with equal arms find a difference, with archlab's test and with the rejected ones."""
    found = {}
    for seeds, comparisons, against, kind in cells():
        values = noise(rng, kind, studies, comparisons + 1, seeds)
        p = holm(t_test(values, against))
        agree(values, against, p)
        row: dict[str, Any] = rate(any_below(p))
        if comparisons > 1:
            others = {"moderated": moderated, "pooled": pooled}
            row |= {name: rate(any_below(holm(test(values, against))))["rate"] for name, test in others.items()}
        found[f"{seeds} seeds, {comparisons} {against}, {kind}"] = row
    return found


def smallest_effects(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often new studies find an effect as large as the smallest effect stated by an earlier study."""
    found = {}
    for seeds, comparisons, kind in product(SEEDS, COMPARISONS, STATED):
        # Two studies of the same arms: draw one with twice as many seeds and split it.
        seen, values = np.split(noise(rng, kind, studies, comparisons + 1, 2 * seeds), 2, axis=2)
        level = ALPHA / comparisons
        truth = smallest_effect(1, seeds, seeds - 1, level) * paired(seen, "base")[:, -1].std(1, ddof=1)
        values[:, -1] += truth[:, None]
        found[f"{seeds} seeds, {comparisons} base, {kind}"] = rate(holm(t_test(values, "base"))[:, -1] < ALPHA)
    return found


def false_equivalence(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often a study calls an arm equivalent when all differences are as large as the margin.

    The margin is 4 standard errors of a difference between the first arms. With a smaller one, hardly any study
    does.
    """
    found = {}
    for seeds, comparisons, against, kind in cells():
        values = noise(rng, kind, studies, comparisons + 1, seeds)
        margin = 4 * float(np.hypot(*NOISE[kind](comparisons + 1)[:2])) / np.sqrt(seeds)
        values += (
            margin * (np.arange(comparisons + 1) if against == "previous" else np.arange(comparisons + 1) > 0)[:, None]
        )
        p = holm(equivalence(paired(values, against), margin))
        agree(values, against, p, margin=margin)
        found[f"{seeds} seeds, {comparisons} {against}, {kind}"] = rate(any_below(p))
    return found


def rule_errors(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often studies find a difference when all arms are equal and a rule decides the number of seeds.

    `until` is in standard deviations of an arm: the smallest value takes all allowed seeds, the largest adds hardly
    any.
    """
    found = {}
    for first, comparisons, against, kind, until in product((3, 5, 8), COMPARISONS, AGAINST, NOISE, (2.0, 4.0, 8.0)):
        rule = AddedSeeds(until=until, at_most=24, first=first)
        values = noise(rng, kind, studies, comparisons + 1, rule.at_most)
        d = paired(values, against)
        tests = {name: holm(p) for name, p in rule_tests(d, rule).items()}
        taken = seeds_by_rule(d, rule)
        for study, n, p in zip(values[:CHECKED], taken, tests["ours"], strict=False):
            compared = references(comparisons + 1, against)
            assert n == seeds_in_all(studied(study[:, :first]), pairwise(compared), rule)
            agree(study[None, :, :n], against, p[None], first=range(first))
        row: dict[str, Any] = rate(any_below(tests["ours"]))
        row |= {name: rate(any_below(p))["rate"] for name, p in tests.items() if name != "ours"}
        found[f"first {first}, until {until:g}, {comparisons} {against}, {kind}"] = row | {
            "seeds": round(float(taken.mean()), 2)
        }
    return found


def rule_finds(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often studies find a difference of `until` in one arm, and their mean number of seeds."""
    found = {}
    for first, comparisons, until in product((3, 4, 5, 6, 8), COMPARISONS, (0.5, 1.0, 2.0, 4.0)):
        rule = AddedSeeds(until=until, at_most=1000, first=first)
        hits, taken = [], []
        for _ in range(studies // 5000 + 1):  # a thousand seeds need much memory: fewer studies, in parts
            d = paired(noise(rng, "normal", 500, comparisons + 1, rule.at_most), "base") / np.sqrt(2)
            d[:, -1] += until
            taken.append(seeds_by_rule(d, rule))
            hits.append(holm(rule_tests(d, rule)["ours"])[:, -1] < ALPHA)
        found[f"first {first}, until {until:g} sd of a difference, {comparisons} base"] = {
            **rate(np.concatenate(hits)),
            "seeds": round(float(np.concatenate(taken).mean()), 2),
        }
    return found


def added_by_hand(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often studies with equal arms find a difference after 3, 5 or 10 seeds if seeds are added by hand."""
    values = noise(rng, "normal", studies, 2, 10)
    looks = [t_test(values[:, :, :seeds], "base")[:, 0] < ALPHA for seeds in SEEDS]
    return {
        " then ".join(map(str, SEEDS[: n + 1])) + " seeds": rate(np.any(looks[: n + 1], axis=0))
        for n in range(len(SEEDS))
    }


def worst(found: dict[str, Any], bound: Callable[..., float] = max) -> float:
    """Return the highest rate."""
    return bound(row["rate"] for row in found.values())


def main() -> int:
    parser = options(__doc__, rounds=1)
    parser.add_argument("--studies", type=int, default=STUDIES, help=f"of each kind (default: {STUDIES})")
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    parts = (false_differences, smallest_effects, false_equivalence, rule_errors, rule_finds, added_by_hand)
    found = {}
    for part in parts:
        found[part.__name__] = part(rng, chosen.studies)
        for name, row in found[part.__name__].items():
            print(f"{part.__name__:18} {name:50} {row}", flush=True)
    ratios = {
        "5% over the share of studies with a false difference": ALPHA / worst(found["false_differences"]),
        "5% over the share with a false equivalence": ALPHA / worst(found["false_equivalence"]),
        "5% over the share with a false difference, seeds added by the rule": ALPHA / worst(found["rule_errors"]),
        "share that find the stated effect, over 80%": worst(found["smallest_effects"], min) / POWER,
        "share that find what the rule is to find, over 80%": worst(found["rule_finds"], min) / POWER,
    }
    print(ratios)
    return finish("calibration", ratios, {"studies": chosen.studies, "results": found}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
