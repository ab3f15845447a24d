"""Streaming text generation. No piece of the text ends inside a character or a stop string."""

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypedDict

import torch
from tokenizers import Tokenizer
from torch import Tensor

from archlab.config.core.text import note_once
from archlab.config.layers import sees_as
from archlab.config.objective import NextToken, Objective, SpanCorruption, reads_hidden_spans
from archlab.data import tokenizer as bpe
from archlab.data.reserved import mode_tokens
from archlab.data.spelling import byte_of_name, bytes_of_name, not_spelled, spelling
from archlab.errors import UserError
from archlab.hf.special_tokens import SpecialTokens
from archlab.infer.beams import ALPHA, beam_search
from archlab.infer.sampling import Sampling
from archlab.infer.session import Session, room_after
from archlab.infer.stop_strings import StopStrings
from archlab.model.decoder import Decoder


class Codec(ABC):
    """Encoder of prompts, and decoder of the tokens that a model writes."""

    tokenizer: Tokenizer
    special: SpecialTokens
    """Special tokens. A text ends at any of `special.ends` (EOS tokens)."""
    reads_source: bool
    """Whether a model without an encoder was trained to read a source text before it writes: the source of a pair, or a
    text with hidden spans."""

    @abstractmethod
    def encode(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt, including those that precede every text."""

    @abstractmethod
    def source(self, text: str) -> list[int]:
        """Return the tokens of a source text."""

    @abstractmethod
    def target(self, prompt: str) -> list[int]:
        """Return the tokens of the beginning of a target text, which a model writes for a source text."""

    @abstractmethod
    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """Return a function that decodes a continuation of the prompt token by token.

        It takes the next token and returns the text that this token completes. The text may be empty. Invalid bytes
        become U+FFFD. Special tokens give no text.
        """


def stream_text(
    model: Decoder,
    codec: Codec,
    prompt: str,
    max_new_tokens: int = 128,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    *,
    source: str | None = None,
    compile: bool = False,
) -> Iterator[str]:
    """Yield the continuation of a prompt in pieces, each as soon as later tokens cannot change it.

    `source` is the text that the encoder of the model reads, if it has one, or the source of a run that was trained on
    pairs. The prompt is then the beginning of the target text, and may be empty. If the model has layers with a visible
    prefix, the source is the prefix, or the prompt if there is no source.

    Without `sampling`, decoding is greedy. The codec decides which tokens precede a text. For a run that archlab
    trained, an EOS token precedes the text, so the prompt may be empty. For `compile`, see `Session`.

    The text ends after `max_new_tokens`, at the next EOS token, when all learned positions are used, or before the
    first stop string in the new text. An incomplete last character is dropped. Bytes that are not valid UTF-8 become
    U+FFFD. Tokens that the tokenizer does not have are never chosen.

    Raise UserError for invalid arguments before the model computes anything.
    """
    read = _encoded(model, codec, prompt, source)
    until = StopStrings(stop)
    n_new = _n_new(model, read, max_new_tokens)
    capacity = read.tokens_1T.shape[1] + max(n_new, 0)
    session = Session(model, read.tokens_1T, capacity, prefix=read.prefix, source=read.source_1S, compile=compile)
    tokens = session.write(n_new, sampling, **_endings(model, codec, read))
    return filter(None, _pieces(tokens, codec.decoder(read.target), until))


def best_text(
    model: Decoder,
    codec: Codec,
    prompt: str,
    max_new_tokens: int = 128,
    *,
    source: str | None = None,
    beams: int = 4,
    alpha: float = ALPHA,
) -> str:
    """Return the continuation with the best score that beam search finds. For the arguments, see `stream_text` and
    `beam_search`."""
    read = _encoded(model, codec, prompt, source)
    n_new, endings = _n_new(model, read, max_new_tokens), _endings(model, codec, read)
    settings = {"beams": beams, "alpha": alpha, "prefix": read.prefix, "source": read.source_1S}
    (found,) = beam_search(model, read.tokens_1T, n_new, **settings, **endings)
    decode = codec.decoder(read.target)
    return "".join(map(decode, found[0].tokens)) if found else ""


class _Read(NamedTuple):
    """Everything that a model reads before it writes."""

    tokens_1T: Tensor
    """Tokens of the one stack, or of the decoder."""
    target: list[int]
    """Tokens whose text the new tokens continue: all of them, or those of the target."""
    source_1S: Tensor | None = None
    """Tokens of the encoder."""
    prefix: list[int] | None = None
    """Length of the visible prefix. None: all tokens, or the model has no layers with a visible prefix."""


def _encoded(model: Decoder, codec: Codec, prompt: str, source: str | None) -> _Read:
    """Return the tokens of the texts. Raise UserError if a text is wrong, or if only one of model and caller knows a
    source text."""
    if source is None:
        if model.config.encoder is not None:
            raise UserError(
                "source, --source: missing; the model has an encoder, which reads this text (a prompt only begins the "
                "target text)"
            )
        tokens_1T = _tokens(model, "prompt", prompt, codec.encode)
        return _Read(tokens_1T, tokens_1T[0].tolist())
    if model.config.encoder is None and not codec.reads_source:
        raise UserError(
            "source: the model has no encoder that could read a source text, and is not a run that archlab trained on "
            "pairs or hidden spans with a tokenizer of its own; leave it out"
        )
    target_1T = _tokens(model, "prompt", prompt, codec.target)
    source_1S = _tokens(model, "source", source, codec.source)
    if model.config.encoder is not None:
        return _Read(target_1T, target_1T[0].tolist(), source_1S)
    tokens_1T = torch.cat((source_1S, target_1T[:, len(codec.special.before) :]), 1)
    prefix = [source_1S.shape[1]] if sees_as(model.config, "prefix") else None
    return _Read(tokens_1T, target_1T[0].tolist(), prefix=prefix)


def _tokens(model: Decoder, name: str, text: str, encode: Callable[[str], list[int]]) -> Tensor:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name}: not valid UTF-8") from None
    ids, known = encode(text), model.config.vocab_size
    if max(ids) >= known:
        raise UserError(f"{name}: token {max(ids)} is not in the model's vocabulary; allowed: up to {known - 1}")
    return torch.tensor([ids])


def _n_new(model: Decoder, read: _Read, max_new_tokens: int) -> int:
    """Return the number of tokens to write, which learned positions may limit. Raise UserError if none can follow."""
    n_tokens = read.tokens_1T.shape[1]
    room = room_after(model, n_tokens)
    if room == 0:
        name = "prompt" if len(read.target) == n_tokens else "source and prompt"
        allowed = model.config.max_seq_len - 1
        raise UserError(
            f"{name}: {n_tokens - 1} tokens; allowed: up to {allowed}, because an end-of-text token precedes them and "
            f"learned positions end at max_seq_len = {allowed + 1}"
        )
    limit = model.config.max_seq_len
    if room is None and n_tokens + max_new_tokens - 1 > limit:
        note_once(
            f"the model is built for at most {limit:,} tokens (model.max_seq_len), but the text may have "
            f"{n_tokens + max_new_tokens - 1:,}"
        )
    return max_new_tokens if room is None else min(max_new_tokens, room)


class _Endings(TypedDict):
    """Arguments of generation that the tokenizer determines."""

    end_of_text: list[int]
    forced_first: int | None
    forced_last: int | None
    excluded: list[int]


def _endings(model: Decoder, codec: Codec, read: _Read) -> _Endings:
    """Return the EOS tokens that the model can write, and the tokens that it must write. As in transformers, a first
    token is forced only after a single token."""
    special, is_start = codec.special, read.tokens_1T.shape[1] == 1
    return {
        "end_of_text": [token for token in special.ends if token < model.config.vocab_size],
        "forced_first": special.forced_first if is_start else None,
        "forced_last": special.forced_last,
        "excluded": unknown_tokens(model, codec),
    }


def unknown_tokens(model: Decoder, codec: Codec) -> list[int]:
    """Return the tokens of the model that the tokenizer lacks, except EOS tokens."""
    ids, ends = range(model.config.vocab_size), codec.special.ends
    return [token for token in ids if token not in ends and codec.tokenizer.id_to_token(token) is None]


def _pieces(tokens: Iterator[Tensor], decode: Callable[[int], str], until: StopStrings) -> Iterator[str]:
    for token_1 in tokens:
        yield until.certain(decode(int(token_1)))
        if until.found:
            return
    yield until.rest()


class _Utf8Decoder:
    """Decoder that returns each character as soon as its bytes are complete. Invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, raw: bytes) -> str:
        text = self._decoder.decode(raw)
        pending = self._decoder.getstate()[0]
        # These bytes begin a surrogate, which is not a character. Python would wait for its last byte.
        return text + self.end() if pending[:1] == b"\xed" and pending[1:] >= b"\xa0" else text

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


class RunCodec(Codec):
    """Codec of a run trained by archlab.

    A text begins and ends with the token that preceded each document in training. The bytes of each token are known. If
    a prompt or a source text begins with the name of a mode token, such as [S], this token precedes all others, as in
    training with a mixture of objectives.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        reads_pairs: bool = False,
        ends: Sequence[int] = (),
        objective: Objective | None = None,
    ) -> None:
        """Make the codec of a run with this objective (default: the next token). `reads_pairs` tells if its data has
        pairs. `ends` end responses in conversations."""
        before = bpe.document_tokens(tokenizer)
        self.tokenizer, self.reads_pairs, self._objective = tokenizer, reads_pairs, objective or NextToken()
        self.special = SpecialTokens(
            before, bos=before[0], eos=before[0], mask=bpe.mask_token(tokenizer), ends=(before[0], *ends)
        )
        hides_spans = any(isinstance(own, SpanCorruption) for own in self._objective.by_field().values())
        self.reads_source = reads_pairs or hides_spans
        self._spelling = None if not_spelled(tokenizer) else spelling(tokenizer)
        self._modes = mode_tokens(tokenizer)

    def encode(self, prompt: str) -> list[int]:
        mode, text = self._split(prompt)
        return [*self._named(mode), *self.target(text)]

    def source(self, text: str) -> list[int]:
        """Return the tokens of a source text. Reserved tokens, such as sentinels, are recognized by their names.

        The form is that of training. In a pair, the tokens that begin a document precede both source and target. A
        text with hidden spans only ends with the first of them.
        """
        mode, text = self._split(text)
        with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
            ids = bpe.reading_special_tokens(self.tokenizer).encode(text, add_special_tokens=False).ids
        before = self.special.before
        if not self.reads_pairs and reads_hidden_spans(self._objective, mode):
            return [*self._named(mode), *ids, before[0]]
        return [*self._named(mode), *before, *ids, *(before if self.reads_pairs else ())]

    def target(self, prompt: str) -> list[int]:
        return [*self.special.before, *bpe.encode(self.tokenizer, [prompt])[0].tolist()]

    def _named(self, mode: str | None) -> list[int]:
        return [] if mode is None else [self._modes[mode]]

    def _split(self, text: str) -> tuple[str | None, str]:
        """Return the name of the mode token with which a text begins, if any, and the rest of the text."""
        mode = next((name for name in self._modes if text.startswith(f"[{name}]")), None)
        return mode, text if mode is None else text.removeprefix(f"[{mode}]")

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        if self._spelling is None:
            return _decoder_after(self.tokenizer, prompt)
        characters, bytes_by_token = _Utf8Decoder(), self._spelling.tokens
        prefix = b"" if any(bytes_by_token.get(token) for token in prompt) else self._spelling.prefix.encode()

        def add(token: int) -> str:
            nonlocal prefix
            raw = bytes_by_token.get(token, b"")
            without_prefix, prefix = raw.removeprefix(prefix), b"" if raw else prefix
            return characters.add(without_prefix)

        return add


class PublishedCodec(Codec):
    """Codec of a published model.

    The model's tokenizer decides which tokens precede a text, and recognizes special tokens by name.
    """

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        self.tokenizer, self.special, self.reads_source = tokenizer, special, False

    def encode(self, prompt: str) -> list[int]:
        """Return the tokenizer's tokens of a prompt. If there are none, return the tokens that precede a document."""
        with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
            ids = self.tokenizer.encode(prompt).ids
        if ids := ids or [*self.special.document]:
            return ids
        raise UserError(
            "prompt: empty, and no file of the model names a token that begins a text (bos_token, eos_token)"
        )

    def source(self, text: str) -> list[int]:
        return self.encode(text)

    def target(self, prompt: str) -> list[int]:
        """Return the token that starts the decoder, and the tokens of the prompt. A token that the decoder must write
        first precedes a prompt that is not empty."""
        if self.special.decoder_start is None:
            raise UserError(
                "no file of the model names the token that starts its decoder (decoder_start_token_id, bos_token_id)"
            )
        with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
            ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        first = () if self.special.forced_first is None or not ids else (self.special.forced_first,)
        return [self.special.decoder_start, *first, *ids]

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        return _decoder_after(self.tokenizer, prompt)


def _decoder_after(tokenizer: Tokenizer, prompt: list[int]) -> Callable[[int], str]:
    stream = _StreamDecoder(tokenizer)
    for token in prompt:
        stream.add(token)
    return stream.add


class _StreamDecoder:
    """Token-by-token decoder for any tokenizer. A new token never changes earlier text.

    Tokens that represent bytes wait until their bytes form complete characters. These are all tokens of a byte-level
    tokenizer, and tokens such as `<0x0A>` of other tokenizers. Any other token is decoded together with the previous
    token, because some decoders drop the space before the first word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.added = tokenizer.get_added_tokens_decoder()
        state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
        steps = {part.get("type") for part in (state, *state.get("decoders", ()))}
        self.is_byte_level, self.has_byte_tokens = "ByteLevel" in steps, "ByteFallback" in steps
        self.characters = _Utf8Decoder()
        self.before: list[int] = []

    def add(self, token: int) -> str:
        name = self.tokenizer.id_to_token(token)
        if name is None or (token in self.added and self.added[token].special):
            return ""
        raw = self._bytes(name)
        if raw is None:
            text = self.characters.end() + self._decode_after(token)
            self.before = [token]
            return text
        a_letter = self.tokenizer.token_to_id("<0x61>")
        self.before = [] if a_letter is None else [a_letter]
        return self.characters.add(raw)

    def _bytes(self, name: str) -> bytes | None:
        if self.is_byte_level:
            return bytes_of_name(name)
        return byte_of_name(name) if self.has_byte_tokens else None

    def _decode_after(self, token: int) -> str:
        context, both = (self.tokenizer.decode(ids) for ids in (self.before, [*self.before, token]))
        return both[len(context) :]
