"""Whether a run's layers are compiled, and compiling them."""

import shutil
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from archlab.config.schema import Config
from archlab.config.training import ResolvedTrain
from archlab.cost.flops import training_flops
from archlab.model.decoder import Decoder
from archlab.train.device import Device

PAYS_FROM = {"cpu": 2e14, "cuda": 4e16}
"""Training FLOPs from which compiling pays by kind of device: it takes a processor up to a minute and saves a tenth to
a fifth of some ten minutes, and a GPU as long and saves half of two."""

FORMS = 64
"""Of a layer that torch may compile before it goes on uncompiled: kinds of layers times shapes of a batch."""


def is_compiled(config: Config, train: ResolvedTrain, device: Device) -> bool:
    """What `train.compile` means for this run on this machine: auto does where it pays and there is a compiler."""
    if train.compile != "auto":
        return train.compile
    flops = training_flops(config.model, train.seq_len) * train.trained
    return flops >= PAYS_FROM[device.type] and (device.type == "cuda" or shutil.which("c++") is not None)


def compile_layers(model: Decoder) -> None:
    """In place, when they first run. Layers of the same config share what is compiled; later runs find it in torch's
    cache."""
    torch._dynamo.config.recompile_limit = FORMS  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
    for layer in model.layers:
        layer.compile()


def uncompiled() -> AbstractContextManager[object]:
    """Within it compiled layers run as they were written. Where nothing is compiled, torch's compiler is not loaded."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
