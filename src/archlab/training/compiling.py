"""Compilation of a run's layers: whether it pays, and how it is done."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint

from archlab.config.problems import ConfigError, Problem
from archlab.config.schema import Config, TrainConfig
from archlab.model.decoder import Decoder
from archlab.model.graphs import allow_forms, check_compiler
from archlab.model.torch_private import has_compiler
from archlab.pricing.work import training_flops
from archlab.training.device import Device

PAYS_FROM = {"cpu": 2e14, "cuda": 4e16}
"""Kind of device -> training FLOPs from which compiling pays. Compiling takes up to a minute.

That many FLOPs take about ten minutes on a CPU, of which it saves a tenth to a fifth. They take about two minutes on a
GPU, of which it saves half.
"""


def is_compiled(config: Config, train: TrainConfig, device: Device) -> bool:
    """Return whether to compile this run on this machine. `auto` compiles if it pays and there is a compiler.

    Raise UserError if `train.compile` is true but there is no compiler, or if processes share components, experts or
    windows.
    """
    if config.parallel.tensor * config.parallel.expert * config.parallel.context > 1:
        if train.compile is True:
            message = "true, with parallel.tensor, expert or context above 1; allowed with them: auto, false"
            raise ConfigError([Problem("train.compile", message)], "the config")
        return False
    if train.compile == "auto":
        flops = training_flops(config.model, train.seq_len) * train.trained
        return flops >= PAYS_FROM[device.type] and has_compiler()
    if train.compile:
        check_compiler("train.compile: true")
    return train.compile


def compile_layers(model: Decoder) -> None:
    """Compile layers in place, when they first run. Layers of the same config share the compiled code.

    Later runs find the code in torch's cache, unless that was deleted.
    """
    allow_forms()
    for layer in model.layers:
        layer.compile()


def recompute_layers(model: Decoder) -> None:
    """Let each layer keep only its input, and run again in the backward pass (Chen 2016)."""
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


@contextmanager
def uncompiled(model: Decoder) -> Iterator[None]:
    """Run layers without compilation inside the block. Code that layers compile themselves (flex) stays compiled."""
    compiled = [layer._compiled_call_impl for layer in model.layers]
    try:
        for layer in model.layers:
            layer._compiled_call_impl = None
        yield
    finally:
        for layer, call in zip(model.layers, compiled, strict=True):
            layer._compiled_call_impl = call
