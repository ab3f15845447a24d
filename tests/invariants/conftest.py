"""Fixtures for tests over the grid; they do not affect other tests of the same process."""

import pytest

from archlab.config.components import query_blocks, recurrent
from archlab.model import products


@pytest.fixture(autouse=True)
def _small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks and blocks so small that a text of the grid has several, with a shorter last chunk."""
    if hasattr(request.module, "grid"):
        monkeypatch.setattr(recurrent, "CHUNK", 8)
        monkeypatch.setattr(query_blocks, "BLOCK", 4)
        monkeypatch.setattr(products, "BLOCK", 8)
