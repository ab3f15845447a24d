"""Pictures for README.md and docs/drawing.md.

`python -m archlab.report.readme_pictures docs` writes them into `docs`.
"""

import sys
from pathlib import Path

from archlab.evidence.results import committed
from archlab.exchange.configs import load_config
from archlab.files import write_atomic
from archlab.report.drawings.block import block_diagram
from archlab.report.study.page import forest_picture

_LADDER, _TITLE = "ladder-rates", "Which step from 2017's block to today's lowers the loss?"
_MODEL = "llama-3-8b"


def readme_pictures() -> dict[str, str]:
    """Return each picture as an SVG, by file name. Every picture is drawn from files that come with archlab.

    They are not PNGs, whose pixels depend on the versions of fonts on the machine.
    """
    return {
        "ladder.svg": forest_picture(committed()[_LADDER], _TITLE),
        f"{_MODEL}.svg": block_diagram(load_config(_MODEL), _MODEL),
    }


if __name__ == "__main__":
    for name, content in readme_pictures().items():
        write_atomic(Path(sys.argv[1]) / name, content)
