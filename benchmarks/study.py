"""Speed of a whole study in tokens/s, from the command to the report.

Needs `pip install -e '.[bench]'`. Usage:
    python benchmarks/study.py                          # 24,576 tokens per run
    python benchmarks/study.py --tokens 245760          # whole runs
    python benchmarks/study.py --check                  # exit code 1 if a ratio is a tenth below the record.

The study is `ladder-rates` without tuning, a tenth as long: seven arms with three seeds, 516,096 tokens in all.
Everything counts: worker processes that start, text that is prepared (each study has an empty cache), evaluation,
summary and report. Runs are evaluated as often as in `ladder-rates`.

The peer has less work. It uses as many processes and threads as the study. They train transformers' Llama in the shape
of the last arm with a plain training loop on random text, and score as many tokens.

For an older checkout: `git worktree add ../older COMMIT`, then `--source ../older/src`.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peers import Shape, build_transformers, loss_of, textbook_step
from rounds import Round, finish, measure, options, side_by_side

import archlab
from archlab.config.core.yaml_text import to_yaml
from archlab.config.layers import layer_configs
from archlab.config.training import resolve_train
from archlab.study.executors.local import default_workers, visible_gpus
from archlab.study.runner import Study
from archlab.study.schema import StudyConfig
from archlab.study.study_file import read_study
from archlab.training.device import choose_device

OURS = Path(archlab.__file__).parents[1]


@dataclass(frozen=True)
class Work:
    """The work of a study, for the peer that does the same without archlab."""

    runs: int
    workers: int
    threads: int
    steps: int
    eval_every: int
    eval_rows: int
    shape: Shape
    """Shape of the last arm."""
    device: str
    format: str

    @property
    def tokens(self) -> int:
        """Number of training tokens of all runs."""
        return self.runs * self.steps * self.shape.tokens


def shortened(tokens: int) -> StudyConfig:
    """Return `ladder-rates` without tuning, with three seeds and `tokens` tokens per run. Evaluations and the intervals
    between them are proportionally shorter."""
    _, whole = read_study("ladder-rates")
    share = tokens / (whole.budget.tokens or tokens)
    train = resolve_train(Study("ladder-rates", whole, Path()).arms[0].config)
    values = {
        "train.eval_tokens": max(1, round(train.eval_tokens * share)),
        "train.eval_every": max(1, round(train.eval_every * share)),
    }
    return whole.model_copy(
        update={
            "seeds": 3,
            "tune": {},
            "budget": whole.budget.model_copy(update={"tokens": tokens}),
            "set": {**whole.set, **values},
        }
    )


def work_of(config: StudyConfig) -> Work:
    """Return the work of a study on this machine."""
    study = Study("ladder-rates", config, Path())
    config_of_last = study.arms[-1].config
    train, device = resolve_train(config_of_last), choose_device(config_of_last.train)
    model, layer = config_of_last.model, cast(Any, layer_configs(config_of_last.model)[0])
    shape = Shape(
        model.vocab_size, model.d_model, model.n_layers, layer.attention.n_heads, layer.attention.n_kv_heads,
        layer.mlp.d_ff, train.seq_len, train.rows,
    )  # fmt: skip
    return Work(
        runs=len(study.arms) * len(config.seed_list),
        workers=default_workers(study.threads, visible_gpus() if device.type == "cuda" else []),
        threads=study.threads,
        steps=train.steps,
        eval_every=train.eval_every,
        eval_rows=train.eval_tokens // train.seq_len,
        shape=shape,
        device=device.type,
        format=device.format,
    )


def studied(source: Path, text: str, tokens: int) -> Round:
    """Return a round of a whole study, run through the command line of the archlab in the folder `source`."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "study.yaml"
            file.write_text(text)
            own = {"PYTHONPATH": str(source), "ARCHLAB_CACHE": f"{folder}/cache"}
            command = [sys.executable, "-m", "archlab", "study", "run", str(file), "--out", f"{folder}/study"]
            start = time.perf_counter()
            done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
            took = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return tokens / took

    return run


def textbook(work: Work) -> Round:
    """Return a round of the peer."""

    def run() -> float:
        start = time.perf_counter()
        side_by_side(work.workers, textbook_run, [work] * work.runs)
        return work.tokens / (time.perf_counter() - start)

    return run


def textbook_run(work: Work) -> None:
    """Train and evaluate one model of the peer."""
    torch.set_num_threads(work.threads)
    model = build_transformers(work.shape).train().to(work.device)
    text, held_out = (
        torch.randint(work.shape.vocab_size, (rows, work.shape.seq_len + 1), device=work.device)
        for rows in (work.shape.batch, work.eval_rows)
    )
    step = textbook_step(model, model, text, work.format)
    for done in range(work.steps + 1):
        if done % work.eval_every == 0 or done == work.steps:
            with torch.no_grad():
                loss_of(model, held_out, work.format)
        if done < work.steps:
            step()


def commit(source: Path) -> str:
    """Return the commit of a checkout."""
    command = ("git", "-C", str(source), "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = options(__doc__, rounds=3)
    parser.add_argument("--tokens", type=int, default=24_576, help="tokens per run (default: 24576)")
    parser.add_argument("--source", type=Path, help="src folder of another checkout to measure, too")
    chosen = parser.parse_args()
    config = shortened(chosen.tokens)
    text, work = to_yaml(config.model_dump(mode="json", exclude_unset=True)), work_of(config)
    entrants = {"archlab": (studied, (OURS, text, work.tokens)), "transformers": (textbook, (work,))}
    if chosen.source:
        entrants["archlab before"] = studied, (chosen.source.resolve(strict=True), text, work.tokens)
    results = measure(entrants, chosen.rounds)
    print(f"{work.runs} runs of {work.steps} steps, {work.workers} side by side with {work.threads} threads each")
    print(f"{'':20}{'tok/s':>9}{'seconds':>10}")
    for name, result in results.items():
        print(f"{name:20}{result['median']:9,.0f}{work.tokens / result['median']:10.1f}")
    ours = results["archlab"]["median"]
    ratios = {f"to {name}": ours / result["median"] for name, result in results.items() if name != "archlab"}
    speeds = {name: {"median": result["median"], "best": result["best"]} for name, result in results.items()}
    about = {"tokens": work.tokens, "workers": work.workers, "rounds": chosen.rounds, "results": speeds}
    about |= {"before": commit(chosen.source)} if chosen.source else {}
    return finish("study", ratios, about, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
