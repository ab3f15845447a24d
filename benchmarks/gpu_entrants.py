"""Measurements of `gpu.py`. Each function runs in a process of its own and returns numbers for the record."""

import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import SHAPES, archlab_overrides, build_transformers
from rounds import Round
from torch import Tensor

from archlab.exchange.configs import load_config
from archlab.infer.generate import generate
from archlab.infer.int8 import to_int8
from archlab.infer.session import Session, left_pad
from archlab.measuring.speed import profile, rehearse
from archlab.model.decoder import Decoder
from archlab.model.inputs import Inputs
from archlab.pricing.summary import cost, step_memory_of

ROOT = Path(__file__).parents[1]
ROUNDS = 5
FEW, MANY = 16, 144
"""Numbers of tokens that one round of decoding writes. The time of the prompt cancels in their difference."""
ROWS, TOKENS, PASSES, STEPS = 2, 300, 8, 20
PARTS = ("logits", "gradients")
WORSE = 4
"""Largest error on the GPU, as a multiple of the error that the reference kernel has on the CPU in the same dtype."""
SMALL = (
    "model.vocab_size=512",
    "model.d_model=256",
    "model.n_layers=2",
    "model.max_seq_len=512",
    "model.embedding.scale=0.1",
)
WIDE = ("model.vocab_size=256", "model.d_model=2048", "model.n_layers=1")
DETERMINISTIC = ("train.deterministic=true", "train.tokens=51200", "train.checkpoint_every=20", "train.eval_tokens=4K")
TESTS = ("tests/invariants/test_grid.py", "tests/invariants/test_numerics.py")


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak(device: str) -> int:
    """Return the largest number of bytes that tensors on the GPU have taken; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


# --- values -------------------------------------------------------------------------------------------------------


def agreement(
    overrides: tuple[str, ...], kernel: str, formats: tuple[str, ...], device: str, packed: bool = False
) -> dict[str, Any]:
    """Compare a small model's logits and gradients with the reference kernel in float64.

    Errors are relative root mean square errors. They may be `WORSE` times those of the reference kernel on the CPU.
    """
    errors = {format_: errors_of(overrides, kernel, format_, device, packed=packed) for format_ in formats}
    parts = [(found[f"gpu, {p}"], found[f"reference, {p}"]) for found in errors.values() for p in PARTS]
    return {"errors": errors, "passed": all(got <= WORSE * expected for got, expected in parts)}


def errors_of(overrides: tuple[str, ...], kernel: str, format_: str, device: str, *, packed: bool) -> dict[str, float]:
    """Return the errors of a kernel on the device, and of the reference kernel on the CPU in the same dtype."""

    def outputs(model: Decoder, device: str) -> list[Tensor]:
        tokens = random_tokens()
        documents = (torch.arange(TOKENS) // 70).expand(ROWS, -1) if packed else None
        logits = model(tokens.to(device), documents=None if documents is None else documents.to(device))
        logits.double().square().mean().backward()
        gradients = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
        return [logits.detach().double().cpu(), gradients.cpu()]

    make = models_of(overrides, format_)
    dtype = getattr(torch, format_)
    exact = outputs(make("reference", torch.float64, "cpu"), "cpu")
    found = {
        "gpu": outputs(make(kernel, dtype, device), device),
        "reference": outputs(make("reference", dtype, "cpu"), "cpu"),
    }
    return {
        f"{name}, {part}": relative_error(got, right)
        for name, got_parts in found.items()
        for part, got, right in zip(PARTS, got_parts, exact, strict=True)
    }


def decoded(overrides: tuple[str, ...], format_: str, device: str) -> dict[str, Any]:
    """Compare logits of compiled decoding steps with uncompiled steps of the reference kernel in float64.

    The sequences have different lengths. Errors are judged as in `agreement`.
    """

    def logits(model: Decoder, *, compile: bool) -> Tensor:
        tokens = random_tokens()
        prompts, padding = left_pad([tokens[0, :200], tokens[1, :120]])
        session = Session(model, prompts.to(model.embedding.weight.device), TOKENS, padding=padding, compile=compile)
        steps = [session.logits().double().cpu()]
        for i in range(STEPS):
            session.read(tokens[:, 200 + i, None].to(model.embedding.weight.device))
            steps.append(session.logits().double().cpu())
        return torch.stack(steps)

    make, dtype = models_of(overrides, format_), getattr(torch, format_)
    exact = logits(make("reference", torch.float64, "cpu"), compile=False)
    got = relative_error(logits(make("auto", dtype, device), compile=True), exact)
    expected = relative_error(logits(make("reference", dtype, "cpu"), compile=False), exact)
    return {"errors": {"gpu": got, "reference": expected}, "passed": got <= WORSE * expected}


def models_of(overrides: tuple[str, ...], format_: str) -> Callable[[str, torch.dtype, str], Decoder]:
    """Return a function of a kernel, a dtype and a device that makes a small model, always with the same weights.

    They can be represented in the format.
    """
    config = load_config("tiny-llama", *SMALL, *overrides)
    with torch.device("cpu"):
        rounded = Decoder(config.model, kernel="reference")
    with torch.no_grad():
        for parameter in rounded.parameters():  # otherwise, attention is nearly uniform, and faults in it are small
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    rounded.to(getattr(torch, format_))

    def make(kernel: str, dtype: torch.dtype, device: str) -> Decoder:
        with torch.device("cpu"):
            model = Decoder(config.model, seed=None, kernel=kernel).to(dtype)
        model.load_state_dict(rounded.state_dict())
        return model.to(device)

    return make


def random_tokens() -> Tensor:
    return torch.randint(512, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))


def relative_error(got: Tensor, right: Tensor) -> float:
    return ((got - right).square().mean().sqrt() / right.square().mean().sqrt()).item()


def resumed(device: str) -> dict[str, Any]:
    """Train 50 steps twice, once with a kill in between. Both runs must have the same losses, bit by bit."""
    where = (f"train.device={device}", "train.seq_len=128", "train.batch_tokens=1024", *DETERMINISTIC)
    command = [sys.executable, "-m", "archlab", "train", "mini-llama", *where, "--out"]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        subprocess.run([*command, str(whole)], check=True, capture_output=True)
        with subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and len(losses(killed)) < 30:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        n_before = len(losses(killed))
        subprocess.run([*command, str(killed)], check=True, capture_output=True)
        expected, got = losses(whole), losses(killed)
    falls = len(expected) == 50 and expected[-1] < expected[0]
    numbers = {"first loss": expected[0], "last loss": expected[-1], "steps before the kill": n_before}
    return {**numbers, "passed": falls and n_before < 50 and got == expected}


def losses(run: Path) -> list[float]:
    """Return the loss of each step in a run folder."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record["loss"] for record in records if "loss" in record]


def profiled(name: str, device: str) -> dict[str, Any]:
    """Return the shares of the time of a training step by kind of operation."""
    found = profile(load_config(name, f"train.device={device}"), steps=3)
    shares = {share.kind: round(share.time, 4) for share in found.shares}
    return {"seconds": found.seconds, "shares": shares, "passed": abs(sum(shares.values()) - 1) < 0.01}


def tests_of(n_configs: int, device: str) -> dict[str, list[str]]:
    """Return the tests of `TESTS` for some configs of the grid: name of the test -> its pytest ids."""
    command = [sys.executable, "-m", "pytest", *TESTS, "--collect-only", "-q", "-o", "addopts=", "--device", device]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    ids = re.findall(r"^tests/\S+::.*$", output, re.MULTILINE)
    numbers = {n for name in ids for n in config_numbers(name)}
    chosen = set(sorted(numbers)[:: max(1, len(numbers) // n_configs)])
    found = dict[str, list[str]]()
    for name in ids:
        of_name = config_numbers(name)
        if not of_name or chosen & of_name:
            found.setdefault(name.partition("[")[0].partition("::")[2], []).append(name)
    return found


def config_numbers(name: str) -> set[int]:
    """Return the numbers of configs in a pytest id."""
    return {int(n) for n in re.findall(r"(?<=[\[-])\d+(?=[-\]])", name)}


def passed(ids: list[str], device: str) -> dict[str, Any]:
    """Run tests. Return the last line of pytest, the failed tests, and whether all passed."""
    command = [sys.executable, "-m", "pytest", *ids, "--device", device, "-q", "--tb=line"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = run.stdout.strip().splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    return {"summary": lines[-1:], "failures": failed, "passed": run.returncode == 0}


def memory(overrides: tuple[str, ...], device: str) -> dict[str, Any]:
    """Compare the peak memory of training steps with the memory that `archlab cost` computes, in bytes."""
    config = load_config("tiny-llama", *overrides, f"train.device={device}", "train.compile=false")
    step = rehearse(config).step
    step()
    step()
    counted = step_memory_of(config, "bfloat16", device).peak_of(recompute=config.train.recompute)
    return {"counted": counted, "measured": peak(device)}


# --- speed --------------------------------------------------------------------------------------------------------


def speed(make: Callable[..., Round], arguments: tuple[Any, ...], device: str) -> dict[str, Any]:
    """Return the median and best speed of the rounds, and the peak memory of the GPU in bytes."""
    measure_once = make(*arguments)
    found = [measure_once() for _ in range(ROUNDS)]
    return {"median": statistics.median(found), "best": max(found), "peak": peak(device)}


def layer(overrides: tuple[str, ...], length: int, device: str, packed: bool = False) -> Round:
    """Return a round of one layer, forward and backward, in bfloat16 tokens per second."""
    config = load_config("tiny-llama", *WIDE, f"model.max_seq_len={length}", *overrides)
    model = Decoder(config.model).to(device, torch.bfloat16)
    rows = max(1, 16384 // length)
    tokens = torch.randint(config.model.vocab_size, (rows, length), device=device)
    documents = (torch.arange(length, device=device) // 1000).expand(rows, -1) if packed else None
    inputs = Inputs(documents)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(PASSES):
            model.hidden(tokens, inputs).float().square().mean().backward()
        synchronize(device)
        return PASSES * tokens.numel() / (time.perf_counter() - start)

    run()  # compile
    return run


def writing(write: Callable[[int], object]) -> Round:
    """Return a round of decoding steps, in tokens per second without the prompt."""

    def seconds(n: int) -> float:
        start = time.perf_counter()
        write(n)
        return time.perf_counter() - start

    for n in (FEW, MANY):  # compile
        write(n)
    return lambda: (MANY - FEW) / (seconds(MANY) - seconds(FEW))


def decoding(library: str, mode: str, context: int, shape: str, device: str) -> Round:
    """Return a round of greedy decoding of one sequence in bfloat16, after `context` tokens."""
    text = torch.ones(1, context, dtype=torch.int64, device=device)
    length = context + 2 * MANY
    if library == "archlab":
        overrides = [*archlab_overrides(SHAPES[shape]), f"model.max_seq_len={length}"]
        model: Any = Decoder(load_config("tiny-llama", *overrides).model).to(device, torch.bfloat16).eval()
        model = to_int8(model) if "int8" in mode else model
        return writing(lambda n: generate(model, text, n, compile="compiled" in mode))
    model = build_transformers(SHAPES[shape]).to(device, torch.bfloat16).eval()
    how = {"cache_implementation": "static"} if mode == "compiled" else {}
    return writing(
        lambda n: model.generate(text, max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0, **how)
    )


def read_per_token(shape: str, context: int) -> int:
    """Return the bytes of weights and cache that a decoding step reads."""
    config = load_config("tiny-llama", *archlab_overrides(SHAPES[shape]), f"model.max_seq_len={context + 2 * MANY}")
    return cost(config, 1, context, "bfloat16").read_bytes_per_decoded_token or 0
