"""What training minimises, from the last hidden states: the logits of all tokens never stand at once.

Shapes: B batch, T tokens, N tokens of a piece, D d_model, V vocabulary.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.config.pieces import rows_at_once
from archlab.model.decoder import Decoder
from archlab.training.device import Device


def logits_in_pieces(
    model: Decoder, hidden_ND: Tensor, targets_N: Tensor, device: Device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(hidden states [n, D], their logits [n, V], targets [n]) of as many tokens at a time as a piece may hold.

    The hidden states are detached; where gradients are kept, each piece of them is a leaf, so that its gradient is not
    one of all tokens.
    """
    rows = rows_at_once(model.config.vocab_size, device.type)
    for some_ND, some_N in zip(hidden_ND.detach().split(rows), targets_N.split(rows), strict=True):
        leaf_ND = some_ND.detach().requires_grad_(torch.is_grad_enabled())
        with device.autocast():
            logits_NV = model.head(leaf_ND, model.embedding.weight)
        yield leaf_ND, logits_NV, some_N


def backward_through_head(
    model: Decoder, hidden_ND: Tensor, targets_N: Tensor, z_loss: float, share: float, device: Device
) -> tuple[Tensor, Tensor]:
    """Adds the gradient of `share` times the objective to the head's parameters.

    Returns (that of the hidden states, [N, D]; the plain cross-entropy, mean in nats per token).
    """
    gradients, cross_entropy = list[Tensor](), torch.zeros((), device=hidden_ND.device)
    for leaf_ND, logits_NV, some_N in logits_in_pieces(model, hidden_ND, targets_N, device):
        weight = len(some_N) / len(targets_N)
        minimised, found = objective(logits_NV, some_N, z_loss)
        (minimised * (weight * share)).backward()
        assert leaf_ND.grad is not None
        gradients.append(leaf_ND.grad)
        cross_entropy += found.detach() * weight
    return torch.cat(gradients), cross_entropy


def objective(logits: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """(what is minimised, the plain cross-entropy) of logits [..., V], both the mean in nats per token, in at least
    float32.

    The objective adds z_loss * log^2 Z, where Z is the softmax denominator (PaLM).
    """
    logits_NV = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    cross_entropy = F.cross_entropy(logits_NV, targets.flatten())
    if not z_loss:
        return cross_entropy, cross_entropy
    return cross_entropy + z_loss * logits_NV.logsumexp(-1).square().mean(), cross_entropy
