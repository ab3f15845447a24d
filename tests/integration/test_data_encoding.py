"""Encoding with several threads or processes: the same bytes, no more memory, and no processes or files left behind."""

import gzip
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from archlab.data import encoding
from archlab.data.encoding import encode_pieces
from archlab.data.prepare import prepare
from archlab.data.split import Piece
from archlab.data.tokenizer import from_text, train
from archlab.errors import UserError

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "<|endoftext|>",
    "one",
    "dog",
    "é",
    "☃",
    "run",
    "far",
    "away",
]


@pytest.fixture(autouse=True)
def every_text_is_worth_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoding, "WORTH_A_PROCESS", 1)
    monkeypatch.setattr(encoding, "BATCH", 500)


def slow(tokenizer: Tokenizer) -> Tokenizer:
    """Add a token. It has no effect on a text without that word, but tiktoken cannot be used, so processes encode the
    text."""
    tokenizer.add_tokens(["unheard"])
    return tokenizer


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path, kind: str) -> None:
    tokenizer = None
    if kind == "processes":
        tokenizer = tmp_path / "tokenizer.json"
        tokenizer.write_text(slow(train([" ".join(WORDS)], 280)).to_str())
    draw = random.Random(0)
    lines = [json.dumps({"text": " ".join(draw.choices(WORDS, k=draw.randrange(1, 60)))}) for _ in range(400)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = []
    for workers in (1, 2, 3):
        made = prepare(
            [str(tmp_path / "a.jsonl")], tmp_path / f"{workers}", tokenizer=tokenizer, held_out=0.2, workers=workers
        )
        found.append({file.name: file.read_bytes() for file in made.path.iterdir()})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 5
    assert not multiprocessing.active_children()


def test_an_error_in_one_process_is_reported_and_ends_all() -> None:
    """The pattern backtracks without end in one of the texts."""
    parts = json.loads(train(["plain text"], 257).to_str())
    backtracks = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    parts["pre_tokenizer"]["pretokenizers"][0] = backtracks
    tokenizer = from_text(json.dumps(parts))
    pieces = [Piece(None, f"{i}.txt", "cafe" * 200 + ("a" * 40 + "b") * (i == 30), True) for i in range(60)]
    with pytest.raises(UserError, match="the tokenizer cannot encode the text"):
        list(encode_pieces(tokenizer, pieces, 10**6, 2))
    assert not multiprocessing.active_children()


def test_the_number_of_waiting_batches_is_limited() -> None:
    """The text is not read further ahead than the workers need, even if it is very long."""
    read = 0

    def pieces():
        nonlocal read
        while True:
            read += 1
            yield Piece(None, "endless", "x" * 500, True)

    found = encode_pieces(slow(train(["plain text"], 257)), pieces(), 10**6, 2)
    for wanted in range(1, 40):
        assert next(found).text_bytes == 500
        assert read <= wanted + 2 * 2
    found.close()
    assert not multiprocessing.active_children()


MEASURED = """
import re, sys
from pathlib import Path
from archlab.data import encoding
from archlab.data.prepare import prepare
encoding.WORTH_A_PROCESS = 1
encoding.BATCH = 100_000
source, out, tokenizer = map(Path, sys.argv[1:])
prepare([str(source)], out, tokenizer=tokenizer, held_out=0.1, workers=2)
print(re.findall(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[0])
"""


def peak(script: Path, source: Path, out: Path, tokenizer: Path) -> int:
    """Return the peak memory, in bytes, of the process that reads and writes."""
    done = subprocess.run(
        [sys.executable, script, source, out, tokenizer], capture_output=True, text=True, check=True, env=os.environ
    )
    return int(done.stdout) * 1024


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(slow(train([" ".join(WORDS)], 257)).to_str())
    (tmp_path / "measured.py").write_text(MEASURED)
    draw, found = random.Random(0), list[int]()
    line = json.dumps({"text": " ".join(draw.choices(WORDS, k=4000))}) + "\n"
    for copies in (100, 1000):
        source = tmp_path / f"{copies}.jsonl.gz"
        with gzip.open(source, "wt", compresslevel=1) as file:
            file.writelines(line for _ in range(copies))
        found.append(peak(tmp_path / "measured.py", source, tmp_path / f"out{copies}", tmp_path / "tokenizer.json"))
    grown, text = found[1] - found[0], 900 * len(line)
    assert text > 15e6
    assert grown < text / 4


def test_threads_end_with_what_they_encode() -> None:
    endless = (Piece(None, "a", "x" * 1000, True) for _ in itertools.count())
    found, before = encode_pieces(train(["text"], 257), endless, 10**9, 3), threading.active_count()
    next(found)
    assert threading.active_count() > before
    found.close()
    assert threading.active_count() == before


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Worker processes end however their parent ends. Here it is killed, so it cannot tell them."""
    script = tmp_path / "endless.py"
    script.write_text(
        "import itertools, multiprocessing as mp\n"
        "from archlab.data import encoding\n"
        "from archlab.data.split import Piece\n"
        "from archlab.data.tokenizer import train\n"
        "pieces = (Piece(None, 'a', 'x' * 10**6, True) for _ in itertools.count())\n"
        "slow = train(['text'], 257)\n"
        "slow.add_tokens(['unheard'])\n"
        "for n, _ in enumerate(encoding.encode_pieces(slow, pieces, 10**9, 2)):\n"
        "    if n == 0: print(*[child.pid for child in mp.active_children()], flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert len(children) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while any(is_alive(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.stdout.close()


def test_ctrl_c_ends_all_processes_and_leaves_nothing(tmp_path: Path) -> None:
    """The same holds if a terminal sends Ctrl-C to all processes."""
    (tmp_path / "tokenizer.json").write_text(slow(train([" ".join(WORDS)], 257)).to_str())
    (tmp_path / "long.txt").write_text(f"{' '.join(WORDS)}\n" * (2 * 8_000_000 // 60))
    before = sorted(tmp_path.iterdir())
    command = ["data", "long.txt", "--out", "tokens", "--tokenizer", "tokenizer.json", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "archlab", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    while not (children := children_of(process.pid)) or not any(tmp_path.glob(".archlab-tmp-*/*.bin")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted" in errors
    assert sorted(p for p in tmp_path.iterdir() if p.name != "cache") == before
    assert not [pid for pid in children if is_alive(pid)]


def children_of(pid: int) -> list[int]:
    """Return the worker processes of a process, without Python's resource tracker."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(int(child))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
