"""A process that knows no plug-in yet, for tests that bring some."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin_state import as_a_new_process


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a new process, in a folder and on a machine of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ARCHLAB_STATE", str(tmp_path / "state"))
    as_a_new_process()
    yield
    as_a_new_process()
