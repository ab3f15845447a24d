"""Text to tokens and tokens to text, for generation: how a text begins and ends, and what each new token adds."""

import codecs
import json
from collections.abc import Callable
from typing import Protocol

from tokenizers import Tokenizer

from archlab.data import tokenizer as bpe
from archlab.data.spelling import byte_of_name, bytes_of_name, spelling
from archlab.errors import UserError
from archlab.hf.special_tokens import SpecialTokens


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
