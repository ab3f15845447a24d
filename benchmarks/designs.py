"""Check the statistics of studies that compare more than arms: crossed factors, sizes, and seeds that share folds.

Usage:
    python benchmarks/designs.py            # 20,000 studies of each kind; takes a minute
    python benchmarks/designs.py --check    # exit code 1 if a rate is a tenth worse than in the record.

The promises, as in calibration.py:
1. If all arms are equal, at most 5 in 100 studies find anything: an arm that differs from its reference, an interaction
   or a mean of crossed factors, a change over sizes.
2. If an interaction or a change is as large as its stated smallest effect, 80 in 100 studies find it.
3. If arms differ on individual folds of the text but not on average, studies with more seeds than folds find a
   difference in at most 5 of 100.
"""

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from calibration import ALPHA, CHECKED, NOISE, STUDIES, any_below, holm, noise, rate, studied, two_sided, worst
from rounds import finish, options

from archlab.config.check import validate
from archlab.study.arm import Arm
from archlab.study.comparisons import comparisons
from archlab.study.design import arms
from archlab.study.power import POWER, smallest_effect
from archlab.study.schema import StudyConfig
from archlab.study.stats import Folds, compare

SEEDS = (3, 5, 10)

DESIGNS: dict[str, dict[str, Any]] = {
    "2 x 2": {"cross": {"model.norm.placement": ["pre", "post"], "train.warmup": [0, 0.1]}},
    "2 x 3": {"cross": {"model.norm.placement": ["pre", "post"], "train.warmup": [0, 0.1, 0.2]}},
    "2 x 2 x 2": {
        "cross": {
            "model.norm.placement": ["pre", "post"],
            "train.warmup": [0, 0.1],
            "model.norm.kind": ["rmsnorm", "layernorm"],
        }
    },
    "2 arms, 3 sizes": {"arms": {"rms": {}, "layer": {"model.norm.kind": "layernorm"}}, "sizes": ["1M", "2M", "4M"]},
}


def designed(values: dict[str, Any]) -> list[Arm]:
    """Return the arms of a study with this design."""
    settings = {"question": "Which?", "base": "tiny-llama", "budget": {"tokens": "1M"}, "seeds": 3, **values}
    return list(arms(validate(StudyConfig, settings, "the study")))


def weights_of(design: Sequence[Arm]) -> np.ndarray:
    """Return the weights of the arms in each comparison: (comparisons, arms)."""
    return np.array([[c.weights.get(arm.name, 0.0) for arm in design] for c in comparisons(design).values()])


def p_values(d: np.ndarray) -> np.ndarray:
    """Return corrected p-values of differences (studies, comparisons, seeds)."""
    n = d.shape[2]
    return holm(two_sided(d.mean(2), d.std(2, ddof=1) / np.sqrt(n), n - 1))


def by_fold(d: np.ndarray, folds: int) -> np.ndarray:
    """Return the means of the seeds that share a fold."""
    return np.stack([d[:, :, fold::folds].mean(2) for fold in range(folds)], axis=2)


def agree(design: Sequence[Arm], values: np.ndarray, expected: np.ndarray, folds: Folds = None) -> None:
    """Raise AssertionError if archlab's corrected p-values differ from the expected ones."""
    names = [arm.name for arm in design]
    for study, p in zip(values[:CHECKED], expected, strict=False):
        by_name = dict(zip(names, studied(study).values(), strict=True))
        found = compare(by_name, comparisons(design), folds=folds).values()
        np.testing.assert_allclose([one.p_holm or 0.0 for one in found], p, rtol=1e-6, atol=1e-12)


def false_findings(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often studies with equal arms find anything."""
    found = {}
    for (name, values), seeds, kind in product(DESIGNS.items(), SEEDS, NOISE):
        design = designed(values)
        scores = noise(rng, kind, studies, len(design), seeds)
        p = p_values(np.einsum("ca,nas->ncs", weights_of(design), scores))
        agree(design, scores, p)
        found[f"{name}, {seeds} seeds, {kind}"] = rate(any_below(p))
    return found


def stated_effects(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often studies find a contrast as large as the smallest effect stated by another study.

    The contrast is the first interaction for crossed factors and the change for sizes.
    """
    found = {}
    for (name, values), seeds in product(DESIGNS.items(), SEEDS):
        design = designed(values)
        weights, names = weights_of(design), list(comparisons(design))
        tested = next((i for i, one in enumerate(names) if " where " in one), len(names) - 1)
        before = np.einsum("a,nas->ns", weights[tested], noise(rng, "normal", studies, len(design), seeds))
        truth = smallest_effect(1, seeds, seeds - 1, ALPHA / len(names)) * before.std(1, ddof=1)
        scores = noise(rng, "normal", studies, len(design), seeds)
        # Add the contrast's own weights to the arms, so that exactly this contrast is planted. Others gain, too.
        scores += (weights[tested] / (weights[tested] ** 2).sum() * truth[:, None])[:, :, None]
        p = p_values(np.einsum("ca,nas->ncs", weights, scores))
        found[f"{name}, {seeds} seeds"] = rate(p[:, tested] < ALPHA)
    return found


def shared_folds(rng: np.random.Generator, studies: int) -> dict[str, Any]:
    """Return how often studies find a difference when arms differ only by fold of the text, with zero mean.

    The effect of the fold has the standard deviation given by the row, relative to the one between seeds. Each row
    also shows the rate of a test that treats all seeds as independent.
    """
    found = {}
    for (folds, seeds), spread, others in product(((5, 10), (10, 20), (10, 12), (3, 12)), (0.0, 1.0, 2.0), (1, 6)):
        design = designed({"arms": {"base": {}} | {f"arm {i}": {"train.lr": i * 1e-4} for i in range(1, others + 1)}})
        by_text = spread * rng.normal(size=(studies, others + 1, folds))
        scores = noise(rng, "normal", studies, others + 1, seeds) + by_text[:, :, np.arange(seeds) % folds]
        d = np.einsum("ca,nas->ncs", weights_of(design), scores)
        p = p_values(by_fold(d, folds))
        agree(design, scores, p, {seed: seed % folds for seed in range(seeds)})
        found[f"{seeds} seeds on {folds} folds, {others} base, text {spread:g}"] = {
            **rate(any_below(p)), "seed by seed": rate(any_below(p_values(d)))["rate"],
        }  # fmt: skip
    return found


def main() -> int:
    parser = options(__doc__, rounds=1)
    parser.add_argument("--studies", type=int, default=STUDIES, help=f"of each kind (default: {STUDIES})")
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    found = {}
    for part in (false_findings, stated_effects, shared_folds):
        found[part.__name__] = part(rng, chosen.studies)
        for name, row in found[part.__name__].items():
            print(f"{part.__name__:15} {name:45} {row}", flush=True)
    ratios = {
        "5% over the share of studies with a false finding": ALPHA / worst(found["false_findings"]),
        "5% over the share where seeds share folds": ALPHA / worst(found["shared_folds"]),
        "share that find the stated effect, over 80%": worst(found["stated_effects"], min) / POWER,
    }
    print(ratios)
    return finish("designs", ratios, {"studies": chosen.studies, "results": found}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
