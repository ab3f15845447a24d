"""JSON schemas of the files a person writes, for editors: `# yaml-language-server: $schema=FILE`."""

from pydantic import BaseModel

from archlab.config.about import About
from archlab.config.merge import Raw
from archlab.config.schema import Config
from archlab.config.study_schema import StudyConfig


class ConfigFile(Config):
    """A run's config, and what is known of the published model it describes."""

    about: About | None = None
    """No part of the run."""


SCHEMAS: dict[str, type[BaseModel]] = {"config": ConfigFile, "study": StudyConfig}
"""Kind of file -> what it holds."""


def json_schema(kind: str = "config") -> Raw:
    """JSON schema (2020-12) of one kind of file, with every field's description."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMAS[kind].model_json_schema()}
