"""Text to a data folder, and a config's data.path to an open one."""

import errno
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from archlab.config.schema import DataConfig
from archlab.data import tokenizer as bpe
from archlab.data.corpus import FIELD, STDLIB, Corpus
from archlab.data.memory import cache_folder, forget, remembered
from archlab.data.shards import FORMAT, MANIFEST, TOKENIZER, DataFolder, Manifest
from archlab.data.split import Piece, Split, chance, divide
from archlab.data.writer import SideWriter
from archlab.digests import sha256
from archlab.errors import UserError
from archlab.files import expand_user, folder_atomic
from archlab.interrupt import raise_if_interrupted

DEFAULT_VOCAB_SIZE = 2048
TOKENIZER_CHARACTERS = 16_000_000
"""About the most training text a tokenizer is learned from; python-stdlib has less, so all of it is used."""

_BATCH_CHARACTERS = 1_000_000
"""Text that is encoded at once, in a second at most; a Ctrl-C is heard after it."""


def prepare(
    source: list[str],
    out: Path,
    vocab_size: int | None,
    tokenizer: Path | None,
    held_out: float,
    field: str = FIELD,
) -> DataFolder:
    """Make a data folder of some sources: learn a tokenizer of `vocab_size`, or use that `tokenizer.json`.

    `field` is where records of JSONL or Parquet have their text. A folder that already holds exactly this is checked,
    every byte of it, and opened; one that holds anything else is refused.
    """
    if vocab_size and tokenizer:
        raise UserError("--vocab-size and --tokenizer: give one; a tokenizer has its own vocabulary")
    corpus = Corpus(source, field)
    if field != FIELD and not any(file.holds_records for file in corpus.files()):
        raise UserError(f"--field {field}: there is neither JSONL nor Parquet in {corpus}; leave it out")
    forget()
    return _build(_Recipe(corpus, held_out, vocab_size or DEFAULT_VOCAB_SIZE, tokenizer), out)


def open_data(config: DataConfig, vocab_size: int) -> DataFolder:
    """The data of a run: a data folder, or text prepared once into the cache at the model's vocab_size."""
    path = expand_user(config.path)
    if (path / MANIFEST).is_file():
        data = DataFolder.open(path)
        if config.held_out != DataConfig().held_out:
            hint = "`archlab data --held-out` decided it when the folder was made; leave it out"
            raise UserError(f"data.held_out: {config.held_out} for {path}; {hint}")
    else:
        recipe = _Recipe(Corpus([config.path]), config.held_out, vocab_size, None)
        data = _build(recipe, cache_folder() / "data" / recipe.key[:16])
    if data.manifest.vocab_size > vocab_size:
        found = f"{config.path} has {data.manifest.vocab_size} token ids"
        raise UserError(f"model.vocab_size: {vocab_size}; {found}; allowed: {data.manifest.vocab_size} or more")
    return data


class _Recipe:
    """All that decides a data folder's content; the corpus is read for its key, once until one of its files changes."""

    def __init__(self, corpus: Corpus, held_out: float, vocab_size: int, tokenizer: Path | None):
        self.given = bpe.load(tokenizer) if tokenizer else None
        self.vocab_size = vocab_size
        self.corpus = corpus
        self.split = _split(corpus, held_out)
        settings = {
            "format": FORMAT,
            "text": self.split.digest,
            "held_out": held_out,
            "tokenizer": self.given.to_str() if self.given else [vocab_size, bpe.LONGEST_WORD],
        }
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def pieces(self) -> Iterator[Piece]:
        return self.split.pieces(self.corpus)

    def tokenizer(self) -> Tokenizer:
        """The given tokenizer, or one learned from (a sample, chosen by hash, of) the training text."""
        share = TOKENIZER_CHARACTERS / self.split.characters
        training = (p for p in self.pieces() if p.side == "train")
        sample = (p.text for i, p in enumerate(training) if chance(f"{p.name} {i}") < share)
        return self.given or bpe.train(sample, self.vocab_size)


def _split(corpus: Corpus, held_out: float) -> Split:
    places = [source if source == STDLIB else str(Path(source).absolute()) for source in corpus.sources]
    subject = ["split", FORMAT, places, corpus.field, held_out]
    files = [file.path for file in corpus.files()]
    return Split(**remembered(subject, files, lambda: asdict(divide(corpus, held_out))))


def _build(recipe: _Recipe, out: Path) -> DataFolder:
    raise_if_interrupted()
    out = expand_user(out).absolute()
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file()):
        raise UserError(f"{out}: exists and is no data folder; give a new or an empty folder")
    if not (out / MANIFEST).is_file():
        try:
            with folder_atomic(out) as folder:
                _write(recipe, folder)
        except OSError as error:
            # Another process made the same folder meanwhile; its work is as good as ours.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    data = DataFolder.open(out)
    if data.manifest.key != recipe.key:
        raise UserError(f"{out}: already holds other data ({data}); give a new or an empty folder")
    return data


def _write(recipe: _Recipe, folder: Path) -> None:
    tokenizer = recipe.tokenizer()
    vocab_size, end = bpe.vocab_size(tokenizer), bpe.end_of_text(tokenizer)
    dtype = "uint16" if vocab_size <= 1 << 16 else "uint32"
    sides = {"train": SideWriter(folder, "train", dtype), "held_out": SideWriter(folder, "held_out", dtype)}
    n_bytes = bpe.token_bytes(tokenizer)
    for pieces in _batches(recipe.pieces()):
        for piece, ids in zip(pieces, bpe.encode(tokenizer, [p.text for p in pieces]), strict=True):
            text_bytes = len(piece.text.encode())
            if (found := n_bytes[ids].sum()) != text_bytes:
                raise UserError(
                    f"{piece.name}: the tokenizer changes its text ({text_bytes} bytes became {found}), "
                    "so bits per byte could not be exact; use one without a normalizer or added prefix"
                )
            tokens = np.concatenate([[end], ids]) if piece.opens else ids
            sides[piece.side].append(tokens, text_bytes, documents=int(piece.opens))
    (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    manifest = Manifest(
        format=FORMAT,
        source=str(recipe.corpus),
        skipped=recipe.corpus.skipped,
        key=recipe.key,
        vocab_size=vocab_size,
        dtype=dtype,
        end_of_text=end,
        tokenizer_sha256=sha256(folder / TOKENIZER),
        train=sides["train"].finish(),
        held_out=sides["held_out"].finish(),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Lists of pieces, each with about as much text as is worth encoding at once."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece.text)
        if size >= _BATCH_CHARACTERS:
            yield held
            held, size = [], 0
    if held:
        yield held
