"""`archlab schema`."""

from typing import Literal

from archlab.cli.terminal import print_json
from archlab.study.authoring import json_schema


def run(kind: Literal["config", "study"] = "config", /) -> None:
    """Print the JSON schema of a kind of file.

    Saved as archlab.json, an editor uses it for a YAML file that begins with
    `# yaml-language-server: $schema=archlab.json`.

    Parameters
    ----------
    kind
        Which file: the config of a model and its training, or a study.
    """
    print_json(json_schema(kind))
