"""Choosing the next token from logits, [B, V] for B texts and a vocabulary of V.

The order: repetition penalty, temperature, top-k, top-p, min-p, each applied to what the one before left; then a draw.
A logit of `-inf` marks a token that cannot be drawn. Every text has random numbers of its own, so none influences
another.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archlab.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. UserError for a value out of range."""

    temperature: float = 0.0
    """Divides the logits before the draw; 0 takes the likeliest token, and only the penalty still matters."""
    top_k: int | None = None
    """Only the k likeliest tokens, and those as likely as the last of them (Fan 2018). None: all."""
    top_p: float | None = None
    """Only the fewest likeliest tokens that reach probability p together (Holtzman 2019). None: all."""
    min_p: float | None = None
    """Only tokens at least p times as likely as the likeliest (Nguyen 2024). None: all."""
    repetition_penalty: float = 1.0
    """For tokens in the prompt or the text so far: positive logits / it, negative ones * it (Keskar 2019)."""
    seed: int | None = None
    """The same seed draws the same text. None: another one each time, from torch's global generator."""

    def __post_init__(self) -> None:
        for field, (number_type, holds, allowed) in _ALLOWED.items():
            found = getattr(self, field)
            is_number = isinstance(found, number_type) and not isinstance(found, bool)
            if not (holds(found) if is_number else found is None and allowed.endswith("none")):
                raise UserError(f"{field}: {found!r}; allowed: {allowed}")


_ALLOWED: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "temperature": (Real, lambda t: 0 <= t < math.inf, "0 (greedy) or more"),
    "top_k": (Integral, lambda k: k >= 1, "a whole number from 1, or none"),
    "top_p": (Real, lambda p: 0 < p <= 1, "above 0, up to 1, or none"),
    "min_p": (Real, lambda p: 0 <= p <= 1, "0 to 1, or none"),
    "repetition_penalty": (Real, lambda r: 0 < r < math.inf, "above 0; 1 is no penalty"),
    "seed": (Integral, lambda s: s >= 0, "a whole number from 0, or none"),
}
"""Field -> its type, whether a number of that type is in range, and how the range is written in a message."""


def sample(logits_BV: Tensor, sampling: Sampling, tokens_BT: Tensor, padding_B: Tensor, seed: int) -> Tensor:
    """The next token of each text, [B]; `tokens_BT` are the texts so far, padded on the left."""
    if sampling.temperature == 0 and sampling.repetition_penalty == 1:
        return logits_BV.max(-1).indices  # as argmax, the first of several; in a third of its time
    wide_BV = logits_BV.double()
    if sampling.repetition_penalty != 1:
        occurring_BV = occurring(tokens_BT, padding_B, wide_BV.shape[1])
        wide_BV = apply_repetition_penalty(wide_BV, occurring_BV, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return wide_BV.argmax(-1)
    wide_BV = apply_temperature(wide_BV, sampling.temperature)
    if sampling.top_k is not None:
        wide_BV = keep_top_k(wide_BV, sampling.top_k)
    if sampling.top_p is not None:
        wide_BV = keep_top_p(wide_BV, sampling.top_p)
    if sampling.min_p is not None:
        wide_BV = keep_min_p(wide_BV, sampling.min_p)
    lengths = (tokens_BT.shape[1] - padding_B).tolist()
    return draw(wide_BV, uniform(seed, lengths).to(wide_BV.device))


def occurring(tokens_BT: Tensor, padding_B: Tensor, vocab_size: int) -> Tensor:
    """Boolean [B, V]: which tokens occur in each text; its padding does not count."""
    index_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    is_text_BT = index_T >= padding_B[:, None]
    counts_BV = torch.zeros(len(tokens_BT), vocab_size, dtype=torch.int64, device=tokens_BT.device)
    return counts_BV.scatter_add(1, tokens_BT, is_text_BT.long()) > 0


def apply_repetition_penalty(logits_BV: Tensor, occurring_BV: Tensor, penalty: float) -> Tensor:
    """Where a token occurs, its logit divided by the penalty if positive, multiplied if negative."""
    penalised_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(occurring_BV, penalised_BV, logits_BV)


def apply_temperature(logits_BV: Tensor, temperature: float) -> Tensor:
    """Logits divided by the temperature, shifted so that the largest is 0 and nothing overflows."""
    return (logits_BV - logits_BV.amax(-1, keepdim=True)) / temperature


def keep_top_k(logits_BV: Tensor, k: int) -> Tensor:
    """`-inf` below the k-th largest logit."""
    least_B1 = logits_BV.topk(min(k, logits_BV.shape[-1])).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < least_B1, -math.inf)


def keep_top_p(logits_BV: Tensor, p: float) -> Tensor:
    """`-inf` for every token where those likelier than it already reach probability p."""
    sorted_BV, token_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    probability_BV = sorted_BV.softmax(-1)
    likelier_BV = probability_BV.cumsum(-1) - probability_BV
    drop_BV = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(1, token_BV, likelier_BV >= p)
    return logits_BV.masked_fill(drop_BV, -math.inf)


def keep_min_p(logits_BV: Tensor, p: float) -> Tensor:
    """`-inf` for tokens less than p times as likely as the likeliest."""
    least_B1 = logits_BV.amax(-1, keepdim=True) + (math.log(p) if p else -math.inf)
    return logits_BV.masked_fill(logits_BV < least_B1, -math.inf)


def draw(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The token at which the probabilities, added up in the vocabulary's order, pass a number of [0, 1)."""
    cumulated_BV = logits_BV.softmax(-1).cumsum(-1)
    passed_B1 = torch.searchsorted(cumulated_BV, uniform_B[:, None] * cumulated_BV[:, -1:], right=True)
    return passed_B1[:, 0].clamp(max=logits_BV.shape[-1] - 1)


def uniform(seed: int, lengths: Sequence[int]) -> Tensor:
    """A number of [0, 1) per text, float64 [B]: a pure function of seed, row in the batch and length.

    So a text is the same whether it is written in one call or in two, on any device, whatever else is in the batch.
    """
    drawn = [np.random.default_rng([seed, row, length]).random() for row, length in enumerate(lengths)]
    return torch.tensor(drawn, dtype=torch.float64)
