"""Compilation and activation recomputation of a run's layers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from archlab.config.problems import ConfigError, Problem
from archlab.config.schema import Config, TrainConfig
from archlab.model.decoder import Decoder
from archlab.model.graphs import allow_forms, check_compiler
from archlab.model.torch_private import has_compiler
from archlab.pricing.work import visible_training_flops
from archlab.training.device import Device

PAYS_FROM = {"cpu": 2e14, "cuda": 4e16}
"""Number of training FLOPs from which compilation pays off, by device type.

Compilation takes up to a minute. On a CPU, this many FLOPs take about ten minutes, and compilation saves a tenth to a
fifth of that time. On a GPU, they take about two minutes, and compilation saves half of that.
"""


def is_compiled(config: Config, train: TrainConfig, device: Device) -> bool:
    """Return whether to compile this run on this machine.

    `auto` compiles if compilation pays off and a compiler is available. If
    `train.compile` is true, raise UserError if no compiler is available, or if the run uses tensor, expert or context
    parallelism.
    """
    if config.parallel.tensor * config.parallel.expert * config.parallel.context > 1:
        if train.compile is True:
            message = "true, but parallel.tensor, expert or context is above 1; allowed in that case: auto, false"
            raise ConfigError([Problem("train.compile", message)], "the config")
        return False
    if train.compile == "auto":
        flops = visible_training_flops(config) * train.trained
        return flops >= PAYS_FROM[device.type] and has_compiler()
    if train.compile:
        check_compiler("train.compile: true")
    return train.compile


def compile_layers(model: Decoder) -> None:
    """Compile layers in place. Each layer is compiled when it first runs.

    Layers with the same config share the compiled code. Later runs reuse the code from torch's cache.
    """
    allow_forms()
    for layer in model.all_layers:
        layer.compile()


def recompute_layers(model: Decoder) -> None:
    """Make each layer store only its input and recompute its activations in the backward pass (Chen 2016).

    A compiled layer calls its compiled code again. torch does not compile `checkpoint`, so it is outside that code.
    """
    for layer in model.all_layers:
        layer.forward = _recomputed(layer.forward)
        if layer._compiled_call_impl is not None:
            layer._compiled_call_impl = partial(checkpoint, layer._compiled_call_impl, use_reentrant=False)


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*args: Any, **kwargs: Any) -> Tensor:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)  # pyright: ignore[reportReturnType]

    return run


@contextmanager
def uncompiled(model: Decoder) -> Iterator[None]:
    """Run layers without compilation inside the `with` block.

    Functions that a layer compiles itself, such as FlexAttention, stay compiled.
    """
    compiled = [layer._compiled_call_impl for layer in model.all_layers]
    try:
        for layer in model.all_layers:
            layer._compiled_call_impl = None
        yield
    finally:
        for layer, call in zip(model.all_layers, compiled, strict=True):
            layer._compiled_call_impl = call
