"""Measure programs side by side: each in its own process and in turns, so that other load slows all of them alike.

Every benchmark has the same parts: `options`, `measure`, a table, `finish`. A script without a record has only
`help_of`.
"""

import argparse
import json
import multiprocessing as mp
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

Round = Callable[[], float]
"""A function that measures once and returns units of work per second."""

LEAST = 0.9
"""Share of a recorded ratio that a later change must keep."""

RECORDS = Path(__file__).parent / "records"

Item = TypeVar("Item")
Result = TypeVar("Result")


def help_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser without options. Its `--help` prints the docstring of the benchmark."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def options(doc: str | None, rounds: int | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark that has a record. With `rounds` None, it does not measure in rounds."""
    parser = help_of(doc)
    if rounds is not None:
        parser.add_argument(
            "--rounds", type=int, default=rounds, help=f"number of rounds; all take turns (default: {rounds})"
        )
    parser.add_argument("--check", action="store_true", help="compare with the record instead of writing it")
    return parser


def measure(entrants: Mapping[str, tuple[Callable[..., Round], tuple[Any, ...]]], rounds: int) -> dict[str, Any]:
    """Measure all entrants. Return name -> {median, best, peak memory in bytes}, without the entrants that fail.

    An entrant is a maker and its arguments. The maker builds, warms up and compiles, and returns a round. On a CPU, all
    entrants are made, and then each of the `rounds` rounds measures every entrant once. On a GPU, each entrant is made,
    measured and ended before the next one is made, because together they would not fit into its memory. No other
    program slows it down there.

    The peak of an entrant that uses a GPU is that of its tensors on the GPU. Otherwise, it is the memory that the
    process took in addition to the imports of the benchmark's file.
    """
    if not _has_gpu():
        return _in_turn(entrants, rounds)
    results = dict[str, Any]()
    for name, entrant in entrants.items():
        results |= _in_turn({name: entrant}, rounds)
    return results


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _in_turn(entrants: Mapping[str, tuple[Callable[..., Round], tuple[Any, ...]]], rounds: int) -> dict[str, Any]:
    context = mp.get_context("spawn")
    running: dict[str, tuple[Any, BaseProcess]] = {}

    def answer(name: str, request: str | None = None) -> Any:
        """Return an entrant's answer to a request. If the entrant failed, print why, drop it, and return None."""
        connection, process = running[name]
        try:
            if request:
                connection.send(request)
            failed, number = connection.recv()
        except (EOFError, OSError):
            failed, number = "its process died", None
        if failed:
            process.join()
            failed += f" (exit code {process.exitcode})" * bool(process.exitcode)
            print(f"  {name}: {failed}", flush=True)
            del running[name]
            connection.close()
        return number

    try:
        for name, (make, arguments) in entrants.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, arguments))
            process.start()
            theirs.close()
            running[name] = ours, process
            answer(name)
            if name in running:
                print(f"  {name}: ready", flush=True)
        found: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name in list(running):
                found[name].append(answer(name, "round"))
        results = {}
        for name, (_, process) in list(running.items()):
            peak = answer(name, "end")
            if name in running:
                median, best = statistics.median(found[name]), max(found[name])
                results[name] = {"median": _short(median), "best": _short(best), "peak": peak}
                process.join()  # its memory is free before the next one starts
        return results
    finally:
        for connection, _ in running.values():
            connection.close()  # ends the process, whatever it waits for


def _serve(connection: Connection, make: Callable[..., Round], arguments: tuple[Any, ...]) -> None:
    before = _host_peak()
    try:
        measure_once = make(*arguments)
        connection.send((None, None))
        while connection.recv() == "round":
            connection.send((None, measure_once()))
        connection.send((None, _peak(before)))
    except EOFError:
        return
    except Exception as error:
        connection.send((f"{type(error).__name__}: {str(error)[:200]}", None))


def _peak(before: int) -> int:
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            return torch.cuda.max_memory_allocated()
    return _host_peak() - before


def _host_peak() -> int:
    # Not getrusage: its peak is inherited from the parent process.
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


def _short(number: float) -> float:
    """Round a number to five significant digits."""
    return float(f"{number:.5g}")


def side_by_side(n: int, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Map `work` over the items in `n` fresh processes that run at the same time."""
    with ProcessPoolExecutor(n, mp_context=mp.get_context("spawn")) as pool:
        return list(pool.map(work, items))


def hardware() -> dict[str, Any]:
    """Return the hardware and the versions; two records are comparable only if these are equal."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "safetensors")},
    }


def finish(
    benchmark: str,
    ratios: dict[str, float],
    results: dict[str, Any],
    *,
    check: bool,
    measured_on: dict[str, Any] | None = None,
) -> int:
    """Print one JSON line, write it to records/, and return the exit code. A higher ratio is always better.

    `measured_on` is the hardware, by default that of this process.

    With `check`, nothing is written. The result is 1 if a ratio is missing or more than a tenth below the one
    recorded on this machine. Without `check`, a record is only replaced if the new one has all of its ratios.
    """
    ratios = {name: _short(ratio) for name, ratio in ratios.items()}
    found = {"benchmark": benchmark, "hardware": measured_on or hardware(), "ratios": ratios, **results}
    file = RECORDS / f"{benchmark}.json"
    print(json.dumps(found))
    before = json.loads(file.read_text()) if file.exists() else {"ratios": {}}
    left_out = sorted(before["ratios"].keys() - ratios)
    if not check and left_out:
        print(f"{file.name} is unchanged because it also has {', '.join(left_out)}, which this run did not measure")
        return 0
    if not check:
        RECORDS.mkdir(exist_ok=True)
        file.write_text(json.dumps(found) + "\n")
        return 0
    if not file.exists():
        print(f"nothing to compare with: {RECORDS} has no {file.name}; run the same command without --check first")
        return 2
    if before["hardware"] != found["hardware"]:
        print(f"nothing to compare with: the record is from other hardware or versions: {before['hardware']}")
        return 2
    if left_out:
        print(f"recorded, but not measured now: {', '.join(left_out)}")
    lost = {name: r for name, r in ratios.items() if r < before["ratios"].get(name, 0) * LEAST}
    for name, ratio in lost.items():
        print(f"{name}: {ratio:.3g}; the record has {before['ratios'][name]:.3g}")
    return 1 if lost or left_out else 0
