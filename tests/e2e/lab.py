"""The real command line for tests, with a small text, a small model and its own cache."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

ARCHLAB = Path(sys.executable).with_name("archlab")

CONFIG = """
model:
  {vocab_size: 300, d_model: 32, n_layers: 2, max_seq_len: 16, dropout: 0.1,
   attention: {n_heads: 4, n_kv_heads: 2}, mlp: {d_ff: 64}}
train:
  {tokens: 19200, batch_tokens: 64, micro_batch_tokens: 32, eval_tokens: 256, eval_every: 25,
   checkpoint_every: 10, dtype: float32, device: cpu}
"""
"""300 steps of about 3 ms."""


class Lab:
    """A folder with `text.txt` and `tiny.yaml`, in which the command runs."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "ARCHLAB_CACHE": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        words = ("the cat sat on a mat", "and saw one dog", "run far away", "from its old", "red house")
        draw = random.Random(0)
        text = "\n".join(" ".join(draw.choices(words, k=3)) for _ in range(2000))
        (folder / "text.txt").write_text(text)
        (folder / "tiny.yaml").write_text(CONFIG + f"data: {{path: {folder / 'text.txt'}}}\n")

    def start(self, *arguments: str, max_file_bytes: int | None = None, **options) -> subprocess.Popen[str]:
        """Start the command in its own session, so that a test can send Ctrl-C to all its processes. With
        `max_file_bytes`, a longer write fails half-way, as on a full disk. Signals that the shell of the tests ignores
        (nohup) have their usual effect."""

        def before_the_command() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if max_file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

        return subprocess.Popen(
            [str(ARCHLAB), *map(str, arguments)], cwd=self.folder, env=self.env, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before_the_command, **options,
        )  # fmt: skip

    def run(self, *arguments: str, code: int = 0, **options) -> subprocess.CompletedProcess[str]:
        """Run the command to its end. It must end with this exit code and without a traceback."""
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=400)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == code, err
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(process.args, code, out, err)


def lines(file: Path) -> list[dict]:
    """Return the complete lines of a JSONL file so far."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_until(true, process: subprocess.Popen, seconds: float = 60) -> bool:
    """Return whether the condition became true before the process ended."""
    end = time.monotonic() + seconds
    while not true():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return True
