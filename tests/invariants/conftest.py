"""Settings for tests that go over the grid, which do not affect other tests in the same process."""

import pytest

from archlab.config.components import query_blocks, recurrent
from archlab.model import products


@pytest.fixture(autouse=True)
def _small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small pieces: a text of the grid then has several chunks, the last one not full, and several blocks of
    queries."""
    if hasattr(request.module, "grid"):
        monkeypatch.setattr(recurrent, "CHUNK", 8)
        monkeypatch.setattr(query_blocks, "BLOCK", 4)
        monkeypatch.setattr(products, "BLOCK", 8)
