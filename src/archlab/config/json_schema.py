"""JSON schemas of the files a person writes, for editors: `# yaml-language-server: $schema=FILE`."""

from pydantic import BaseModel

from archlab.config.merge import Raw
from archlab.config.schema import Config
from archlab.config.study_schema import StudyConfig

SCHEMAS: dict[str, type[BaseModel]] = {"config": Config, "study": StudyConfig}
"""Kind of file -> what it holds."""


def json_schema(kind: str = "config") -> Raw:
    """JSON schema (2020-12) of one kind of file, with every field's description."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMAS[kind].model_json_schema()}
