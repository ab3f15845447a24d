"""A training step that can be repeated: initial values, random text, no run folder. For clocks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from archlab.allocator import keep_freed_memory
from archlab.config.schema import Config
from archlab.config.training import ResolvedTrain, check_next_token, resolve_train
from archlab.cost.memory import training_memory
from archlab.cost.params import parameters
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.model.kernels import prefer_products
from archlab.train.attention_kernels import products_up_to
from archlab.train.compiling import compile_layers, is_compiled
from archlab.train.device import Device, choose_device
from archlab.train.optim import make_optimizer
from archlab.train.step import update


@dataclass(frozen=True)
class Rehearsal:
    """Forward, loss, backward, clipping and the optimiser, as in a run."""

    model: Decoder
    train: ResolvedTrain
    device: Device
    compiled: bool
    step: Callable[[], None]
    """One update; it waits for the device."""


def rehearse(config: Config, windows: np.ndarray | None = None) -> Rehearsal:
    """Compiled where a run would be. UserError where the device cannot hold the model.

    `windows` [rows, seq_len + 1]: the text, in place of random tokens; token 0 begins a document.
    """
    keep_freed_memory()
    check_next_token(config.model)
    train, device = resolve_train(config), choose_device(config.train)
    device.check_memory(training_memory(parameters(config.model).total).total)
    model = Decoder(config.model).to(device.type).train()
    prefer_products(model, products_up_to(device))
    optimizer = make_optimizer(model, train)
    if windows is None:
        windows = np.random.default_rng(0).integers(0, config.model.vocab_size, (train.rows, train.seq_len + 1))
    separator = 0 if train.document_mask else None
    if compiled := is_compiled(config, train, device):
        compile_layers(model)

    def step() -> None:
        update(model, optimizer, Windows(windows), train, 0, device, separator)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return Rehearsal(model, train, device, compiled, step)


def uncompiled(config: Config) -> Config:
    """The same, whatever it says of compiling."""
    return config.model_copy(update={"train": config.train.model_copy(update={"compile": False})})
