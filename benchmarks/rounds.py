"""Programs measured side by side: each in a process of its own, in turns, so that what slows the machine slows all."""

import json
import multiprocessing as mp
import resource
import statistics
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from load_memory import hardware

Round = Callable[[], float]
"""Measures once: units of work per second."""

LEAST = 0.9
"""Of a recorded ratio, that a later change must keep."""

RECORDS = Path(__file__).parent / "records"


def measure(entrants: Mapping[str, tuple[Callable[..., Round], tuple[Any, ...]]], rounds: int) -> dict[str, Any]:
    """Name -> {median, best, peak memory in bytes} of what each one's maker, called with its arguments, measures.

    A maker builds, warms up and compiles; makers run one after the other, then `rounds` rounds of all in turn.
    """
    context = mp.get_context("spawn")
    running = {}
    for name, (make, arguments) in entrants.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        process.start()
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
            "median": round(statistics.median(found[name]), 1),
            "best": round(max(found[name]), 1),
            "peak": connection.recv(),
        }
    return results


def _serve(connection: Connection, make: Callable[..., Round], arguments: tuple[Any, ...]) -> None:
    before = _peak()
    try:
        measure_once = make(*arguments)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {str(error)[:200]}")
        return
    connection.send(None)
    while connection.recv() == "round":
        connection.send(measure_once())
    connection.send(_peak() - before)  # imports are not what is compared


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def finish(benchmark: str, ratios: dict[str, float], results: dict[str, Any], *, check: bool) -> int:
    """Print one JSON line, and write it to records/; the exit code.

    `check`: nothing is written, and 1 is returned where a ratio is a tenth below the recorded one of this machine.
    """
    found = {"benchmark": benchmark, "hardware": hardware(), "ratios": ratios, **results}
    file = RECORDS / f"{benchmark}.json"
    print(json.dumps(found))
    if not check:
        RECORDS.mkdir(exist_ok=True)
        file.write_text(json.dumps(found) + "\n")
        return 0
    before = json.loads(file.read_text())
    if before["hardware"] != found["hardware"]:
        print(f"the record is of other hardware or versions, {before['hardware']}: nothing to compare with")
        return 0
    lost = {name: r for name, r in ratios.items() if r < before["ratios"].get(name, 0) * LEAST}
    for name, ratio in lost.items():
        print(f"{name}: {ratio:.2f}, and {before['ratios'][name]:.2f} was recorded")
    return 1 if lost else 0
