"""Batches of a run: windows of its data, as its objective reads them."""

from dataclasses import dataclass

from archlab.data.batch import Batch, HeldOut, next_token
from archlab.data.training_data import TrainingData


@dataclass(frozen=True)
class Batches:
    """Training batches and the held-out batch of a run."""

    data: TrainingData
    document_mask: bool
    """Whether attention is masked between documents. It has no effect on a task, which has no documents."""

    def training(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Return the batch of a training step, made from `batch_size` windows of `seq_len` tokens."""
        return next_token(self.data.windows(seed, step, batch_size, seq_len), self._separator)

    def held_out(self, seq_len: int, n_tokens: int | None) -> HeldOut:
        """Return the batch of `TrainingData.held_out`."""
        windows = self.data.held_out(seq_len, n_tokens)
        return HeldOut(next_token(windows, self._separator), windows)

    @property
    def _separator(self) -> int | None:
        return self.data.document_tokens[0] if self.document_mask and self.data.document_tokens else None
