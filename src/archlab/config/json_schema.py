"""JSON schemas of the files a person writes, for editors: `# yaml-language-server: $schema=FILE`."""

from pydantic import BaseModel

from archlab.config.about import About
from archlab.config.merge import Raw
from archlab.config.schema import Config
from archlab.config.study_schema import StudyConfig


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
    if kind == "config":
        schema["anyOf"] = [{"required": ["base"]}, _pop_required(schema, schema["$defs"])]
    return schema


def _pop_required(section: Raw, definitions: Raw) -> Raw:
    """What a section requires, down to the sections that it requires itself; taken out of where it stands."""
    names = section.pop("required", [])
    nested = {name: _required_in(section["properties"][name], definitions) for name in names}
    return {"required": names, "properties": nested}


def _required_in(value: Raw, definitions: Raw) -> Raw:
    """What the value of a required field requires: of a tagged union, what each kind does, the first by default."""
    if where := value.get("$ref"):
        return _pop_required(definitions[where.rpartition("/")[2]], definitions)
    names = [option["$ref"].rpartition("/")[2] for option in value.get("oneOf", [])]
    kinds = [definitions[name]["properties"]["kind"]["const"] for name in names]
    variants = [(kind, _pop_required(definitions[name], definitions)) for kind, name in zip(kinds, names, strict=True)]
    if not variants:
        return {}
    # pydantic writes oneOf, but without what they require an empty section fits several.
    value["anyOf"] = value.pop("oneOf")
    return {
        "anyOf": [
            {"properties": {"kind": {"const": kind}, **required["properties"]}}
            | {"required": required["required"] + (["kind"] if kind != variants[0][0] else [])}
            for kind, required in variants
        ]
    }
