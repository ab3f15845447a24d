"""Tokenizers: learned ones are byte-level BPE, loaded ones of any kind whose tokens stand for known bytes."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from archlab.config.core.base import WIDEST
from archlab.config.core.text import note
from archlab.data.spelling import not_spelled
from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT, read_text
from archlab.hf.folder import own_file
from archlab.hf.special_tokens import SpecialTokens, before_text, complete_from, put_before_text
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


def load(path: Path, document_token: int | None = None) -> Tokenizer:
    """Read a tokenizer for text whose bytes are counted. UserError if nobody can say which bytes a token stands for.

    The files beside it name the tokens that precede a document (`document_tokens`), unless `document_token` is given.
    """
    tokenizer, special = read(path)
    if reason := not_spelled(tokenizer):
        allowed = "a byte-level or a SentencePiece-style tokenizer"
        raise UserError(f"{path}: {reason}, so bits per byte could not be exact; allowed: {allowed}")
    if document_token is None:
        document_token = _named_or_first(tokenizer, special, path)
    if tokenizer.id_to_token(document_token) is None:
        raise UserError(f"{path}: has no token {document_token}, which precedes each document")
    if document_tokens(tokenizer)[:1] != (document_token,):
        put_before_text(tokenizer, document_token)
    return _plain(tokenizer)


def _named_or_first(tokenizer: Tokenizer, special: SpecialTokens, path: Path) -> int:
    """The token that precedes a document, made special so that it stands for no bytes of text."""
    if not special.document and (end := end_of_text(tokenizer)) is not None:
        return end
    token = special.document[0] if special.document else _first_special(tokenizer, path)
    added = tokenizer.get_added_tokens_decoder().get(token)
    if (name := tokenizer.id_to_token(token)) and not (added and added.special):
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=True)])
    return token


def _first_special(tokenizer: Tokenizer, path: Path) -> int:
    """The special token with the lowest number: any one can precede documents if no file names one."""
    special = [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    if not special:
        raise UserError(f"{path}: has no special token, and one must precede each document; add one")
    first = min(special)
    note(
        f"{path}: no file beside it names the token that begins a text; {tokenizer.id_to_token(first)}, its first "
        "special token, precedes each document. To choose another, put its tokenizer_config.json beside it."
    )
    return first


def from_text(text: str) -> Tokenizer:
    """The tokenizer of `to_str`, which does not say all of it, when it is one of `train` or `load`."""
    return _plain(Tokenizer.from_str(text))


def read(path: Path) -> tuple[Tokenizer, SpecialTokens]:
    """Read any `tokenizer.json`, or that of a folder, with the special tokens that the files beside it name.

    It neither truncates nor pads. UserError if it cannot be used.
    """
    path = own_tokenizer(path) if path.is_dir() else path
    with tokenizer_errors(f"{path}: not a tokenizer.json"):
        tokenizer = Tokenizer.from_str(read_text(path, LARGE_TEXT_LIMIT))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode("a")  # some damage shows only here
    if (largest := vocab_size(tokenizer) - 1) >= WIDEST:
        raise UserError(f"{path}: a token has the number {largest:,}; allowed: below {WIDEST:,}")
    return tokenizer, complete_from(tokenizer, path.parent)


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
    return own_file(folder, TOKENIZER)


def check_same(model: Tokenizer, data: Tokenizer, model_name: str, data_name: str) -> None:
    """UserError unless both give the same tokens and put the same ones before each document."""
    if _without_post_processor(model) != _without_post_processor(data):
        found = f"has another tokenizer than {model_name}"
    elif (own := document_tokens(model)) != (others := document_tokens(data)):
        names = [" ".join(t.id_to_token(i) or str(i) for i in ids) for t, ids in ((data, others), (model, own))]
        found = f"begins each document with {names[0]}, and {model_name} begins a text with {names[1]}"
    else:
        return
    raise UserError(f"{data_name}: {found}; make it with `archlab data --tokenizer {model_name}`")


def _without_post_processor(tokenizer: Tokenizer) -> dict:
    """The post-processor says which tokens are put around a text, and nothing about the text itself."""
    return json.loads(tokenizer.to_str()) | {"post_processor": None}


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Encode text as text only: `<|endoftext|>` inside a document is plain letters, no special token."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def document_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that precede each document. The first one precedes nothing else.

    They are what the post-processor puts there; a tokenizer without one has an end-of-text token by its name.
    """
    end = end_of_text(tokenizer)
    return before_text(tokenizer) or (() if end is None else (end,))


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The end-of-text token by its name, which preceded each document before data and runs wrote that down."""
    return next((i for name in _END_NAMES if (i := tokenizer.token_to_id(name)) is not None), None)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of each text, int64, without special tokens."""
    with tokenizer_errors(CANNOT_ENCODE):
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(e.ids, dtype=np.int64) for e in encoded]


def decode(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The text of some ids; special tokens are left out, bytes that are no UTF-8 become U+FFFD."""
    return tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
