"""How many seeds a study takes that adds some by a rule, so that its error rate stays what it is.

The rule is Stein's (1945): the scatter over the first seeds decides how many there are in all, and the test keeps the
first seeds' degrees of freedom. The number may depend on scatter, which tells nothing of a difference, and never on
the means. Stein's test keeps the first seeds' scatter too. That is exact for normal differences, but with heavy tails
and several comparisons it was wrong in 9 of 100 studies whose arms were equal, for the first seeds often lack the rare
large difference. So stats.py takes the larger one, of the first seeds or of all, which is at least as strict.
"""

from collections.abc import Mapping

import numpy as np

from archlab.study.power import pairs_for
from archlab.study.schema import AddedSeeds
from archlab.study.stats import ALPHA, Contrast, Values, known, weighted


def seeds_in_all(
    values: Mapping[str, Values], compared: Mapping[str, Contrast], rule: AddedSeeds, n_folds: int | None = None
) -> int:
    """How many seeds every arm gets: as many as the comparison that needs most, at most `rule.at_most`, and no more
    than there are folds of the text to judge them, `n_folds`, for seeds that share one tell nothing of other text.

    `values` has those of the first seeds, `compared` are all comparisons. Each is planned at the strictest level at
    which Holm's correction may judge it. One with fewer than two pairs tells nothing of its scatter and asks for none.
    """
    first = range(rule.first)
    needed = [rule.first]
    for contrast in compared.values():
        found = known(weighted(values, contrast.weights), first)
        if len(found) > 1:
            level = ALPHA / len(compared)
            needed.append(pairs_for(rule.until, float(np.std(found, ddof=1)), len(found) - 1, level))
    most = rule.at_most if n_folds is None else min(rule.at_most, max(n_folds, rule.first))
    return min(most, max(needed))
