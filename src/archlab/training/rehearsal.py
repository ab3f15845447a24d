"""A training step that can be repeated: initial values, random text or a task, no run folder. For clocks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from archlab.allocator import keep_freed_memory
from archlab.config.schema import Config, TrainConfig
from archlab.config.tasks import AnyTask
from archlab.config.training import check_next_token, resolve_train
from archlab.data.tasks.task_data import TaskData
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.model.kernels import prefer_products
from archlab.pricing.memory import training_memory
from archlab.pricing.params import parameters
from archlab.training.attention_kernels import products_up_to
from archlab.training.compiling import compile_layers, is_compiled
from archlab.training.device import Device, choose_device
from archlab.training.optim import make_optimizer
from archlab.training.step import update


@dataclass(frozen=True)
class Rehearsal:
    """Forward, loss, backward, clipping and the optimiser, as in a run."""

    model: Decoder
    train: TrainConfig
    device: Device
    compiled: bool
    step: Callable[[], None]
    """One update; it waits for the device."""


def rehearse(config: Config, windows: np.ndarray | None = None) -> Rehearsal:
    """Compiled where a run would be. UserError where the device cannot hold the model.

    `windows` [rows, seq_len + 1]: the text, in place of random tokens or of a task; token 0 begins a document.
    """
    keep_freed_memory()
    check_next_token(config.model)
    train, device = resolve_train(config), choose_device(config.train)
    device.check_memory(training_memory(parameters(config.model), train.optimizer).total)
    model = Decoder(config.model).to(device.type).train()
    prefer_products(model, products_up_to(device))
    optimizer = make_optimizer(model, train)
    read = _random(config, train) if windows is None else Windows(windows)
    separator = 0 if train.document_mask else None
    if compiled := is_compiled(config, train, device):
        compile_layers(model)

    def step() -> None:
        update(model, optimizer, read, train, 0, device, separator)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return Rehearsal(model, train, device, compiled, step)


def _random(config: Config, train: TrainConfig) -> Windows:
    """Random tokens, or what the task asks: only its answers have a loss, which is less work."""
    task, vocab_size = config.data.task, config.model.vocab_size
    if isinstance(task, AnyTask):
        return TaskData(task, vocab_size, config.data.fold).batch(train.seed, 0, train.rows, train.seq_len)
    return Windows(np.random.default_rng(0).integers(0, vocab_size, (train.rows, train.seq_len + 1)))


def uncompiled(config: Config) -> Config:
    """The same, whatever it says of compiling."""
    return config.model_copy(update={"train": config.train.model_copy(update={"compile": False})})
