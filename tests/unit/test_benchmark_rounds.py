"""Benchmarks in rounds: an entrant that fails is left out, and on a GPU each entrant ends before the next one begins."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


def making(log: Path, name: str, dies_by: str = ""):
    """Note in `log` when the entrant is made, measured and ended."""
    rounds = iter(range(1, 9))

    def note(what: str) -> None:
        with log.open("a") as file:
            print(name, what, file=file)

    def run() -> float:
        note("measured")
        number = next(rounds)
        if number == 2 and dies_by == "error":
            raise RuntimeError("CUDA out of memory")
        if number == 2 and dies_by == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    if dies_by == "making":
        raise ValueError("no such library")
    note("made")
    return run


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import rounds

    yield rounds
    del sys.modules["rounds"]


def test_an_entrant_that_fails_is_left_out(rounds, tmp_path, capsys) -> None:
    reasons = ("", "making", "error", "signal")
    found = rounds.measure({f"by {why}": (making, (tmp_path / "log", why, why)) for why in reasons}, 3)
    assert list(found) == ["by "]
    assert (found["by "]["median"], found["by "]["best"]) == (2, 3)
    printed = capsys.readouterr().out
    assert "by making: ValueError: no such library" in printed
    assert "by error: RuntimeError: CUDA out of memory" in printed
    assert "by signal: its process died (exit code -9)" in printed


@pytest.mark.parametrize(
    ("has_gpu", "order"),
    [
        (False, ["a made", "b made", "a measured", "b measured", "a measured", "b measured"]),
        (True, ["a made", "a measured", "a measured", "b made", "b measured", "b measured"]),
    ],
)
def test_on_a_gpu_entrants_are_alone(has_gpu: bool, order: list[str], rounds, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rounds, "_has_gpu", lambda: has_gpu)
    log = tmp_path / "log"
    assert list(rounds.measure({name: (making, (log, name)) for name in "ab"}, 2)) == ["a", "b"]
    assert log.read_text().splitlines() == order


def test_the_peak_on_a_gpu_is_that_of_its_tensors(rounds, monkeypatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: True, max_memory_allocated=lambda: 123)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert rounds._peak(0) == 123
    cuda.is_initialized = lambda: False
    assert rounds._peak(0) == rounds._host_peak() > 123
