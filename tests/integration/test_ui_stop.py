"""`archlab ui` as a process that ends: at once, also while a page waits for events, and without a traceback."""

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from sample_run import begun


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_server_ends_soon_while_a_page_waits_for_events(tmp_path: Path, number: signal.Signals):
    begun(tmp_path / "runs/one", steps=100)
    process = subprocess.Popen(
        [sys.executable, "-m", "archlab", "ui", "--port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup and background jobs ignore signals
    )  # fmt: skip
    assert process.stdout
    link = process.stdout.readline().split()[-1]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    browser.open(link).read()
    events = browser.open(f"{link.partition('/?')[0]}/runs/live/runs/one")
    assert events.readline().startswith(b"data:")
    begin = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert time.monotonic() - begin < 5  # a second on a free machine
