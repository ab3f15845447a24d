"""Fixtures for all tests: a small text, caches of prepared data, and a private folder for the plug-in list.

With `--device cuda`, models and tensors are made on the GPU. Only tests/invariants/test_grid.py and test_numerics.py
support it. Other tests name their device, or compare with results of libraries on the CPU.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from plugin_state import forget, plugin_modules
from tiny import write_text


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device of the grid's models and tensors: cpu, cuda")


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("--device")
    if device == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: torch finds no CUDA device")
    if device != "cpu":  # before the tests are read, because some make tensors at import
        torch.set_default_device(device)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Iterator[Any]:
    """Let a failure whose message has a file name that is not UTF-8 be reported. Else it would stop pytest-xdist."""
    data = yield
    text = json.dumps(data, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode(errors="replace"))
    return data


def pytest_collection_finish() -> None:
    """Forget the kinds of the plug-ins that were read to make the parameters of tests."""
    forget(plugin_modules())


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests away from the user's list of plug-ins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHLAB_STATE", str(tmp_path_factory.mktemp("state")))
        patch.delenv("ARCHLAB_TRUST", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _own_plugins_of_fixtures() -> Iterator[None]:
    """Forget the kinds of the plug-ins that the fixtures of a module have read."""
    yield from _forgetting_plugins()


@pytest.fixture(autouse=True)
def _own_plugins() -> Iterator[None]:
    """Forget the kinds of the plug-ins that a test has read. A study brings one without naming it to the reader."""
    yield from _forgetting_plugins()


def _forgetting_plugins() -> Iterator[None]:
    before = plugin_modules()
    yield
    if new := plugin_modules() - before:
        forget(new)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shared_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
