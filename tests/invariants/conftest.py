"""What holds in tests that go over the grid, and in no others of the same process."""

import pytest

from archlab.config.components import query_blocks, recurrent
from archlab.model import products


@pytest.fixture(autouse=True)
def _small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a text of the grid is several chunks, the last of them not full, and several blocks of queries."""
    if hasattr(request.module, "grid"):
        monkeypatch.setattr(recurrent, "CHUNK", 8)
        monkeypatch.setattr(query_blocks, "BLOCK", 4)
        monkeypatch.setattr(products, "BLOCK", 8)
