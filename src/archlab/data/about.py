"""Text that a run reads, in a few words. It is known before any text becomes tokens."""

from collections.abc import Iterator
from glob import has_magic
from pathlib import Path

from archlab.config.core.base import Base
from archlab.config.core.text import Shown
from archlab.config.schema import DataConfig
from archlab.config.tasks import AnyTask
from archlab.data.corpus import Corpus
from archlab.data.prepare import split_of
from archlab.data.saved import HUB
from archlab.data.shards import MANIFEST, DataFolder
from archlab.files import expand_user
from archlab.pricing.units import decimal


class AboutText(Base):
    """Name, size and folds of a text or of a mixture of texts."""

    names: tuple[Shown, ...]
    """Source of each text: a path, or `python-stdlib 3.11.4`."""
    bytes: int
    """Bytes of all texts, as UTF-8."""
    n_folds: int
    """Parts that can be held out, each by itself."""

    def short(self) -> str:
        """Return `mytext (12 kB in 20 folds)`, with names as short as they can be."""
        return f"{' and '.join(map(_short, self.names))} ({self._size()})"

    def __str__(self) -> str:
        return f"text: {', '.join(self.names)}, {self._size()}"

    def _size(self) -> str:
        return f"{decimal(self.bytes)} in {self.n_folds} fold{'' if self.n_folds == 1 else 's'}"


class AboutTask(Base):
    """A synthetic task, which is made and not read."""

    kind: str
    description: str

    def short(self) -> str:
        """Return `the task recall`."""
        return f"the task {self.kind}"

    def __str__(self) -> str:
        return f"task {self.kind}: {self.description}"


def about_data(config: DataConfig) -> AboutText | AboutTask:
    """Describe what runs with these settings read. Raise UserError if the text cannot be read.

    A text is read only when one of its files changed since the last time.
    """
    if isinstance(config.task, AnyTask):
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
            corpus = Corpus([path])
            split = split_of(corpus, config.held_out)
            yield AboutText(names=(str(corpus),), bytes=split.bytes, n_folds=len(split.cuts))


def _short(name: str) -> str:
    """The last part of a path; of a pattern, the last two."""
    if name.startswith(HUB):
        return name
    parts = Path(name).parts
    return str(Path(*parts[-2:])) if has_magic(parts[-1]) else parts[-1]
