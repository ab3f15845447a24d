"""`archlab list`."""

from typing import Literal

from archlab.cli.terminal import print_table
from archlab.config.io import presets, studies
from archlab.config.yaml_text import first_comment, read_yaml


def run(what: Literal["presets", "studies"] | None = None, /) -> None:
    """List what there is.

    Parameters
    ----------
    what
        Only these; everything when left out.
    """
    if what in ("presets", None):
        rows = [(name, first_comment(file)) for name, file in presets().items()]
        print_table(("preset", "what it is"), rows)
    if what in ("studies", None):
        rows = [(name, read_yaml(file).get("question", "")) for name, file in studies().items()]
        print_table(("study", "what it asks"), rows)
