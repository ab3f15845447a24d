"""From windows of tokens to logits, and from logits to the objective that is minimised."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.model.context import Collected
from archlab.model.decoder import Decoder
from archlab.train.device import Device


def logits_and_targets(
    model: Decoder, windows_BT: Tensor, device: Device, separator: int | None, collected: Collected | None = None
) -> tuple[Tensor, Tensor]:
    """(logits [B, T - 1, vocab], targets [B, T - 1]) of windows [B, T]: each token is predicted from those before it.

    `separator` is the token that begins a document, where documents do not see each other; None where they do.
    `collected` is where layers hand out losses and loads.
    """
    inputs_BT, targets_BT = windows_BT[:, :-1], windows_BT[:, 1:]
    with torch.autocast(device.kind, torch.bfloat16, enabled=device.dtype is torch.bfloat16):
        return model(inputs_BT, documents=document_ids(inputs_BT, separator), collected=collected), targets_BT


def document_ids(tokens_BT: Tensor, separator: int | None) -> Tensor | None:
    """Number of each token's document in its window, [B, T]; None where documents see each other.

    0 is the rest of a document that began before the window. The separator belongs to the document that it begins, so
    it is predicted from the document before it.
    """
    return None if separator is None else (tokens_BT == separator).cumsum(-1)


def objective(logits_BTV: Tensor, targets_BT: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """(what is minimised, the plain cross-entropy), both the mean in nats per token, in at least float32.

    The objective adds z_loss * log^2 Z, where Z is the softmax denominator (PaLM).
    """
    logits_NV = logits_BTV.flatten(0, 1)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    cross_entropy = F.cross_entropy(logits_NV, targets_BT.flatten())
    if not z_loss:
        return cross_entropy, cross_entropy
    return cross_entropy + z_loss * logits_NV.logsumexp(-1).square().mean(), cross_entropy
