"""Finding and reading study files."""

import copy
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from archlab.config.beside import find_plugins, find_text, plugins_of
from archlab.config.check import validate
from archlab.config.core.merge import Raw, expand, merge, merge_overrides, without
from archlab.config.core.plugins import import_if_possible
from archlab.config.core.text import visible
from archlab.config.core.trust import accept, accept_from
from archlab.config.core.yaml_text import read_yaml
from archlab.config.identity import flatten
from archlab.config.io import studies
from archlab.config.problems import ConfigError, Problem, nearest, raise_problems
from archlab.config.schema import Config
from archlab.digests import verify
from archlab.errors import UserError
from archlab.files import STUDY, real_path
from archlab.study.design import arms
from archlab.study.outcome_schema import named
from archlab.study.schema import StudyConfig

_MOST_EXTENDED = 100
"""Studies that extend each other."""

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
    if Path(source).is_file():  # not a folder
        accept(Path(source))
    raw = _read(file)
    if scale is not None:
        name, raw = f"{name}-{scale}", _at_scale(raw, scale, str(file))
    return visible(name), _validated(raw, str(file))


def read_held(folder: Path) -> StudyConfig:
    """The study that a study folder holds, without its plug-ins: they may be older ones of those that are loaded."""
    raw = with_kinds(read_yaml(folder / STUDY))
    _find_files(raw, folder)
    return _validated({**raw, "plugins": []}, str(folder / STUDY))


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
        file = known[source]
        if isinstance(file, Path):
            accept(file)
        return source, file
    hint = nearest(source, known) or f"; allowed: {', '.join(known)}"
    raise UserError(f"no study {source!r}: not a file, not a study folder, not a study that comes with archlab{hint}")


def _read(file: Path | Traversable, below: tuple[Path | Traversable, ...] = ()) -> Raw:
    """A study's raw values, over those of the study it extends."""
    if file in below:
        raise UserError(f"{file}: extends itself")
    if len(below) == _MOST_EXTENDED:
        raise UserError(f"{file}: the {_MOST_EXTENDED}th study of a chain of `extends`; allowed: fewer")
    return _with_extended(read_yaml(file), file.parent if isinstance(file, Path) else None, (*below, file))


def _with_extended(raw: Raw, home: Path | None, below: tuple[Path | Traversable, ...] = ()) -> Raw:
    """`raw`, which names files in `home`, over the values of the study it extends."""
    raw = with_kinds(raw)
    if home is not None:
        for values in (raw, *_scales_of(raw).values()):
            found = _find_files(values, home)
            if not below:
                accept(*found)
            elif isinstance(below[-1], Path):
                accept_from(below[-1], found)
            import_if_possible(plugins_of(values))
    if not isinstance(raw.get("extends"), str):
        return raw
    inherited = _read(_find(raw.pop("extends"))[1], below)
    if raw.keys() & _DESIGNS:
        inherited = {field: value for field, value in inherited.items() if field not in _DESIGNS}
    return _laid_over(inherited, raw)


def _laid_over(below: Raw, over: Raw) -> Raw:
    """Return `below` with the fields of `over` in place of its own; `set` alone is merged, key by key."""
    earlier, later = below.get("set"), over.get("set")
    if isinstance(earlier, dict) and isinstance(later, dict):
        over = {**over, "set": _merged_set(earlier, later)}
    return {**below, **over}


def _merged_set(below: Raw, over: Raw) -> Raw:
    """Return dotted overrides. A null of `over` takes away what `below` says there; elsewhere it is a value."""
    said, new = flatten(expand(below)), flatten(expand(over))
    gone = [path for path, value in new.items() if value is None and any(_is_within(p, path) for p in said)]
    said, new = (
        {path: value for path, value in values.items() if not any(_is_within(path, root) for root in gone)}
        for values in (said, new)
    )
    return flatten(merge_overrides(expand(said), expand(new), Config, "set."))


def _is_within(path: str, root: str) -> bool:
    return f"{path}.".startswith(f"{root}.")


def _at_scale(raw: Raw, scale: str, source: str) -> Raw:
    scales = _scales_of(raw)
    if scale not in scales:
        hint = nearest(scale, scales) or (f"; allowed: {', '.join(scales)}" if scales else ": it has none")
        raise UserError(f"{source}: no scale {scale!r}{hint}")
    whole = {field: value for field, value in raw.items() if field != "scales"}
    return with_kinds(_laid_over(whole, scales[scale]))


def _scales_of(raw: Raw) -> dict[str, Raw]:
    """Those that are right so far; what is wrong with others is told by the schema."""
    scales = raw.get("scales")
    every = scales.items() if isinstance(scales, dict) else ()
    return {str(name): values for name, values in every if isinstance(values, dict)}


def with_kinds(raw: Raw) -> Raw:
    """A study's raw values in which every outcome has its kind, so that what is wrong with one is told by its name."""
    return {**raw, "measure": named(raw["measure"])} if "measure" in raw else raw


def _find_files(raw: Raw, home: Path) -> list[str | Path]:
    """Replace names of files by full paths, and return the base, the extended study and the plug-ins among them.

    Files are looked for beside the study's file; the text also in the working folder.
    """
    found: list[str | Path] = []
    for field in ("base", "extends"):
        beside = home / str(raw.get(field) or "?")
        if beside.exists():
            raw[field] = str(real_path(beside))
            found.append(beside)
    find_plugins(raw, home)
    if is_study_folder(home):
        for file in (raw.get("base"), *(raw.get("plugins") or ())):
            if isinstance(file, str) and Path(file).parent == real_path(home):
                verify(Path(file), f"put it back from a copy, or name a whole one in {home / STUDY}")
    find_text(raw.get("set"), home)
    return [*found, *plugins_of(raw)]


AS_IT_STANDS = "cpu"
"""The scale of a study whose file is run as it is: two cores of a CPU."""

QUICKEST = "smoke"
"""The scale that takes seconds."""


def library_study(name: str, scale: str) -> StudyConfig:
    """The study of that name at that scale."""
    return read_study(name, None if scale == AS_IT_STANDS else scale)[1]


def scales_of(name: str) -> list[str]:
    """The quickest first, then as it stands, then the others."""
    named = list(read_study(name)[1].scales)
    return [*(s for s in named if s == QUICKEST), AS_IT_STANDS, *(s for s in named if s != QUICKEST)]
