"""Block diagrams: what is in them, where it stands, and that it can be read."""

from collections import Counter
from collections.abc import Iterator

import pytest

from archlab.atlas.entries import entries
from archlab.cli.app import main
from archlab.config.io import presets
from archlab.config.layers import distinct_layers
from archlab.exchange.configs import load_config
from archlab.report.drawings.block import block_diagram, side_by_side
from archlab.report.drawings.lettering import text_width
from archlab.report.drawings.svg import KINDS
from tests.reference.drawn import Picture
from tests.unit.tiny import tiny_config as _  # noqa: F401
