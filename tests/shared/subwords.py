"""Tiny tokenizers that spell text differently from archlab's own.

They are SentencePiece's kinds, and tokenizers that put a space before each text.
"""

import json
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from archlab.data import tokenizer as bpe

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = list("▁abcdefghijklmnopqrstuvwxyz")
TEXTS = [
    "the quick brown fox jumps over  the lazy dog\n",
    "a café, naïve 日本語 ☃ and\ttabs\r\n\n\n  indented twice",
    "\nbegins with a line; ends with a space ",
    "x",
    "def f(x):\n    return [x] * 2\n\n\nprint(f('<x>'))\n",
]
"""Texts that every tokenizer with byte tokens encodes without loss."""


def bpe_parts() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary and merges of a BPE of plain letters. Everything else is left to byte tokens."""
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=[*SPECIAL, *BYTES], initial_alphabet=LETTERS, limit_alphabet=30,
        show_progress=False,
    )  # fmt: skip
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def unigram_parts(*more: str) -> list[tuple[str, float]]:
    """Return the pieces and scores of a Unigram; the pieces in `more` have the lowest score."""
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=SPECIAL, unk_token="<unk>", initial_alphabet=LETTERS, show_progress=False
    )
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    pieces = [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]
    return [*pieces, *((piece, -20.0) for piece in more)]


def _with_bytes(prefix: bool) -> Tokenizer:
    """Return a BPE with byte tokens for unknown characters."""
    vocab, merges = bpe_parts()
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(SPECIAL)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def llama_2() -> Tokenizer:
    """Return a tokenizer like those of Llama 2 and Mistral 7B: the normalizer puts `▁` before each text."""
    tokenizer = _with_bytes(prefix=True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def llama_5() -> Tokenizer:
    """Return Llama 2's tokenizer as transformers 5 writes it: `▁` is put before each text that does not begin
    with one."""
    tokenizer = _with_bytes(prefix=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def gemma() -> Tokenizer:
    """Return a tokenizer that puts nothing before a text."""
    tokenizer = _with_bytes(prefix=False)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def t5() -> Tokenizer:
    """Return a Unigram without byte tokens, which cannot encode some texts."""
    tokenizer = Tokenizer(models.Unigram(unigram_parts(), unk_id=0, byte_fallback=False))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def unigram_with_bytes() -> Tokenizer:
    """Return a Unigram with byte tokens for unknown characters."""
    tokenizer = Tokenizer(models.Unigram(unigram_parts(*BYTES), unk_id=0, byte_fallback=True))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def byte_level() -> Tokenizer:
    """Return a byte-level tokenizer like RoBERTa's, with a space before each text."""
    tokenizer = bpe.train(TEXTS, 300)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


KINDS = {make.__name__: make for make in (llama_2, llama_5, gemma, t5, unigram_with_bytes, byte_level)}


def decode(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Return the text of tokens, without special tokens. Bytes that are not UTF-8 become U+FFFD."""
    return tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
