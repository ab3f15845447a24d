"""Bytes of text that each token of a tokenizer represents.

Two kinds of tokenizers can preserve every byte of a text. In a byte-level tokenizer, each character of a token's name
is a byte. In a SentencePiece tokenizer, a name is text in which `▁` is a space, and names such as `<0x0A>` are bytes.
Both kinds may add a space before a text. This space belongs to the first token, but not to the text.

A byte-level tokenizer may lack tokens of single bytes, as SmolLM2's does, and drops these bytes from a text.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Spelling:
    """Bytes that the tokens of one tokenizer represent."""

    tokens: Mapping[int, bytes]
    """Bytes of each token, by token id. They may be an incomplete character. Special tokens have no bytes."""
    prefix: str
    """Space that the tokenizer adds before a text, or an empty string."""

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of bytes for each token id, int32 [vocab_size]; 0 for special tokens and unused ids."""
        sizes = np.zeros(max(self.tokens) + 1, dtype=np.int32)
        for i, spelled in self.tokens.items():
            sizes[i] = len(spelled)
        return sizes

    def bytes_of(self, ids: np.ndarray) -> bytes:
        sizes = self.sizes[ids]
        ends = sizes.cumsum()
        places = np.repeat(self._starts[ids] - (ends - sizes), sizes) + np.arange(sizes.sum())
        return self._all_bytes[places].tobytes()

    @cached_property
    def _all_bytes(self) -> np.ndarray:
        return np.frombuffer(b"".join(spelled for _, spelled in sorted(self.tokens.items())), dtype=np.uint8)

    @cached_property
    def _starts(self) -> np.ndarray:
        return self.sizes.cumsum() - self.sizes


def spelling(tokenizer: Tokenizer) -> Spelling:
    """Return the bytes of a tokenizer's tokens. Call only if `not_spelled` returns None for the tokenizer."""
    parts = _parts(tokenizer)
    read = _reader(parts["decoder"])
    assert read is not None
    tokens = {i: read(name) for name, i in tokenizer.get_vocab(with_added_tokens=False).items()}
    for i, added in tokenizer.get_added_tokens_decoder().items():
        tokens[i] = b"" if added.special else added.content.encode()
    encoding = [parts["normalizer"], parts["pre_tokenizer"]]
    return Spelling(tokens, " " if _unprefixed(encoding) != encoding else "")


def not_spelled(tokenizer: Tokenizer) -> str | None:
    """Return the reason why the bytes of the tokens cannot be determined; None if they can."""
    parts = _parts(tokenizer)
    if _reader(parts["decoder"]) is None:
        kinds = " + ".join(str(step["type"]) for step in _steps(parts["decoder"]))
        return f"its decoder ({kinds}) is neither byte-level nor SentencePiece's"
    if not _is_byte_level(parts["decoder"]):
        return None
    if not _is_byte_level([parts["normalizer"], parts["pre_tokenizer"]]):
        return "its decoder is byte-level, but its pre_tokenizer is not byte-level"
    return None


def special_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """Return the ids of the special tokens in ascending order, int64. They have no bytes."""
    added = tokenizer.get_added_tokens_decoder().items()
    return np.array(sorted(i for i, token in added if token.special), dtype=np.int64)


def prefix_after_special(tokenizer: Tokenizer) -> str:
    """Return the space that the tokenizer adds to the text after each special token, or an empty string. Call only if
    `not_spelled` returns None for the tokenizer."""
    special, prefix = special_tokens(tokenizer), spelling(tokenizer).prefix
    if not prefix or not len(special):
        return ""
    reading = Tokenizer.from_str(tokenizer.to_str())  # the JSON leaves out that special tokens are read as text
    ids = reading.encode(f"{tokenizer.id_to_token(int(special[0]))}a", add_special_tokens=False).ids
    after = spelling(tokenizer).bytes_of(np.array(ids[1:]))
    return prefix if after == f"{prefix}a".encode() else ""


def without_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that adds no space before a text, but gives the same tokens otherwise."""
    whole = json.loads(tokenizer.to_str())
    encoding = _unprefixed({name: whole[name] for name in ("normalizer", "pre_tokenizer")})
    other = Tokenizer.from_str(json.dumps(whole | encoding))
    other.encode_special_tokens = tokenizer.encode_special_tokens  # the JSON does not contain this setting
    return other


def bytes_of_name(name: str) -> bytes:
    """Return the bytes of a byte-level token, one per character of its name.

    The name of an added token may have characters that represent no byte. In that case, return the name in UTF-8.
    """
    return bytes(_BYTE[c] for c in name) if _BYTE.keys() >= set(name) else name.encode()


def byte_of_name(name: str) -> bytes | None:
    """Return the byte of a token such as `<0x0A>`; None for any other token."""
    match = _BYTE_TOKEN.fullmatch(name)
    return bytes.fromhex(match[1]) if match else None


def _parts(tokenizer: Tokenizer) -> dict[str, Any]:
    names = ("normalizer", "pre_tokenizer", "decoder")
    parts = {name: getattr(tokenizer, name) for name in names}
    return {name: part and json.loads(part.__getstate__()) for name, part in parts.items()}


def _unprefixed(part: Any) -> Any:
    match part:
        case list():
            return [_unprefixed(step) for step in part if not _prepends(step)]
        case {"type": "Metaspace", "prepend_scheme": _, "split": _}:
            return part | {"prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": _}:
            return part | {"add_prefix_space": False}
        case dict():
            return {name: None if _prepends(step) else _unprefixed(step) for name, step in part.items()}
    return part


def _prepends(step: Any) -> bool:
    return isinstance(step, dict) and step.get("type") == "Prepend"


def _is_byte_level(part: Any) -> bool:
    return '"ByteLevel"' in json.dumps(part)


def _steps(decoder: Any) -> list[dict[str, Any]]:
    return decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder or {"type": None}]


def _reader(decoder: Any) -> Callable[[str], bytes] | None:
    if _is_byte_level(decoder):
        return bytes_of_name
    replaced, has_bytes = list[tuple[str, str]](), False
    for step in _steps(decoder):
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if len(old) == 1:
                replaced.append((old, new))
            case {"type": "Metaspace", "replacement": old}:
                replaced.append((old, " "))
            case {"type": "ByteFallback"}:
                has_bytes = True
            case {"type": "Fuse"} | {"type": "Strip", "content": " ", "start": 0 | 1, "stop": 0}:
                pass  # removes at most the space before a text, which is the prefix
            case _:
                return None

    def read(name: str) -> bytes:
        byte = byte_of_name(name) if has_bytes else None
        return reduce(lambda text, pair: text.replace(*pair), replaced, name).encode() if byte is None else byte

    return read


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's mapping from characters to bytes.

    A byte whose Latin-1 character is printable has that character. The other bytes, in order, have the characters from
    U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE = _byte_alphabet()
