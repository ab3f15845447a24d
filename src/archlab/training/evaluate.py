"""How well a model predicts what is held out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from archlab.config.core.base import Base
from archlab.data.training_data import HeldOut
from archlab.model.decoder import Decoder
from archlab.training.compiling import uncompiled
from archlab.training.device import Device
from archlab.training.loss import logits_in_pieces
from archlab.training.step import chosen, hidden_and_targets
from archlab.training.world import ALONE, World


@dataclass(frozen=True)
class Score:
    """How well it is predicted, over the tokens that count."""

    loss: float
    """Cross-entropy in nats per token."""
    bits_per_byte: float | None
    """Total bits over total bytes; None for a task."""
    accuracy: float | None
    """Share of a task's answers that are the likeliest token; None for text."""

    @property
    def is_finite(self) -> bool:
        """False where the model's output is NaN or infinite."""
        return math.isfinite(self.loss)

    def measures(self) -> dict[str, float]:
        """For the log, without what there is not."""
        found = {"bits_per_byte": self.bits_per_byte, "accuracy": self.accuracy, "held_out_loss": self.loss}
        return {name: value for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} right" if self.bits_per_byte is None else f"{self.bits_per_byte:.3f} bits/byte"


class DocumentScore(Base):
    """How well one document is predicted."""

    begins: str
    """Its first words."""
    bits: float
    """Of all its tokens together."""
    bytes: int
    """Of text."""


@dataclass(frozen=True)
class Predictions:
    """Of every predicted token of some windows, [n, T]; what does not count is 0."""

    nats: np.ndarray
    """float32: cross-entropy."""
    right: np.ndarray | None
    """bool: whether it is the likeliest token; None for text, of which nobody asks."""

    def by_document(self, held_out: HeldOut, beginnings: Sequence[str]) -> list[DocumentScore]:
        """Of text alone: a score for each document, as far as it is in the windows."""
        if held_out.documents is None or held_out.bytes is None:
            return []
        numbers = held_out.documents.ravel()
        bits = np.bincount(numbers, self.nats.ravel()) / math.log(2)
        n_bytes = np.bincount(numbers, held_out.bytes.ravel()).astype(int)
        scores = zip(beginnings, bits.tolist(), n_bytes.tolist(), strict=True)
        return [DocumentScore(begins=begins, bits=b, bytes=n) for begins, b, n in scores]

    def score(self, held_out: HeldOut) -> Score:
        """Of all that count."""
        nats, n_tokens = float(self.nats.sum(dtype=np.float64)), int(held_out.scored.sum())
        return Score(
            loss=nats / n_tokens,
            bits_per_byte=None if held_out.bytes is None else nats / math.log(2) / int(held_out.bytes.sum()),
            accuracy=None if self.right is None else int(self.right.sum()) / n_tokens,
        )


def evaluate(model: Decoder, held_out: HeldOut, device: Device, batch_tokens: int = 8192) -> Score:
    """How well the model predicts what is held out."""
    return predict(model, held_out, device, batch_tokens).score(held_out)


@torch.no_grad()
def predict(
    model: Decoder, held_out: HeldOut, device: Device, batch_tokens: int = 8192, world: World = ALONE
) -> Predictions:
    """How well it predicts each token, as in evaluation: without dropout. Each process of the world passes some of the
    windows, and has the predictions of all."""
    was_training = model.training
    model.eval()
    nats = np.zeros(held_out.scored.shape, np.float32)
    right = np.zeros(held_out.scored.shape, bool) if held_out.bytes is None else None
    rows = max(1, batch_tokens // held_out.tokens.shape[1])
    for some in _shared(len(nats), rows, world):
        passed = some if some.start < len(nats) else slice(1)
        windows_BT = torch.from_numpy(held_out.tokens[passed]).to(device.type)
        scored_BT = torch.from_numpy(held_out.scored[some]).to(device.type)
        with uncompiled(model):  # batches of other shapes than training's, which are not worth compiling for
            hidden_BTD, targets_BT = hidden_and_targets(model, windows_BT, device, held_out.separator)
        if passed is not some:
            continue  # only because the others pass theirs, which takes all
        losses, hits = list[torch.Tensor](), list[torch.Tensor]()
        for _, logits_NV, targets_N in logits_in_pieces(
            model, chosen(hidden_BTD, scored_BT), chosen(targets_BT, scored_BT), device
        ):
            losses.append(F.cross_entropy(logits_NV.float(), targets_N, reduction="none"))
            if right is not None:
                hits.append(logits_NV.argmax(-1) == targets_N)
        nats[some][held_out.scored[some]] = torch.cat(losses).cpu().numpy()
        if right is not None:
            right[some][held_out.scored[some]] = torch.cat(hits).cpu().numpy()
    model.train(was_training)
    world.sum(torch.from_numpy(nats))
    if right is not None:
        right = world.sum(torch.from_numpy(right).int()).bool().numpy()
    return Predictions(nats, right)


def _shared(n_windows: int, rows: int, world: World) -> Iterator[slice]:
    """The windows of this process, `rows` at a time; all have as many turns, the last ones without windows."""
    for start in range(0, n_windows, rows * world.readers):
        yield slice(start + world.reader * rows, start + (world.reader + 1) * rows)
