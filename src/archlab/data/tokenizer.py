"""Learning, loading and use of tokenizers.

Learned tokenizers are byte-level BPE. Any tokenizer of the tokenizers library can be loaded.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from archlab.config.core.base import WIDEST
from archlab.config.core.text import note
from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT, read_text
from archlab.hf.folder import TOKENIZER, own_file
from archlab.hf.special_tokens import SpecialTokens, before_text, complete_from, put_before_text
from archlab.interrupt import run_in_thread

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCAB = 257
"""Smallest vocabulary: 256 bytes and the EOS token."""

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

MASKS = ("<mask>", "[MASK]", "<|mask|>")
"""Names of the mask token in published tokenizers. A reserved mask token gets the first name."""

# The pattern of GPT-4 (cl100k), but with digits in pairs: a small vocabulary has no room for a thousand triples.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern that splits text into words. No token extends over several words."""

LONGEST_WORD = 256
"""Maximum number of characters of a word while a tokenizer is learned. Longer words are cut.

Learning time grows with the square of the word length, and a million identical characters in a row are one word.
Encoding accepts words of any length, in linear time.
"""


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a tokenizer from texts. The same texts give the same tokenizer.

    The tokenizer has fewer than `vocab_size` tokens if too few token pairs occur at least twice. No token is longer
    than LONGEST_WORD characters. `vocab_size` must be at least SMALLEST_VOCAB.
    """
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
    """Load a tokenizer.

    `document_token` precedes each document. If it is None, it is read from the files next to the tokenizer, or chosen
    from the special tokens.
    """
    tokenizer, special = read(path)
    if document_token is None:
        document_token = _named_or_first(tokenizer, special, path)
    if tokenizer.id_to_token(document_token) is None:
        raise UserError(f"{path} has no token with id {document_token}, which should precede each document")
    if document_tokens(tokenizer)[:1] != (document_token,):
        put_before_text(tokenizer, document_token)
    return _plain(tokenizer)


def _named_or_first(tokenizer: Tokenizer, special: SpecialTokens, path: Path) -> int:
    if not special.document and (end := end_of_text(tokenizer)) is not None:
        return end
    token = special.document[0] if special.document else _first_special(tokenizer, path)
    added = tokenizer.get_added_tokens_decoder().get(token)
    if (name := tokenizer.id_to_token(token)) and not (added and added.special):
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=True)])
    return token


def _first_special(tokenizer: Tokenizer, path: Path) -> int:
    special = [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    if not special:
        raise UserError(f"{path} has no special token; add one, because a special token must precede each document")
    first = min(special)
    note(
        f"{path}: no file next to it names the token that begins a text, so {tokenizer.id_to_token(first)}, its first "
        "special token, precedes each document. To choose another, put the tokenizer_config.json into the same folder."
    )
    return first


def from_text(text: str) -> Tokenizer:
    """Restore a tokenizer from the JSON of one that `train` or `load` returned.

    Also set `encode_special_tokens`, which the JSON does not contain.
    """
    return _plain(Tokenizer.from_str(text))


def read(path: Path) -> tuple[Tokenizer, SpecialTokens]:
    """Read any `tokenizer.json`, or the one in a folder, with the special tokens that the files next to it name.

    Truncation and padding are switched off. Raise UserError if the tokenizer cannot be used.
    """
    path = own_tokenizer(path) if path.is_dir() else path
    with tokenizer_errors(f"{path}: not a tokenizer.json"):
        tokenizer = Tokenizer.from_str(read_text(path, LARGE_TEXT_LIMIT))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode("a")  # some damage causes an error only here
    if (largest := vocab_size(tokenizer) - 1) >= WIDEST:
        raise UserError(f"{path}: a token has the id {largest:,}; allowed: below {WIDEST:,}")
    return tokenizer, complete_from(tokenizer, path.parent)


@contextmanager
def tokenizer_errors(what: str) -> Iterator[None]:
    """Turn errors of the tokenizers library within the block into UserErrors that begin with `what`.

    All exceptions are caught: the library raises plain Exception, and a panic of its Rust code is only a BaseException.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, UserError, MemoryError):
        raise
    except BaseException as error:
        raise UserError(f"{what}: {error}") from None


CANNOT_ENCODE = "the tokenizer cannot encode the text"


def own_tokenizer(folder: Path) -> Path:
    """Return the `tokenizer.json` of a model's folder. Raise UserError with advice if the file is missing."""
    file = folder / TOKENIZER
    if not file.is_file():
        advice = "AutoTokenizer.from_pretrained(…).save_pretrained(…) of transformers converts other tokenizer files"
        raise UserError(f"{folder} has no {TOKENIZER}; copy the model authors' file into the folder ({advice})")
    return own_file(folder, TOKENIZER)


def check_same(model: Tokenizer, data: Tokenizer, model_name: str, data_name: str) -> None:
    """Raise UserError unless two tokenizers give the same tokens and put the same tokens before each document."""
    if _without_post_processor(model) != _without_post_processor(data):
        difference = f"has a different tokenizer than {model_name}"
    elif (model_tokens := document_tokens(model)) != (data_tokens := document_tokens(data)):
        pairs = ((data, data_tokens), (model, model_tokens))
        names = [" ".join(t.id_to_token(i) or str(i) for i in ids) for t, ids in pairs]
        difference = f"begins each document with {names[0]}, but {model_name} begins a text with {names[1]}"
    else:
        return
    raise UserError(f"{data_name} {difference}; make it with `archlab data --tokenizer {model_name}`")


def _without_post_processor(tokenizer: Tokenizer) -> dict:
    return json.loads(tokenizer.to_str()) | {"post_processor": None}


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocab_size(tokenizer: Tokenizer) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def document_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the tokens that precede each document. The first of them occurs nowhere else.

    The post-processor defines these tokens. Without a post-processor, the EOS token, found by its name, precedes each
    document.
    """
    end = end_of_text(tokenizer)
    return before_text(tokenizer) or (() if end is None else (end,))


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """Return the EOS token, found by its name; None if there is none.

    It precedes each document in data and runs from old versions, which did not record that token.
    """
    return next((i for name in _END_NAMES if (i := tokenizer.token_to_id(name)) is not None), None)


def mask_token(tokenizer: Tokenizer) -> int | None:
    """Return the mask token, found by its name; None if there is none."""
    return next((i for name in MASKS if (i := tokenizer.token_to_id(name)) is not None), None)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the token ids of each text as int64, without special tokens."""
    with tokenizer_errors(CANNOT_ENCODE):
        encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(e.ids, dtype=np.int64) for e in encoded]


def reading_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer that archlab made, which recognizes special tokens such as `<mask>` by their names.
    The original reads these names as text."""
    return Tokenizer.from_str(tokenizer.to_str())  # the JSON leaves out that special tokens are read as text
