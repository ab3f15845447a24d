"""Between text and tokens, for generation: how a text begins, how it ends, and what each new token adds."""

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from archlab.data import tokenizer as bpe
from archlab.errors import UserError
from archlab.model.origin import Origin


class Codec(Protocol):
    """What `stream_text` needs of a tokenizer."""

    ends: tuple[int, ...]
    """Tokens at which a text is over."""

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt, with what stands before a text."""
        ...

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """A function to be called with each new token: the text that is certain with it, perhaps none yet."""
        ...


class ByteLevel:
    """Ours: an end-of-text token stands before every text, and each token for a known number of bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.ends = tokenizer, (bpe.end_of_text(tokenizer),)

    def encode(self, prompt: str) -> list[int]:
        """The end-of-text token, then the text."""
        return [*self.ends, *bpe.encode(self.tokenizer, [prompt])[0].tolist()]

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """Bytes that can be no character become U+FFFD; special tokens stand for no bytes."""
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda token: characters.decode(bpe.bytes_of(self.tokenizer, token))


class Published:
    """Any tokenizer.json, used as it says itself: with what it puts before a text, special tokens by their names."""

    def __init__(self, tokenizer: Tokenizer, origin: Origin) -> None:
        self.tokenizer, self.origin, self.ends = tokenizer, origin, origin.ends()

    def encode(self, prompt: str) -> list[int]:
        """As the tokenizer does it; of an empty text, the token that begins or else the one that ends a text."""
        begin = self.origin.special_ids.get("bos_token_id")
        if ids := self.tokenizer.encode(prompt).ids:
            return ids
        if first := [i for i in (begin, *self.ends) if isinstance(i, int)]:
            return first[:1]
        raise UserError("prompt: empty, and config.json has neither bos_token_id nor eos_token_id to begin with")

    def decoder(self, prompt: list[int]) -> Callable[[int], str]:
        """Decoded after the prompt, for a space before a word counts only there; special tokens are left out."""
        stream = DecodeStream(ids=prompt, skip_special_tokens=True)
        return lambda token: stream.step(self.tokenizer, token) or ""


def read_tokenizer(file: Path) -> Tokenizer:
    """Any tokenizer.json, without cutting or filling texts."""
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    except Exception as error:  # tokenizers raises bare Exception
        raise UserError(f"{file}: not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
