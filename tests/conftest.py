"""`--device cuda`: models and tensors are made there. tests/invariants/test_grid.py and test_numerics.py obey it; other
tests name their device, or compare with what libraries compute on the CPU.

A small text, and a cache of prepared data for the whole session, for those that ask for them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tiny import write_text


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where the grid's models and tensors are made")


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("--device")
    if device == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: torch finds no CUDA device here")
    if device != "cpu":  # before the tests are read, for some make tensors then
        torch.set_default_device(device)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests away from the user's list of plug-ins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHLAB_STATE", str(tmp_path_factory.mktemp("state")))
        patch.delenv("ARCHLAB_TRUST", raising=False)
        yield


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def shared_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
