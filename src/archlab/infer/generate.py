"""Continuing texts token by token, from a cache of what was read.

Shapes: B texts side by side, T tokens so far, N new ones, D d_model, V vocabulary. Texts of unequal length
stand flush right, with padding before them.

Cached decoding gives the logits of the full pass, with one exception that is meant: dynamic NTK, whose theta grows with
every token. The cache keeps every key as it was rotated when it was read, a prompt's all together; a full pass over a
longer sequence rotates all of them anew. LongRoPE changes its factors once, where a text passes the original length:
there all is read again, in one piece.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.config.components.position import DynamicNTK, Learned, Longrope, Rope
from archlab.errors import UserError
from archlab.infer.sampling import Sampling, sample
from archlab.model.arithmetic import WHOLE
from archlab.model.decoder import Decoder
from archlab.model.graphs import allow_forms, check_compiler
from archlab.model.inputs import check_inputs
from archlab.model.state import Cache
from archlab.model.torch_private import skip_size_checks

COMPILED_SLOTS = 256
"""A compiled step is of one number of slots in the cache: it is rounded up to a multiple of this."""


def generate(
    model: Decoder,
    tokens_BT: Tensor,
    max_new_tokens: int = 16,
    temperature: float = 0.0,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    padding: Tensor | Sequence[int] | None = None,
    prefix: Tensor | Sequence[int] | None = None,
    end_of_text: int | Sequence[int] | None = None,
    prefill_chunk: int | None = None,
    compile: bool = False,
) -> Tensor:
    """[B, T] int64 -> [B, T + max_new_tokens], on the model's device; greedy at temperature 0.

    `padding` [B] is how many tokens before each text are none of it (see `left_pad`); `prefix` [B] how many first
    tokens of each see each other both ways, in a model that has such layers (see `Decoder.forward`). A text that
    reaches the token `end_of_text` (of several, any) is over: what follows in its row is that token (the first). The
    prompt is read `prefill_chunk` tokens at a time (None: at once, as with a prefix or where RoPE's angles depend on
    the length), which bounds memory and changes nothing else. `compile`: see `Session`. The rest is `Sampling`.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    total = tokens_BT.shape[-1] + max(max_new_tokens, 0)
    session = Session(
        model, tokens_BT, total, padding=padding, prefix=prefix, prefill_chunk=prefill_chunk, compile=compile
    )
    if session.room is not None and max_new_tokens > session.room:
        end = f"learned positions end at max_seq_len = {model.config.max_seq_len}"
        raise UserError(f"max_new_tokens: {max_new_tokens}; allowed: up to {session.room}, for {end}")
    for _ in session.write(max_new_tokens, sampling, end_of_text):
        pass
    (end, *_) = (*_several(end_of_text), 0)
    return F.pad(session.tokens_BT, (0, total - session.tokens_BT.shape[1]), value=end)


def _several(ends: int | Sequence[int] | None) -> tuple[int, ...]:
    try:
        given = torch.as_tensor([] if ends is None else ends)
        is_several = given.ndim <= 1 and (given.dtype in WHOLE or not given.numel())
    except (TypeError, ValueError, RuntimeError):
        given, is_several = torch.empty(0), False
    if not is_several:
        raise UserError(f"end_of_text: {ends!r}; allowed: a token or several")
    return tuple(int(end) for end in given.flatten())


def left_pad(texts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Texts of unequal length, [T] int64 each, flush right in [B, T], and the padding before each, [B]."""
    longest = max((len(text) for text in texts), default=0)
    padding = [longest - len(text) for text in texts]
    rows = [F.pad(text, (p, 0)) for text, p in zip(texts, padding, strict=True)]
    if not rows:
        raise UserError("no texts to pad; at least one is needed")
    return torch.stack(rows), torch.tensor(padding, device=rows[0].device)


def next_logits(model: Decoder, token_B1: Tensor, cache: Cache) -> Tensor:
    """[B, V] after one more token: a decoding step without what is checked before it and counted after it."""
    hidden_B1D = model.through_layers(token_B1, None, None, cache, None)
    return model.head(hidden_B1D[:, -1], model.embedding.weight)


def _compiled_step() -> Callable[[Decoder, Tensor, Cache], Tensor]:
    check_compiler("compile")
    allow_forms()
    skip_size_checks()
    return torch.compile(next_logits, fullgraph=True, dynamic=False)


class Session:
    """Texts and a model that goes on with them, reading and writing in turn; the cache is kept.

    >>> session = Session(model, prompts_BT, capacity=512)
    >>> new_BN = torch.stack(list(session.write(32)), dim=1)
    >>> session.read(answers_BN)
    >>> new_BN = torch.stack(list(session.write(32)), dim=1)
    """

    def __init__(
        self,
        model: Decoder,
        tokens_BT: Tensor,
        capacity: int,
        *,
        padding: Tensor | Sequence[int] | None = None,
        prefix: Tensor | Sequence[int] | None = None,
        prefill_chunk: int | None = None,
        compile: bool = False,
    ) -> None:
        """`capacity`: tokens that fit in the cache, padding and all; the last one written need not.

        `compile`: a decoding step is one compiled graph. The first one then takes up to a minute, those after it
        about half the time. A later session finds it compiled, if its capacity is alike (see COMPILED_SLOTS).
        """
        self.model, self.prefill_chunk = model, prefill_chunk
        self._step = _compiled_step() if compile else None
        weight = model.embedding.weight
        if tokens_BT.ndim != 2 or tokens_BT.dtype not in WHOLE or not tokens_BT.numel():
            found = f"{list(tokens_BT.shape)} of {tokens_BT.dtype}"
            raise UserError(f"prompt: {found}; allowed: [batch, seq] of whole numbers, at least one token each")
        self._check_ids(tokens_BT)
        B, T = tokens_BT.shape
        self.padding_B = torch.as_tensor([0] * B if padding is None else padding, device=weight.device)
        is_whole = self.padding_B.shape == (B,) and self.padding_B.dtype in WHOLE
        if not is_whole or not ((self.padding_B >= 0) & (self.padding_B < T)).all():
            allowed = f"for each of {B} texts a number from 0 to {T - 1}, less than its {T} tokens"
            raise UserError(f"padding: {self.padding_B.tolist()}; allowed: {allowed}")
        if prefill_chunk is not None and prefill_chunk < 1:
            raise UserError(f"prefill_chunk: {prefill_chunk}; allowed: from 1, or none for all at once")
        padded_B = self.padding_B if self.padding_B.any() else None
        like = {"dtype": weight.dtype, "device": weight.device}
        self.prefix_B = None if prefix is None else torch.as_tensor(prefix, device=weight.device)
        slots = capacity if not compile else ceil(capacity / COMPILED_SLOTS) * COMPILED_SLOTS
        self.cache = Cache(model.config, B, slots, padding=padded_B, **like)
        self._paddings = set(self.padding_B.tolist())
        ropes = [layer.position for layer in model.layer_configs if isinstance(layer.position, Rope)]
        self._scalings = [rope.scaling for rope in ropes if isinstance(rope.scaling, DynamicNTK | Longrope)]
        self._held_BS = torch.empty(B, max(T, capacity + 1), dtype=tokens_BT.dtype, device=weight.device)
        self.tokens_BT = self._held_BS[:, :0]
        """Everything read and written so far, the padding too."""
        self._append(tokens_BT)
        self._token_B1 = self._held_BS.new_empty(B, 1)  # of the same strides each time, as a compiled graph wants
        self._logits_BV = weight.new_empty(B, 0)

    @property
    def room(self) -> int | None:
        """How many more tokens can be written before learned positions end; None where they never do."""
        if not isinstance(self.model.config.position, Learned):
            return None
        longest = self.tokens_BT.shape[1] - min(self._paddings)
        # The last token written is not read, so it needs no position.
        return max(0, self.model.config.max_seq_len - longest + 1)

    def read(self, tokens_BN: Tensor) -> None:
        """Go on with these tokens, [B, N] int64, in every text."""
        if tokens_BN.ndim != 2 or len(tokens_BN) != len(self.padding_B) or tokens_BN.dtype not in WHOLE:
            found = f"{list(tokens_BN.shape)} of {tokens_BN.dtype}"
            raise UserError(f"tokens: {found}; allowed: [{len(self.padding_B)}, n] of whole numbers")
        self._check_ids(tokens_BN)
        self._append(tokens_BN)

    def _check_ids(self, tokens_BN: Tensor) -> None:
        known = self.model.config.vocab_size
        wrong = tokens_BN[(tokens_BN < 0) | (tokens_BN >= known)]
        if wrong.numel():
            raise UserError(f"token {int(wrong[0])}: allowed: 0 to {known - 1}, the model's vocabulary")

    def _append(self, tokens_BN: Tensor) -> None:
        start = self.tokens_BT.shape[1]
        end = start + tokens_BN.shape[1]
        if end > self._held_BS.shape[1]:
            self._held_BS = F.pad(self._held_BS, (0, end))
        self._held_BS[:, start:end] = tokens_BN
        self.tokens_BT = self._held_BS[:, :end]

    @torch.no_grad()
    def logits(self) -> Tensor:
        """[B, V] after the last token of each text; what the cache lacks is read now. Dropout is off."""
        model, was_training = self.model, self.model.training
        if was_training:
            model.eval()
        T, chunk = self.tokens_BT.shape[1], self.prefill_chunk
        if self._beyond(Longrope, T) - self._beyond(Longrope, self.cache.length):
            self.cache.clear()
            chunk = None
        if self._beyond(DynamicNTK, T):
            chunk = None  # each piece would be rotated with a theta of its own
        if self.prefix_B is not None:
            chunk = None  # its first tokens see its last
        try:
            while self.cache.length < T:
                piece_BN = self.tokens_BT[:, self.cache.length :][:, :chunk]
                prefix_B = None if self.cache.length else self.prefix_B
                self._logits_BV = self._read(piece_BN, prefix_B)
        except BaseException:
            if self.cache.is_torn:  # some layers hold more than others: all is read again
                self.cache.clear()
            raise
        finally:
            if was_training:
                model.train()
        return self._logits_BV

    def _read(self, piece_BN: Tensor, prefix_B: Tensor | None) -> Tensor:
        """[B, V] after these tokens, which the cache holds from here on."""
        model = self.model
        if self._step is None or piece_BN.shape[1] > 1 or prefix_B is not None:
            return model.head(model.hidden(piece_BN, prefix=prefix_B, cache=self.cache)[:, -1], model.embedding.weight)
        check_inputs(model.config, piece_BN, None, None, self.cache)
        self.cache.begin(1)
        logits_BV = self._step(model, self._token_B1.copy_(piece_BN), self.cache)
        self.cache.end(1)
        return logits_BV

    def _beyond(self, scaling: type[DynamicNTK | Longrope], n: int) -> set[tuple[int, int]]:
        """Which (padding, original length of that scaling) a text passes that is n tokens long with its padding."""
        return {
            (padding, kind.original_max_seq_len)
            for kind in self._scalings
            if isinstance(kind, scaling)
            for padding in self._paddings
            if n - padding > kind.original_max_seq_len
        }

    def write(
        self, max_new_tokens: int, sampling: Sampling | None = None, end_of_text: int | Sequence[int] | None = None
    ) -> Iterator[Tensor]:
        """The next tokens of all texts one by one, each [B]; greedy where `sampling` is None.

        After `end_of_text` (of several, any) a text has nothing but that token (the first); when all texts are over,
        the iterator is too.
        Two calls with the same seed write what one call would.
        """
        if max_new_tokens < 0:
            raise UserError(f"max_new_tokens: {max_new_tokens}; allowed: 0 or more")
        sampling = sampling or Sampling()
        seed = int(torch.randint(2**62, ())) if sampling.seed is None else sampling.seed
        ends = _several(end_of_text)
        self._check_ids(torch.tensor(ends, dtype=torch.int64))
        return self._write(max_new_tokens, sampling, seed, ends)

    def _write(self, max_new_tokens: int, sampling: Sampling, seed: int, ends: Sequence[int]) -> Iterator[Tensor]:
        is_over_B = torch.zeros_like(self.padding_B, dtype=torch.bool)
        of_ends = torch.tensor(ends, device=self.padding_B.device)
        for _ in range(max_new_tokens):
            logits_BV = self.logits()
            # A sum is not finite where one of them is not: one pass over them, and seldom more.
            if not logits_BV.sum().isfinite() and not logits_BV.isfinite().all():
                raise UserError("the model's output is NaN or infinite: its training diverged")
            next_B = sample(logits_BV, sampling, self.tokens_BT, self.padding_B, seed)
            if ends:
                next_B = next_B.masked_fill(is_over_B, ends[0])
                is_over_B |= torch.isin(next_B, of_ends)
            self._append(next_B[:, None])
            yield next_B
            if ends and is_over_B.all():
                return
