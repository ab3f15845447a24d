"""Measure how fast `archlab ui` answers, and how much memory it keeps; or take the pictures of docs/ui.md.

Usage:
    python benchmarks/ui.py                          # several minutes, because memory takes 10,000 requests
    python benchmarks/ui.py --check --requests 50    # a quick try; writes no record
    python benchmarks/ui.py --pictures docs          # needs Chromium.

The promises: the server starts in 2 s, answers a changed choice in 100 ms, and keeps 95 in 100 answers to 20 clients
below 500 ms. Its memory does not grow. A ratio is the promise divided by the measurement, so 1 keeps it exactly.

The server and its clients share the machine. Each request is for the workbench of Llama 3 8B after a random change.
"""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from rounds import finish, options

CLIENTS, REQUESTS_EACH = 20, 25
ALONE, REQUESTS = 100, 10_000
"""Number of requests of a single client: those whose time is measured, and those after which memory is measured."""

START_S, CHANGE_S, TOGETHER_S = 2.0, 0.1, 0.5
"""Promised times in seconds: the start, one changed choice, and the 95th percentile with all clients."""

PICTURES = {
    "ui-workbench.png": "/m/llama-3-8b?model.attention.n_kv_heads=2&model.norm.kind=layernorm",
    "ui-compare.png": "/vs/llama-3-8b/gemma-2-9b",
    "ui-models.png": "/models?heads=GQA&year=2024&y=d_over_layers&mine=llama-3-8b",
    "ui-choice.png": "/choice/rope?theta=500000&scaling=yarn",
}
"""Screen of each picture."""


class Client:
    """A browser's connection, with its cookie."""

    def __init__(self, host: str, cookie: str) -> None:
        self._connection, self._cookie = HTTPConnection(host), cookie

    def seconds(self, path: str) -> float:
        """Return the time from the request to the end of the answer."""
        begin = time.perf_counter()
        self._connection.request("GET", path, headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: status {answer.status}")
        return time.perf_counter() - begin


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the server. Yield its process and the link that it prints."""
    server = subprocess.Popen([sys.executable, "-m", "archlab", "ui", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        yield server, server.stdout.readline().split()[-1]
    finally:
        server.terminate()
        server.wait()


def log_in(host: str, query: str) -> str:
    """Exchange the token in the link's query for a cookie."""
    connection = HTTPConnection(host)
    connection.request("GET", f"/?{query}")
    return (connection.getresponse().getheader("set-cookie") or "").partition(";")[0]


def changed_choice(draw: random.Random) -> str:
    """Return the address of the workbench after a random change."""
    heads, width = draw.choice([1, 2, 4, 16, 32]), draw.randrange(4096, 20480, 64)
    kind = draw.choice(["layernorm", "rmsnorm"])
    norm = "" if kind == "rmsnorm" else f"&model.norm.kind={kind}"
    width_field = "" if width == 14336 else f"&model.mlp.d_ff={width}"
    return f"/m/llama-3-8b?model.attention.n_kv_heads={heads}{width_field}{norm}"


def memory(process: int) -> float:
    """Return the resident memory of a process and of those that it started in MiB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(fields["VmRSS"].split()[0]) / 1024 + sum(memory(int(child)) for child in started)


def take_pictures(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    with served() as (_, link), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        page.goto(link)
        for name, path in PICTURES.items():
            page.goto(link.partition("/?")[0] + path, timeout=120_000)
            page.screenshot(path=folder / name)
        browser.close()


def percentile_95(seconds: list[float]) -> float:
    return quantiles(seconds, n=20)[-1]


def main() -> int:
    parser = options(__doc__, rounds=None)
    parser.add_argument(
        "--requests",
        type=int,
        default=REQUESTS,
        help=f"number of requests before memory is measured again (default: {REQUESTS})",
    )
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="take the pictures instead of measuring")
    chosen = parser.parse_args()
    if chosen.pictures:
        take_pictures(chosen.pictures)
        return 0
    begin, draw = time.perf_counter(), random.Random(0)
    with served() as (server, printed):
        started, link = time.perf_counter() - begin, urlsplit(printed)
        cookie = log_in(link.netloc, link.query)
        client = Client(link.netloc, cookie)
        first = client.seconds("/m/llama-3-8b")
        alone = [client.seconds(changed_choice(draw)) for _ in range(ALONE)]

        def requests_of(seed: int) -> list[float]:
            own, own_draw = Client(link.netloc, cookie), random.Random(seed)
            return [own.seconds(changed_choice(own_draw)) for _ in range(REQUESTS_EACH)]

        def together_from(seed: int) -> list[float]:
            with ThreadPoolExecutor(CLIENTS) as pool:
                return [seconds for times in pool.map(requests_of, range(seed, seed + CLIENTS)) for seconds in times]

        together_from(0)  # the server starts its other process
        together = together_from(CLIENTS)
        before = memory(server.pid)
        client = Client(link.netloc, cookie)  # the server has closed the idle connection
        for _ in range(chosen.requests):
            client.seconds(changed_choice(draw))
        after = memory(server.pid)
    ratios = {
        "2 s over the start": START_S / started,
        "100 ms over a changed choice": CHANGE_S / median(alone),
        f"500 ms over the 95th percentile of {CLIENTS} clients": TOGETHER_S / percentile_95(together),
        "memory before many requests over memory after them": before / after,
    }
    seconds = {
        "start": started,
        "first request": first,
        "a changed choice, median": median(alone),
        "a changed choice, 95th percentile": percentile_95(alone),
        f"{CLIENTS} clients, 95th percentile": percentile_95(together),
    }
    for name, value in seconds.items():
        print(f"{name:36}{value:8.3f} s")
    print(f"{'memory before and after':36}{before:8.0f} and {after:.0f} MiB")
    about = {
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "clients": CLIENTS,
        "requests": chosen.requests,
        "memory_mib": {"before": round(before, 1), "after": round(after, 1)},
    }
    return finish("ui", ratios, about, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
