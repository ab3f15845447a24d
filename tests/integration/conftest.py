"""Fixtures for tests that bring plug-ins of their own, and for tests of trained models and of studies."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from archlab.study.executors.local import Local
from plugin_state import as_a_new_process
from tiny import run_here


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


@pytest.fixture
def trained_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs are trained in this process. Return the list of their labels, which grows."""
    labels = list[str]()

    def run_all(self, runs, study, on_progress):
        labels.extend(run.label for run in runs)
        return run_here(self, runs, study, on_progress)

    monkeypatch.setattr(Local, "run_all", run_all)
    return labels
