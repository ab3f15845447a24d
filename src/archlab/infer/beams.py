"""Beam search: the most likely continuations of a text.

Shapes: B texts of a batch, K beams per text, N new tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from archlab.errors import UserError, check_at_least
from archlab.infer.sampling import excluded_tokens, forced_tokens
from archlab.infer.session import Session, tokens_of
from archlab.model.decoder import Decoder
from archlab.model.inputs import Inputs, check_ids, check_is_model, check_tensors

ALPHA = 0.6
"""Default exponent of the length penalty."""
MOST_ALPHA = 10
"""Largest exponent of the length penalty. Values in use are below 2."""


class Hypothesis(NamedTuple):
    """Continuation of a text that beam search has found."""

    tokens: tuple[int, ...]
    """New tokens, without the EOS token."""
    score: float
    """Log-probability of the continuation, with its EOS token, divided by the length penalty."""


def length_penalty(length: int, alpha: float) -> float:
    """Return the length penalty ((5 + length) / 6)^alpha of a continuation (Wu 2016). It is 1 for alpha = 0."""
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def beam_search(
    model: Decoder,
    tokens_BT: Tensor,
    max_new_tokens: int = 16,
    *,
    beams: int = 4,
    alpha: float = ALPHA,
    end_of_text: int | Sequence[int] | None = None,
    forced_first: int | None = None,
    forced_last: int | None = None,
    padding: Tensor | Sequence[int] | None = None,
    prefix: Tensor | Sequence[int] | None = None,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
    excluded: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Return up to `beams` continuations of each text, [B, T], the best first.

    A continuation ends with an EOS token, or after `max_new_tokens`. The search keeps the `beams` most likely
    unfinished continuations of each length. It stops when `beams` finished ones have better scores than any unfinished
    one can still reach. `alpha` is the exponent of the length penalty. The other arguments are those of `generate`.
    Forced tokens have the probability 1. Raise UserError for an invalid argument, or if the model's output is NaN or
    infinite.

    >>> model = archlab.from_pretrained("runs/a")
    >>> (best, second), = archlab.beam_search(model, torch.tensor([[5, 6]]), max_new_tokens=4, beams=2)
    >>> len(best.tokens), best.score >= second.score
    (4, True)
    """
    check_is_model(model)
    check_at_least(1, beams=beams)
    check_at_least(0, max_new_tokens=max_new_tokens)
    if not 0 <= alpha <= MOST_ALPHA:
        raise UserError(f"alpha, the exponent of the length penalty: {alpha}; allowed: 0 to {MOST_ALPHA}")
    check_tensors(tokens_BT, Inputs(source=source, source_lengths=source_lengths))
    ends = set(tokens_of(end_of_text))
    check_ids(model.config, torch.tensor([*ends], dtype=torch.int64))
    B, K, T = len(tokens_BT), beams, tokens_BT.shape[-1]
    session = Session(
        model,
        tokens_BT.repeat_interleave(K, 0),
        T + max_new_tokens,
        padding=_repeated(None if padding is None else torch.as_tensor(padding), K),
        prefix=_repeated(None if prefix is None else torch.as_tensor(prefix), K),
        source=_repeated(source, K),
        source_lengths=_repeated(source_lengths, K),
    )
    session.check_room(max_new_tokens)
    forced = forced_tokens(model, max_new_tokens, forced_first, forced_last)
    excluded_N = excluded_tokens(model, excluded)
    searches = [_Search(K, alpha, max_new_tokens, ends) for _ in range(B)]
    for n in range(max_new_tokens):
        logits_NV = _only(forced[n], B * K, model) if n in forced else session.allowed_logits(excluded_N).double()
        chosen = [search.step(x_KV) for search, x_KV in zip(searches, logits_NV.log_softmax(-1).split(K), strict=True)]
        if all(search.is_over for search in searches):
            break
        rows = [b * K + beam for b, of_text in enumerate(chosen) for beam, _ in of_text]
        session.reorder(torch.tensor(rows, device=logits_NV.device))
        session.read(torch.tensor([[token] for of_text in chosen for _, token in of_text], device=logits_NV.device))
    return [search.best() for search in searches]


class _Search:
    """Beam search for one text."""

    def __init__(self, beams: int, alpha: float, longest: int, ends: set[int]) -> None:
        self.beams, self.alpha, self.longest, self.ends = beams, alpha, longest, ends
        # All beams begin with the same text, so only one of them counts in the first step.
        self.unfinished: list[tuple[tuple[int, ...], float]] = [
            ((), 0.0 if k == 0 else -torch.inf) for k in range(beams)
        ]
        self.finished: list[Hypothesis] = []

    @property
    def is_over(self) -> bool:
        """Whether the search has ended, because no unfinished continuation can still be among the best."""
        if len(self.finished) < self.beams:
            return False
        # A log-probability only falls, and the penalty of the greatest length reduces it the most.
        bound = max(log_p for _, log_p in self.unfinished) / length_penalty(self.longest, self.alpha)
        return self.finished[self.beams - 1].score >= bound

    def step(self, log_p_KV: Tensor) -> list[tuple[int, int]]:
        """Extend the continuations by one token, given the log-probabilities of the next token.

        Return the beam that each new continuation extends, and its last token.
        """
        V = log_p_KV.shape[1]
        before_K1 = torch.tensor([[log_p] for _, log_p in self.unfinished], dtype=log_p_KV.dtype)
        sums = (before_K1.to(log_p_KV.device) + log_p_KV).flatten()
        # Each beam can end in `len(ends)` ways, so this many candidates contain enough that do not end.
        top = sums.topk(min(len(sums), self.beams * (1 + len(self.ends))))
        extended, chosen = list[tuple[tuple[int, ...], float]](), list[tuple[int, int]]()
        for log_p, index in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            beam, token = divmod(index, V)
            tokens = self.unfinished[beam][0]
            if token in self.ends:
                self._finish(tokens, log_p, len(tokens) + 1)
            elif len(extended) < self.beams:
                extended.append(((*tokens, token), log_p))
                chosen.append((beam, token))
        while len(extended) < self.beams:  # fewer continuations exist
            extended.append((extended[0][0] if extended else (), -torch.inf))
            chosen.append(chosen[0] if chosen else (0, 0))
        self.unfinished = extended
        return chosen

    def best(self) -> list[Hypothesis]:
        """Return the best continuations. Unfinished ones count as they are."""
        if not self.is_over:
            for tokens, log_p in self.unfinished:
                self._finish(tokens, log_p, len(tokens))
        return self.finished[: self.beams]

    def _finish(self, tokens: tuple[int, ...], log_p: float, length: int) -> None:
        if log_p > -torch.inf:
            self.finished.append(Hypothesis(tokens, log_p / length_penalty(length, self.alpha)))
            self.finished.sort(key=lambda found: -found.score)


def _only(token: int, n_rows: int, model: Decoder) -> Tensor:
    """Return logits, [N, V], that give one token the probability 1."""
    logits_NV = torch.full((n_rows, model.config.vocab_size), -torch.inf, dtype=torch.float64)
    logits_NV[:, token] = 0
    return logits_NV.to(model.embedding.weight.device)


def _repeated(rows: Tensor | None, times: int) -> Tensor | None:
    return None if rows is None else rows.repeat_interleave(times, 0)
