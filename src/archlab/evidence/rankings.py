"""How well our order of arms agrees with a published one: Spearman's rank correlation with an interval."""

from collections.abc import Sequence
from math import atanh, sqrt, tanh

import numpy as np
from scipy import stats

from archlab.config.core.base import Base
from archlab.evidence.results import Results
from archlab.evidence.schema import Ranking


class Agreement(Base):
    """Of our means with published numbers."""

    ranking: Ranking
    arms: int
    """Those that both have."""
    rho: float | None
    """Spearman's rank correlation: 1 the same order, -1 the reverse. null with fewer than four arms."""
    low: float | None
    """Lower end of its 95% interval over the choice of arms, with the variance of Bonett and Wright (2000). null where
    `rho` is, or where it is 1 or -1."""
    high: float | None
    """Upper end."""


def agreement(ranking: Ranking, results: Results) -> Agreement:
    """Of the outcome that the study's answer is about. An arm of which no run ended well takes no part."""
    means = {arm: found.mean for arm, found in results.compared().items() if found.mean is not None}
    arms = [arm for arm in ranking.values if arm in means]
    if len(arms) < 4:
        return Agreement(ranking=ranking, arms=len(arms), rho=None, low=None, high=None)
    sign = 1 if results.heading(None).better != "higher" else -1
    rho = _spearman([ranking.values[arm] for arm in arms], [sign * means[arm] for arm in arms])
    if abs(rho) > 1 - 1e-9:
        return Agreement(ranking=ranking, arms=len(arms), rho=rho, low=None, high=None)
    reach = float(stats.norm.isf(0.025)) * sqrt((1 + rho**2 / 2) / (len(arms) - 3))
    return Agreement(
        ranking=ranking, arms=len(arms), rho=rho, low=tanh(atanh(rho) - reach), high=tanh(atanh(rho) + reach)
    )


def _spearman(these: Sequence[float], those: Sequence[float]) -> float:
    return float(np.corrcoef(stats.rankdata(these), stats.rankdata(those))[0, 1])
