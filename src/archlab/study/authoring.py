"""Help for writing config and study files: a template for study files, and JSON schemas for editors."""

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from archlab.config.about import About
from archlab.config.core.merge import Raw, section_classes
from archlab.config.core.yaml_text import to_yaml, to_yaml_line
from archlab.config.schema import Config
from archlab.study.schema import StudyConfig

EXAMPLE: Raw = {
    "question": "Does RMSNorm train as well as LayerNorm?",
    "base": "tiny-llama",
    "set": {"train.seq_len": 128, "train.batch_tokens": 1024},
    "arms": {"layer": {"model.norm.kind": "layernorm"}, "rms": {"model.norm.kind": "rmsnorm"}},
    "budget": {"tokens": "256K"},
    "seeds": 3,
}
"""Example study for the template. It takes a few minutes on two CPU cores."""

_WIDTH = 100


def template(values: Raw = EXAMPLE) -> str:
    """Return the text of a study file with these values.

    The fields are in the order of the schema. A comment above each field describes it. A field that `values` lacks is
    commented out and shows its default.
    """
    intro = "A study. Lines that begin with # are comments. docs/studies.md explains every field with examples."
    blocks = [comment(intro)]
    blocks += [_block(name, field, values) for name, field in StudyConfig.model_fields.items()]
    return "\n\n".join(blocks) + "\n"


def _block(name: str, field: FieldInfo, values: Raw) -> str:
    lines = [comment(str(field.description)), *_inside(field)]
    if name in values:
        line = to_yaml({name: values[name]}).rstrip()
        line = line[1:-1] if line.startswith("{") else line  # a short mapping is written in braces
    else:
        line = f"# {name}: {to_yaml_line(field.get_default(call_default_factory=True))}"
    return "\n".join([*lines, line])


def _inside(field: FieldInfo) -> Iterator[str]:
    for section in section_classes(field):
        for name, inner in section.model_fields.items():
            yield comment(f"{name}: {inner.description}", indent="  ")


def comment(text: Any, indent: str = "") -> str:
    """Return a text as lines of a comment in YAML."""
    lines = wrap(" ".join(str(text).split()), _WIDTH, initial_indent=f"# {indent}", subsequent_indent=f"# {indent * 2}")
    return "\n".join(lines)


class ConfigFile(Config):
    """A run's config file: the config, its base, and facts about the published model that the config describes."""

    base: str | None = None
    """A preset, or a file next to this one. It provides the values of all fields that this file leaves out."""
    about: About | None = None
    """Facts about the published model. They do not affect the run."""


SCHEMAS: dict[str, type[BaseModel]] = {"config": ConfigFile, "study": StudyConfig}
"""Pydantic model of each kind of file."""


def json_schema(kind: str = "config") -> Raw:
    """Return the JSON schema (draft 2020-12) of config files or study files, with a description of every field."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMAS[kind].model_json_schema()}
    _any_of(schema)
    if kind == "config":
        schema["anyOf"] = [{"required": ["base"]}, _pop_required(schema, schema["$defs"])]
    return schema


def _any_of(schema: Any) -> None:
    """Replace pydantic's `oneOf` by `anyOf` everywhere in a schema. A section without `kind` may match several kinds,
    and `oneOf` would reject it."""
    if isinstance(schema, dict) and "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _any_of(value)


def _pop_required(section: Raw, definitions: Raw) -> Raw:
    names = section.pop("required", [])
    nested = {name: _required_in(section["properties"][name], definitions) for name in names}
    return {"required": names, "properties": nested}


def _required_in(value: Raw, definitions: Raw) -> Raw:
    """Return a JSON schema that requires the fields that a section must contain. If a section has several kinds, each
    kind has its own required fields. `kind` is required except for the first kind, which is the default."""
    if reference := value.get("$ref"):
        return _pop_required(definitions[reference.rpartition("/")[2]], definitions)
    kinds = [definitions[kind["$ref"].rpartition("/")[2]] for kind in value.get("anyOf", ()) if "$ref" in kind]
    if not kinds:
        return {}
    variants = [(kind["properties"]["kind"]["const"], _pop_required(kind, definitions)) for kind in kinds]
    return {
        "anyOf": [
            {"properties": {"kind": {"const": kind}, **required["properties"]}}
            | {"required": required["required"] + (["kind"] if kind != variants[0][0] else [])}
            for kind, required in variants
        ]
    }
