"""Load configs from presets, YAML files, run folders, Hugging Face folders and hub ids, and apply dotted overrides."""

from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from archlab.config.about import About
from archlab.config.core.merge import Raw, expand, merge
from archlab.config.core.text import command_line, note_once
from archlab.config.core.trust import accept, accept_from
from archlab.config.io import (
    all_that_begin,
    build_config,
    facts,
    find_preset,
    is_full_name,
    override_texts,
    parse_overrides,
    presets,
    read_entry,
    with_most_words,
)
from archlab.config.notes import notes
from archlab.config.problems import nearest, override_advice
from archlab.config.schema import Config
from archlab.digests import DIGESTS, verify
from archlab.errors import UserError, at
from archlab.exchange.hf_config import read_raw_config
from archlab.files import RUNS, STUDY, real_path
from archlab.hf.folder import (
    CONFIG,
    TOKENIZER,
    download,
    download_config,
    is_hf_folder,
    is_hub_id,
)

_MAX_BASES = 100
_CLOSE_ENOUGH = 0.45
"""Similarity from which a preset that shares words with an unknown name is suggested, from 0 to 1."""

_MOST_NAMES = 6
"""Largest number of presets that a message lists."""

RUN_CONFIG = "config.yaml"
_WHOLE = {"vocab_size", "d_model", "n_layers"}
"""Fields of `model` without defaults. A config with all of them describes a whole model."""

ConfigKind = Literal["preset", "file", "run folder", "Hugging Face folder", "hub id"]


def source_kind(source: str | Path) -> ConfigKind | None:
    """Return the kind of source that a CONFIG argument names, or None if it names nothing.

    The full name of a preset always means the preset, but a `Path` is a path. Otherwise, an existing path has priority.
    A folder with a config.json is a Hugging Face folder, even if it also contains another tool's config.yaml. Raise
    UserError for a GGUF file, which must be imported first.
    """
    if isinstance(source, str) and is_full_name(source):
        return "preset"
    path = Path(source)
    if is_gguf(path):
        raise UserError(
            f"{path}: is a GGUF file; make a run folder of it: {command_line('import', str(path))} --out FOLDER"
        )
    if path.is_dir() and is_hf_folder(path):
        return "Hugging Face folder"
    if (path / RUN_CONFIG).is_file():
        return "run folder"
    if path.exists() and not path.is_dir():
        return "file"
    if find_preset(str(source)) is not None:
        return "preset"
    return "hub id" if not path.exists() and is_hub_id(str(source)) and path.suffix not in (".yaml", ".yml") else None


def is_gguf(source: str | Path) -> bool:
    """Return whether a path is that of a file for llama.cpp."""
    return Path(source).suffix == ".gguf" and Path(source).is_file()


def folder_first(source: str) -> str:
    """Return `./source` if a folder with a config has the name of a preset, otherwise `source`. Only a folder can have
    weights."""
    return f"./{source}" if is_full_name(source) and _holds_config(source) else source


def _holds_config(source: str) -> bool:
    return source_kind(Path(source)) in ("run folder", "Hugging Face folder")


def config_file(source: str | Path) -> Path:
    """Return the path of the config file in a run folder or Hugging Face folder.

    Any other source is returned as a path, unchanged.
    """
    match source_kind(source):
        case "run folder":
            return Path(source) / RUN_CONFIG
        case "Hugging Face folder":
            return Path(source) / CONFIG
        case _:
            return Path(source)


def find_folder(folder_or_hub_id: str | Path) -> Path:
    """Return the path of a run folder or Hugging Face folder. A folder with a hub id is downloaded first.

    Raise UserError if the argument is something else.
    """
    match source_kind(folder_first(str(folder_or_hub_id))):
        case "run folder" | "Hugging Face folder":
            return Path(folder_or_hub_id)
        case "hub id":
            return download(str(folder_or_hub_id))
        case _:
            pass
    if not Path(folder_or_hub_id).exists():
        allowed = "a run folder, a Hugging Face folder or a hub id (organization/name)"
        raise UserError(f"{folder_or_hub_id}: no such file or folder; allowed: {allowed}")
    hint = _runs_of_study(Path(folder_or_hub_id)) or "`archlab train` creates run folders"
    raise UserError(
        f"{folder_or_hub_id}: not a run folder (no config.yaml) and not a Hugging Face folder (no config.json); {hint}"
    )


def _runs_of_study(folder: Path) -> str | None:
    """Return where the runs of a study folder are, or None if it is another folder."""
    return f"it is a study folder, whose runs are in {folder / RUNS}" if (folder / STUDY).is_file() else None


def is_run_folder(folder: Path) -> bool:
    return source_kind(folder) == "run folder"


def why_no_run_folder(path: Path) -> str:
    """Return the beginning of a message about a path that is not a run folder."""
    return f"{path}: {'not a run folder (no config.yaml)' if path.exists() else 'no such folder'}"


def load_config(source: str | Path, *overrides: str | Mapping[str, Any]) -> Config:
    """Load a config and apply overrides.

    An override is a string such as `model.norm.kind=layernorm`, or a mapping such as
    `{"model.norm.kind": "layernorm", "train": {"lr": 1e-3}}`. Later overrides have priority.

    `source` is the name of a preset, a YAML file, a run folder, a Hugging Face folder or a hub id (`organization/name`
    or `organization/name@revision`).

    If the config is invalid, raise a UserError that lists all problems. Plug-ins that a folder's config names run only
    if the folder was made on this machine, or if the environment variable ARCHLAB_TRUST is 1 (docs/plugins.md).

    >>> config = archlab.load_config("llama-3-8b", {"model.attention.n_kv_heads": 4}, "train.lr=3e-4")
    >>> config.model.attention.n_kv_heads, config.train.lr
    (4, 0.0003)
    """
    texts = override_texts(*overrides)
    return build_config(read_named_config(source, texts), texts, str(source))


ConfigSource = Config | str | Path
"""A config, or the name of one: a preset, a YAML file, a run folder, a Hugging Face folder or a hub id."""


def config_of(source: ConfigSource) -> Config:
    """Return the config, loaded if it is given by name."""
    return source if isinstance(source, Config) else load_config(source)


def name_of(source: ConfigSource, default: str) -> str:
    """Return the name by which a config is given, or the default for a Config."""
    return default if isinstance(source, Config) else str(source)


def named_configs(sources: Sequence[ConfigSource], names: Sequence[str] = ()) -> dict[str, Config]:
    """Return configs by name. By default, the names are those by which they are given, or else `config 1`, `config 2`
    and so on.

    Raise UserError if there is not one name for each config.
    """
    if not names:
        names = [name_of(source, f"config {number}") for number, source in enumerate(sources, 1)]
    if not len({*names}) == len(names) == len(sources):
        raise UserError(f"names: {[*names]}; allowed: {len(sources)} different names, one for each config")
    return dict(zip(names, map(config_of, sources), strict=True))


class Shape(NamedTuple):
    """A config, and what the user should know about it."""

    config: Config
    part: str
    """Description of the part of the model that the config covers. Empty for the whole model. The config of a published
    model that archlab cannot build covers only a part of the model."""
    notes: list[str]


def load_shape(source: str | Path, overrides: Sequence[str] = ()) -> Shape:
    """Load a config as `load_config` does, or the config of a published model that archlab cannot build."""
    known = read_facts(source)
    if known is not None:
        about, raw = known
        return Shape(build_config(raw, overrides, str(source)), about.part, [])
    loaded, texts = load_and_notes(source, overrides)
    return Shape(loaded, "", texts)


def shape_of(source: ConfigSource) -> Shape:
    """Return the config, loaded like `load_shape` if it is given by name."""
    return Shape(source, "", []) if isinstance(source, Config) else load_shape(source)


def load_and_notes(source: str | Path, overrides: Sequence[str]) -> tuple[Config, list[str]]:
    """Load a config as `load_config` does. Return it with notes about it for the user."""
    raw = read_named_config(source, overrides)
    loaded = build_config(raw, overrides, str(source))
    return loaded, notes(raw, overrides, loaded)


def read_named_config(source: str | Path, overrides: Sequence[str] = ()) -> Raw:
    """Return the raw values of a config that the user named, before the overrides.

    If it is a YAML file, the plug-ins that it names are trusted and may run. If the overrides set `train.start`, the
    tokenizer of those weights is included, and their architecture unless the config describes a whole model.
    """
    if not isinstance(source, str | Path):
        raise UserError(f"{source!r} names no config; allowed: a preset, a file, a folder or a hub id; then overrides")
    if source_kind(source) == "preset":
        if isinstance(source, str) and (Path(source).is_file() or _holds_config(source)):
            note_once(
                f"{source} is the preset; for the {'file' if Path(source).is_file() else 'folder'}, write ./{source}"
            )
    elif (file := Path(source)).is_file():
        accept(file)
    raw = read_config(source)
    start = start_of(expand(parse_overrides(overrides)[0]))
    if start is None:
        return raw
    with at("train.start"):
        return on_start(without_start(raw, source), start)


def read_config(source: str | Path) -> Raw:
    """Return the raw values of a config, without its `about` section.

    If the config has a `base`, its values override those of the base.
    """
    return _read(_file_of(source))


def start_of(raw: Raw) -> str | None:
    """Return the value of `train.start`, or None if raw values do not set it."""
    train = raw.get("train")
    start = train.get("start") if isinstance(train, dict) else None
    return start if isinstance(start, str) else None


def without_start(raw: Raw, source: str | Path) -> Raw:
    """Return raw values without the weights from which they began, because those of a finished run replace them. If
    `source` is the folder of that run, and it also learned from the weights, they stay its teacher."""
    train = {key: value for key, value in raw.get("train", {}).items() if key not in ("start", "start_layers")}
    teacher = train.get("teacher")
    if isinstance(teacher, dict) and teacher.get("path") is None and is_run_folder(Path(source)):
        train["teacher"] = {**teacher, "path": start_of(raw)}
    return {**raw, "train": train}


def on_start(raw: Raw, start: str) -> Raw:
    """Return raw values with what comes along with the trained weights `start`: their tokenizer and, if `raw` does not
    describe a whole model, their architecture."""
    raw, model = with_tokenizer(raw, start), raw.get("model")
    if isinstance(model, dict) and model.keys() >= _WHOLE:
        return raw
    return merge({"model": _read(_file_of(folder_first(start))).get("model", {})}, raw, Config)


def with_tokenizer(raw: Raw, source: str) -> Raw:
    """Return raw values in which `data.tokenizer` is the tokenizer of the trained weights `source`, if these have one
    and the values do not set the field."""
    folder, data = find_folder(source), raw.get("data", {})
    if data.get("tokenizer") is not None or not (folder / TOKENIZER).is_file():
        return raw
    return {**raw, "data": {**data, "tokenizer": str(real_path(folder))}}


def read_facts(source: str | Path) -> tuple[About, Raw] | None:
    """Return the facts and the raw config of an atlas model that archlab cannot build, or None for any other config and
    for models without a published architecture.

    The raw config describes the model's decoder block as far as the schema can express it.
    """
    file = find_preset(str(source)) if source_kind(source) == "preset" else None
    about, raw = read_entry(file) if file else (None, {})
    return (about, raw) if about and about.cannot_build and raw else None


def _read(file: Path | Traversable, above: tuple[Path | Traversable, ...] = ()) -> Raw:
    if isinstance(file, Path) and file.name == CONFIG:
        return read_raw_config(file.parent)
    about, raw = read_entry(file)
    if about and about.cannot_build:
        raise UserError(
            f"{about.name}: archlab has only facts about this model and cannot build it: {about.cannot_build}; "
            "`archlab list presets` shows the models that it can build"
        )
    run = file.parent if isinstance(file, Path) and (file.parent / DIGESTS).is_file() else None
    if run and raw.get("data", {}).get("tokenizer") and (run / TOKENIZER).is_file():
        raw["data"]["tokenizer"] = str(real_path(run))  # the run has a copy, and the original may be gone
    if (start := start_of(raw)) and not run:
        raw = _on_base(file, raw, above)
        with at("train.start"):
            return on_start(raw, start)
    return _on_base(file, raw, above)


def _on_base(file: Path | Traversable, raw: Raw, above: tuple[Path | Traversable, ...]) -> Raw:
    if (base := raw.pop("base", None)) is None:
        return raw
    if file in above:
        raise UserError(f"{file}: its chain of bases leads back to this file")
    if len(above) == _MAX_BASES:
        raise UserError(f"{file}: this is file {_MAX_BASES + 1} in a chain of bases; allowed: up to {_MAX_BASES}")
    return merge(merge({}, _read(_base_of(file, base), (*above, file)), Config), raw, Config)


def _base_of(file: Path | Traversable, base: object) -> Path | Traversable:
    """Return the file or folder that the `base` key of a config names.

    It is in the same folder as the config, or it is a preset.
    """
    if isinstance(base, str) and isinstance(file, Path) and not is_full_name(base) and (file.parent / base).exists():
        accept_from(file, [file.parent / base])
        return _file_of(real_path(file.parent / base))
    if isinstance(base, str) and (preset := find_preset(base)):
        return preset
    hint = nearest(str(base), presets()) or "; `archlab list presets` shows them"
    raise UserError(f"{file}: base is {base!r}, which is neither a file in the same folder nor a preset{hint}")


def _file_of(source: str | Path) -> Path | Traversable:
    file, preset = config_file(source), find_preset(str(source))
    match source_kind(source):
        case "preset" if preset is not None:
            return preset
        case "run folder":
            verify(file)
            return file
        case "hub id":
            return download_config(str(source)) / CONFIG
        case None if file.is_dir():
            allowed = "a preset, a YAML file, a run folder, a Hugging Face folder (config.json) or a hub id"
            hint = _runs_of_study(file) or f"allowed: {allowed}"
            raise UserError(f"{file}: the folder has no config.yaml; {hint}")
        case None:
            named_like_a_file = file.suffix in (".yaml", ".yml")
            hint = hint_for(file.stem if named_like_a_file else str(source))
            if named_like_a_file:
                raise UserError(f"{source}: no such file{hint}")
            raise UserError(f"unknown config {str(source)!r}: neither a preset, a file nor a hub id (owner/name){hint}")
        case _:
            return file


def hint_for(name: str) -> str:
    """Return advice for an unknown config name: the presets that begin with it, or else the one with the nearest name
    among those that share the most words with it."""
    if advice := override_advice(name):
        return advice
    if names := all_that_begin(name):
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"; names that begin with {name}: {', '.join(names[:_MOST_NAMES])}{more}"
    closest = nearest(name, with_most_words(name), _CLOSE_ENOUGH) or nearest(name, {**presets(), **facts()})
    return closest or "; `archlab list presets` shows all presets"
