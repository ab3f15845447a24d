"""Documents of a corpus and their sources: Python's code or documentation, a file, a folder, a glob pattern or a
dataset."""

import os
import platform
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from glob import has_magic
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from archlab.config.core.text import visible
from archlab.config.problems import nearest
from archlab.config.schema import DOCS, INSTALLED_TEXTS, STDLIB
from archlab.data.contents import Content, Document, Invalid, NotText, Omissions, SourceFile, contents
from archlab.data.shards import MANIFEST, SHARD_NAME
from archlab.data.template import TEXT, PairFields, RecordTemplate, TextTemplate
from archlab.errors import UserError
from archlab.extras import needs_extra
from archlab.files import expand_user, real_path
from archlab.hf.folder import homes

HUB = "hf:"
"""Prefix of a source on the Hugging Face hub: hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT."""

_DATASET_METADATA = {"dataset_info.json", "state.json"}
"""Files without text in a folder that the datasets library saved."""

_SPLITS = "dataset_dict.json"

_NOT_STDLIB = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_MACHINE_MADE = ("config-", "_sysconfigdata")
_DOCUMENTED = ("torch", "networkx", "numpy", "scipy", "sympy")
"""Packages whose documentation is read. archlab requires them, directly or through torch. All have a BSD license."""
_UNDOCUMENTED = {"test", "tests", "testing", "__pycache__"}


@dataclass
class Corpus:
    """Documents of one or more sources, in a fixed order. Each iteration reads the documents from disk again."""

    sources: Sequence[str]
    template: RecordTemplate = TEXT
    """Rule that turns a record into a text, a pair or a conversation."""
    skip_invalid: bool = False
    """Whether to leave out records and files that cannot be read. If false, they raise UserError."""
    omissions: Omissions = field(default_factory=Omissions)
    """Records, files and links that the latest iteration left out."""

    def files(self) -> Iterator[SourceFile]:
        """Yield the files that an iteration reads, each only once.

        A link can give a file a second name. If the file were read twice, it could be in the training data and in the
        held-out data.
        """
        return (file for file, leads_out in self._files_and_links() if not leads_out)

    def _files_and_links(self) -> Iterator[tuple[SourceFile, bool]]:
        if not all(self.sources) or not self.sources:
            allowed = f"{', '.join(INSTALLED_TEXTS)}, {HUB}NAME, files, folders or globs of text, JSONL or Parquet"
            raise UserError(f"no source is given; allowed: {allowed}")
        installed = [source for source in self.sources if source in INSTALLED_TEXTS]
        if not isinstance(self.template, TextTemplate) and installed:
            fields = ", ".join(self.template.fields)
            option, hint = "--chat", "a .jsonl, .parquet or .arrow file"
            if isinstance(self.template, PairFields):
                option, hint = "data.pairs, --pairs", "a .jsonl, .parquet, .arrow or .tsv file (data.path)"
            raise UserError(f"{option}: {fields}; {installed[0]} has no {self.template.unit}; allowed: {hint}")
        seen: set[Path] = set()
        for source in self.sources:
            for file in _files(source):
                if file.homes and SHARD_NAME.fullmatch(file.path.name):
                    raise UserError(f"{file.path.parent}: {_why_no_text(file.path.parent)}")
                real = real_path(file.path)
                if file.homes and not any(real.is_relative_to(home) for home in file.homes):
                    yield file, True
                elif real not in seen:
                    seen.add(real)
                    yield file, False

    def __iter__(self) -> Iterator[Document]:
        self.omissions = Omissions()
        for file, leads_out in self._files_and_links():
            if leads_out:
                self.omissions.links += 1
                self.omissions.add(
                    file.path, str(file.path), f"a link that points outside the folder, to {real_path(file.path)}"
                )
                continue
            for content in self._contents(file):
                if not isinstance(content, Document):
                    self._leave_out(content, file)
                elif content.text:
                    yield content

    def _contents(self, file: SourceFile) -> Iterator[Content]:
        try:
            yield from contents(file, self.template)
        except MemoryError:
            size = file.path.stat().st_size
            raise UserError(f"{file.path}: {size:,} bytes do not fit into memory; split the file") from None
        except (EOFError, zlib.error) as error:
            yield Invalid(str(file.path), f"damaged: {error}")
        except OSError as error:
            if error.strerror:
                raise UserError(f"{file.path}: {error.strerror}") from None
            yield Invalid(str(file.path), f"damaged: {error}")

    def _leave_out(self, content: Invalid | NotText, file: SourceFile) -> None:
        if isinstance(content, NotText) and file.homes:
            self.omissions.not_text += 1
            if content.is_binary:
                return
        elif self.skip_invalid:
            self.omissions.invalid += 1
        else:
            raise UserError(f"{content.where}: {content.why}{self._advice(content)}")
        self.omissions.add(file.path, content.where, content.why)

    def _advice(self, content: Invalid | NotText) -> str:
        if isinstance(content, NotText) or not content.lacks_field:
            return "\n`archlab data --skip-invalid` leaves out records and files that cannot be read"
        if self.template != TEXT:
            return ""
        return (
            "\n`archlab data --field NAME` reads another field. For conversations: "
            f"`archlab data {self.sources[0]} --chat NAME --tokenizer MODEL --out DIR`, then "
            "`archlab train MODEL data.path=DIR`"
        )

    def __str__(self) -> str:
        how = "" if self.template == TEXT else f" ({self.template})"
        return visible(", ".join(map(_with_version, self.sources)) + how)


def _with_version(source: str) -> str:
    if source == STDLIB:
        return f"{source} {platform.python_version()}"
    if source == DOCS:
        first = _DOCUMENTED[0]
        return f"{source} ({first} {version(first).partition('+')[0]} and {len(_DOCUMENTED) - 1} others)"
    return source


def _why_no_text(folder: Path) -> str:
    if (folder / MANIFEST).is_file():
        return "this is a data folder, which has tokens instead of text; use it directly as data.path"
    return (
        f"the folder has token shards but no {MANIFEST}; copy the folder again, or create it again with `archlab data`"
    )


# --- which files ------------------------------------------------------------------------------------------


def _stdlib_files() -> Iterator[SourceFile]:
    root = Path(sysconfig.get_path("stdlib"))
    for file in _walk(root, root, _NOT_STDLIB):
        if file.path.suffix == ".py" and not file.name.startswith(_MACHINE_MADE):
            yield file._replace(python="code", homes=(Path("/"),))  # Linux distributions link some files into /etc


def _documented_files() -> Iterator[SourceFile]:
    for name in _DOCUMENTED:
        spec = find_spec(name)  # does not import the package
        if spec is None or spec.origin is None:
            raise UserError(f"{DOCS}: the package {name} is missing; install it, or reinstall torch")
        root = Path(spec.origin).parent
        for file in _walk(root, root.parent, _UNDOCUMENTED):
            if file.path.suffix == ".py":
                yield file._replace(python="prose")


def _files(source: str) -> Iterator[SourceFile]:
    if source in INSTALLED_TEXTS:
        yield from _stdlib_files() if source == STDLIB else _documented_files()
        return
    if source.startswith(HUB):
        for path, name in _hub_files(source):
            yield SourceFile(path, name)
        return
    path = expand_user(source)
    if (path / _SPLITS).is_file():
        raise UserError(f"{source}: this dataset has splits; give the folder of one of them: {_folders(path)}")
    if path.is_dir():
        yield from _walk(path, path.absolute().parent, set())
    elif path.is_file():
        yield SourceFile(path, path.name)
    elif has_magic(source) and (matches := _glob(path)):
        yield from matches
    elif path.exists():
        raise UserError(f"{source}: this is a pipe or a device; allowed: a regular file or a folder")
    elif path.is_symlink():
        raise UserError(f"{source}: this link is broken or circular")
    else:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{source}: no such file or folder{nearest(path.name, [*siblings, *INSTALLED_TEXTS])}")


def _folders(path: Path) -> str:
    return ", ".join(sorted(inside.name for inside in path.iterdir() if inside.is_dir()))


def _glob(path: Path) -> list[SourceFile]:
    first = next(i for i, part in enumerate(path.parts) if has_magic(part))
    fixed, parts = Path(*path.parts[:first]).absolute(), list(path.parts[first:])
    if parts[-1] == "**":
        parts.append("*")
    hidden = any(part.startswith(".") for part in parts)
    try:
        matches = sorted(fixed.glob("/".join(parts)))
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{path}: {error}") from None
    named = [(file, file.relative_to(fixed)) for file in dict.fromkeys(matches)]
    visible = [(file, name) for file, name in named if hidden or not any(p.startswith(".") for p in name.parts)]
    return [SourceFile(file, name.as_posix(), homes(fixed)) for file, name in visible if file.is_file()]


def _walk(folder: Path, named_from: Path, excluded: set[str]) -> Iterator[SourceFile]:
    paths: list[Path] = []
    for at, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in excluded and not f.startswith(".")]
        files = [f for f in files if f not in _DATASET_METADATA] if set(files) >= _DATASET_METADATA else files
        paths += [p for f in files if not f.startswith(".") and (p := Path(at, f)).is_file()]
    named = [(p.absolute().relative_to(named_from).as_posix(), p) for p in paths]
    home = homes(folder)
    for name, path in sorted(named):
        yield SourceFile(path, name, home)


@cache
def _hub_files(source: str) -> tuple[tuple[Path, str], ...]:
    with needs_extra("datasets", source):
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    name, config, split = (*source.removeprefix(HUB).split(":"), "", "")[:3]
    try:
        dataset = load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # the network, the hub or the dataset's own code may raise anything
        raise UserError(f"{source}: {(str(error) or type(error).__name__).splitlines()[0]}") from None
    files = [Path(file["filename"]) for file in dataset.cache_files]
    return tuple((file, f"{source}/{file.name}") for file in files)
