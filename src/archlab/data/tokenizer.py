"""Byte-level BPE: every text encodes without loss, and each token stands for a known number of bytes."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from archlab.config.base import WIDEST
from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT, read_text
from archlab.interrupt import run_in_thread

TOKENIZER = "tokenizer.json"
"""Its name in every folder."""

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCAB = 257
"""256 bytes and the end-of-text token."""

_END_NAMES = (
    END_OF_TEXT,
    "<|end_of_text|>",
    "<|begin_of_text|>",
    "</s>",
    "<s>",
    "<eos>",
    "<bos>",
    "<|im_end|>",
)

# GPT-4's split (cl100k), with numbers in pairs: a small vocabulary has no room for a thousand triples.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What is a word, of which tokens are parts."""

LONGEST_WORD = 256
"""Characters that the trainer sees of a word at once. Its time grows with the square of a word's length, and a million
equal characters in a row are one word. Encoding takes words of any length, in linear time."""


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer learned from these texts; the same texts give the same tokenizer.

    It has fewer tokens than asked for when the texts hold too few pairs that occur twice. No token is longer than
    LONGEST_WORD characters.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise UserError(f"vocab_size: {vocab_size}; allowed: from {SMALLEST_VOCAB} (256 bytes and {END_OF_TEXT})")
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    in_parts = pre_tokenizers.FixedLength(length=LONGEST_WORD)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, in_parts, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    run_in_thread(lambda: tokenizer.train_from_iterator(texts, trainer))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    return _plain(tokenizer)


def load(path: Path) -> Tokenizer:
    """As `read`; a UserError when bits per byte could not be exact with it."""
    tokenizer = read(path)
    reason = _not_byte_level(tokenizer, json.loads(tokenizer.to_str()))
    if reason:
        raise UserError(f"{path}: {reason}, so bits per byte could not be exact; allowed: byte-level BPE")
    return _plain(tokenizer)


def from_text(text: str) -> Tokenizer:
    """The tokenizer of `to_str`, which does not say all of it, when it is one of `train` or `load`."""
    return _plain(Tokenizer.from_str(text))


def read(path: Path) -> Tokenizer:
    """Any `tokenizer.json`, or that of a folder, without truncation or padding; UserError when it cannot be used."""
    path = own_tokenizer(path) if path.is_dir() else path
    with tokenizer_errors(f"{path}: not a tokenizer.json"):
        tokenizer = Tokenizer.from_str(read_text(path, LARGE_TEXT_LIMIT))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode("a")  # some damage shows only here
    if (largest := vocab_size(tokenizer) - 1) >= WIDEST:
        raise UserError(f"{path}: a token has the number {largest:,}; allowed: below {WIDEST:,}")
    return tokenizer


@contextmanager
def tokenizer_errors(what: str) -> Iterator[None]:
    """Raise UserError, which begins with `what`, for an error of the tokenizers library within the block.

    The library raises bare Exception, and its panics are not even that.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, UserError, MemoryError):
        raise
    except BaseException as error:
        raise UserError(f"{what}: {error}") from None


CANNOT_ENCODE = "the tokenizer cannot encode the text"


def own_tokenizer(folder: Path) -> Path:
    """The `tokenizer.json` of a model's folder; UserError that says where one comes from."""
    file = folder / TOKENIZER
    if not file.is_file():
        made = "transformers' AutoTokenizer.from_pretrained(…).save_pretrained(…) writes one of other tokenizer files"
        raise UserError(f"{folder}: has no {TOKENIZER}; copy the one of the model's authors into the folder ({made})")
    return file


def same_tokenizer(a: Path, b: Path) -> bool:
    """Whether two files hold the same tokenizer; a data folder may write it differently, as `load` reads it."""
    return a.read_bytes() == b.read_bytes() or load(a).to_str() == load(b).to_str()


def _not_byte_level(tokenizer: Tokenizer, parts: dict) -> str | None:
    for part in ("pre_tokenizer", "decoder"):
        if '"ByteLevel"' not in json.dumps(parts.get(part)):
            return f"its {part} is not byte-level"
    missing = [c for c in pre_tokenizers.ByteLevel.alphabet() if tokenizer.token_to_id(c) is None]
    if missing:
        return f"{len(missing)} of the 256 bytes have no token"
    if not any(tokenizer.token_to_id(name) is not None for name in _END_NAMES):
        return f"it has no end-of-text token (one of {', '.join(_END_NAMES)})"
    return None


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Encode text as text only: `<|endoftext|>` inside a document is plain letters, no special token."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def end_of_text(tokenizer: Tokenizer) -> int:
    """The id of the token that stands before every document."""
    return next(i for name in _END_NAMES if (i := tokenizer.token_to_id(name)) is not None)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of each text, int64, without special tokens."""
    with tokenizer_errors(CANNOT_ENCODE):
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(e.ids, dtype=np.int64) for e in encoded]


def decode(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The text of some ids; special tokens are left out, bytes that are no UTF-8 become U+FFFD."""
    return tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """int32 [vocab_size]: how many bytes of text each id stands for; 0 for special tokens and unused ids."""
    counts = np.zeros(vocab_size(tokenizer), dtype=np.int32)
    for token, i in tokenizer.get_vocab(with_added_tokens=False).items():
        counts[i] = len(token)  # one character of the byte alphabet per byte
    for i, added in tokenizer.get_added_tokens_decoder().items():
        counts[i] = 0 if added.special else len(added.content.encode())
    return counts


def bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """The text that one id stands for, perhaps only part of a character; nothing for special tokens."""
    added = tokenizer.get_added_tokens_decoder().get(token)
    if added is not None:
        return b"" if added.special else added.content.encode()
    return bytes_of_name(tokenizer.id_to_token(token) or "")


def bytes_of_name(name: str) -> bytes:
    """The bytes of a byte-level token: one per character of its name. Added tokens in other characters are UTF-8."""
    return bytes(_BYTE[c] for c in name) if _BYTE.keys() >= set(name) else name.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: character -> byte. Printable Latin-1 is itself; the others, in order, are U+0100 and on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE = _byte_alphabet()
