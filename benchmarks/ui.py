"""Measure `archlab ui`, or take its pictures.

Usage:
    python benchmarks/ui.py                   # start, one changed choice, many clients at once, memory; JSON last
    python benchmarks/ui.py --pictures docs   # ui-workbench.png and ui-compare.png, with the system's Chromium

The server and the clients share the machine.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

CLIENTS, REQUESTS_EACH = 20, 25
MANY = int(os.environ.get("REQUESTS", "10000"))


class Client:
    """A browser's connection, with its cookie."""

    def __init__(self, host: str, cookie: str) -> None:
        self._connection, self._cookie = HTTPConnection(host), cookie

    def seconds(self, path: str) -> float:
        begin = time.perf_counter()
        self._connection.request("GET", path, headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: status {answer.status}")
        return time.perf_counter() - begin


def change(random_state: random.Random) -> str:
    """Return the address of the workbench after a random change."""
    heads, width = random_state.choice([1, 2, 4, 16, 32]), random_state.randrange(4096, 20480, 64)
    kind = random_state.choice(["layernorm", "rmsnorm"])
    norm = "" if kind == "rmsnorm" else f"&model.norm.kind={kind}"
    width_field = "" if width == 14336 else f"&model.mlp.d_ff={width}"
    return f"/m/llama-3-8b?model.attention.n_kv_heads={heads}{width_field}{norm}"


def memory(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


PICTURES = {
    "ui-workbench.png": "/m/llama-3-8b?model.attention.n_kv_heads=2&model.norm.kind=layernorm",
    "ui-compare.png": "/vs/llama-3-8b/gemma-2-9b",
    "ui-models.png": "/models?heads=GQA&year=2024&y=d_over_layers&mine=llama-3-8b",
    "ui-choice.png": "/choice/rope?theta=500000&scaling=yarn",
}
"""Screen of each picture."""


def take_pictures(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    server = subprocess.Popen([sys.executable, "-m", "archlab", "ui", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    link = server.stdout.readline().split()[-1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        page.goto(link)
        for name, path in PICTURES.items():
            page.goto(link.partition("/?")[0] + path, timeout=120_000)
            page.screenshot(path=folder / name)
        browser.close()
    server.terminate()
    server.wait()


def main() -> None:
    begin = time.perf_counter()
    server = subprocess.Popen([sys.executable, "-m", "archlab", "ui", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    link = urlsplit(server.stdout.readline().split()[-1])
    started = time.perf_counter() - begin
    connection = HTTPConnection(link.netloc)
    connection.request("GET", f"/?{link.query}")
    cookie = (connection.getresponse().getheader("set-cookie") or "").partition(";")[0]
    client = Client(link.netloc, cookie)
    first = client.seconds("/m/llama-3-8b")
    state = random.Random(0)
    alone = [client.seconds(change(state)) for _ in range(100)]

    def load(seed: int) -> list[float]:
        own, own_state = Client(link.netloc, cookie), random.Random(seed)
        return [own.seconds(change(own_state)) for _ in range(REQUESTS_EACH)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        together = [seconds for times in pool.map(load, range(CLIENTS)) for seconds in times]
    before = memory(server.pid)
    client = Client(link.netloc, cookie)  # the server has closed the idle connection
    for _ in range(MANY):
        client.seconds(change(state))
    after = memory(server.pid)
    server.terminate()
    server.wait()
    print(
        json.dumps({
            "start_s": round(started, 2),
            "first_request_s": round(first, 3),
            "one_change_ms": round(1000 * median(alone), 1),
            "one_change_p95_ms": round(1000 * quantiles(alone, n=20)[-1], 1),
            "clients": CLIENTS,
            "together_p95_ms": round(1000 * quantiles(together, n=20)[-1], 1),
            "requests": MANY,
            "memory_before_mib": round(before),
            "memory_after_mib": round(after),
        })
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pictures"]:
        take_pictures(Path(sys.argv[2]))
    else:
        main()
