"""Check, with the noise of real trainings, how often a study finds a difference between equal arms.

Usage:
    archlab study run benchmarks/studies/null.yaml --out studies/null    # forty runs
    python benchmarks/null.py studies/null/runs.csv                      # copy the table, judge it
    python benchmarks/null.py                                            # judge the copy again.

There are three checks:
1. Seeds 0 to 19 are compared with seeds 20 to 39. Seeds s and s + 20 are judged on the same fold of the text, as two
   arms of a study are. The two differences of a fold are averaged, as in a study.
2. From the forty runs, 20,000 studies of 3, 5 and 10 pairs are drawn. Both runs of a pair are from the same fold. The
   result is the share of studies in which the paired t-test finds a difference at 5%.
3. Each of the ten folds is left out once. The result is the largest shift of the mean difference, in standard errors.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rounds import RECORDS, finish, options
from scipy import stats

from archlab.study.stats import ALPHA, compare, estimate, pairwise, share

TABLE = RECORDS / "null.csv"
FOLDS, STUDIES = 10, 20_000


def main() -> int:
    parser = options(__doc__, rounds=None)
    parser.add_argument("table", nargs="?", type=Path, default=TABLE, help="runs.csv of the study")
    chosen = parser.parse_args()
    if chosen.table != TABLE and not chosen.check:
        TABLE.write_text(chosen.table.read_text())
    with chosen.table.open() as file:
        rows = {int(row["seed"]): row for row in csv.DictReader(file)}
    results: dict[str, Any] = {}
    for outcome in ("bits_per_byte", "gap", "window_part", "largest_gradient"):
        values = np.array([float(rows[seed][outcome]) for seed in range(40)])
        results[outcome] = judged(values)
        print(f"{outcome}: {results[outcome]}")
    rates = [rate["share"] for found in results.values() for rate in found["drawn"].values()]
    # A ratio must be better when it is higher. This one is promised / measured error rate, at most 1.
    return finish("null", {"promised over found": min(1.0, ALPHA / max(rates))}, results, check=chosen.check)


def judged(values: np.ndarray) -> dict[str, Any]:
    """Return the three checks of forty values in the order of their seeds."""
    halves = {"first": dict(enumerate(values[:20].tolist())), "second": dict(enumerate(values[20:].tolist()))}
    twenty = compare(halves, pairwise({"second": "first"}), folds={seed: seed % FOLDS for seed in range(20)})["second"]
    differences = (values[20:] - values[:20]).reshape(2, FOLDS).mean(axis=0)
    whole = estimate(differences.tolist())
    assert whole
    moved = [float(np.delete(differences, fold).mean() - whole.mean) for fold in range(FOLDS)]
    drawn = {}
    for pairs in (3, 5, 10):
        found = int((drawn_p(values, pairs) < ALPHA).sum())
        low, high = share(found, STUDIES)
        drawn[pairs] = {"share": found / STUDIES, "low": low, "high": high}
    return {
        "deviation": float(values.std(ddof=1)),
        "deviation within folds": float(np.sqrt(values.reshape(4, FOLDS).var(axis=0, ddof=1).mean())),
        "20 against 20": {"difference": twenty.difference, "low": twenty.low, "high": twenty.high, "p": twenty.p},
        "drawn": drawn,
        "largest move without one fold, in standard errors": max(map(abs, moved)) / whole.error,
    }


def drawn_p(values: np.ndarray, pairs: int) -> np.ndarray:
    """Return the p-values of studies of `pairs` pairs. The two runs of a pair share a fold; no fold is used twice."""
    draw = np.random.default_rng(pairs)
    folds = draw.permuted(np.tile(np.arange(FOLDS), (STUDIES, 1)), axis=1)[:, :pairs]
    both = draw.permuted(np.tile(np.arange(4), (STUDIES, pairs, 1)), axis=2)[..., :2]
    chosen = values[folds[..., None] + FOLDS * both]
    differences = chosen[..., 0] - chosen[..., 1]
    t = differences.mean(1) / differences.std(1, ddof=1) * np.sqrt(pairs)
    return 2 * stats.t.sf(np.abs(t), pairs - 1)


if __name__ == "__main__":
    sys.exit(main())
