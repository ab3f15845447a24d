"""Bits per byte on held-out text."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from archlab.config.training import ResolvedTrain
from archlab.data.sampler import held_out_windows
from archlab.data.shards import DataFolder
from archlab.model.decoder import Decoder
from archlab.train.compiling import uncompiled
from archlab.train.device import Device
from archlab.train.loss import logits_in_pieces
from archlab.train.step import hidden_and_targets


@dataclass(frozen=True)
class HeldOut:
    """The windows that every evaluation uses, and how many bytes of text each token stands for."""

    windows: np.ndarray
    """int64 [windows, seq_len + 1]; the first token of each is only context."""
    token_bytes: np.ndarray
    """int [vocab], 0 for special tokens, which do not count."""
    separator: int | None = None
    """The token that begins a document, where documents do not see each other; None where they do."""

    @classmethod
    def of(cls, data: DataFolder, train: ResolvedTrain, n_tokens: int) -> "HeldOut":
        """About `n_tokens` of the data's held-out text, in windows and documents as in training."""
        separator = data.manifest.end_of_text if train.document_mask else None
        return cls(held_out_windows(data, train.seq_len, n_tokens), data.token_bytes, separator)

    @property
    def seq_len(self) -> int:
        """Tokens per window that are predicted."""
        return self.windows.shape[1] - 1


@dataclass(frozen=True)
class Score:
    """How well held-out text is predicted."""

    bits_per_byte: float
    loss: float
    """Cross-entropy in nats per token, over the tokens that stand for text."""

    @property
    def is_finite(self) -> bool:
        """False where the model's output is NaN or infinite."""
        return math.isfinite(self.loss)


@torch.no_grad()
def evaluate(model: Decoder, held_out: HeldOut, device: Device, batch_tokens: int = 8192) -> Score:
    """Total bits of the text's tokens over its total bytes."""
    was_training = model.training
    model.eval()
    nats, n_tokens, n_bytes = 0.0, 0, 0
    token_bytes = torch.from_numpy(held_out.token_bytes).to(device.type)
    rows = max(1, batch_tokens // held_out.windows.shape[1])
    for start in range(0, len(held_out.windows), rows):
        windows_BT = torch.from_numpy(held_out.windows[start : start + rows]).to(device.type)
        with uncompiled(model):  # batches of other shapes than training's, which are not worth compiling for
            hidden_BTD, targets_BT = hidden_and_targets(model, windows_BT, device, held_out.separator)
        for _, logits_NV, targets_N in logits_in_pieces(model, hidden_BTD, targets_BT, device):
            losses_N = F.cross_entropy(logits_NV.float(), targets_N, reduction="none")
            bytes_N = token_bytes[targets_N]
            is_text_N = bytes_N > 0
            nats += losses_N[is_text_N].double().sum().item()
            n_tokens += int(is_text_N.sum())
            n_bytes += int(bytes_N.sum())
    model.train(was_training)
    return Score(nats / math.log(2) / n_bytes, nats / n_tokens)
