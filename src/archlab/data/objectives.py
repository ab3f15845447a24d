"""Batches that each objective makes from windows of tokens.

They are pure functions of the windows and of random numbers that depend only on the seed and the window, so a run
resumes exactly.

Shapes: N windows, T tokens.
"""

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from archlab.config.core.registry import kinds
from archlab.config.objective import (
    Masked,
    Mixture,
    Objective,
    Prefix,
    Seq2Seq,
    SpanCorruption,
    ever_hides_tokens,
    longest_side,
)
from archlab.config.reserve import MODE, SENTINELS
from archlab.config.schema import Config
from archlab.config.tasks import BLANK
from archlab.config.tasks.transduction import Transduction
from archlab.data.batch import Batch, HeldOut, document_ids, next_token
from archlab.data.objective_mixture import fitted, interleaved, windows_of_parts
from archlab.data.reserved import SpecialIds, reserved_names
from archlab.data.tasks.dice import Dice
from archlab.data.training_data import TrainingData, Windows
from archlab.errors import UserError


@dataclass(frozen=True)
class Batches:
    """Training batches and the held-out batch of a run."""

    data: TrainingData
    objective: Objective
    document_mask: bool
    """Whether attention is masked between documents. It has no effect on a task, which has no documents."""
    has_encoder: bool = False
    """Whether the model has an encoder, which reads a part of each window."""

    @classmethod
    def of(cls, config: Config, data: TrainingData) -> "Batches":
        """Return the batches of a run."""
        return cls(data, config.train.objective, config.train.document_mask, config.model.encoder is not None)

    def check(self, seq_len: int) -> None:
        """Raise UserError if the objective cannot read windows of `seq_len` tokens of this data.

        The data may lack pairs or special tokens that the objective needs. It may have pairs or conversations, which
        not every objective can read. Bits per byte may be inexact.
        """
        self._check_pairs()
        self._check_conversations()
        if self.data.inexact and not ever_hides_tokens(self.objective):
            allowed = ", ".join(name for name, kind in kinds(Objective).items() if kind.hides_tokens)
            raise UserError(
                f"train.objective.kind: {self.objective.kind} is scored in bits per byte, which this tokenizer makes "
                f"inexact: {self.data.inexact}; allowed: {allowed}, or a byte-level or SentencePiece-style tokenizer "
                "that does not change the text"
            )
        self._check_reserved(seq_len)

    def _check_reserved(self, seq_len: int) -> None:
        entries = self.objective.reserved(seq_len)
        for entry in entries:
            names, n_available = reserved_names([entry]), self.data.special.n_available(entry)
            if n_available >= len(names):
                continue
            needed = "a mask token"
            if entry.startswith(SENTINELS):
                needed = f"{len(names)} sentinels for windows of {seq_len} tokens"
            elif entry.startswith(MODE):
                needed = f"the mode token {names[0]}"
            all_entries = ",".join(entries)
            has = f"the data's tokenizer has {n_available or 'none'}"
            folder = f", or a folder made by `archlab data --reserve {all_entries}`"
            if self.data.tokenizer is None:
                has, folder = "the vocabulary of the task has none", ""
            raise UserError(
                f"train.objective.kind: {self.objective.kind} needs {needed}; {has}; allowed: "
                f"data.reserve=[{all_entries}]{folder}"
            )

    def _check_pairs(self) -> None:
        kind = self.objective.kind
        if self.objective.needs_pairs and self.data.form != "pairs":
            tasks = ", ".join(kinds(Transduction))
            raise UserError(
                f"train.objective.kind: {kind} needs pairs of a source and a target, but the data has none; allowed: "
                f"data.pairs, a folder made by `archlab data --pairs`, or data.task.kind={tasks}; or "
                "train.objective.kind=next_token"
            )
        if self.data.form != "pairs":
            return
        if "pairs" not in self.objective.fits_data:
            raise UserError(
                f"train.objective.kind: {kind} chooses the tokens to predict, but the data consists of pairs of a "
                "source and a target; allowed: next_token, seq2seq"
            )
        if self.document_mask and self.data.special.documents:
            raise UserError(
                "train.document_mask: true, but each window of the data is one pair of a source and a target; "
                "allowed: false"
            )

    def _check_conversations(self) -> None:
        if self.data.form != "conversations":
            return
        if "conversations" not in self.objective.fits_data or self.has_encoder:
            fit = ", ".join(name for name, kind in kinds(Objective).items() if "conversations" in kind.fits_data)
            raise UserError(
                f"train.objective.kind: {self.objective.kind} chooses the tokens to predict, but in conversations the "
                f"responses are predicted; allowed: {fit}, without model.encoder"
            )
        if not self.document_mask:
            raise UserError(
                "train.document_mask: false, but several conversations of the data share a window and must not see "
                "each other; allowed: true"
            )

    def training(self, seed: int, step: int, batch_size: int, seq_len: int) -> Batch:
        """Return the batch of a training step, made from `batch_size` windows of `seq_len` tokens."""
        windows = self.data.windows(seed, step, batch_size, seq_len)
        return self._made(windows, Dice(seed, "train", step * batch_size, batch_size))

    def held_out(self, seq_len: int, n_tokens: int | None) -> HeldOut:
        """Return the batch of `TrainingData.held_out`, which is the same for all seeds."""
        self.check(seq_len)
        windows = self.data.held_out(seq_len, n_tokens)
        dice, objective = Dice(0, "held_out", 0, len(windows.tokens)), self.objective
        parts = windows_of_parts(objective, dice) if isinstance(objective, Mixture) else {}
        return HeldOut(self._made(windows, dice), windows, hides_tokens=ever_hides_tokens(objective), parts=parts)

    def _made(self, windows: Windows, dice: Dice) -> Batch:
        special = self.data.special
        separator = special.documents[0] if self.document_mask and special.documents else None
        return batch_of(self.objective, windows, special, dice, has_encoder=self.has_encoder, separator=separator)


def batch_of(
    objective: Objective,
    windows: Windows,
    special: SpecialIds,
    dice: Dice,
    *,
    has_encoder: bool,
    separator: int | None = None,
) -> Batch:
    """Return the batch that an objective makes from windows, for a model with an encoder or for one stack. For the
    arguments, see `make_batch`."""
    if has_encoder:
        return make_encoder_batch(objective, windows, special, dice)
    return make_batch(objective, windows, special, separator, dice)


@singledispatch
def make_batch(objective: Objective, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice) -> Batch:
    """Return the batch that an objective makes from windows.

    `separator` is the token that begins a document, or None if attention is not masked between documents. `dice` gives
    the random numbers of these windows.
    """
    return next_token(windows, separator)


@make_batch.register
def _masked(objective: Masked, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice) -> Batch:
    """Choose a fixed fraction of the tokens of documents, and hide most of them (Devlin 2018)."""
    assert special.mask is not None
    text_NT = windows.tokens[:, 1:]
    n_tokens = text_NT.shape[1]
    may_hide_NT = ~np.isin(text_NT, special.documents)
    if windows.scored is not None:
        may_hide_NT &= windows.scored
    count_N = np.maximum(np.rint(objective.rate * may_hide_NT.sum(1)), 1)
    order_NT = np.lexsort((dice.bits("hidden tokens", n_tokens), ~may_hide_NT))
    hidden_NT = np.argsort(order_NT) < count_N[:, None]
    share_NT = dice.bits("replacements", n_tokens) / 2.0**64
    random_NT = dice.below("random tokens", n_tokens, special.vocab_size)
    replaced_NT = np.where(share_NT < objective.mask + objective.random, random_NT, text_NT)
    replaced_NT = np.where(share_NT < objective.mask, special.mask, replaced_NT)
    return Batch(np.where(hidden_NT, replaced_NT, text_NT), text_NT, hidden_NT, document_ids(text_NT, separator))


@make_batch.register
def _prefix(objective: Prefix, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice) -> Batch:
    """Choose how many tokens at the end of each window are predicted."""
    made = next_token(windows)
    n_tokens = made.targets.shape[1]
    first_N = n_tokens - _predicted(objective, n_tokens, dice)
    counted_NT = np.arange(n_tokens) >= first_N[:, None]
    if made.counted is not None:
        counted_NT &= made.counted
    return replace(made, counted=counted_NT, prefix=first_N + 1)


@make_batch.register
def _source_and_target(
    objective: Seq2Seq, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice
) -> Batch:
    """Let one stack read the source as a visible prefix, and predict the target."""
    return replace(next_token(windows), prefix=windows.source_lengths)


def _predicted(objective: Prefix, n_tokens: int, dice: Dice) -> np.ndarray:
    """Return the number of predicted tokens of each window, int [N]."""
    if not objective.drawn:
        return np.full(dice.count, objective.most_predicted(n_tokens))
    return 1 + dice.below("predicted tokens", 1, objective.most_predicted(n_tokens))[:, 0]


@make_batch.register
def _spans(
    objective: SpanCorruption, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice
) -> Batch:
    """Let one stack read the text without its hidden spans, and then predict the spans (Tay 2022)."""
    text, hidden = corrupted(objective, windows.tokens[:, 1:], special, dice)
    whole, prefix = np.concatenate([text, hidden], axis=1), text.shape[1]
    counted = np.tile(np.arange(whole.shape[1] - 1) >= prefix - 1, (len(whole), 1))
    return Batch(whole[:, :-1], whole[:, 1:], counted, prefix=np.full(len(whole), prefix))


@singledispatch
def make_encoder_batch(objective: Objective, windows: Windows, special: SpecialIds, dice: Dice) -> Batch:
    """Return the batch for a model with an encoder: a source and a target text from each window.

    The decoder reads its target text one token late, after the token that begins a document. The arguments are those of
    `make_batch`.
    """
    raise TypeError(f"{objective.kind}: has no source text")  # `check_objective` has refused it


@make_encoder_batch.register
def _prefix_and_rest(objective: Prefix, windows: Windows, special: SpecialIds, dice: Dice) -> Batch:
    """Let the encoder read the prefix, and the decoder write the tokens after it."""
    n_tokens = windows.tokens.shape[1] - 1
    predicted_N = _predicted(objective, n_tokens, dice)
    longest_source, longest = objective.longest_prefix(n_tokens), objective.most_predicted(n_tokens)
    return _encoder_decoder_batch(windows, n_tokens + 1 - predicted_N, predicted_N, longest_source, longest, special)


@make_encoder_batch.register
def _source_to_target(objective: Seq2Seq, windows: Windows, special: SpecialIds, dice: Dice) -> Batch:
    """Let the encoder read the source, and the decoder write the target."""
    assert windows.source_lengths is not None
    assert windows.lengths is not None
    most = longest_side(windows.tokens.shape[1] - 1)
    return _encoder_decoder_batch(
        windows, windows.source_lengths, windows.lengths - windows.source_lengths, most, most, special
    )


def _encoder_decoder_batch(
    windows: Windows, source_N: np.ndarray, target_N: np.ndarray, longest_source: int, longest: int, special: SpecialIds
) -> Batch:
    """Return the batch in which the encoder reads the first `source_N` tokens of each window, and the decoder writes
    the next `target_N` tokens. Sources are padded to `longest_source` tokens, and targets to `longest`."""
    n_tokens = windows.tokens.shape[1] - 1
    index_NT = source_N[:, None] - 1 + np.arange(longest)
    counted_NT = np.arange(longest) < target_N[:, None]
    index_NT = np.minimum(index_NT, n_tokens - 1)
    targets_NT = np.take_along_axis(windows.tokens[:, 1:], index_NT, axis=1)
    if windows.scored is not None:
        counted_NT = counted_NT & np.take_along_axis(windows.scored, index_NT, axis=1)
    return Batch(
        _shifted_right(targets_NT, special),
        targets_NT,
        counted_NT,
        lengths=target_N,
        source=windows.tokens[:, :longest_source],
        source_lengths=source_N,
        index=index_NT,
    )


@make_encoder_batch.register
def _text_and_spans(objective: SpanCorruption, windows: Windows, special: SpecialIds, dice: Dice) -> Batch:
    """Let the encoder read the text without its hidden spans, and the decoder write the spans (Raffel 2020)."""
    text, hidden = corrupted(objective, windows.tokens[:, 1:], special, dice)
    return Batch(_shifted_right(hidden, special), hidden, source=text)


def _shifted_right(targets_NT: np.ndarray, special: SpecialIds) -> np.ndarray:
    first = special.documents[0] if special.documents else BLANK
    return np.pad(targets_NT[:, :-1], ((0, 0), (1, 0)), constant_values=first)


def corrupted(
    objective: SpanCorruption, text_NT: np.ndarray, special: SpecialIds, dice: Dice
) -> tuple[np.ndarray, np.ndarray]:
    """Return windows with a sentinel for each hidden span, and the spans, each after its sentinel (Raffel 2020).

    The token that begins a document ends both. Their lengths are the same for all windows of one length.
    """
    sentinels, end_N1 = np.array(special.sentinels), np.full((len(text_NT), 1), special.documents[0])
    hidden_NT = hidden_spans(objective, text_NT.shape[1], dice)
    shortened = (_with_sentinels(text_NT, which_NT, sentinels) for which_NT in (hidden_NT, ~hidden_NT))
    text, hidden = (np.concatenate([tokens, end_N1], axis=1) for tokens in shortened)
    return text, hidden


def hidden_spans(objective: SpanCorruption, n_tokens: int, dice: Dice) -> np.ndarray:
    """Return which tokens are hidden, bool [N, T]. Visible and hidden spans alternate, and the first is visible."""
    n_hidden, n_spans = objective.spans(n_tokens)
    visible_NS = _random_lengths(dice, "visible spans", n_tokens - n_hidden, n_spans)
    hidden_NS = _random_lengths(dice, "hidden spans", n_hidden, n_spans)
    lengths = np.stack([visible_NS, hidden_NS], axis=2).ravel()
    return np.repeat(np.tile([False, True], len(lengths) // 2), lengths).reshape(dice.count, n_tokens)


def _random_lengths(dice: Dice, name: str, n_tokens: int, n_spans: int) -> np.ndarray:
    """Divide tokens into spans of at least one token, int [N, n_spans]. All divisions are equally likely."""
    if n_spans == 1:
        return np.full((dice.count, 1), n_tokens)
    begins = dice.order(name, n_tokens - 1) < n_spans - 1
    starts = np.nonzero(begins)[1].reshape(dice.count, n_spans - 1) + 1
    return np.diff(starts, axis=1, prepend=0, append=n_tokens)


def _with_sentinels(text_NT: np.ndarray, replaced_NT: np.ndarray, sentinels: np.ndarray) -> np.ndarray:
    """Replace each span of `replaced_NT` by one sentinel. All windows must have equally many tokens and spans."""
    first_NT = replaced_NT & ~np.pad(replaced_NT[:, :-1], ((0, 0), (1, 0)))
    with_sentinels_NT = np.where(first_NT, sentinels[first_NT.cumsum(1) - 1], text_NT)
    return with_sentinels_NT[~replaced_NT | first_NT].reshape(len(text_NT), -1)


# --- mixtures ---------------------------------------------------------------------------------------------------------


@make_batch.register
def _mixture(objective: Mixture, windows: Windows, special: SpecialIds, separator: int | None, dice: Dice) -> Batch:
    return _mixed(objective, windows, special, dice, has_encoder=False)


@make_encoder_batch.register
def _mixture_with_encoder(objective: Mixture, windows: Windows, special: SpecialIds, dice: Dice) -> Batch:
    return _mixed(objective, windows, special, dice, has_encoder=True)


def _mixed(objective: Mixture, windows: Windows, special: SpecialIds, dice: Dice, *, has_encoder: bool) -> Batch:
    """Give each window one objective (Tay 2022). Apart from its mode token and padding, the window is the one that its
    objective alone would make."""
    read = objective.tokens_read(windows.tokens.shape[1] - 1, has_encoder=has_encoder)
    rows, batches = windows_of_parts(objective, dice), list[Batch]()
    for name, own in rows.items():
        part = objective.parts[name]
        made = batch_of(part.objective, windows.rows(own), special, dice.some(own), has_encoder=has_encoder)
        batches.append(fitted(made, read, special.modes[part.mode] if part.mode else None))
    mixed = interleaved(batches, list(rows.values()))
    if ever_hides_tokens(objective):
        return replace(mixed, index=None)  # the window does not contain sentinels
    return mixed


def random_batch(config: Config, windows: Windows, separator: int | None = None) -> Batch:
    """Return the batch of random windows, whose special tokens are the last ones of the vocabulary. An objective that
    needs pairs gets the longest ones that fit, unless the windows have pairs."""
    objective, dice = config.train.objective, Dice(0, "random", 0, len(windows.tokens))
    special = SpecialIds.at_the_end(config.model.vocab_size, objective.reserved(windows.tokens.shape[1] - 1))
    if objective.needs_pairs and windows.source_lengths is None:
        half_N = np.full(len(windows.tokens), longest_side(windows.tokens.shape[1] - 1))
        windows = Windows.of_pairs(windows.tokens, half_N, 2 * half_N)
    has_encoder = config.model.encoder is not None
    return batch_of(objective, windows, special, dice, has_encoder=has_encoder, separator=separator)
