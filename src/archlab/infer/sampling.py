"""Choice of the next token from logits, [B, V] for B sequences and a vocabulary of V.

The steps are repetition penalty, temperature, top-k, top-p and min-p, each applied to the result of the previous one. A
random draw follows. A logit of `-inf` marks a token that cannot be drawn. Every sequence has its own random numbers, so
the sequences of a batch do not influence each other. Tokens may also be forced or excluded.
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
from archlab.model.decoder import Decoder
from archlab.model.inputs import check_ids


@dataclass(frozen=True)
class Sampling:
    """Settings for sampling the next token. Raise UserError for a value out of range."""

    temperature: float = 0.0
    """Divisor of the logits. 0 means greedy decoding.

    In greedy decoding, only the repetition penalty has an effect.
    """
    top_k: int | None = None
    """Draw only from the k most likely tokens (Fan 2018). None means all tokens.

    Tokens that are as likely as the k-th are included.
    """
    top_p: float | None = None
    """Draw only from the smallest set of most likely tokens whose total probability is at least p (Holtzman 2019).

    None means all tokens.
    """
    min_p: float | None = None
    """Draw only from tokens with at least p times the probability of the most likely token (Nguyen 2024).

    None means all tokens.
    """
    repetition_penalty: float = 1.0
    """Penalty on tokens that occur in the prompt or the text so far (Keskar 2019).

    Their positive logits are divided by the penalty, and their negative logits are multiplied by it.
    """
    seed: int | None = None
    """Seed of the random numbers. The same seed gives the same text.

    None means a new seed from torch's global generator.
    """

    def __post_init__(self) -> None:
        for field, (number_type, is_allowed, allowed) in _ALLOWED.items():
            value = getattr(self, field)
            is_number = isinstance(value, number_type) and not isinstance(value, bool)
            if not (is_allowed(value) if is_number else value is None and allowed.endswith("none")):
                raise UserError(f"{field}: {value!r}; allowed: {allowed}")


_ALLOWED: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "temperature": (Real, lambda t: 0 <= t < math.inf, "0 (greedy) or more"),
    "top_k": (Integral, lambda k: k >= 1, "a whole number from 1, or none"),
    "top_p": (Real, lambda p: 0 < p <= 1, "above 0, up to 1, or none"),
    "min_p": (Real, lambda p: 0 <= p <= 1, "0 to 1, or none"),
    "repetition_penalty": (Real, lambda r: 0 < r < math.inf, "above 0 (1 means no penalty)"),
    "seed": (Integral, lambda s: s >= 0, "a whole number from 0, or none"),
}


def sample(
    logits_BV: Tensor, sampling: Sampling, tokens_BT: Tensor, padding_B: Tensor, seed: int, lengths: Sequence[int]
) -> Tensor:
    """Return the next token of each sequence, [B]. `tokens_BT` holds the sequences so far, padded on the left.

    `lengths` holds the number of tokens of each sequence without padding. It is a list of numbers, because reading them
    from a tensor would wait for a GPU.
    """
    if sampling.temperature == 0 and sampling.repetition_penalty == 1:
        return logits_BV.max(-1).indices  # the same result as argmax (the first of equal logits) in a third of the time
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
    uniform_B = uniform(seed, lengths)
    if wide_BV.is_cuda:  # copying pinned memory does not wait for a GPU
        uniform_B = uniform_B.pin_memory()
    return draw(wide_BV, uniform_B.to(wide_BV.device, non_blocking=True))


def occurring(tokens_BT: Tensor, padding_B: Tensor, vocab_size: int) -> Tensor:
    """Return whether each token of the vocabulary occurs in each sequence: boolean, [B, V]. Padding does not count."""
    index_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    is_text_BT = index_T >= padding_B[:, None]
    counts_BV = torch.zeros(len(tokens_BT), vocab_size, dtype=torch.int64, device=tokens_BT.device)
    return counts_BV.scatter_add(1, tokens_BT, is_text_BT.long()) > 0


def apply_repetition_penalty(logits_BV: Tensor, occurring_BV: Tensor, penalty: float) -> Tensor:
    """Penalize the tokens that already occur in a sequence.

    Their positive logits are divided by the penalty, and their negative logits are multiplied by it.
    """
    penalized_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(occurring_BV, penalized_BV, logits_BV)


def apply_temperature(logits_BV: Tensor, temperature: float) -> Tensor:
    """Divide logits by the temperature. To prevent overflow, first shift them so that the largest one is 0."""
    return (logits_BV - logits_BV.amax(-1, keepdim=True)) / temperature


def keep_top_k(logits_BV: Tensor, k: int) -> Tensor:
    """Set logits below the k-th largest one to `-inf`."""
    least_B1 = logits_BV.topk(min(k, logits_BV.shape[-1])).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < least_B1, -math.inf)


def keep_top_p(logits_BV: Tensor, p: float) -> Tensor:
    """Set the logit of a token to `-inf` if the more likely tokens already have a total probability of p."""
    sorted_BV, token_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    probability_BV = sorted_BV.softmax(-1)
    likelier_BV = probability_BV.cumsum(-1) - probability_BV
    drop_BV = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(1, token_BV, likelier_BV >= p)
    return logits_BV.masked_fill(drop_BV, -math.inf)


def keep_min_p(logits_BV: Tensor, p: float) -> Tensor:
    """Set the logit of a token to `-inf` if the token is less than p times as likely as the most likely token."""
    least_B1 = logits_BV.amax(-1, keepdim=True) + (math.log(p) if p else -math.inf)
    return logits_BV.masked_fill(logits_BV < least_B1, -math.inf)


def draw(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Return the first token of each sequence whose cumulative probability exceeds `uniform_B`.

    The cumulative probability of a token is the total probability of all tokens with the same or a smaller id.
    """
    cumulative_BV = logits_BV.softmax(-1).cumsum(-1)
    index_B1 = torch.searchsorted(cumulative_BV, uniform_B[:, None] * cumulative_BV[:, -1:], right=True)
    return index_B1[:, 0].clamp(max=logits_BV.shape[-1] - 1)


def uniform(seed: int, lengths: Sequence[int]) -> Tensor:
    """Return a random number in [0, 1) for each sequence, float64 [B].

    The number depends only on the seed, the sequence's row in the batch, and its length. A generated text therefore
    does not depend on the device, on the other sequences in the batch, or on the number of calls in which it is
    generated.
    """
    drawn = [np.random.default_rng([seed, row, length]).random() for row, length in enumerate(lengths)]
    return torch.tensor(drawn, dtype=torch.float64)


def forced_tokens(model: Decoder, max_new_tokens: int, first: int | None, last: int | None) -> dict[int, int]:
    """Return the tokens that are written without a choice: index among the new tokens -> token. Raise UserError if one
    is not in the vocabulary."""
    forced = {} if first is None else {0: first}
    forced |= {} if last is None else {max_new_tokens - 1: last}
    check_ids(model.config, *map(torch.tensor, forced.values()))
    return {n: token for n, token in forced.items() if 0 <= n < max_new_tokens}


def excluded_tokens(model: Decoder, excluded: Sequence[int]) -> Tensor:
    """Return tokens that are never chosen, [N]. Raise UserError if one is not in the vocabulary, or if none is left."""
    excluded_N = torch.tensor([*excluded], dtype=torch.int64, device=model.embedding.weight.device)
    check_ids(model.config, excluded_N)
    if len(excluded_N.unique()) == model.config.vocab_size:
        raise UserError("excluded: all tokens of the vocabulary; allowed: some of them")
    return excluded_N
