"""Choosing the next token from logits."""

import torch
from torch import Tensor


def sample(
    logits_BV: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """[B, V] logits -> [B] tokens: the likeliest at temperature 0, else drawn from the top_k likeliest."""
    if temperature == 0:
        return logits_BV.argmax(-1)
    if top_k is not None:
        least_B1 = logits_BV.topk(min(top_k, logits_BV.shape[-1])).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, float("-inf"))
    below_top_BV = (
        logits_BV - logits_BV.amax(-1, keepdim=True)
    ).double()  # a tiny temperature overflows less
    return torch.multinomial((below_top_BV / temperature).softmax(-1), 1, generator=generator)[:, 0]
