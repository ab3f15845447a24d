"""Text to a data folder, and a config's data.path to an open one."""

import errno
import hashlib
import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from archlab.config.core.text import note
from archlab.config.schema import DataConfig
from archlab.data import tokenizer as bpe
from archlab.data.contents import TEXT, Template
from archlab.data.corpus import STDLIB, Corpus
from archlab.data.encoding import encoded
from archlab.data.file_cache import cached, clear_cache
from archlab.data.progress import Progress, in_terminal
from archlab.data.saved import HUB
from archlab.data.shards import FORMAT, LITTLE_ENDIAN, MANIFEST, DataFolder, Manifest, Part, Shard
from archlab.data.split import SplitRule, choose_split, hash_share
from archlab.digests import sha256
from archlab.errors import UserError
from archlab.files import cache_folder, expand_user, folder_atomic
from archlab.interrupt import raise_if_interrupted
from archlab.progress import doing

DEFAULT_VOCAB_SIZE = 2048
TOKENIZER_CHARACTERS = 16_000_000
"""About the most training text a tokenizer is learned from; python-stdlib has less, so all of it is used."""

SHARD_TOKENS = 100_000_000
"""Tokens after which the next shard begins."""


def prepare(
    source: list[str],
    out: Path,
    vocab_size: int | None,
    tokenizer: Path | None,
    held_out: float,
    template: Template = TEXT,
    skip_invalid: bool = False,
    workers: int = 1,
    progress: Progress = in_terminal,
) -> DataFolder:
    """Make a data folder of some sources: learn a tokenizer of `vocab_size`, or use that `tokenizer.json`.

    `template` makes a text of a record. `skip_invalid` leaves out what cannot be read: the manifest counts it, and
    names the first few. `workers` tokenise at once, the same for any number. A folder that already holds exactly this
    is checked, every byte of it, and opened; one that holds anything else is refused.
    """
    if vocab_size and tokenizer:
        raise UserError("--vocab-size and --tokenizer: give one; a tokenizer has its own vocabulary")
    corpus = Corpus(source, template, skip_invalid)
    if template != TEXT and not any(file.holds_records for file in corpus.files()):
        raise UserError(
            "--field and --template need records (.jsonl, .parquet, .arrow); "
            f"found none in {Corpus(source)}; leave the option out"
        )
    clear_cache()
    return _build(
        _Recipe(corpus, held_out, vocab_size or DEFAULT_VOCAB_SIZE, tokenizer), out, workers=workers, progress=progress
    )


def open_data(config: DataConfig, vocab_size: int) -> DataFolder:
    """The data of a run: a data folder, or text prepared once into the cache at the model's vocab_size."""
    path = expand_user(config.path)
    if (path / MANIFEST).is_file():
        data = DataFolder.open(path, config.fold)
        if config.held_out != DataConfig().held_out:
            hint = "`archlab data --held-out` decided it when the folder was made; leave it out"
            raise UserError(f"data.held_out: {config.held_out} for {path}; {hint}")
    else:
        recipe = _Recipe(Corpus([config.path]), config.held_out, vocab_size, None)
        data = _build(recipe, cache_folder() / "data" / recipe.key[:16], config.fold)
    if data.manifest.vocab_size > vocab_size:
        found = f"{config.path} has {data.manifest.vocab_size} token ids"
        raise UserError(f"model.vocab_size: {vocab_size}; {found}; allowed: {data.manifest.vocab_size} or more")
    return data


def split_of(corpus: Corpus, held_out: float) -> SplitRule:
    """Return how the corpus is cut. The corpus is read only when one of its files changed since the last time."""
    sources = [s if s == STDLIB or s.startswith(HUB) else str(Path(s).absolute()) for s in corpus.sources]
    found = cached(
        ["split with bytes", FORMAT, sources, asdict(corpus.template), corpus.skip_invalid, held_out],
        [file.path for file in corpus.files()],
        lambda: asdict(choose_split(corpus, held_out)),
    )
    return SplitRule(**found | {"cuts": tuple(found["cuts"])})


class _Recipe:
    """All that decides a data folder's content. Its key needs the text, which is read again when a file has changed."""

    def __init__(self, corpus: Corpus, held_out: float, vocab_size: int, tokenizer: Path | None):
        self.given_tokenizer = bpe.load(tokenizer) if tokenizer else None
        self.vocab_size = vocab_size
        self.corpus = corpus
        self.split = split_of(corpus, held_out)
        settings = {
            "format": FORMAT,
            "text": self.split.digest,
            "held_out": held_out,
            "tokenizer": self.given_tokenizer.to_str() if self.given_tokenizer else [vocab_size, bpe.LONGEST_WORD],
        }
        if (given := self.given_tokenizer) and bpe.document_tokens(given) != (bpe.end_of_text(given),):
            settings["document_tokens"] = bpe.document_tokens(given)  # once it was always the end-of-text token
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """The given tokenizer, or one learned from text that is no test's (of much text, a sample chosen by hash)."""
        if self.given_tokenizer:
            return self.given_tokenizer
        share, tests = TOKENIZER_CHARACTERS / self.split.characters, range(self.split.test_folds)
        never_tested = (p for p in self.split.pieces(self.corpus) if p.fold not in tests)
        sample = (p.text for i, p in enumerate(never_tested) if hash_share(f"{p.name} {i}") < share)
        with doing("learning a tokenizer"):
            return bpe.train(sample, self.vocab_size)


def _build(
    recipe: _Recipe,
    out: Path,
    fold: int = 0,
    workers: int = 1,
    progress: Progress = in_terminal,
) -> DataFolder:
    raise_if_interrupted()
    out = expand_user(out).absolute()
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file()):
        raise UserError(f"{out}: exists and is no data folder; give a new or an empty folder")
    if not (out / MANIFEST).is_file():
        try:
            with folder_atomic(out) as folder:
                _write(recipe, folder, workers, progress)
        except OSError as error:
            # Another process made the same folder meanwhile; its work is as good as ours.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    data = DataFolder.open(out, fold)
    if data.manifest.key != recipe.key:
        raise UserError(f"{out}: already holds other data ({data}); give a new or an empty folder")
    return data


def _write(recipe: _Recipe, folder: Path, workers: int, progress: Progress) -> None:
    tokenizer = recipe.tokenizer()
    vocab_size, before = bpe.vocab_size(tokenizer), bpe.document_tokens(tokenizer)
    dtype = "uint16" if vocab_size <= 1 << 16 else "uint32"
    rest = ShardWriter(folder, "rest", dtype)
    folds = [ShardWriter(folder, f"fold-{fold:02}", dtype) for fold in range(len(recipe.split.cuts))]
    pieces, characters = recipe.split.pieces(recipe.corpus), recipe.split.characters
    with closing(encoded(tokenizer, pieces, characters, workers)) as found, progress(characters) as seen:
        for part in found:
            if contained := [token for token in before if (part.ids == token).any()]:
                named = f"the token {tokenizer.id_to_token(contained[0])}, which begins every document"
                raise UserError(f"{part.name}: contains {named}; remove it from the text, or use another tokenizer")
            tokens = np.concatenate([before, part.ids]) if part.begins_document else part.ids
            writer = rest if part.fold is None else folds[part.fold]
            writer.append(tokens, part.text_bytes, documents=int(part.begins_document))
            seen(part.text_bytes)
    (folder / bpe.TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    left_out = recipe.corpus.left_out
    manifest = Manifest(
        format=FORMAT,
        source=str(recipe.corpus),
        skipped=left_out.not_text,
        links=left_out.links,
        invalid=left_out.invalid,
        left_out=tuple(left_out.first),
        key=recipe.key,
        vocab_size=vocab_size,
        dtype=dtype,
        end_of_text=before[0],
        tokenizer_sha256=sha256(folder / bpe.TOKENIZER),
        folds=tuple(writer.finish() for writer in folds),
        rest=rest.finish(),
        stretches=recipe.split.by == "position",
    )
    if left_out.first:
        note("\n  ".join([f"left out: {left_out}", *left_out.first]))
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")


class ShardWriter:
    """Appends pieces of documents to the shards of one part; a new shard begins whenever one is full."""

    def __init__(self, folder: Path, part: str, dtype: str):
        self._folder, self._part, self._dtype = folder, part, LITTLE_ENDIAN[dtype]
        self._paths: list[Path] = []
        self._room = 0
        self._bytes = self._documents = 0

    def append(self, tokens: np.ndarray, text_bytes: int, documents: int) -> None:
        """Write tokens that stand for so many bytes of text and begin so many documents."""
        self._bytes += text_bytes
        self._documents += documents
        while len(tokens):
            if self._room == 0:
                self._paths.append(self._folder / f"{self._part}-{len(self._paths):05d}.bin")
                self._room = SHARD_TOKENS
            part, tokens = tokens[: self._room], tokens[self._room :]
            with self._paths[-1].open("ab") as file:
                file.write(part.astype(self._dtype).tobytes())
            self._room -= len(part)

    def finish(self) -> Part:
        """What was written."""
        size = self._dtype.itemsize
        shards = tuple(Shard(file=p.name, tokens=p.stat().st_size // size, sha256=sha256(p)) for p in self._paths)
        tokens = sum(shard.tokens for shard in shards)
        return Part(tokens=tokens, bytes=self._bytes, documents=self._documents, shards=shards)
