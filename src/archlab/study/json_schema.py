"""JSON schemas of the files a person writes, for editors: `# yaml-language-server: $schema=FILE`."""

from typing import Any

from pydantic import BaseModel

from archlab.config.about import About
from archlab.config.core.merge import Raw
from archlab.config.schema import Config
from archlab.study.schema import StudyConfig


class ConfigFile(Config):
    """A run's config, what it builds on, and what is known of the published model it describes."""

    base: str | None = None
    """A preset, or a file beside this one, whose values hold where this one says nothing."""
    about: About | None = None
    """No part of the run."""


SCHEMAS: dict[str, type[BaseModel]] = {"config": ConfigFile, "study": StudyConfig}
"""Kind of file -> what it holds."""


def json_schema(kind: str = "config") -> Raw:
    """JSON schema (2020-12) of one kind of file, with every field's description."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMAS[kind].model_json_schema()}
    _any_of(schema)
    if kind == "config":
        schema["anyOf"] = [{"required": ["base"]}, _pop_required(schema, schema["$defs"])]
    return schema


def _any_of(schema: Any) -> None:
    """Where pydantic writes oneOf: a section that leaves its kind out may fit several kinds."""
    if isinstance(schema, dict) and "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _any_of(value)


def _pop_required(section: Raw, definitions: Raw) -> Raw:
    """What a section requires, down to the sections that it requires itself; taken out of where it stands."""
    names = section.pop("required", [])
    nested = {name: _required_in(section["properties"][name], definitions) for name in names}
    return {"required": names, "properties": nested}


def _required_in(value: Raw, definitions: Raw) -> Raw:
    """What the value of a required field requires: of a tagged union, what each kind does, the first by default."""
    if where := value.get("$ref"):
        return _pop_required(definitions[where.rpartition("/")[2]], definitions)
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
