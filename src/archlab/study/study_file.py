"""Find and read study files."""

import copy
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from archlab.config.check import validate
from archlab.config.core.merge import Raw, expand, merge, merge_overrides, without
from archlab.config.core.plain import plain_values
from archlab.config.core.plugins import import_if_possible
from archlab.config.core.text import note_once, visible
from archlab.config.core.trust import accept, accept_from
from archlab.config.core.yaml_text import read_yaml
from archlab.config.identity import flatten
from archlab.config.io import find_preset, is_full_name, studies
from archlab.config.paths import plugins_of, resolve_plugin_paths, resolve_text_paths, resolve_weight_paths
from archlab.config.problems import ConfigError, Problem, nearest, raise_problems
from archlab.config.schema import Config
from archlab.digests import verify
from archlab.errors import UserError
from archlab.files import STUDY, real_path
from archlab.study.design import arms
from archlab.study.outcomes.field import outcomes_with_kinds
from archlab.study.schema import StudyConfig

_MOST_EXTENDED = 100
"""Largest number of studies in a chain in which each study extends the next."""

_STAND_IN: Raw = {"question": "?", "budget": {"tokens": "1G"}}
"""Values that replace required fields if they are missing or invalid, so that the arms can still be checked."""

_DESIGNS = {"arms", "cross"}
"""The two fields that can define the arms. A study that sets one of them does not inherit the other from the extended
study."""


def read_study(source: str | Path, scale: str | None = None) -> tuple[str, StudyConfig]:
    """Return the name and the config of a study: a study that comes with archlab, a YAML file, or a study folder.

    The name of a study that comes with archlab always means that study, but a `Path` is a path.
    `scale` selects one of the study's scales, and is appended to the study's name. Raise one UserError that lists all
    problems, including those of the arms.
    """
    name, file = _find(source)
    if _is_from_library(source):
        if _is_own(Path(source)):
            kind = "file" if Path(source).is_file() else "folder"
            note_once(f"{source} is the study that comes with archlab; for the {kind}, write ./{source}")
    elif Path(source).is_file():  # not a folder
        accept(Path(source))
    raw = _read(file)
    if scale is not None:
        name, raw = f"{name}-{scale}", _at_scale(raw, scale, str(file))
    return visible(name), _validated(raw, str(file))


def read_study_folder(folder: Path) -> StudyConfig:
    """Return the study in a study folder, without its plug-ins. The folder may contain older copies of plug-ins that
    are already loaded."""
    raw = with_kinds(read_yaml(folder / STUDY))
    _find_files(raw, folder)
    return _validated({**raw, "plugins": []}, str(folder / STUDY))


def study_from_values(values: Raw) -> StudyConfig:
    """Return the study with these values, which have the form of a YAML file.

    Relative paths start from the current folder. Errors are raised as by `read_study`.
    """
    return _validated(_with_extended(copy.deepcopy(values), Path()), "the study")


class GivenStudy(NamedTuple):
    """A study that a Python function was given."""

    name: str | None
    """Name of its file. None if it has no file."""
    config: StudyConfig
    source: str
    """Path of its file for error messages, otherwise "the study"."""


def given_study(study: str | Path | Mapping[str, Any] | StudyConfig, scale: str | None) -> GivenStudy:
    """Return a study that is given by its name, the path of its file or folder, its values, or its config.

    Raise UserError if the study is invalid, or if it has no such scale.
    """
    if isinstance(study, str | Path):
        name, config = read_study(study, scale)
        return GivenStudy(name, config, study_path(study))
    if scale is not None:
        raise UserError(f"scale: {scale!r}; only the name of a study or a study file can have a scale")
    config = study if isinstance(study, StudyConfig) else study_from_values(plain_values(study))
    return GivenStudy(None, config, "the study")


def with_seeds(study: StudyConfig, n: int, source: str) -> StudyConfig:
    """Return the study with the seeds 0 to n - 1 for each arm. Raise UserError if it cannot have this number."""
    return _validated({**study.model_dump(mode="json", exclude_unset=True), "seeds": n}, source)


def study_path(source: str | Path) -> str:
    """Return the path of the file that `read_study` reads, for error messages."""
    return str(_find(source)[1])


def default_folder(source: str | Path, name: str) -> Path:
    """Return the default folder for the runs of a study: the study folder from which it was read, otherwise
    studies/NAME."""
    is_its_own = not _is_from_library(source) and is_study_folder(Path(source)) and real_path(source).name == name
    return Path(source) if is_its_own else Path("studies") / name


def is_study_folder(path: Path) -> bool:
    """Return whether the path is a folder that `archlab study run` created."""
    return (path / STUDY).is_file()


def check_study_folder(path: Path) -> None:
    """Raise UserError if the path is not a folder that `archlab study run` created."""
    if not is_study_folder(path):
        problem = f"not a study folder (no {STUDY})" if path.exists() else "no such folder"
        name = f" {path}" if str(path) in studies() else ""
        raise UserError(f"{path}: {problem}; `archlab study run{name}` makes one")


def _validated(raw: Raw, source: str) -> StudyConfig:
    try:
        return validate(StudyConfig, raw, source)
    except ConfigError as error:
        raise_problems([*error.problems, *_problems_of_arms(raw, error)], source)
        raise


def _problems_of_arms(raw: Raw, error: ConfigError) -> list[Problem]:
    try:
        arms(StudyConfig.model_validate(merge(_STAND_IN, without(raw, [p.path for p in error.problems]), StudyConfig)))
    except ConfigError as arm_error:
        return list(arm_error.problems)
    except (ValidationError, UserError):
        pass
    return []


def _is_from_library(source: str | Path) -> bool:
    return str(source) in studies() and (isinstance(source, str) or not _is_own(source))


def _is_own(path: Path) -> bool:
    return path.is_file() or is_study_folder(path)


def _find(source: str | Path) -> tuple[str, Path | Traversable]:
    path, library = Path(source), studies()
    if _is_from_library(source):
        file = library[str(source)]
        if isinstance(file, Path):
            accept(file)
        return str(source), file
    if is_study_folder(path):
        return real_path(path).name, path / STUDY
    if path.is_file():
        return path.stem, path
    source = str(source)
    if find_preset(source):
        raise UserError(f"{source!r} is a preset, not a study; to start a study from it, write `base: {source}`")
    hint = nearest(source, library) or f"; allowed: {', '.join(library)}"
    raise UserError(
        f"unknown study {source!r}; it is not a file, a study folder or a study that comes with archlab{hint}"
    )


def _read(file: Path | Traversable, below: tuple[Path | Traversable, ...] = (), *, imports: bool = True) -> Raw:
    if file in below:
        raise UserError(f"{file} extends itself; remove `extends` or name another study")
    if len(below) == _MOST_EXTENDED:
        raise UserError(f"{file}: the chain of `extends` is too long; allowed: fewer than {_MOST_EXTENDED} studies")
    home = file.parent if isinstance(file, Path) else None
    return _with_extended(read_yaml(file), home, (*below, file), imports=imports)


def _with_extended(
    raw: Raw, home: Path | None, below: tuple[Path | Traversable, ...] = (), *, imports: bool = True
) -> Raw:
    raw = with_kinds(raw)
    if home is not None:
        for values in (raw, *_scales_of(raw).values()):
            files = _find_files(values, home)
            if not below:
                accept(*files)
            elif isinstance(below[-1], Path):
                accept_from(below[-1], files)
            import_if_possible(plugins_of(values) if imports else [])
    if not isinstance(raw.get("extends"), str):
        return raw
    inherited = _extended(raw.pop("extends"), below, imports=imports)
    if raw.keys() & _DESIGNS:
        inherited = {field: value for field, value in inherited.items() if field not in _DESIGNS}
    return _merged(inherited, raw)


def _extended(source: str, below: tuple[Path | Traversable, ...], *, imports: bool) -> Raw:
    """Return the values of the study `source`, which the last file in `below` names in `extends`. Raise UserError if
    `source` is not a study."""
    where = f"{below[-1]}: extends" if below else "extends"
    try:
        file = _find(source)[1]
    except UserError as error:
        if find_preset(source):
            hint = f"it must be a study; to start from a preset, write `base: {source}`"
            raise UserError(f"{where} is the preset {source}; {hint}") from None
        raise UserError(f"{where}: {error}") from None
    raw = _read(file, below, imports=imports)
    if "model" in raw and "question" not in raw:
        hint = f"it must be a study; to start from a config, write `base: {source}`"
        raise UserError(f"{where} is the config {source}; {hint}")
    return raw


def _merged(below: Raw, over: Raw) -> Raw:
    """Return the fields of both studies. Fields of `over` replace those of `below`, except that `set` is merged key by
    key."""
    earlier, later = below.get("set"), over.get("set")
    if isinstance(earlier, dict) and isinstance(later, dict):
        over = {**over, "set": _merged_set(earlier, later)}
    return {**below, **over}


def _merged_set(below: Raw, over: Raw) -> Raw:
    """Return the merged overrides, with dotted keys. A null in `over` removes the key from `below`. If `below` lacks
    the key, the null is an ordinary value."""
    old, new = flatten(expand(below)), flatten(expand(over))
    removed = [path for path, value in new.items() if value is None and any(_is_within(p, path) for p in old)]
    old, new = (
        {path: value for path, value in values.items() if not any(_is_within(path, root) for root in removed)}
        for values in (old, new)
    )
    return flatten(merge_overrides(expand(old), expand(new), Config, "set."))


def _is_within(path: str, root: str) -> bool:
    return f"{path}.".startswith(f"{root}.")


def _at_scale(raw: Raw, scale: str, source: str) -> Raw:
    scales = _scales_of(raw)
    if scale not in scales:
        hint = nearest(scale, scales) or (f"; allowed: {', '.join(scales)}" if scales else "; the study has no scales")
        raise UserError(f"{source}: unknown scale {scale!r}{hint}")
    whole = {field: value for field, value in raw.items() if field != "scales"}
    return with_kinds(_merged(whole, scales[scale]))


def _scales_of(raw: Raw) -> dict[str, Raw]:
    scales = raw.get("scales")
    items = scales.items() if isinstance(scales, dict) else ()
    return {str(name): values for name, values in items if isinstance(values, dict)}


def with_kinds(raw: Raw) -> Raw:
    """Return a study's raw values, and add the missing `kind` of outcomes, so that error messages can name them."""
    return {**raw, "measure": outcomes_with_kinds(raw["measure"])} if "measure" in raw else raw


def _find_files(raw: Raw, home: Path) -> list[str | Path]:
    """Replace file names by full paths, and return the paths of the base, the extended study and the plug-ins.

    Files are looked up next to the study's file. The text (`data.path`) is also looked up in the current folder.
    """
    files: list[str | Path] = []
    is_from_library = {"base": is_full_name, "extends": lambda name: name in studies(), "start": lambda _: False}
    for field, is_known in is_from_library.items():
        named = raw.get(field)
        if isinstance(named, str) and not is_known(named) and (path := home / named).exists():
            raw[field] = str(real_path(path))
            files.append(path)
    resolve_plugin_paths(raw, home)
    if is_study_folder(home):
        for file in (raw.get("base"), *(raw.get("plugins") or ())):
            if isinstance(file, str) and Path(file).parent == real_path(home):
                verify(Path(file), f"restore it from a copy, or name another file in {home / STUDY}")
    resolve_text_paths(raw.get("set"), home)
    start, arms = raw.get("start"), raw.get("arms")
    for values in (raw.get("set"), start.get("set") if isinstance(start, dict) else None, *_values(arms)):
        resolve_weight_paths(values, home)
    return [*files, *plugins_of(raw)]


def _values(section: Any) -> Iterator[Any]:
    yield from section.values() if isinstance(section, dict) else ()


AS_IT_STANDS = "cpu"
"""Name of the scale at which a study file is used unchanged. It is the default scale, and is meant for two CPU
cores."""

QUICKEST = "smoke"
"""Name of the scale that takes only seconds."""


def library_study(name: str, scale: str) -> StudyConfig:
    """Return the study with this name that comes with archlab, at the given scale."""
    file = _find(name)[1]
    raw = _read(file)
    return _validated(raw if scale == AS_IT_STANDS else _at_scale(raw, scale, str(file)), str(file))


def unloaded_study(name: str, scale: str) -> StudyConfig:
    """Return the study with this name that comes with archlab, without importing its plug-ins, because they load torch.
    Its arms can be built only if it has no plug-ins."""
    raw = library_values(name, scale)
    study = _validated({field: value for field, value in raw.items() if field != "plugins"}, name)
    return study.model_copy(update={"plugins": tuple(plugins)}) if (plugins := plugins_of(raw)) else study


def library_values(name: str, scale: str = AS_IT_STANDS) -> Raw:
    """Return the values of the study with this name that comes with archlab, including those of studies that it
    extends. Its plug-ins are not imported, because they load torch."""
    file = studies()[name]
    raw = _read(file, imports=False)
    return raw if scale == AS_IT_STANDS else _at_scale(raw, scale, str(file))


def scales_of(name: str) -> list[str]:
    """Return the names of the scales of a study that comes with archlab: `smoke` if the study has it, then `cpu`, then
    the others."""
    scales = list(_scales_of(library_values(name)))
    return [
        *(scale for scale in scales if scale == QUICKEST),
        AS_IT_STANDS,
        *(scale for scale in scales if scale != QUICKEST),
    ]
