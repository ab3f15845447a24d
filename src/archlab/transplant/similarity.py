"""Choice of the layers to leave out, by the similarity of the stream before and after them (Gromov 2024)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.errors import UserError
from archlab.model.arithmetic import at_least_float32
from archlab.model.decoder import Decoder
from archlab.transplant.weights import ChosenLayers


def least_changing_block(model: Decoder, tokens_BT: Tensor, n_layers: int) -> ChosenLayers:
    """Return the layers to keep, in order, so that `n_layers` are left (Gromov 2024, arXiv 2403.17887).

    The layers that are left out are consecutive. They are the block with the smallest angular distance between its
    input and the input of the layer after it, so the last layer is always kept. `tokens_BT` are texts of equal length
    without padding, [B, T] int64. Raise UserError if the model has fewer layers, or an encoder.
    """
    n_trained = len(model.layers)
    if not 1 <= n_layers <= n_trained:
        raise UserError(f"model.n_layers: {n_layers}; allowed with train.start_layers=similar: 1 to {n_trained}")
    n_left_out = n_trained - n_layers
    distances = angular_distances(model, tokens_BT, n_left_out)
    first = int(distances.argmin()) if n_left_out else 0
    return ChosenLayers((*range(first), *range(first + n_left_out, n_trained)), distances[first].item())


@torch.no_grad()
def angular_distances(model: Decoder, tokens_BT: Tensor, n: int) -> Tensor:
    """Return the angular distance between the inputs of layers l and l + n, for each l for which both exist:
    [n_layers - n], between 0 and 1.

    The distance is arccos(cosine) / pi at the last token of each text, averaged over the texts.
    """
    if model.encoder is not None:
        raise UserError("train.start_layers: similar, and the trained model has an encoder; allowed: a list of layers")
    with _in_evaluation(model), _inputs_of_layers(model) as inputs:
        model(tokens_BT)
    stream_LBD = at_least_float32(torch.stack(inputs))
    cosine_LB = F.cosine_similarity(stream_LBD[: len(inputs) - n], stream_LBD[n:], dim=-1)
    return cosine_LB.clamp(-1, 1).acos().mean(-1) / math.pi


@contextmanager
def _in_evaluation(model: Decoder) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def _inputs_of_layers(model: Decoder) -> Iterator[list[Tensor]]:
    """Collect the input of each layer at the last token, [B, D]."""
    inputs: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0][:, -1]))
        for layer in model.layers
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
