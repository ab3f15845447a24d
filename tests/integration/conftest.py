"""Fixtures for tests that bring plug-ins of their own, and for tests of trained models."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin_state import as_a_new_process


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Start as in a new process, in an empty folder and with an empty list of plug-ins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ARCHLAB_STATE", str(tmp_path / "state"))
    as_a_new_process()
    yield
    as_a_new_process()


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with a copy of `trained`, the folder of trained models that the module's own fixture makes."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
