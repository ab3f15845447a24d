"""The GPU's benchmark without a GPU: its parts with fake entrants, and its comparisons with small models on the CPU."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from archlab.exchange.configs import load_config
from archlab.model import kernels

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark. Its processes import it, too."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BENCHMARKS), *sys.path]))
    import gpu  # pyright: ignore[reportMissingImports]

    yield gpu
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == BENCHMARKS:
            del sys.modules[name]


def counted(log: Path, value: float) -> dict[str, float]:
    with log.open("a") as file:
        print(value, file=file)
    return {"median": value}


def fails() -> dict[str, float]:
    raise RuntimeError("CUDA out of memory")


def dies() -> dict[str, float]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hangs(log: Path) -> dict[str, float]:
    if child := os.fork():
        log.write_text(str(child))
    while True:
        time.sleep(1)


def is_running(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def results(file: Path) -> dict[str, dict[str, float]]:
    return json.loads(file.read_text())["results"]


def test_results_are_written_after_each_entrant_and_a_part_goes_on(gpu, tmp_path, capsys) -> None:
    log, file = tmp_path / "log", tmp_path / "parts" / "layers.json"

    def entrants(*, is_killed: bool) -> Iterator[tuple[str, object]]:
        yield "first", gpu.Entrant(counted, (log, 1.0))
        if is_killed:
            raise KeyboardInterrupt
        yield "second", gpu.Entrant(counted, (log, 2.0))

    with pytest.raises(KeyboardInterrupt):
        gpu.measure_part(entrants(is_killed=True), file)
    assert results(file) == {"first": {"median": 1.0}}
    gpu.measure_part(entrants(is_killed=False), file)
    assert results(file) == {"first": {"median": 1.0}, "second": {"median": 2.0}}
    assert log.read_text().split() == ["1.0", "2.0"]
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"code": "another"}))
    gpu.measure_part(entrants(is_killed=False), file)
    assert log.read_text().split() == ["1.0", "2.0", "1.0", "2.0"]


def test_an_entrant_that_fails_does_not_stop_its_part(gpu, tmp_path) -> None:
    log, file = tmp_path / "log", tmp_path / "decode.json"
    bad = {"fails": gpu.Entrant(fails), "dies": gpu.Entrant(dies), "hangs": gpu.Entrant(hangs, (log,), 20)}
    gpu.measure_part(iter({**bad, "good": gpu.Entrant(counted, (tmp_path / "good", 1.0))}.items()), file)
    assert results(file) == {
        "fails": {"failed": "RuntimeError: CUDA out of memory"},
        "dies": {"failed": "its process died (exit code -9)"},
        "hangs": {"failed": "it took longer than 20 s"},
        "good": {"median": 1.0},
    }
    deadline = time.monotonic() + 5
    while is_running(int(log.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(int(log.read_text()))  # a process that the entrant started has ended, too
    gpu.measure_part(iter({"fails": gpu.Entrant(counted, (tmp_path / "again", 3.0))}.items()), file)
    assert results(file)["fails"] == {"median": 3.0}


def part(
    folder: Path, name: str, found: Mapping[str, Mapping[str, object]], hardware: str = "H", code: str = "c"
) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"hardware": hardware, "code": code, "results": found}))


@pytest.fixture
def records(tmp_path, monkeypatch, gpu) -> Path:
    monkeypatch.setattr(sys.modules["rounds"], "RECORDS", tmp_path / "records")
    return tmp_path / "records"


def test_parts_become_one_record(gpu, tmp_path, records, capsys) -> None:
    speeds = {"archlab": {"median": 30.0}, "transformers": {"median": 20.0}, "litgpt": {"median": 25.0}}
    part(tmp_path, "train", {**speeds, "matmul": {"median": 30.0 * gpu.flops_per_token(gpu.SHAPES["1b"]) * 2}})
    part(tmp_path, "layers", {"plain causal at 4096": {"median": 8.0}, "window at 4096": {"median": 12.0}})
    part(tmp_path, "grid", {"memory, dense": {"counted": 90, "measured": 100}})
    assert gpu.merge(tmp_path, check=False) == 0
    record = json.loads((records / "gpu.json").read_text())
    assert record["hardware"] == "H"
    assert record["missing"] == ["kernels", "decode"]
    assert record["ratios"] == {
        "training to the fastest library": 1.2,
        "training to the peak of products": 0.5,
        "window at 4096 to plain causal": 1.5,
        "memory, dense: counted and measured": 0.9,
    }
    part(tmp_path, "layers", {"plain causal at 4096": {"median": 8.0}, "window at 4096": {"median": 10.0}})
    assert gpu.merge(tmp_path, check=True) == 1
    assert "window at 4096 to plain causal: 1.25; the record has 1.5" in capsys.readouterr().out


def test_a_record_names_faults_and_refuses_parts_of_different_code(gpu, tmp_path, records, capsys) -> None:
    assert gpu.merge(tmp_path, check=False) == 2
    part(tmp_path, "kernels", {"flex": {"passed": False}, "sdpa": {"passed": True}, "GQA": {"failed": "out of memory"}})
    assert gpu.merge(tmp_path, check=False) == 1
    assert json.loads((records / "gpu.json").read_text())["wrong"] == ["kernels: flex", "kernels: GQA"]
    part(tmp_path, "train", {}, code="d")
    assert gpu.merge(tmp_path, check=False) == 2
    assert "train was measured on other hardware or with other code" in capsys.readouterr().out


def test_all_parts_have_entrants_with_different_names(gpu, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "tests_of", lambda n, device: {"test_a": ["test_a[1]"]})
    for make in gpu.PARTS.values():
        names = [name for name, _ in make()]
        assert len(names) == len(set(names)) > 3


def test_a_wrong_kernel_is_seen(gpu, monkeypatch) -> None:
    """The comparison passes on a CPU, and fails if a kernel ignores one key."""
    override = gpu.COMPARED["GQA"]
    assert gpu.agreement((override,), "sdpa", ("bfloat16",), "cpu")["passed"]
    right = kernels.KERNELS["sdpa"]

    def wrong(q, k, v, mask, bias, softmax):
        return right(q, k.index_fill(2, q.new_tensor([40]).long(), 0.0), v, mask, bias, softmax)

    monkeypatch.setitem(kernels.KERNELS, "sdpa", wrong)
    assert not gpu.agreement((override,), "sdpa", ("bfloat16",), "cpu")["passed"]


def test_a_wrong_decoding_step_is_seen(gpu, monkeypatch) -> None:
    override = gpu.COMPARED["window"]
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert gpu.decoded((override,), "bfloat16", "cpu")["passed"]
    right = kernels.KERNELS["sdpa"]

    def wrong(q, k, v, mask, bias, softmax):
        is_used = torch.arange(k.shape[2]) != 40
        return right(q, k * is_used[:, None] if q.shape[2] == 1 else k, v, mask, bias, softmax)

    torch.compiler.reset()
    monkeypatch.setitem(kernels.KERNELS, "sdpa", wrong)
    assert not gpu.decoded((override,), "bfloat16", "cpu")["passed"]


@pytest.mark.slow
def test_tests_of_some_configs_are_chosen(gpu) -> None:
    found = gpu.tests_of(3, "cpu")
    assert "test_every_kind_is_in_the_grid" in found
    n_configs = len(found["test_a_bfloat16_forward_is_near_float64"])
    assert 3 <= n_configs <= 5
    assert len(found["test_cached_is_full"]) <= 3 * n_configs


def test_only_tests_that_support_it_run_on_a_gpu(gpu) -> None:
    supported = re.findall(r"test_\w+\.py", (BENCHMARKS.parent / "tests" / "conftest.py").read_text().split('"""')[1])
    assert {Path(name).name for name in sys.modules["gpu_entrants"].TESTS} == set(supported)


def test_every_layer_is_one_that_archlab_builds(gpu) -> None:
    for part in (gpu.layers, gpu.kernels):
        for name, entrant in part():
            match entrant.work.__name__, entrant.arguments:
                case "speed", (_, (overrides, *_), _):
                    load_config("tiny-llama", *sys.modules["gpu_entrants"].WIDE, *overrides)
                case "agreement", (overrides, *_):
                    load_config("tiny-llama", *sys.modules["gpu_entrants"].SMALL, *overrides)
                case _:
                    assert name in ("kill and resume", "profile")
    for overrides in gpu.MEMORY.values():
        load_config("tiny-llama", *overrides)


def test_all_libraries_train_the_same_shape(gpu) -> None:
    shape = gpu.SHAPES[gpu.SHAPE]
    assert {name: shape in entrant.arguments[1] for name, entrant in gpu.train()} == {
        "archlab": True,
        "transformers": True,
        "litgpt": True,
        "matmul": False,
    }
