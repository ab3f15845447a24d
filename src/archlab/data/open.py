"""From a config to what a run reads."""

from collections.abc import Iterator
from fractions import Fraction

from archlab.config.schema import DataConfig
from archlab.config.tasks import AnyTask
from archlab.data.prepare import open_data
from archlab.data.shards import MANIFEST
from archlab.data.tasks.task_data import TaskData
from archlab.data.text_data import Source, TextData
from archlab.data.tokenizer import TOKENIZER
from archlab.data.training_data import TrainingData
from archlab.errors import UserError
from archlab.files import expand_user


def tokens_per_byte(config: DataConfig, vocab_size: int) -> float:
    """Of the whole text, which is prepared if it is not yet, or of what a mixture reads of its sources; UserError for a
    task."""
    if isinstance(config.task, AnyTask):
        raise UserError("a task has no bytes of text")
    tokens = n_bytes = Fraction(0)
    for source in _sources(config, vocab_size):
        parts = source.folder.manifest.parts
        tokens += Fraction(source.weight)
        n_bytes += Fraction(source.weight) * sum(part.bytes for part in parts) / sum(part.tokens for part in parts)
    return float(tokens / n_bytes)


def open_training_data(config: DataConfig, vocab_size: int) -> TrainingData:
    """The task, or the text, which is prepared if it is not yet."""
    if isinstance(config.task, AnyTask):
        return TaskData(config.task, vocab_size, config.fold)
    return TextData(tuple(_sources(config, vocab_size)))


def _sources(config: DataConfig, vocab_size: int) -> Iterator[Source]:
    """What the config names; those of a mixture in the order of their names."""
    if not config.mixture:
        yield Source(config.path, open_data(config, vocab_size))
        return
    first: Source | None = None
    for name, named in sorted(config.mixture.items()):
        field = f"data.mixture.{name}"
        if not (expand_user(named.path) / MANIFEST).is_file():
            hint = "allowed: a folder made by `archlab data`, with the same --tokenizer as the others"
            raise UserError(f"{field}.path: {named.path} is no data folder; {hint}")
        folder = open_data(config.model_copy(update={"path": named.path}), vocab_size)
        source = Source(name, folder, named.weight)
        first = first or source
        if folder.manifest.tokenizer_sha256 != first.folder.manifest.tokenizer_sha256:
            hint = f"make it with `archlab data --tokenizer {first.folder.path / TOKENIZER}`"
            raise UserError(f"{field}.path: {named.path} has another tokenizer than {first.name}; {hint}")
        if folder.document_tokens != first.folder.document_tokens:
            hint = "make both again with the same `archlab data --tokenizer`"
            raise UserError(f"{field}.path: {named.path} begins documents with another token than {first.name}; {hint}")
        yield source
