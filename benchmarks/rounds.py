"""Programs measured side by side: each in a process of its own, in turns, so that what slows the machine slows all.

Every benchmark has the same shape: `options`, `measure`, a table, `finish`.
"""

import argparse
import json
import multiprocessing as mp
import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

Round = Callable[[], float]
"""Measures once: units of work per second."""

LEAST = 0.9
"""Of a recorded ratio, that a later change must keep."""

RECORDS = Path(__file__).parent / "records"

Item = TypeVar("Item")
Found = TypeVar("Found")


def options(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """What every benchmark is asked; its help is its docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"in which all take turns (default: {rounds})")
    parser.add_argument("--check", action="store_true", help="compare with the record instead of writing it")
    return parser


def measure(entrants: Mapping[str, tuple[Callable[..., Round], tuple[Any, ...]]], rounds: int) -> dict[str, Any]:
    """Name -> {median, best, peak memory in bytes} of what each one's maker, called with its arguments, measures.

    A maker builds, warms up and compiles; makers run one after the other, then `rounds` rounds of all in turn. The peak
    is what the process took beyond the imports of the benchmark's file.
    """
    context = mp.get_context("spawn")
    running: dict[str, Any] = {}
    try:
        for name, (make, arguments) in entrants.items():
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs, make, arguments)).start()
            theirs.close()
            failed = ours.recv()
            print(f"  {name}: {failed or 'ready'}", flush=True)
            if not failed:
                running[name] = ours
        found: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name, connection in running.items():
                connection.send("round")
                found[name].append(connection.recv())
        results = {}
        for name, connection in running.items():
            connection.send("end")
            results[name] = {
                "median": _short(statistics.median(found[name])),
                "best": _short(max(found[name])),
                "peak": connection.recv(),
            }
        return results
    finally:
        for connection in running.values():
            connection.close()  # which ends the process, whatever it waits for


def _serve(connection: Connection, make: Callable[..., Round], arguments: tuple[Any, ...]) -> None:
    before = _peak()
    try:
        measure_once = make(*arguments)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {str(error)[:200]}")
        return
    connection.send(None)
    try:
        while connection.recv() == "round":
            connection.send(measure_once())
        connection.send(_peak() - before)
    except EOFError:
        return


def _peak() -> int:
    # Not getrusage's, which a process inherits from the one that starts it.
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


def _short(number: float) -> float:
    """With five digits."""
    return float(f"{number:.5g}")


def side_by_side(n: int, work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """What it gives of each item, in so many fresh processes at the same time."""
    with ProcessPoolExecutor(n, mp_context=mp.get_context("spawn")) as pool:
        return list(pool.map(work, items))


def hardware() -> dict[str, Any]:
    """And the versions: what a record can be compared on."""
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


def finish(benchmark: str, ratios: dict[str, float], results: dict[str, Any], *, check: bool) -> int:
    """Print one JSON line, and write it to records/; the exit code. Of every ratio more is better.

    `check`: nothing is written, and 1 is returned where a ratio is missing, or a tenth below the recorded one of this
    machine. Otherwise a record is replaced only by one that has all of its ratios.
    """
    ratios = {name: _short(ratio) for name, ratio in ratios.items()}
    found = {"benchmark": benchmark, "hardware": hardware(), "ratios": ratios, **results}
    file = RECORDS / f"{benchmark}.json"
    print(json.dumps(found))
    before = json.loads(file.read_text()) if file.exists() else {"ratios": {}}
    left_out = sorted(before["ratios"].keys() - ratios)
    if not check and left_out:
        print(f"{file.name} is kept as it was: it has {', '.join(left_out)}, which were not measured now")
        return 0
    if not check:
        RECORDS.mkdir(exist_ok=True)
        file.write_text(json.dumps(found) + "\n")
        return 0
    if not file.exists():
        print(
            f"nothing to compare with: there is no {file.name} in {RECORDS}; the same command without --check makes it"
        )
        return 2
    if before["hardware"] != found["hardware"]:
        print(f"nothing to compare with: the record is of other hardware or versions, {before['hardware']}")
        return 2
    if left_out:
        print(f"recorded, but not measured now: {', '.join(left_out)}")
    lost = {name: r for name, r in ratios.items() if r < before["ratios"].get(name, 0) * LEAST}
    for name, ratio in lost.items():
        print(f"{name}: {ratio:.3g}, and {before['ratios'][name]:.3g} was recorded")
    return 1 if lost or left_out else 0
