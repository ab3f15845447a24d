"""Evaluation of a model on held-out data."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from archlab.data.batch import HeldOut, ScoreName
from archlab.model.decoder import Decoder
from archlab.training.compiling import uncompiled
from archlab.training.device import Device
from archlab.training.loss import logits_in_pieces
from archlab.training.step import hidden_and_targets
from archlab.training.summary import DocumentScore
from archlab.training.world import ALONE, World


@dataclass(frozen=True)
class Score:
    """Score of a model over the scored tokens of held-out data."""

    loss: float
    """Cross-entropy in nats per token that counts."""
    bits_per_byte: float | None
    """Total bits divided by total bytes; None for a task or for hidden tokens."""
    right: float | None
    """Fraction of the tokens that count that the model predicts as most likely; None for bits per byte."""
    measure: ScoreName = "bits_per_byte"
    """Name of the score."""
    loss_of_parts: Mapping[str, float] = field(default_factory=dict)
    """Loss of each part of a mixture of objectives, in nats per token that counts, by name of the part. Empty without a
    mixture."""

    @property
    def accuracy(self) -> float | None:
        """Fraction of a task's answer tokens that the model predicts as most likely; None for text."""
        return self.right if self.measure == "accuracy" else None

    @property
    def denoising_loss(self) -> float | None:
        """Cross-entropy in nats per hidden token; None if no tokens are hidden."""
        return self.loss if self.measure == "denoising_loss" else None

    @property
    def denoising_accuracy(self) -> float | None:
        """Fraction of the hidden tokens that the model predicts as most likely; None if no tokens are hidden."""
        return self.right if self.measure == "denoising_loss" else None

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite: neither NaN nor infinite."""
        return math.isfinite(self.loss)

    def measures(self) -> dict[str, float]:
        """Return the values that are not None, by name, for the log."""
        names = ("bits_per_byte", "accuracy", "denoising_loss", "denoising_accuracy")
        values = {name: getattr(self, name) for name in names} | {"held_out_loss": self.loss}
        values |= {f"held_out_loss.{name}": loss for name, loss in self.loss_of_parts.items()}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        if self.measure == "denoising_loss":
            return f"{self.loss:.3f} nats per hidden token, {self.right:.1%} right"
        return f"{self.right:.1%} right" if self.bits_per_byte is None else f"{self.bits_per_byte:.3f} bits/byte"


@dataclass(frozen=True)
class WindowSums:
    """Sums over each of n windows, as arrays [n] in float64. Their ratio is the score."""

    amounts: np.ndarray
    """Bits, right tokens or nats of each window, by the measure of the score."""
    weights: np.ndarray
    """Bytes of each window or, if the score is not in bits per byte, tokens that count."""

    @property
    def score(self) -> float:
        return float(self.amounts.sum() / self.weights.sum())


@dataclass(frozen=True)
class Predictions:
    """Results for every target of n windows, as arrays [n, T]. Targets that do not count have 0 or false."""

    nats: np.ndarray
    """Cross-entropy of each token in nats, float32."""
    right: np.ndarray | None
    """Whether the model predicts each token as the most likely one, bool; None for bits per byte."""

    def by_document(self, held_out: HeldOut, beginnings: Sequence[str]) -> list[DocumentScore]:
        """Return a score for each document; empty for a task. Only the tokens inside the windows count."""
        documents, text_bytes = held_out.windows.documents, held_out.bytes
        if documents is None or text_bytes is None:
            return []
        numbers = held_out.of_targets(documents).ravel()
        bits = np.bincount(numbers, self.nats.ravel()) / math.log(2)
        n_bytes = np.bincount(numbers, text_bytes.ravel()).astype(int)
        scores = zip(beginnings, bits.tolist(), n_bytes.tolist(), strict=True)
        return [DocumentScore(begins=begins, bits=b, bytes=n) for begins, b, n in scores]

    def by_window(self, held_out: HeldOut) -> WindowSums:
        """Return the sums whose ratio is the score in the measure of the held-out data."""
        nats, tokens = self.nats.sum(1, dtype=np.float64), held_out.counted.sum(1, dtype=np.float64)
        if held_out.bytes is not None:
            return WindowSums(nats / math.log(2), held_out.bytes.sum(1, dtype=np.float64))
        if held_out.measure == "accuracy" and self.right is not None:
            return WindowSums(self.right.sum(1, dtype=np.float64), tokens)
        return WindowSums(nats, tokens)

    def _nats(self, windows: slice | np.ndarray) -> float:
        return float(self.nats[windows].sum(dtype=np.float64))

    def score(self, held_out: HeldOut) -> Score:
        counted = held_out.counted
        nats, n_tokens = self._nats(slice(None)), int(counted.sum())
        return Score(
            loss=nats / n_tokens,
            loss_of_parts={
                name: self._nats(own) / int(counted[own].sum())
                for name, own in held_out.parts.items()
                if counted[own].any()
            },
            bits_per_byte=None if held_out.bytes is None else nats / math.log(2) / int(held_out.bytes.sum()),
            right=None if self.right is None else int(self.right.sum()) / n_tokens,
            measure=held_out.measure,
        )


@torch.no_grad()
def predict(
    model: Decoder, held_out: HeldOut, device: Device, batch_tokens: int = 8192, world: World = ALONE
) -> Predictions:
    """Predict every token of the held-out windows, without dropout.

    Each process computes some of the windows and returns the predictions of all windows.
    """
    was_training = model.training
    model.eval()
    batch, counted = held_out.batch, held_out.counted
    nats = np.zeros(counted.shape, np.float32)
    right = None if held_out.measure == "bits_per_byte" else np.zeros(counted.shape, bool)
    rows = max(1, batch_tokens // (held_out.seq_len + 1))
    for some in _shared(len(nats), rows, world):
        passed = some if some.start < len(nats) else slice(1)
        with uncompiled(model):  # batches have other shapes than in training, and compiling for them does not pay
            hidden_ND, targets_N = hidden_and_targets(model, batch.rows(passed), device)
        if passed is not some:
            continue  # this pass was needed only for the collective operations of the other processes
        losses, hits = list[torch.Tensor](), list[torch.Tensor]()
        for _, logits_NV, piece_N in logits_in_pieces(model, hidden_ND, targets_N, device):
            losses.append(F.cross_entropy(logits_NV.float(), piece_N, reduction="none"))
            if right is not None:
                hits.append(logits_NV.argmax(-1) == piece_N)
        nats[some][counted[some]] = torch.cat(losses).cpu().numpy()
        if right is not None:
            right[some][counted[some]] = torch.cat(hits).cpu().numpy()
    model.train(was_training)
    world.sum(torch.from_numpy(nats))
    if right is not None:
        right = world.sum(torch.from_numpy(right).int()).bool().numpy()
    return Predictions(nats, right)


def _shared(n_windows: int, rows: int, world: World) -> Iterator[slice]:
    for start in range(0, n_windows, rows * world.readers):
        yield slice(start + world.reader * rows, start + (world.reader + 1) * rows)
