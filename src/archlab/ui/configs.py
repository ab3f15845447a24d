"""The config that a URL names: a published model or a file of the folder, and the fields that its query changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from archlab.config.core.text import command_line
from archlab.config.core.yaml_text import MOST_BYTES, parse_yaml
from archlab.config.effects import READ_FIELDS, with_effect
from archlab.config.io import find_preset, is_full_name, presets
from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.evidence.field_help import field_help
from archlab.exchange.configs import RUN_CONFIG, Shape, folder_first, hint_for, load_shape, source_kind
from archlab.files import read_text, real_path
from archlab.hf.folder import CONFIG
from archlab.pricing.units import plural
from archlab.report.drawings.words import title_with

_SECTIONS = ("model.", "train.")
_NOT_FROM_A_URL = ("train.start", "train.teacher", "train.log")
"""Fields that name files or services. A URL may come from somebody else, so it cannot set them."""

SIDES = "abc"
"""Letters of the configs that a URL compares. Changed fields of a config follow its letter, as in `a.model.norm`."""


class UnknownNameError(UserError):
    """The URL names no model, file or study."""


class Variant(NamedTuple):
    """A named config with the fields that a URL changes."""

    name: str
    overrides: Mapping[str, str]
    """Values of the changed fields as text."""

    @property
    def settings(self) -> list[str]:
        """Changed fields in the form `key=value`."""
        return [f"{field}={value}" for field, value in self.overrides.items()]

    def command(self, command: str, *options: str) -> str:
        """Return a command about the config, with those of its overrides that have an effect on the command."""
        settings = with_effect(self.settings, command) if command in READ_FIELDS else self.settings
        return command_line(command, self.name, options=[*settings, *options])

    @property
    def typed(self) -> str:
        """CONFIG and its overrides as a person types them in a form, without quotes."""
        return " ".join([self.name, *self.settings])

    @property
    def title(self) -> str:
        return title_with(self.name, self.settings)


@dataclass(frozen=True)
class ComparedConfigs:
    """Configs that a URL compares, each with the fields that it changes, as in `/vs/gpt-2/gpt-2?b.model.n_layers=6`."""

    variants: tuple[Variant, ...]

    @classmethod
    def of(cls, names: Sequence[str], query: Iterable[tuple[str, str]]) -> "ComparedConfigs":
        """Read the URL.

        Raise UserError if there are too many configs, if a field names none of them, or if a URL cannot set it.
        """
        query = [*query]
        refuse_unknown((name for name, _ in query), ("with",))
        if len(names) > len(SIDES):
            raise UserError(f"{len(names)} configs; allowed: at most {len(SIDES)}")
        changed: dict[str, dict[str, str]] = {side: {} for side, _ in zip(SIDES, names, strict=False)}
        for name, value in query:
            side, dot, field = name.partition(".")
            if dot and side not in changed:
                allowed = ", ".join(f"{letter}.{field if side in SIDES else name}" for letter in changed)
                raise UserError(f"{name}: the first letter names the config whose field changes; allowed: {allowed}")
            if dot:
                changed[side][field] = value
        return cls(tuple(Variant(name, settable(own)) for name, own in zip(names, changed.values(), strict=True)))

    @property
    def titles(self) -> list[str]:
        """A title of each config. If several would have the same one, each has its letter, too."""
        titles = [variant.title for variant in self.variants]
        letters = zip(titles, SIDES, strict=False)
        return [title if titles.count(title) == 1 else f"{title} ({letter})" for title, letter in letters]

    @property
    def path(self) -> str:
        """Names in the form of the URL. A slash inside a name is written as %2F."""
        return "/".join(quote(variant.name, safe="") for variant in self.variants)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Changed fields in the form of the URL, with their values."""
        return [
            (f"{side}.{field}", value)
            for side, variant in zip(SIDES, self.variants, strict=False)
            for field, value in variant.overrides.items()
        ]

    @property
    def address(self) -> str:
        """Path and query of the URL, without the screen."""
        return f"{self.path}{'?' if self.fields else ''}{urlencode(self.fields)}"

    def pair(self) -> tuple[Variant, Variant]:
        """Return the two configs. Raise UserError if there are more or fewer."""
        match self.variants:
            case (first, second):
                return first, second
            case _:
                raise UserError(f"{plural(len(self.variants), 'config')}; allowed: 2")


def overrides_in(query: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the fields of a config that a query changes, with their values as text.

    All other names in a query are settings of the view, such as `context`. Raise UserError for a field that a URL
    cannot set.
    """
    return settable({name: value for name, value in query if "." in name})


def settable(fields: Mapping[str, str]) -> Mapping[str, str]:
    """Return the fields of a config that a URL changes. Raise UserError for a field that a URL cannot set."""
    for field in fields:
        if not field.startswith(_SECTIONS) or field.startswith(_NOT_FROM_A_URL):
            meant = [path for path in field_help() if path.startswith(_SECTIONS) and path.endswith(f".{field}")]
            near = f"; did you mean {' or '.join(meant)}?" if meant else ";"
            raise UserError(
                f"{field}: a link cannot set this field{near} allowed: fields of model and train, "
                f"except {', '.join(_NOT_FROM_A_URL)}"
            )
    return fields


def refuse_unknown(names: Iterable[str], settings: Sequence[str]) -> None:
    """Raise UserError for a name in a query that is neither a field of a config nor one of the settings of a view."""
    for name in names:
        if "." not in name and name not in settings:
            allowed = f"{', '.join(settings)}, and fields of a config, such as model.n_layers"
            raise UserError(f"unknown setting {name!r}{nearest(name, settings)}; allowed: {allowed}")


def load(variant: Variant, root: Path) -> Shape:
    """Return the config of a variant, whose name is a published model, or a path below the folder `root`."""
    match find(variant.name, root):
        case Path() as path:
            return load_shape(path, variant.settings)
        case name:
            return _load_published(name, tuple(variant.settings))


@lru_cache(maxsize=256)
def _load_published(name: str, settings: tuple[str, ...]) -> Shape:
    """Return the config of a published model, whose file does not change while the server runs."""
    return load_shape(name, settings)


def find(name: str, root: Path) -> Path | str:
    """Return the path of a config below `root`, or the name of a published model. Raise UnknownNameError otherwise.

    As on the command line, the full name of a published model means the model, and `./NAME` the user's own config.
    """
    if is_full_name(name):
        return name
    below = path_below(name, root)
    if below is not None and (below.is_dir() or below.suffix in (".yaml", ".yml")) and source_kind(below):
        return below
    if find_preset(name) is not None:
        return name
    raise UnknownNameError(f"unknown model {name!r}{hint_for(name)}")


def in_address(name: str) -> str:
    """Return the name of a config as part of a URL. Browsers drop `./`, unless its slash is written as %2F."""
    return quote(name, safe="" if name.startswith("./") else "/")


def config_names(root: Path) -> list[str]:
    """Return the names of published models, and the paths of the user's own configs below `root`."""
    return [*presets(), *own_configs(root)]


def own_configs(root: Path) -> list[str]:
    """Return the names of the config files, run folders and Hugging Face folders up to two levels below `root`."""
    folders = [folder for file in (RUN_CONFIG, CONFIG) for folder in folders_with(file, root)]
    files = [
        file for level in ("*", "*/*") for file in sorted(root.glob(f"{level}.yaml")) if file.parent not in folders
    ]
    below = (file for file in files if path_below(str(file.relative_to(root)), root))
    found = [*folders, *(file for file in below if _is_config(file, file.stat().st_mtime_ns))]
    return [folder_first(str(path)) for path in found]


@lru_cache(maxsize=1024)
def _is_config(file: Path, _changed: int) -> bool:
    """Return whether a YAML file names a base or a model, as a config does, and asks no question, as a study does."""
    try:
        values = parse_yaml(read_text(file, MOST_BYTES), str(file))
    except UserError:  # no screen would open it
        return False
    return isinstance(values, dict) and bool(values.keys() & {"base", "model"}) and "question" not in values


def folders_with(file: str, root: Path) -> list[Path]:
    """Return the folders that contain this file, up to two levels below `root`. Links may not lead outside."""
    found = [path.parent for pattern in ("*", "*/*") for path in sorted(root.glob(f"{pattern}/{file}"))]
    return [folder for folder in found if path_below(str(folder.relative_to(root)), root)]


def path_below(name: str, root: Path) -> Path | None:
    """Return the path of an existing file or folder below `root`; None if there is none. Links may not lead outside."""
    try:
        path = real_path(root / name)
        is_below = stays_below(name, root) and path.exists()
    except (OSError, ValueError):  # the name is too long or contains a null byte
        return None
    return root / path.relative_to(real_path(root)) if is_below and path != real_path(root) else None


def stays_below(name: str, root: Path) -> bool:
    """Return whether a path, which need not exist, is `root` or below it after all links are followed."""
    try:
        return real_path(root / name).is_relative_to(real_path(root))
    except (OSError, ValueError):  # the name is too long or contains a null byte
        return False
