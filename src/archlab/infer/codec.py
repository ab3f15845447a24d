"""Text to tokens and tokens to text, for generation: how a text begins and ends, and what each new token adds."""

import codecs
import json
import re
from collections.abc import Callable
from typing import Protocol

from tokenizers import Tokenizer

from archlab.data import tokenizer as bpe
from archlab.errors import UserError
from archlab.model.origin import Origin


class Codec(Protocol):
    """What `stream_text` needs of a tokenizer."""

    end_tokens: tuple[int, ...]
    """Tokens at which a text is over."""

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


class ByteLevelCodec:
    """For our own tokenizers: an end-of-text token stands before every text; each token has a known number of bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.end_tokens = tokenizer, (bpe.end_of_text(tokenizer),)

    def encode(self, prompt: str) -> list[int]:
        """The end-of-text token, then the text."""
        return [*self.end_tokens, *bpe.encode(self.tokenizer, [prompt])[0].tolist()]

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """Bytes that can be no character become U+FFFD; special tokens stand for no bytes."""
        characters = _Utf8Decoder()
        return lambda token: characters.add(bpe.bytes_of(self.tokenizer, token))


class PublishedCodec:
    """For any tokenizer.json: it decides what stands before a text, and reads special tokens by their names."""

    def __init__(self, tokenizer: Tokenizer, origin: Origin) -> None:
        self.tokenizer, self.origin, self.end_tokens = tokenizer, origin, origin.ends()

    def encode(self, prompt: str) -> list[int]:
        """As the tokenizer does it. An empty text is the token that begins a text, or else the one that ends it."""
        begin = self.origin.special_ids.get("bos_token_id")
        with bpe.tokenizer_errors(bpe.CANNOT_ENCODE):
            ids = self.tokenizer.encode(prompt).ids
        if ids:
            return ids
        if first := [i for i in (begin, *self.end_tokens) if isinstance(i, int)]:
            return first[:1]
        raise UserError("prompt: empty, and config.json has neither bos_token_id nor eos_token_id to begin with")

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
            return bpe.bytes_of_name(name)
        is_byte = self.has_byte_tokens and _BYTE_TOKEN.fullmatch(name)
        return bytes.fromhex(is_byte[1]) if is_byte else None

    def _decode_after(self, token: int) -> str:
        context, both = (self.tokenizer.decode(ids) for ids in (self.before, [*self.before, token]))
        return both[len(context) :]


_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
