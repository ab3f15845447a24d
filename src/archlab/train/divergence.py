"""When a run has diverged."""

import math

NOT_FINITE = "a loss or gradient is NaN or infinite"

_UNTRAINED_MARGIN = 1.1
"""An untrained model costs more than a uniform guess, because its logits scatter. A run of a few steps that ends this
little above a guess has only begun."""

_NO_PROGRESS_MARGIN = 1.01
"""A run that learnt nothing ends within a hair of where it began, above it or below."""


def divergence(first: float | None, last: float, vocab_size: int) -> str | None:
    """Why a run whose losses all stayed finite has diverged nonetheless; None where it has not.

    `first` and `last` are its held-out losses in nats per token, before its first update and after its last one.
    Training that leaves a model worse than a uniform guess, whose loss is ln(vocab_size), or worse than it was before
    any training, has ruined it; how far beyond the bound it happens to end says nothing about the architecture.
    The first evaluation is the one before the first update, so that the answer does not depend on `eval_every`. It is
    None where the run began with published weights: to be worse than those is a bad result, but a result.
    """
    uniform = math.log(vocab_size)
    if last > _UNTRAINED_MARGIN * uniform:
        return f"it ended worse than a uniform guess ({last:,.2f} against {uniform:.2f} nats per token)"
    if first is not None and last > _NO_PROGRESS_MARGIN * first:
        return f"it ended worse than before its first step ({last:,.2f} against {first:,.2f} nats per token)"
    return None
