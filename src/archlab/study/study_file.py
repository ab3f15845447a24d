"""Finding and reading study files."""

from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from archlab.config.beside import find_text
from archlab.config.check import validate
from archlab.config.io import studies
from archlab.config.merge import Raw, merge, without
from archlab.config.outcomes import named
from archlab.config.problems import ConfigError, Problem, nearest, raise_problems
from archlab.config.study_schema import StudyConfig
from archlab.config.text import visible
from archlab.config.yaml_text import read_yaml
from archlab.digests import verify
from archlab.errors import UserError
from archlab.study.design import arms

_STAND_IN: Raw = {"question": "?", "budget": {"tokens": "1G"}}
"""Put in place of missing or wrong required fields, so that the arms can still be judged."""


def read_study(source: str) -> tuple[str, StudyConfig]:
    """(name, study) of a YAML file, a study folder, or a study that comes with archlab.

    UserError with every problem at once, those of the arms included.
    """
    name, file = _find(source)
    raw = _read(file)
    try:
        return visible(name), validate(StudyConfig, raw, str(file))
    except ConfigError as error:
        raise_problems([*error.problems, *_problems_of_the_rest(raw, error)], str(file))
        raise


def is_study_folder(path: Path) -> bool:
    """Whether `archlab study run` made it."""
    return (path / "study.yaml").is_file()


def _problems_of_the_rest(raw: Raw, error: ConfigError) -> list[Problem]:
    """What is wrong with the arms of a study whose other fields are already wrong."""
    try:
        arms(StudyConfig.model_validate(merge(_STAND_IN, without(raw, [p.path for p in error.problems]), StudyConfig)))
    except ConfigError as of_arms:
        return list(of_arms.problems)
    except (ValidationError, UserError):
        pass
    return []


def _find(source: str) -> tuple[str, Path | Traversable]:
    path, known = Path(source), studies()
    if is_study_folder(path):
        return path.resolve().name, path / "study.yaml"
    if path.is_file():
        return path.stem, path
    if source in known:
        return source, known[source]
    hint = nearest(source, known) or f"; allowed: {', '.join(known)}"
    raise UserError(f"no study {source!r}: not a file, not a study folder, not a study that comes with archlab{hint}")


def _read(file: Path | Traversable, below: tuple[Path | Traversable, ...] = ()) -> Raw:
    """A study's raw values, over those of the study it extends."""
    if file in below:
        raise UserError(f"{file}: extends itself")
    raw = with_kinds(read_yaml(file))
    if isinstance(file, Path):
        _find_files(raw, file.parent)
    if not isinstance(raw.get("extends"), str):
        return raw
    return {**_read(_find(raw.pop("extends"))[1], (*below, file)), **raw}


def with_kinds(raw: Raw) -> Raw:
    """A study's raw values in which every outcome has its kind, so that what is wrong with one is told by its name."""
    return {**raw, "measure": named(raw["measure"])} if "measure" in raw else raw


def _find_files(raw: Raw, home: Path) -> None:
    """Replace names of files by full paths. They are looked for beside the study's file; the text also where we are."""
    for field in ("base", "extends"):
        beside = home / str(raw.get(field) or "?")
        if beside.exists():
            if is_study_folder(home):
                verify(beside, f"put it back from a copy, or name a whole one in {home / 'study.yaml'}")
            raw[field] = str(beside.resolve())
    find_text(raw.get("set"), home)
