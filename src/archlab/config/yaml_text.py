"""YAML as configs are written: `1e-5` is a number, a key given twice an error; errors name file and line."""

import json
import re
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from archlab.config.merge import Raw
from archlab.errors import UserError
from archlab.files import MEBIBYTE, read_text

MOST_BYTES = MEBIBYTE
"""Of a YAML file: far more than a config needs, and read in seconds."""


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.1 with the numbers of YAML 1.2, refusing a key that is given twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ComposerError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(str(key.value))
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text; a UserError that names `source` and the line when it is none."""
    try:
        value = yaml.load(text, Loader=_Loader)
        json.dumps(value, default=str)
    except (ValueError, RecursionError):
        raise UserError(f"{source}: an alias (*) refers to what it is part of; write the value out") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{source}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    return value


def read_yaml(path: Path | Traversable) -> Raw:
    """A YAML file that must hold a mapping; dotted keys stay as they are."""
    value = parse_yaml(read_text(path, MOST_BYTES), str(path))
    if not isinstance(value, dict):
        found = "nothing" if value is None else type(value).__name__
        raise UserError(f"{path}: expected keys and values, found {found}")
    return value


def first_comment(path: Path | Traversable) -> str:
    """What a file says of itself in its first line; empty where that is no comment."""
    line = read_text(path, MOST_BYTES).partition("\n")[0]
    return line[1:].strip() if line.startswith("#") else ""


def to_yaml(value: Raw) -> str:
    """YAML in the order given, short lists on one line."""
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=None, allow_unicode=True, width=72)


def to_yaml_line(value: Any) -> str:
    """One value as it would stand after `key:`, without quotes around text."""
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
