"""Batch of sequences that a model continues token by token, with a cache of the tokens read so far.

Shapes: B sequences of a batch, T tokens so far, N new tokens, D d_model, V vocabulary. Sequences of different lengths
are padded on the left.

Decoding with the cache gives the same logits as a full forward pass, except with dynamic NTK. Its theta grows with the
sequence length. The cache keeps each key with the rotation of the length at which the key was read, whereas a full pass
rotates all keys with the final theta. This difference is intended. LongRoPE changes its factors only once, when a
sequence exceeds the original length. The whole sequence is then read again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from archlab.calls import checked
from archlab.config.components.position import Learned, Rope
from archlab.config.components.rope_scaling import DynamicNTK, Longrope
from archlab.config.layers import sees_as
from archlab.errors import UserError, check_at_least
from archlab.infer.sampling import Sampling, excluded_tokens, forced_tokens, sample
from archlab.model.arithmetic import WHOLE
from archlab.model.decoder import Decoder
from archlab.model.graphs import allow_forms, check_compiler
from archlab.model.inputs import Inputs, check_ids, check_inputs, check_tensors
from archlab.model.kernels import Attend
from archlab.model.state import Cache
from archlab.model.torch_private import keep_address, skip_size_checks

COMPILED_SLOTS = 256
"""With `compile`, the cache's capacity is rounded up to a multiple of this number.

A compiled decoding step works for one capacity only. After rounding, sequences of similar length can share it.
"""

NOT_FINITE = "the model's output is NaN or infinite; its weights may be damaged, or their training may have diverged"
"""Message about a model without usable logits."""


def tokens_of(ends: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return EOS tokens as a tuple. Raise UserError if they are not token ids."""
    try:
        tokens = torch.as_tensor([] if ends is None else ends)
        is_valid = tokens.ndim <= 1 and (tokens.dtype in WHOLE or not tokens.numel())
    except (TypeError, ValueError, RuntimeError):
        tokens, is_valid = torch.empty(0), False
    if not is_valid:
        raise UserError(f"end_of_text: {ends!r}; allowed: a token id or a list of ids")
    return tuple(int(end) for end in tokens.flatten())


def room_after(model: Decoder, n_tokens: int) -> int | None:
    """Return the number of tokens that can follow `n_tokens` tokens before learned positions end.

    None for a model without learned positions.
    """
    if not isinstance(model.config.position, Learned):
        return None
    # The last written token is not read, so it does not need a position.
    return max(0, model.config.max_seq_len - n_tokens + 1)


def left_pad(texts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad sequences, [T] int64 each, on the left. Return the batch, [B, T], and the padding lengths, [B].

    >>> archlab.left_pad([torch.tensor([5, 6, 7]), torch.tensor([8])])
    (tensor([[5, 6, 7],
            [0, 0, 8]]), tensor([0, 2]))
    """
    for index, text in enumerate(texts):
        if text.ndim != 1 or text.dtype not in WHOLE:
            problem = f"{list(text.shape)} of {text.dtype}"
            raise UserError(f"texts: item {index} is {problem}; allowed: token ids of one text, [n] of integers")
    longest = max((len(text) for text in texts), default=0)
    padding = [longest - len(text) for text in texts]
    rows = [F.pad(text, (p, 0)) for text, p in zip(texts, padding, strict=True)]
    if not rows:
        raise UserError("no texts to pad; pass at least one")
    return torch.stack(rows), torch.tensor(padding, device=rows[0].device)


def checked_every(device_type: str) -> int:
    """Return the number of tokens after which to look at the output. Each look waits for a GPU."""
    return 16 if device_type == "cuda" else 1


def check_finite(is_finite: Tensor | bool) -> None:
    """Raise UserError if the model's output was NaN or infinite. The argument is a boolean, or a tensor with one."""
    if not is_finite:
        raise UserError(NOT_FINITE)


def without(excluded_N: Tensor, logits_BV: Tensor) -> Tensor:
    """Return the logits, [B, V], in which those of excluded tokens are -inf."""
    return logits_BV.index_fill(1, excluded_N, -torch.inf) if len(excluded_N) else logits_BV


def next_logits(model: Decoder, token_B1: Tensor, cache: Cache) -> Tensor:
    """Return the logits after one more token, [B, V].

    The arguments are not checked. The caller must call `cache.begin` before and `cache.end` afterwards.
    """
    hidden_B1D = model.through_layers(token_B1, Inputs(cache=cache))
    return model.head(hidden_B1D[:, -1], model.embedding.weight)


def _check_kernels(model: Decoder) -> None:
    """Raise UserError if a kernel of the model cannot be a part of compiled decoding steps."""
    for module in model.modules():
        if isinstance(attend := getattr(module, "attend", None), Attend):
            attend.check_step(model.embedding.weight.device)


def _compiled_step(device: torch.device) -> Callable[[Decoder, Tensor, Cache], Tensor]:
    check_compiler("compile")
    allow_forms()
    skip_size_checks()
    if device.type != "cuda":
        return torch.compile(next_logits, fullgraph=True, dynamic=False)
    # A step is hundreds of kernels. A CUDA graph starts them together.
    step = torch.compile(next_logits, fullgraph=True, dynamic=False, mode="reduce-overhead")

    def replay(model: Decoder, token_B1: Tensor, cache: Cache) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return step(model, token_B1, cache).clone()  # the next replay overwrites the output

    return replay


class Session:
    """A batch of sequences that a model continues. Calls to `read` and `write` may alternate; they share a cache.

    The prefix of a sequence ends with its prompt. Tokens that `read` and `write` append later are read causally.

    >>> model = archlab.from_pretrained("runs/a")
    >>> session = archlab.Session(model, torch.tensor([[5, 6], [7, 8]]), capacity=12)
    >>> torch.stack(list(session.write(4)), dim=1).shape
    torch.Size([2, 4])
    >>> session.read(torch.tensor([[9, 10], [11, 12]]))
    >>> torch.stack(list(session.write(4)), dim=1).shape
    torch.Size([2, 4])
    """

    @checked
    def __init__(
        self,
        model: Decoder,
        tokens_BT: Tensor,
        capacity: int,
        *,
        padding: Tensor | Sequence[int] | None = None,
        prefix: Tensor | Sequence[int] | None = None,
        source: Tensor | None = None,
        source_lengths: Tensor | None = None,
        prefill_chunk: int | None = None,
        compile: bool = False,
    ) -> None:
        """Start with prompts, `tokens_BT`: [B, T] int64.

        - `capacity`: maximum number of tokens in the cache, including padding. The last written token does not count,
          because the model does not read it.
        - `compile`: whether to compile the decoding step. The first step then takes up to a minute, and each later step
          takes about half as long as without compilation. A later session reuses the compiled step if its capacity,
          rounded up to a multiple of `COMPILED_SLOTS`, is the same.
        - `padding`, `prefix`, `source`, `source_lengths`, `prefill_chunk`: see `generate`.

        Raise UserError for an invalid argument.
        """
        self.model, self.prefill_chunk = model, prefill_chunk
        check_tensors(tokens_BT, Inputs(source=source, source_lengths=source_lengths))
        weight = model.embedding.weight
        if compile:
            _check_kernels(model)
        self._step = _compiled_step(weight.device) if compile else None
        if tokens_BT.ndim != 2 or tokens_BT.dtype not in WHOLE or not tokens_BT.numel():
            problem = f"{list(tokens_BT.shape)} of {tokens_BT.dtype}"
            raise UserError(f"prompt: {problem}; allowed: [batch, seq] of integers, at least one token each")
        check_ids(model.config, tokens_BT)
        B, T = tokens_BT.shape
        self.padding_B = torch.as_tensor([0] * B if padding is None else padding, device=weight.device)
        is_whole = self.padding_B.shape == (B,) and self.padding_B.dtype in WHOLE
        if not is_whole or not ((self.padding_B >= 0) & (self.padding_B < T)).all():
            allowed = f"{B} integers, one per text, each from 0 to {T - 1}, so that no text is empty"
            raise UserError(f"padding: {self.padding_B.tolist()}; allowed: {allowed}")
        if prefill_chunk is not None and prefill_chunk < 1:
            raise UserError(
                f"prefill_chunk: {prefill_chunk}; allowed: at least 1, or None to read the whole prompt at once"
            )
        padded_B = self.padding_B if self.padding_B.any() else None
        like = {"dtype": weight.dtype, "device": weight.device}
        if prefix is None and sees_as(model.config, "prefix"):
            prefix = T - self.padding_B
        self.prefix_B = None if prefix is None else torch.as_tensor(prefix, device=weight.device)
        slots = capacity if not compile else ceil(capacity / COMPILED_SLOTS) * COMPILED_SLOTS
        self._source = (source, source_lengths)
        if source is not None:
            check_ids(model.config, source)
        n_source = 0 if source is None else source.shape[-1]
        self.cache = Cache(model.config, B, slots, source=n_source, padding=padded_B, **like)
        if compile:
            for tensor in (*self.cache.tensors, self.cache.length_tensor):
                keep_address(tensor)
        self._padding: list[int] | None = self.padding_B.tolist()
        self._paddings = set(self._padding)
        ropes = [layer.position for layer in model.layer_configs if isinstance(layer.position, Rope)]
        self._scalings = [rope.scaling for rope in ropes if isinstance(rope.scaling, DynamicNTK | Longrope)]
        self._tokens_BS = torch.empty(B, max(T, capacity + 1), dtype=tokens_BT.dtype, device=weight.device)
        self.tokens_BT = self._tokens_BS[:, :0]
        """All tokens read and written so far, including padding."""
        self._append(tokens_BT)
        self._token_B1 = self._tokens_BS.new_empty(B, 1)  # always the same strides, which a compiled graph needs
        self._logits_BV = weight.new_empty(B, 0)

    @property
    def room(self) -> int | None:
        """Number of tokens that can still be written before the sequence exceeds the learned positions.

        None for a model without learned positions.
        """
        return room_after(self.model, self.tokens_BT.shape[1] - min(self._paddings))

    def check_room(self, max_new_tokens: int) -> None:
        """Raise UserError if the sequences would exceed the learned positions."""
        if self.room is not None and max_new_tokens > self.room:
            end = f"learned positions end at max_seq_len = {self.model.config.max_seq_len}"
            raise UserError(f"max_new_tokens: {max_new_tokens}; allowed: up to {self.room}, because {end}")

    def read(self, tokens_BN: Tensor) -> None:
        """Append tokens, [B, N] int64, to the sequences."""
        if tokens_BN.ndim != 2 or len(tokens_BN) != len(self.padding_B) or tokens_BN.dtype not in WHOLE:
            problem = f"{list(tokens_BN.shape)} of {tokens_BN.dtype}"
            raise UserError(f"tokens: {problem}; allowed: [{len(self.padding_B)}, n] of integers")
        check_ids(self.model.config, tokens_BN)
        self._append(tokens_BN)

    def reorder(self, rows_B: Tensor) -> None:
        """Replace each sequence b, and its cache, by the sequence `rows_B[b]`."""
        self._tokens_BS = self._tokens_BS[rows_B]
        self.tokens_BT = self._tokens_BS[:, : self.tokens_BT.shape[1]]
        self.padding_B = self.padding_B[rows_B]
        if len(self._paddings) > 1:
            self._padding = None  # read again when needed, because reading waits for a GPU
        self.prefix_B = None if self.prefix_B is None else self.prefix_B[rows_B]
        self._source = tuple(None if of_rows is None else of_rows[rows_B] for of_rows in self._source)
        self.cache.reorder(rows_B)

    def _lengths(self) -> list[int]:
        """Return the number of tokens of each sequence, without padding."""
        if self._padding is None:
            self._padding = self.padding_B.tolist()
        return [self.tokens_BT.shape[1] - padding for padding in self._padding]

    def _append(self, tokens_BN: Tensor) -> None:
        start = self.tokens_BT.shape[1]
        end = start + tokens_BN.shape[1]
        if end > self._tokens_BS.shape[1]:
            self._tokens_BS = F.pad(self._tokens_BS, (0, end))
        self._tokens_BS[:, start:end] = tokens_BN
        self.tokens_BT = self._tokens_BS[:, :end]

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Return the logits after the last token of each sequence, [B, V], without dropout.

        Tokens that are not yet in the cache are read first.
        """
        model, was_training = self.model, self.model.training
        if was_training:
            model.eval()
        T, chunk = self.tokens_BT.shape[1], self.prefill_chunk
        if self._beyond(Longrope, T) - self._beyond(Longrope, self.cache.length):
            self.cache.clear()
            chunk = None
        if self._beyond(DynamicNTK, T):
            chunk = None  # chunks would be rotated with different thetas
        if self.prefix_B is not None:
            chunk = None  # the first prefix tokens attend to the last ones
        try:
            while self.cache.length < T:
                piece_BN = self.tokens_BT[:, self.cache.length :][:, :chunk]
                prefix_B = None if self.cache.length else self.prefix_B
                self._logits_BV = self._read(piece_BN, prefix_B)
        except BaseException:
            if self.cache.is_torn:  # some layers have more tokens than others, so all must be read again
                self.cache.clear()
            raise
        finally:
            if was_training:
                model.train()
        return self._logits_BV

    def _read(self, piece_BN: Tensor, prefix_B: Tensor | None) -> Tensor:
        """Read tokens into the cache. Return the logits after the last token, [B, V]."""
        model = self.model
        source, source_lengths = self._source if self.cache.source is None else (None, None)
        if self._step is None or piece_BN.shape[1] > 1 or not self.cache.length:
            inputs = Inputs(prefix=prefix_B, source=source, source_lengths=source_lengths, cache=self.cache)
            hidden_BND = model.hidden(piece_BN, inputs)
            return model.head(hidden_BND[:, -1], model.embedding.weight)
        check_inputs(model.config, model.encoder_config, piece_BN, Inputs(cache=self.cache))
        self.cache.begin(1)
        logits_BV = self._step(model, self._token_B1.copy_(piece_BN), self.cache)
        self.cache.end(1)
        return logits_BV

    def _beyond(self, scaling: type[DynamicNTK | Longrope], n: int) -> set[tuple[int, int]]:
        """Return the sequences that exceed the original length of a RoPE scaling, not counting padding.

        Each entry is (padding of a sequence, original length).
        """
        return {
            (padding, kind.original_max_seq_len)
            for kind in self._scalings
            if isinstance(kind, scaling)
            for padding in self._paddings
            if n - padding > kind.original_max_seq_len
        }

    def write(
        self,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        end_of_text: int | Sequence[int] | None = None,
        *,
        forced_first: int | None = None,
        forced_last: int | None = None,
        excluded: Sequence[int] = (),
        checked_every: int = 1,
    ) -> Iterator[Tensor]:
        """Yield the next token of each sequence, [B], up to `max_new_tokens` times.

        Without `sampling`, decoding is greedy. `end_of_text` is one or several EOS tokens. A sequence that has reached
        any of them is filled with the first one in the list. The iterator stops when all sequences have ended. With the
        same seed, two calls write the same tokens as one call with their total number of tokens. For `forced_first`,
        `forced_last` and `excluded`, see `generate`.

        The iterator looks once per `checked_every` tokens whether all sequences have ended, and whether the model's
        output was finite. A GPU then waits less often. Tokens since the last look may have no meaning.
        """
        check_at_least(0, max_new_tokens=max_new_tokens)
        check_at_least(1, checked_every=checked_every)
        sampling = sampling or Sampling()
        seed = int(torch.randint(2**62, ())) if sampling.seed is None else sampling.seed
        ends = tokens_of(end_of_text)
        check_ids(self.model.config, torch.tensor(ends, dtype=torch.int64))
        forced = forced_tokens(self.model, max_new_tokens, forced_first, forced_last)
        excluded_N = excluded_tokens(self.model, excluded)
        return self._write(max_new_tokens, sampling, seed, ends, forced, excluded_N, checked_every)

    def allowed_logits(self, excluded_N: Tensor) -> Tensor:
        """Return the logits of the next token, [B, V]. Those of excluded tokens are -inf.

        Raise UserError if the model's output is NaN or infinite.
        """
        logits_BV = self.logits()
        check_finite(logits_BV.isfinite().all())
        return without(excluded_N, logits_BV)

    def _write(
        self,
        max_new_tokens: int,
        sampling: Sampling,
        seed: int,
        ends: Sequence[int],
        forced: Mapping[int, int],
        excluded_N: Tensor,
        checked_every: int,
    ) -> Iterator[Tensor]:
        is_over_B = torch.zeros_like(self.padding_B, dtype=torch.bool)
        is_finite = torch.ones((), dtype=torch.bool, device=self.padding_B.device)
        ends_N = torch.tensor(ends, device=self.padding_B.device)
        for n in range(max_new_tokens):
            is_checked = (n + 1) % checked_every == 0 or n + 1 == max_new_tokens
            if n in forced:
                next_B = torch.full_like(is_over_B, forced[n], dtype=torch.int64)
            else:
                logits_BV = self.logits()
                is_finite = is_finite & logits_BV.isfinite().all()
                logits_BV = without(excluded_N, logits_BV)
                next_B = sample(logits_BV, sampling, self.tokens_BT, self.padding_B, seed, self._lengths())
            if ends:
                next_B = next_B.masked_fill(is_over_B, ends[0])
                is_over_B |= torch.isin(next_B, ends_N)
            are_over = False
            if is_checked:
                # Read both together, because each read waits for a GPU.
                was_finite, are_over = torch.stack((is_finite, is_over_B.all())).tolist()
                check_finite(was_finite)
            self._append(next_B[:, None])
            yield next_B
            if are_over:
                return
