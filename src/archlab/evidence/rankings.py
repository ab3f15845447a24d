"""Comparison of archlab's order of arms with a published order. It does not affect a verdict."""

from math import atanh, sqrt, tanh

import scipy  # loads its parts on first use

from archlab.config.core.base import Base
from archlab.evidence.claims import Ranking
from archlab.evidence.results import Results


class Agreement(Base):
    """Comparison of two orders of the same arms: by archlab's means, and by published values."""

    ranking: Ranking
    arms: int
    """Number of arms that have both a mean and a published value."""
    rho: float | None
    """Spearman's rank correlation: 1 for the same order, -1 for the reverse order. null for fewer than four arms."""
    low: float | None
    """Lower end of the 95% confidence interval of `rho`, which treats the arms as a sample. The variance is that of
    Bonett and Wright (2000). null if `rho` is null, 1 or -1."""
    high: float | None
    """Upper end of the 95% confidence interval of `rho`. null if `low` is null."""


def agreement(ranking: Ranking, results: Results) -> Agreement:
    """Compare a published order of arms with the order of archlab's means of the primary outcome. Arms without a
    successful run are left out."""
    means = {name: arm.mean for name, arm in results.compared().items() if arm.mean is not None}
    arms = [arm for arm in ranking.values if arm in means]
    if len(arms) < 4:
        return Agreement(ranking=ranking, arms=len(arms), rho=None, low=None, high=None)
    sign = 1 if results.heading(None).better != "higher" else -1
    published, ours = [ranking.values[arm] for arm in arms], [sign * means[arm] for arm in arms]
    rho = float(scipy.stats.spearmanr(published, ours).statistic)
    if abs(rho) > 1 - 1e-9:
        return Agreement(ranking=ranking, arms=len(arms), rho=rho, low=None, high=None)
    reach = float(scipy.stats.norm.isf(0.025)) * sqrt((1 + rho**2 / 2) / (len(arms) - 3))
    return Agreement(
        ranking=ranking, arms=len(arms), rho=rho, low=tanh(atanh(rho) - reach), high=tanh(atanh(rho) + reach)
    )
