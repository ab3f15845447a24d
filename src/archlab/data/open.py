"""Open the data of a config, or describe the data without encoding any text."""

from collections.abc import Iterator
from fractions import Fraction
from glob import has_magic
from pathlib import Path
from typing import ClassVar

from archlab.config.core.base import Base
from archlab.config.core.text import Shown
from archlab.config.objective import DataForm
from archlab.config.schema import DataConfig
from archlab.config.tasks import Task
from archlab.data import tokenizer as bpe
from archlab.data.chat_data import ChatData
from archlab.data.corpus import HUB, Corpus
from archlab.data.pair_data import PairData
from archlab.data.prepare import Recipe, build, split_of
from archlab.data.reserved import special_ids
from archlab.data.shards import MANIFEST, DataFolder
from archlab.data.tasks.task_data import N_FOLDS, TaskData, form_of_task
from archlab.data.template import TEXT, PairFields
from archlab.data.text_data import TextData, TextSource
from archlab.data.training_data import TrainingData
from archlab.errors import UserError, at
from archlab.files import cache_folder, expand_user
from archlab.hf.folder import TOKENIZER, download, is_hub_id
from archlab.pricing.units import decimal


def tokens_per_byte(config: DataConfig, vocab_size: int) -> float:
    """Return the number of tokens per byte of text. The text is prepared first if necessary.

    In a mixture, the number of tokens from each source is proportional to its weight. Raise UserError for a task.
    """
    if isinstance(config.task, Task):
        raise UserError("a task has no text, so it has no tokens per byte")
    tokens = n_bytes = Fraction(0)
    for source in _sources(config, vocab_size):
        parts = source.folder.manifest.parts
        tokens += Fraction(source.weight)
        n_bytes += Fraction(source.weight) * sum(part.bytes for part in parts) / sum(part.tokens for part in parts)
    return float(tokens / n_bytes)


def open_training_data(config: DataConfig, vocab_size: int) -> TrainingData:
    """Open the task or the text of a config. The text is prepared first if necessary."""
    if isinstance(config.task, Task):
        return TaskData(config.task, vocab_size, config.fold, config.reserve)
    sources = tuple(_sources(config, vocab_size))
    readers: dict[DataForm, type[TextData]] = {"pairs": PairData, "conversations": ChatData}
    return readers.get(sources[0].folder.manifest.form, TextData)(sources)


def form_of_data(config: DataConfig) -> DataForm:
    """Return the form of the data, without encoding any text."""
    if isinstance(config.task, Task):
        return form_of_task(config.task)
    path = expand_user(config.path)
    is_folder = not config.mixture and (path / MANIFEST).is_file()
    if config.pairs is not None or not is_folder:
        return "text" if config.pairs is None else "pairs"
    return DataFolder.open(path).manifest.form


def _sources(config: DataConfig, vocab_size: int) -> Iterator[TextSource]:
    if not config.mixture:
        yield TextSource(config.path, open_data(config, vocab_size))
        return
    first: TextSource | None = None
    for name, named in sorted(config.mixture.items()):
        field = f"data.mixture.{name}"
        if not (expand_user(named.path) / MANIFEST).is_file():
            hint = "allowed: a folder made by `archlab data`, with the same --tokenizer as the others"
            raise UserError(f"{field}.path: {named.path} is not a data folder; {hint}")
        folder = open_data(config.model_copy(update={"path": named.path}), vocab_size, f"{field}.path")
        if (form := folder.manifest.form) != "text":
            hint = "folders of plain text; or this folder alone, as data.path"
            raise UserError(f"{field}.path: {named.path} is a folder of {form}; allowed: {hint}")
        source = TextSource(name, folder, named.weight)
        first = first or source
        if folder.manifest.tokenizer_sha256 != first.folder.manifest.tokenizer_sha256:
            hint = f"make it with `archlab data --tokenizer {first.folder.path / TOKENIZER}`"
            raise UserError(f"{field}.path: {named.path} has a different tokenizer than {first.name}; {hint}")
        if folder.document_tokens != first.folder.document_tokens:
            hint = "make both folders again with the same `archlab data --tokenizer`"
            problem = f"{named.path} begins documents with a different token than {first.name}"
            raise UserError(f"{field}.path: {problem}; {hint}")
        yield source


def open_data(config: DataConfig, vocab_size: int, field: str = "data.path") -> DataFolder:
    """Open the data of a run: a data folder, or text. `field` is the field that names it.

    Text is encoded once, with a tokenizer of at most `vocab_size` tokens, and kept in the cache folder. Raise UserError
    if the fold, `held_out` or the vocabulary size does not match the data.
    """
    path = expand_user(config.path)
    is_folder = (path / MANIFEST).is_file()
    data = _open_folder(config, path, field) if is_folder else _open_text(config, vocab_size, field)
    if data.manifest.vocab_size > vocab_size:
        special = special_ids(data.tokenizer, data.manifest.vocab_size, data.document_tokens)
        mask, n_sentinels = special.mask is not None, len(special.sentinels)
        reserved = ["mask"] * mask + [f"sentinels:{n_sentinels}"] * bool(n_sentinels)
        including = f", including {', '.join(reserved)}" if reserved else ""
        problem = f"{config.path} has {data.manifest.vocab_size} token ids{including}"
        raise UserError(f"model.vocab_size is {vocab_size}; {problem}; allowed: {data.manifest.vocab_size} or more")
    return data


def _open_folder(config: DataConfig, path: Path, field: str) -> DataFolder:
    data = DataFolder.open(path, config.fold, config.excluded_folds)
    for name in ("held_out", "reserve", "pairs"):
        value = getattr(config, name)
        if value != DataConfig.model_fields[name].default:
            shown = list(value) if isinstance(value, tuple) else value
            hint = f"remove this setting, or make another folder with `archlab data --{name.replace('_', '-')}`"
            raise UserError(f"data.{name} is {shown}, but {path} is a complete data folder; {hint}")
    if file := _tokenizer_file(config):
        tokenizer = bpe.load(file)
        with at(field):
            bpe.check_same(tokenizer, data.tokenizer, str(config.tokenizer), str(path))
    return data


def _open_text(config: DataConfig, vocab_size: int, field: str) -> DataFolder:
    corpus = _corpus_of(config)
    with at(field):
        list(corpus.files())
    tokenizer = _tokenizer_file(config)
    recipe = Recipe(corpus, config.held_out, vocab_size, tokenizer, config.reserve, vocab_field="model.vocab_size")
    return build(recipe, cache_folder() / "data" / recipe.key[:16], config.fold, config.excluded_folds)


def _tokenizer_file(config: DataConfig) -> Path | None:
    """Return the folder or file of `data.tokenizer`, or None. A hub id must be in the hub's cache or is downloaded."""
    if config.tokenizer is None:
        return None
    path = expand_user(config.tokenizer)
    if path.exists():
        return path
    if is_hub_id(config.tokenizer):
        return download(config.tokenizer)
    raise UserError(
        f"data.tokenizer: {path}: no such file or folder; allowed: a tokenizer.json, its folder or a hub id"
    )


def _corpus_of(config: DataConfig) -> Corpus:
    """Return the texts or pairs of `data.path`."""
    return Corpus([config.path], PairFields(config.pairs) if config.pairs else TEXT)


class AboutText(Base):
    """Names, size and number of folds of a text or of a mixture of texts."""

    names: tuple[Shown, ...]
    """Source of each text: a path, or `python-stdlib 3.11.4`."""
    bytes: int
    """Size of all texts in bytes, as UTF-8."""
    n_folds: int
    """Number of parts that can each be held out."""

    def short(self) -> str:
        return f"{' and '.join(map(_short, self.names))} ({self._size()})"

    def __str__(self) -> str:
        return f"text: {', '.join(self.names)}, {self._size()}"

    def _size(self) -> str:
        return f"{decimal(self.bytes)} in {self.n_folds} fold{'' if self.n_folds == 1 else 's'}"


class AboutTask(Base):
    """Kind and description of a synthetic task."""

    kind: str
    description: str
    n_folds: ClassVar[int] = N_FOLDS

    def short(self) -> str:
        return f"the task {self.kind}"

    def __str__(self) -> str:
        return f"task {self.kind}: {self.description}"


def about_data(config: DataConfig) -> AboutText | AboutTask:
    """Describe the data that a run with this data config reads. Raise UserError if the text cannot be read.

    A text is read only if one of its files has changed since it was last read.
    """
    if isinstance(config.task, Task):
        return AboutTask(kind=config.task.kind, description=config.task.describe())
    texts = list(_texts(config))
    return AboutText(
        names=tuple(text.names[0] for text in texts),
        bytes=sum(text.bytes for text in texts),
        n_folds=min(text.n_folds for text in texts),
    )


def _texts(config: DataConfig) -> Iterator[AboutText]:
    paths = [source.path for _, source in sorted(config.mixture.items())] or [config.path]
    for path in paths:
        if (expand_user(path) / MANIFEST).is_file():
            manifest = DataFolder.open(expand_user(path)).manifest
            yield AboutText(names=(path,), bytes=sum(p.bytes for p in manifest.parts), n_folds=len(manifest.folds))
        else:
            corpus = _corpus_of(config.model_copy(update={"path": path}))
            split = split_of(corpus, config.held_out)
            yield AboutText(names=(str(corpus),), bytes=split.bytes, n_folds=len(split.cuts))


def _short(name: str) -> str:
    if name.startswith(HUB):
        return name
    parts = Path(name).parts
    return str(Path(*parts[-2:])) if has_magic(parts[-1]) else parts[-1]
