"""Reading configs: presets, YAML files and run folders, with dotted overrides laid over them."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from archlab.config.layers import PER_LAYER, resolve, with_overrides
from archlab.config.merge import Raw, expand, merge
from archlab.config.problems import Problem, explain, is_under, nearest, raise_problems
from archlab.config.rules import CONFIG_RULES, LAYER_RULES
from archlab.config.schema import Config
from archlab.errors import UserError

Schema = TypeVar("Schema", bound=BaseModel)

_STAND_IN: Raw = {"model": {"vocab_size": 256, "d_model": 64, "n_layers": 2, "attention": {"n_heads": 4}}}
"""Put in place of missing or wrong required fields, so that the rules can still judge the rest."""


# --- YAML -----------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML with `1e-5` read as a number, as in YAML 1.2, and a key given twice refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # pyright: ignore[reportUnknownMemberType]
        twice = sorted({str(k) for k in keys if keys.count(k) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text; a UserError that names `source` and the line when it is none."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None


def read_yaml(path: Path | Traversable) -> Raw:
    """A YAML file that must hold a mapping; dotted keys are expanded."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected keys and values, found {type(value).__name__ if value is not None else 'nothing'}")
    return value


def to_yaml(value: Raw) -> str:
    """YAML in the order given, short lists on one line."""
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)


# --- presets --------------------------------------------------------------------------------------------------------


def presets() -> dict[str, Traversable]:
    """Preset name -> its file, sorted by name."""
    folder = resources.files("archlab.atlas") / "presets"
    found = {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def find_preset(name: str) -> Traversable | None:
    """The preset of that name; case, dots, dashes and underscores do not matter."""
    return {_plain(known): file for known, file in presets().items()}.get(_plain(name))


def _plain(name: str) -> str:
    return re.sub(r"[-._ ]", "", name).lower()


# --- configs --------------------------------------------------------------------------------------------------------


def load_config(source: str | Path, *overrides: str) -> Config:
    """A preset's name, a YAML file or a run folder, with `a.b=value` overrides laid over it.

    Raises UserError with every problem at once.
    """
    return build_config(read_config(source), overrides, str(source))


def read_config(source: str | Path) -> Raw:
    """The raw values of a preset, a YAML file or a run folder."""
    path, preset = Path(source), find_preset(str(source))
    if preset is not None and not path.exists():
        return expand(read_yaml(preset))
    if path.is_dir():
        if not (path / "config.yaml").is_file():
            raise UserError(f"{path}: a folder without config.yaml; a CONFIG is a preset, a YAML file or a run folder")
        return expand(read_yaml(path / "config.yaml"))
    if path.is_file():
        return expand(read_yaml(path))
    hint = nearest(str(source), presets())
    raise UserError(f"no config {str(source)!r}: neither a preset nor a file{hint or '; see `archlab list presets`'}")


def build_config(raw: Raw, overrides: Sequence[str] = (), source: str = "config") -> Config:
    """The validated config of raw values and overrides; UserError with every problem at once."""
    return validate(Config, overlay(raw, parse_overrides(overrides), Config), source)


def overlay(raw: Raw, change: Raw, schema: type[BaseModel]) -> Raw:
    """Dotted changes laid over raw values."""
    return merge(raw, expand(change), schema)


def parse_overrides(overrides: Sequence[str]) -> Raw:
    """`["a.b=1"]` -> `{"a.b": 1}`; values are YAML; the last of two equal keys holds."""
    parsed: Raw = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"override {text!r}: expected key=value, such as model.norm.kind=layernorm")
        parsed[key.strip()] = parse_yaml(value, f"override {text!r}")
    return parsed


def validate(schema: type[Schema], raw: Raw, source: str) -> Schema:
    """`raw` as a config of that class; UserError listing every problem of types, names and rules at once."""
    try:
        config = schema.model_validate(raw)
    except ValidationError as error:
        explained = explain(error, schema, raw)
        problems = [problem for _, problem in explained]
        if schema is Config:
            bad = [problem.path for problem in problems]
            repaired = _without(raw, [loc for loc, _ in explained])
            problems += [p for p in _rule_problems(repaired, bad)]
        raise_problems(problems, source)
        raise
    if isinstance(config, Config):
        raise_problems(broken_rules(config), source)
    return config


def _rule_problems(repaired: Raw, bad: list[str]) -> list[Problem]:
    try:
        return broken_rules(Config.model_validate(merge(_STAND_IN, repaired, Config)), bad)
    except (ValidationError, UserError):
        return []


def _without(raw: Raw, locations: Sequence[tuple[str | int, ...]]) -> Raw:
    out = json.loads(json.dumps(raw, default=str))
    for loc in locations:
        value: Any = out
        for part in loc[:-1]:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict):
            value.pop(loc[-1], None) if loc else value.clear()
    return out


def broken_rules(config: Config, bad: Sequence[str] = ()) -> list[Problem]:
    """The rules that a config breaks, leaving out those that read a field in `bad`."""
    problems = [
        Problem(rule.field, message)
        for rule in CONFIG_RULES
        if not any(is_under(field, bad) for field in rule.reads) and (message := rule.broken(config))
    ]
    return list(dict.fromkeys([*_layer_problems(config, bad), *problems]))


def _layer_problems(config: Config, bad: Sequence[str]) -> Iterator[Problem]:
    model = config.model
    views = {"": model}
    for name, change in (model.layers.kinds if model.layers else {}).items():
        prefix = f"model.layers.{name}"
        unknown = [key for key in expand(change) if key not in PER_LAYER]
        if unknown:
            yield Problem(prefix, f"{', '.join(unknown)} cannot differ per layer{nearest(unknown[0], PER_LAYER)}; allowed: {', '.join(PER_LAYER)}")
            continue
        try:
            views[name] = with_overrides(model, change)
        except UserError as error:
            yield Problem(prefix, str(error))
        except ValidationError as error:
            raw = merge(model.model_dump(exclude={"layers"}), expand(change), type(model))
            yield from (Problem(f"{prefix}.{p.path}", p.message) for _, p in explain(error, type(model), raw))
    yield from _embedded_positions(views)
    shared = {(r.field, m) for r in LAYER_RULES if (m := r.broken(model))}
    for name, view in views.items():
        for rule in LAYER_RULES:
            if any(is_under(f"model.{field}", bad) for field in rule.reads):
                continue
            message = rule.broken(view)
            if message and not (name and (rule.field, message) in shared):
                yield Problem(f"model.layers.{name}.{rule.field}" if name else f"model.{rule.field}", message)


def _embedded_positions(views: dict[str, Any]) -> Iterator[Problem]:
    """Positions that are added to the embedding cannot be switched per layer."""
    base = views[""].position
    for name, view in views.items():
        if view.position != base and "sinusoidal learned".find(view.position.kind) >= 0:
            yield Problem(f"model.layers.{name}.position", f"{view.position.kind} is added once, to the embedding")
        elif view.position != base and base.kind in ("sinusoidal", "learned"):
            yield Problem(f"model.layers.{name}.position", f"model.position is {base.kind}, which is added once, to the embedding")


# --- identity -------------------------------------------------------------------------------------------------------


def resolved(config: Config) -> Raw:
    """Plain values with every derived field written out: what a config means, however it was spelled."""
    raw = config.model_dump(mode="json")
    raw["model"] = resolve(config.model).model_dump(mode="json")
    seq_len = config.train.seq_len or config.model.max_seq_len
    raw["train"] |= {"seq_len": seq_len, "micro_batch_tokens": config.train.micro_batch_tokens or config.train.batch_tokens}
    if config.train.schedule != "constant" and config.train.final_lr is None:
        raw["train"]["final_lr"] = 0.1
    if config.train.schedule == "wsd" and config.train.decay is None:
        raw["train"]["decay"] = 0.2
    return raw


def flatten(raw: Raw, at: str = "") -> Raw:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    flat: Raw = {}
    for key, value in raw.items():
        flat |= flatten(value, f"{at}{key}.") if isinstance(value, dict) and value else {f"{at}{key}": value}
    return flat


def diff(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted field -> its two values, for every resolved field in which they differ; None where it does not exist."""
    left, right = flatten(resolved(a)), flatten(resolved(b))
    return {k: (left.get(k), right.get(k)) for k in {**left, **right} if left.get(k) != right.get(k)}


def config_hash(value: Any) -> str:
    """12 hex digits of the canonical JSON of plain values; a Config counts as what it resolves to."""
    plain = resolved(value) if isinstance(value, Config) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]
