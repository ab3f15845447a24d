"""Continuing a sequence token by token. Every token recomputes the whole sequence; there is no cache yet."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from archlab.errors import UserError
from archlab.infer.sampling import sample
from archlab.model.decoder import Decoder


def generate(
    model: Decoder,
    tokens_BT: Tensor,
    max_new_tokens: int = 16,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | None = None,
) -> Tensor:
    """[B, T] int64 -> [B, T + max_new_tokens]; greedy at temperature 0."""
    new = list(stream(model, tokens_BT, max_new_tokens, temperature, top_k, seed))
    return torch.cat([tokens_BT, *(token_B[:, None] for token_B in new)], dim=1)


@torch.no_grad()
def stream(
    model: Decoder,
    tokens_BT: Tensor,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | None = None,
) -> Iterator[Tensor]:
    """The new tokens one by one, each [B]. UserError for an empty prompt or values out of range."""
    if tokens_BT.shape[1] == 0:
        raise UserError("the prompt is empty; at least one token is needed to go on from")
    if not 0 <= temperature < math.inf or (top_k is not None and top_k < 1):
        raise UserError(
            f"temperature {temperature}, top_k {top_k}: allowed are temperature >= 0 and top_k >= 1"
        )
    generator = None if seed is None else torch.Generator(tokens_BT.device).manual_seed(seed)
    was_training = model.training
    model.eval()
    try:
        for _ in range(max_new_tokens):
            logits_BV = model(tokens_BT)[:, -1]
            if not logits_BV.isfinite().all():
                raise UserError("the model's output is no number: its training went astray")
            next_B = sample(logits_BV, temperature, top_k, generator)
            yield next_B
            tokens_BT = torch.cat((tokens_BT, next_B[:, None]), dim=1)
    finally:
        model.train(was_training)
