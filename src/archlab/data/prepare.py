"""Prepare data folders from text."""

import errno
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import numpy as np
from tokenizers import Tokenizer

from archlab.config.core.text import note
from archlab.config.schema import INSTALLED_TEXTS
from archlab.data import tokenizer as bpe
from archlab.data.chat_encoding import ChatEncoder
from archlab.data.corpus import HUB, Corpus
from archlab.data.encoding import Encoded, encode_pieces
from archlab.data.file_cache import cached, clear_cache
from archlab.data.pair_limits import FittingPairs
from archlab.data.reserved import reserve_tokens, reserved_names
from archlab.data.shards import FORMAT, MANIFEST, ChatFacts, DataFolder, Manifest, ShardWriter
from archlab.data.split import SplitRule, choose_split, hash_share
from archlab.data.template import TEXT, ChatFields, PairFields, RecordTemplate, TextTemplate
from archlab.digests import sha256
from archlab.errors import UserError
from archlab.files import expand_user, folder_atomic
from archlab.hf.chat_template import ChatTemplate
from archlab.hf.folder import CHAT_TEMPLATE, TOKENIZER
from archlab.interrupt import raise_if_interrupted
from archlab.pricing.units import decimal
from archlab.progress import Bar, doing

DEFAULT_VOCAB_SIZE = 2048
TOKENIZER_CHARACTERS = 16_000_000
"""Approximate number of characters from which a tokenizer is learned. A shorter text is used as a whole."""

Seen: TypeAlias = Callable[[int], None]
"""Callback that is called after each encoded piece of text, with the number of bytes of the piece."""


class _EncodingProgress:
    def __init__(self, bar: Bar, total: int) -> None:
        self._bar, self._total, self._start, self._done = bar, total, time.monotonic(), 0
        bar.begin("tokenizing")

    def __call__(self, n_bytes: int) -> None:
        self._done += n_bytes
        share = min(self._done / self._total, 1.0)
        self._bar.update(share, f"{share:.0%}", str(self))

    def __str__(self) -> str:
        took = max(time.monotonic() - self._start, 1e-9)
        return f"{decimal(self._done)} at {decimal(self._done / took)}/s"


@contextmanager
def encoding_progress(total: int, *, prints: bool) -> Iterator[Seen]:
    """Show the progress and speed of encoding about `total` bytes in a terminal.

    If `prints` is true, also show it without a terminal, and print the number of encoded bytes and the speed at the
    end.
    """
    with Bar() if prints else Bar(seconds_between_lines=None) as bar:
        yield (encoding := _EncodingProgress(bar, total))
    if prints:
        bar.print(f"tokenized {encoding}")


def prepare(
    source: list[str],
    out: Path,
    *,
    vocab_size: int | None = None,
    tokenizer: Path | None = None,
    held_out: float = 0.05,
    template: RecordTemplate = TEXT,
    skip_invalid: bool = False,
    workers: int = 1,
    reserve: Sequence[str] = (),
    seq_len: int | None = None,
    prints: bool = False,
) -> DataFolder:
    """Create a data folder from sources: learn a tokenizer of `vocab_size` tokens, or use the given `tokenizer.json`.

    Args:
        template: Rule that turns a record into a text, a pair or a conversation.
        skip_invalid: Whether to leave out files and records that cannot be read, and pairs and conversations that are
            too long. The manifest counts them and lists the first few.
        workers: Number of parallel workers. This number does not change the tokens.
        reserve: Special tokens to add, as in `data.reserve`. A learned tokenizer includes them in `vocab_size`.
        seq_len: Length of the windows that every pair or conversation must fit into. None: they may have any length.
        prints: Whether to show the progress also without a terminal (see `encoding_progress`).

    If `out` already is this data folder, check all its bytes and open it. Raise UserError if `out` contains anything
    else.
    """
    if vocab_size and tokenizer:
        raise UserError("give either --vocab-size or --tokenizer, not both; a tokenizer has its own vocabulary")
    corpus = Corpus(source, template, skip_invalid)
    joins_fields = isinstance(template, TextTemplate) and template != TEXT
    if joins_fields and not any(file.holds_records for file in corpus.files()):
        raise UserError(
            "--field and --template work only on records (.jsonl, .parquet, .arrow); "
            f"found none in {Corpus(source)}; leave the option out"
        )
    clear_cache()
    recipe = Recipe(corpus, held_out, vocab_size or DEFAULT_VOCAB_SIZE, tokenizer, reserve, seq_len)
    return build(recipe, out, workers=workers, prints=prints)


def split_of(corpus: Corpus, held_out: float) -> SplitRule:
    """Return the rule that splits the corpus. The corpus is read only if one of its files has changed."""
    sources = [s if s in INSTALLED_TEXTS or s.startswith(HUB) else str(Path(s).absolute()) for s in corpus.sources]
    fields = cached(
        [
            "split with unit",
            FORMAT,
            sources,
            corpus.template.unit,
            asdict(corpus.template),
            corpus.skip_invalid,
            held_out,
        ],
        [file.path for file in corpus.files()],
        lambda: asdict(choose_split(corpus, held_out)),
    )
    return SplitRule(**fields | {"cuts": tuple(fields["cuts"])})


class Recipe:
    """Everything that determines the content of a data folder.

    The field `key` is a hash of the text and the settings. The text is read only if one of its files has changed.
    """

    def __init__(
        self,
        corpus: Corpus,
        held_out: float,
        vocab_size: int,
        tokenizer: Path | None,
        reserve: Sequence[str],
        seq_len: int | None = None,
        *,
        vocab_field: str = "--vocab-size",
    ) -> None:
        self.vocab_field = vocab_field
        self.given_tokenizer = bpe.load(tokenizer) if tokenizer else None
        if self.given_tokenizer:
            reserve_tokens(self.given_tokenizer, reserve)
        self.vocab_size, self.reserve, self.seq_len = vocab_size, reserve, seq_len
        self.corpus = corpus
        self.chat = self._chat_template(tokenizer) if isinstance(corpus.template, ChatFields) else None
        self.split = split_of(corpus, held_out)
        settings = {
            "format": FORMAT,
            "text": self.split.digest,
            "held_out": held_out,
            "tokenizer": self.given_tokenizer.to_str() if self.given_tokenizer else [vocab_size, bpe.LONGEST_WORD],
        }
        if (loaded := self.given_tokenizer) and bpe.document_tokens(loaded) != (bpe.end_of_text(loaded),):
            # Old keys do not have this setting, because documents always began with the end-of-text token.
            settings["document_tokens"] = bpe.document_tokens(loaded)
        if reserve and not loaded:
            settings["reserve"] = reserved_names(reserve)
        if self.has_pairs:
            # Old keys do not have this setting. Equal texts that are no pairs have another one.
            settings["pairs"] = {"seq_len": seq_len}
        if self.chat:
            settings["chat"] = {"seq_len": seq_len, "template": self.chat.source, "special": dict(self.chat.special)}
        if self.split.keeps_whole and self.split.longest < held_out * self.split.characters:
            # Old keys do not have this setting, because the limit was always this fraction of the whole text.
            settings["longest"] = self.split.longest
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def has_pairs(self) -> bool:
        return isinstance(self.corpus.template, PairFields)

    def _chat_template(self, tokenizer: Path | None) -> ChatTemplate:
        if tokenizer is None or self.given_tokenizer is None:
            raise UserError(
                "--chat needs the tokenizer of the model, with its chat template; give --tokenizer FOLDER, for example "
                "the folder of the model that will be trained"
            )
        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        first = self.given_tokenizer.id_to_token(bpe.document_tokens(self.given_tokenizer)[0])
        if template := ChatTemplate.of(folder, default=first):
            return template
        raise UserError(
            f"{folder}: no chat template; expected {CHAT_TEMPLATE}, or `chat_template` in tokenizer_config.json. The "
            f"tokenizer of a base model often has none: put a {CHAT_TEMPLATE} beside a copy of its files"
        )

    def tokenizer(self) -> Tokenizer:
        """Return the given tokenizer, or learn one from text outside the test folds.

        If the text is long, use a sample of it that is chosen by hash.
        """
        if self.given_tokenizer:
            return self.given_tokenizer
        n_reserved = len(reserved_names(self.reserve))
        if self.vocab_size < bpe.SMALLEST_VOCAB + n_reserved:
            reserved = f", and {n_reserved} for {', '.join(self.reserve)}" if n_reserved else ""
            raise UserError(
                f"{self.vocab_field} is {self.vocab_size}; allowed: {bpe.SMALLEST_VOCAB + n_reserved} or more: one "
                f"token for each of 256 bytes, {bpe.END_OF_TEXT}{reserved}"
            )
        share, tests = TOKENIZER_CHARACTERS / self.split.characters, range(self.split.test_folds)
        never_tested = (p for p in self.split.pieces(self.corpus) if p.fold not in tests)
        sample = (p.text for i, p in enumerate(never_tested) if hash_share(f"{p.name} {i}") < share)
        with doing("learning a tokenizer"):
            tokenizer = bpe.train(sample, self.vocab_size - n_reserved)
        reserve_tokens(tokenizer, self.reserve)
        return tokenizer


def build(
    recipe: Recipe,
    out: Path,
    fold: int = 0,
    excluded_folds: Sequence[int] = (),
    workers: int = 1,
    prints: bool = False,
) -> DataFolder:
    """Write the data of a recipe into the folder `out`, unless it already has this data, and open the folder."""
    raise_if_interrupted()
    out = expand_user(out).absolute()
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file()):
        raise UserError(f"{out} exists and is not a data folder; choose an empty or new folder")
    if not (out / MANIFEST).is_file():
        try:
            with folder_atomic(out) as folder:
                _write(recipe, folder, workers, prints=prints)
        except OSError as error:
            # Another process has created the same folder, with equal content, in the meantime.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    data = DataFolder.open(out, fold, excluded_folds)
    if data.manifest.key != recipe.key:
        raise UserError(f"{out} already contains other data ({data}); choose an empty or new folder")
    return data


def _write(recipe: Recipe, folder: Path, workers: int, *, prints: bool) -> None:
    tokenizer = recipe.tokenizer()
    vocab_size, before = bpe.vocab_size(tokenizer), bpe.document_tokens(tokenizer)
    dtype = "uint16" if vocab_size <= 1 << 16 and not recipe.chat else "uint32"
    rest = ShardWriter(folder, "rest", dtype)
    folds = [ShardWriter(folder, f"fold-{fold:02}", dtype) for fold in range(len(recipe.split.cuts))]
    pieces, characters = recipe.split.pieces(recipe.corpus), recipe.split.characters
    inexact: str | None = None
    fitting = FittingPairs(recipe.corpus, len(before), recipe.seq_len) if recipe.has_pairs else None
    chat = ChatEncoder(recipe.corpus, recipe.chat, tokenizer, recipe.seq_len) if recipe.chat else None
    encoding = chat.encode(pieces) if chat else encode_pieces(tokenizer, pieces, characters, workers)
    with closing(encoding) as encoded, encoding_progress(characters, prints=prints) as seen:
        for part in fitting.kept(encoded) if fitting else encoded:
            tokens = part.ids if chat else _with_document_tokens(part, before, tokenizer)
            writer = rest if part.fold is None else folds[part.fold]
            writer.append(tokens, part.text_bytes, documents=int(part.begins_document))
            if part.inexact and not inexact:
                inexact = part.inexact
                note(f"bits per byte would not be exact: {inexact}; the folder is for objectives that hide tokens")
            seen(part.text_bytes)
    (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    facts = chat and _written_with_template(chat, folder)
    omissions = recipe.corpus.omissions
    in_folds, in_no_fold = tuple(writer.finish() for writer in folds), rest.finish()
    if recipe.split.keeps_whole:
        _check_remaining(recipe, [part.documents for part in in_folds], in_no_fold.documents)
    manifest = Manifest(
        format=FORMAT,
        source=str(recipe.corpus),
        skipped=omissions.not_text,
        links=omissions.links,
        invalid=omissions.invalid,
        left_out=tuple(omissions.first),
        key=recipe.key,
        vocab_size=vocab_size,
        dtype=dtype,
        end_of_text=before[0],
        tokenizer_sha256=sha256(folder / TOKENIZER),
        folds=in_folds,
        rest=in_no_fold,
        stretches=recipe.split.by == "position",
        pairs=fitting and fitting.facts(),
        chat=facts,
        inexact=inexact,
    )
    if omissions.first:
        note("\n  ".join([f"left out: {omissions}", *omissions.first]))
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1, exclude_none=True), encoding="utf-8")


def _written_with_template(chat: ChatEncoder, folder: Path) -> ChatFacts:
    for name, content in (files := chat.template.files({}, folder)).items():
        (folder / name).write_text(content, encoding="utf-8")
    facts = chat.facts({name: sha256(folder / name) for name in files})
    for name in sorted(chat.unread):
        note(f"some conversations have {name}, but the chat template does not write them")
    if chat.template.writes_date:
        note("the chat template can write the current date, so that the tokens depend on the day")
    if not facts.ends:
        note("no special token ends the responses, so a model does not learn where to stop")
    return facts


def _with_document_tokens(part: Encoded, before: Sequence[int], tokenizer: Tokenizer) -> np.ndarray:
    if contained := [token for token in before if (part.ids == token).any()]:
        token = f"the token {tokenizer.id_to_token(contained[0])}, which begins every document"
        raise UserError(f"{part.name} contains {token}; remove it from the text, or use another tokenizer")
    return np.concatenate([before, part.ids]) if part.begins_document else part.ids


def _check_remaining(recipe: Recipe, in_folds: Sequence[int], in_no_fold: int) -> None:
    total = sum(in_folds) + in_no_fold
    if any(n in (0, total) for n in in_folds):
        omissions, unit = recipe.corpus.omissions, recipe.corpus.template.unit
        problem = (
            f"too few {unit} remain to hold out {recipe.split.held_out:.1%} of the text ({omissions} were left out)"
        )
        hint = f"allowed: more {unit}, a greater --seq-len, or another fraction (--held-out)"
        raise UserError("\n  ".join([f"{recipe.corpus}: {problem}; {hint}", *omissions.first]))
