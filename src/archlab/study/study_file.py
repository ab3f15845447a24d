"""Finding and reading study files."""

import copy
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from archlab.config.beside import find_plugins, find_text
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
from archlab.files import real_path
from archlab.study.design import arms

STUDY = "study.yaml"
"""What makes a folder a study's."""

_STAND_IN: Raw = {"question": "?", "budget": {"tokens": "1G"}}
"""Put in place of missing or wrong required fields, so that the arms can still be judged."""

_DESIGNS = {"arms", "cross"}
"""Fields that say which arms there are. Who gives one does not inherit the other."""


def read_study(source: str, scale: str | None = None) -> tuple[str, StudyConfig]:
    """(name, study) of a YAML file, a study folder, or a study that comes with archlab; at one of its scales, whose
    name then is part of the study's.

    UserError with every problem at once, those of the arms included.
    """
    name, file = _find(source)
    raw = _read(file)
    if scale is not None:
        name, raw = f"{name}-{scale}", _at_scale(raw, scale, str(file))
    return visible(name), _validated(raw, str(file))


def read_held(folder: Path) -> StudyConfig:
    """The study that a study folder holds, without its plug-ins: they may be older ones of those that are loaded."""
    return _validated({**_read(folder / STUDY), "plugins": []}, str(folder / STUDY))


def study_from_values(values: Raw) -> StudyConfig:
    """The study of the values that a YAML file would hold; files are looked for where we are. UserError as above."""
    return _validated(_with_extended(copy.deepcopy(values), Path()), "the study")


def usual_folder(source: str, name: str) -> Path:
    """Where the study that `read_study` found is run: in its own folder, or below `studies`."""
    is_its_own = is_study_folder(Path(source)) and real_path(source).name == name
    return Path(source) if is_its_own else Path("studies") / name


def is_study_folder(path: Path) -> bool:
    """Whether `archlab study run` made it."""
    return (path / STUDY).is_file()


def _validated(raw: Raw, source: str) -> StudyConfig:
    try:
        return validate(StudyConfig, raw, source)
    except ConfigError as error:
        raise_problems([*error.problems, *_problems_of_the_rest(raw, error)], source)
        raise


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
        return real_path(path).name, path / STUDY
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
    return _with_extended(read_yaml(file), file.parent if isinstance(file, Path) else None, (*below, file))


def _with_extended(raw: Raw, home: Path | None, below: tuple[Path | Traversable, ...] = ()) -> Raw:
    """`raw`, which names files in `home`, over the values of the study it extends."""
    raw = with_kinds(raw)
    if home is not None:
        for values in (raw, *_scales_of(raw).values()):
            _find_files(values, home)
    if not isinstance(raw.get("extends"), str):
        return raw
    inherited = _read(_find(raw.pop("extends"))[1], below)
    if raw.keys() & _DESIGNS:
        inherited = {field: value for field, value in inherited.items() if field not in _DESIGNS}
    return {**inherited, **raw}


def _at_scale(raw: Raw, scale: str, source: str) -> Raw:
    scales = _scales_of(raw)
    if scale not in scales:
        hint = nearest(scale, scales) or (f"; allowed: {', '.join(scales)}" if scales else ": it has none")
        raise UserError(f"{source}: no scale {scale!r}{hint}")
    return with_kinds({**{field: value for field, value in raw.items() if field != "scales"}, **scales[scale]})


def _scales_of(raw: Raw) -> dict[str, Raw]:
    """Those that are right so far; what is wrong with others is told by the schema."""
    scales = raw.get("scales")
    every = scales.items() if isinstance(scales, dict) else ()
    return {str(name): values for name, values in every if isinstance(values, dict)}


def with_kinds(raw: Raw) -> Raw:
    """A study's raw values in which every outcome has its kind, so that what is wrong with one is told by its name."""
    return {**raw, "measure": named(raw["measure"])} if "measure" in raw else raw


def _find_files(raw: Raw, home: Path) -> None:
    """Replace names of files by full paths. They are looked for beside the study's file; the text also where we are."""
    for field in ("base", "extends"):
        beside = home / str(raw.get(field) or "?")
        if beside.exists():
            raw[field] = str(real_path(beside))
    find_plugins(raw, home)
    if is_study_folder(home):
        for file in (raw.get("base"), *(raw.get("plugins") or ())):
            if isinstance(file, str) and Path(file).parent == real_path(home):
                verify(Path(file), f"put it back from a copy, or name a whole one in {home / STUDY}")
    find_text(raw.get("set"), home)
