"""Text in, text out, piece by piece: never part of a character, never part of a stop string."""

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from archlab.data import tokenizer as bpe
from archlab.data.spelling import byte_of_name, bytes_of_name, spelling
from archlab.errors import UserError
from archlab.hf.special_tokens import SpecialTokens
from archlab.infer.generate import Session
from archlab.infer.sampling import Sampling
from archlab.model.decoder import Decoder


class Codec(Protocol):
    """What `stream_text` needs of a tokenizer."""

    special: SpecialTokens
    """Its `ends` are the tokens at which a text is over."""

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt, with the tokens that stand before every text."""
        ...

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """A function to be called with each new token; it returns the text that is complete now, perhaps none yet."""
        ...


def stream_text(
    model: Decoder,
    tokenizer: Tokenizer | Codec,
    prompt: str,
    max_new_tokens: int = 128,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    *,
    compile: bool = False,
) -> Iterator[str]:
    """The continuation of a prompt in pieces, each as soon as it is certain; greedy where `sampling` is None.

    With our own tokenizers an end-of-text token stands before the text, so the prompt may be empty; a `Codec` decides
    itself what stands there. The text ends after max_new_tokens, at the next end-of-text token, where learned positions
    end, or before the first stop string in the new text. `compile`: see `Session`.
    A last character is dropped if its bytes are not complete; bytes that can be no character become U+FFFD.
    A UserError comes before anything is computed.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("prompt: not valid UTF-8") from None
    codec = RunCodec(tokenizer) if isinstance(tokenizer, Tokenizer) else tokenizer
    ids = codec.encode(prompt)
    if max(ids) >= model.config.vocab_size:
        raise UserError(f"prompt: has token {max(ids)}; the model's vocabulary ends at {model.config.vocab_size - 1}")
    prompt_1T = torch.tensor([ids])
    until = StopStrings(stop)
    session = Session(model, prompt_1T, capacity=prompt_1T.shape[1] + max(max_new_tokens, 0), compile=compile)
    if session.room == 0:
        allowed = model.config.max_seq_len - 1
        raise UserError(
            f"prompt: {prompt_1T.shape[1] - 1} tokens; allowed: up to {allowed}, for an end-of-text token is "
            f"before them and learned positions end at max_seq_len = {allowed + 1}"
        )
    room = max_new_tokens if session.room is None else min(max_new_tokens, session.room)
    ends = [token for token in codec.special.ends if token < model.config.vocab_size]  # it can write no others
    return filter(None, _pieces(session.write(room, sampling, ends), codec.decoder(ids), until))


def _pieces(tokens: Iterator[Tensor], decode: Callable[[int], str], until: "StopStrings") -> Iterator[str]:
    """The end-of-text token adds nothing, as no special token does."""
    for token_1 in tokens:
        yield until.certain(decode(int(token_1)))
        if until.found:
            return
    yield until.rest()


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may still become one.

    The first stop string is the one that is complete first; of several that are complete at the same character, it is
    the longest. How the text was cut into pieces does not matter.
    """

    def __init__(self, stop: str | Sequence[str]) -> None:
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in self.stop:
            raise UserError("stop: ''; allowed: strings of one character or more")
        self.found = False
        self._held = ""

    def certain(self, piece: str) -> str:
        """The text that is certain with this piece and was not before. Sets `found` at a stop string."""
        certain = ""
        for character in piece:
            self._held += character
            ends = [len(stop) for stop in self.stop if self._held.endswith(stop)]
            if ends:
                self.found = True
                return certain + self._held[: -max(ends)]
            sure = len(self._held) - self._may_be_stop()
            certain, self._held = certain + self._held[:sure], self._held[sure:]
        return certain

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        return self._held

    def _may_be_stop(self) -> int:
        """Characters at the end of what is held with which a stop string begins."""
        ends = (self._held[start:] for start in range(len(self._held)))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stop)), 0)


class _Utf8Decoder:
    """Bytes to characters, each as soon as it is complete; bytes that can be no character become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, raw: bytes) -> str:
        """The characters that are complete with these bytes."""
        text = self._decoder.decode(raw)
        held = self._decoder.getstate()[0]
        # Python waits for the end of a surrogate, which is no character.
        return text + self.end() if held[:1] == b"\xed" and held[1:] >= b"\xa0" else text

    def end(self) -> str:
        """The bytes that still waited for more, now that something else follows."""
        return self._decoder.decode(b"", final=True)


class RunCodec:
    """Codec of a run made here: the token that preceded each document in training begins a text and ends it.

    Each token has a known number of bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        before = bpe.document_tokens(tokenizer)
        self.tokenizer = tokenizer
        self.special = SpecialTokens(before, bos=before[0], eos=before[0], ends=before[:1])
        self._spelling = spelling(tokenizer)

    def encode(self, prompt: str) -> list[int]:
        """Return the tokens that precede a document, then those of the text."""
        return [*self.special.before, *bpe.encode(self.tokenizer, [prompt])[0].tolist()]

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """Bytes that can be no character become U+FFFD; special tokens stand for no bytes."""
        characters, spelled = _Utf8Decoder(), self._spelling.tokens
        prefix = b"" if any(spelled.get(token) for token in prompt) else self._spelling.prefix.encode()

        def add(token: int) -> str:
            nonlocal prefix
            raw = spelled.get(token, b"")
            without, prefix = raw.removeprefix(prefix), b"" if raw else prefix
            return characters.add(without)

        return add


class PublishedCodec:
    """Codec of a published model: its tokenizer decides what precedes a text, and reads special tokens by name."""

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        self.tokenizer, self.special = tokenizer, special

    def encode(self, prompt: str) -> list[int]:
        """Return the tokenizer's tokens; for an empty text, those that precede a document."""
        with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
            ids = self.tokenizer.encode(prompt).ids
        if ids := ids or [*self.special.document]:
            return ids
        raise UserError("prompt: empty, and no file of the model names a token to begin with (bos_token, eos_token)")

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """Bytes that can be no character become U+FFFD; special tokens are left out."""
        stream = _StreamDecoder(self.tokenizer)
        for token in prompt:
            stream.add(token)
        return stream.add


class _StreamDecoder:
    """Text token by token, whatever the tokenizer's decoder is; a new token never changes the text before it.

    Tokens that stand for bytes (all tokens of a byte-level tokenizer, `<0x..>` of others) wait until their bytes are
    whole characters. Any other token is decoded together with the one before it, because some decoders drop the space
    in front of the first word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.added = tokenizer.get_added_tokens_decoder()
        how = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
        steps = {part.get("type") for part in (how, *how.get("decoders", ()))}
        self.is_byte_level, self.has_byte_tokens = "ByteLevel" in steps, "ByteFallback" in steps
        self.characters = _Utf8Decoder()
        self.before: list[int] = []

    def add(self, token: int) -> str:
        """The text that is complete with this token, perhaps none yet."""
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
