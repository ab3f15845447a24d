"""Training tokens/s of one process with all threads against one-thread processes side by side, at tiny-llama's size.

python benchmarks/side_by_side.py        # prints one JSON line
"""

import json
import multiprocessing as mp
import os
import time

import numpy as np
import torch

from archlab.config.training import resolve_train
from archlab.exchange.configs import load_config
from archlab.model.decoder import Decoder
from archlab.train.device import choose_device
from archlab.train.optim import make_optimizer
from archlab.train.step import update

STEPS = 40


def speed(threads: int) -> float:
    """Tokens per second of one process, its first steps left out."""
    torch.set_num_threads(threads)
    config = load_config("tiny-llama", "train.seq_len=128", "train.batch_tokens=1024")
    train, device = resolve_train(config), choose_device(config.train)
    model = Decoder(config.model).train()
    optimizer = make_optimizer(model, train)
    windows = np.random.default_rng(0).integers(0, config.model.vocab_size, (train.rows, train.seq_len + 1))
    for step in range(STEPS):
        if step == STEPS // 4:
            start = time.perf_counter()
        update(model, optimizer, windows, train, step, device)
    return (STEPS - STEPS // 4) * train.batch_tokens / (time.perf_counter() - start)  # pyright: ignore[reportPossiblyUnboundVariable]


def main() -> None:
    """Both arrangements in turn, in fresh processes."""
    cores = os.cpu_count() or 1
    context = mp.get_context("spawn")
    with context.Pool(1) as pool:
        alone = pool.map(speed, [cores])[0]
    with context.Pool(cores) as pool:
        together = sum(pool.map(speed, [1] * cores, chunksize=1))
    record = {"cores": cores, "one_process": round(alone), "side_by_side": round(together)}
    print(json.dumps(record | {"ratio": round(together / alone, 2), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
