"""Probes at some steps of a training: when, of what text, and how far the update between moved the weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archlab.data.training_data import HeldOut
from archlab.model.decoder import Decoder
from archlab.training.checkpoint import METRICS
from archlab.training.device import Device
from archlab.training.probes import norm, per_layer, probe
from archlab.training.run_folder import PROBES, RunFolder

PROBED_TOKENS = 512
"""Held-out tokens that a probe reads, always the same ones; one window where that is longer."""


class Probing:
    """Called around every update; of no effect on what is trained."""

    def __init__(self, model: Decoder, held_out: HeldOut, every: int | None, device: Device) -> None:
        rows = max(1, PROBED_TOKENS // held_out.seq_len)
        self._windows_BT, self._scored_BT = (
            torch.from_numpy(x[:rows]).to(device.type) for x in (held_out.tokens, held_out.scored)
        )
        self._model, self._every, self._device, self._separator = model, every, device, held_out.separator
        self._before: list[list[Tensor]] | None = None
        """Weights before the update after which a probe is due, by layer."""

    def before_update(self, step: int) -> None:
        """Keep a copy of the layers' weights if a probe is due after update `step`, counted from 1."""
        if self._is_due(step):
            self._before = [[weight.clone() for weight in weights] for weights in self._weights()]

    def after_update(self, step: int, folder: RunFolder) -> None:
        """Probe if it is due, and log it; step 0 is before any update."""
        if not self._is_due(step):
            return
        found = probe(self._model, self._windows_BT, self._device, self._separator, self._scored_BT).as_json()
        if self._before is not None:
            found |= per_layer(list(self._ratios(self._before)))
            self._before = None
        folder.log(step=step, **{PROBES: found})

    def _is_due(self, step: int) -> bool:
        return self._every is not None and step % self._every == 0

    def _weights(self) -> Iterator[list[Tensor]]:
        return ([parameter.detach() for parameter in layer.parameters()] for layer in self._model.layers)

    def _ratios(self, before: list[list[Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Norm of the update over the norm of the weights that it was made to, layer after layer."""
        for old, new in zip(before, self._weights(), strict=True):
            moved = norm(b - a for a, b in zip(old, new, strict=True))
            yield {"update_ratio": moved / norm(old)}


def training_probes(run: Path) -> list[dict[str, Any]]:
    """Every probe of a run folder's training: its step, and what it found by name; none of what is no run folder."""
    if not (run / METRICS).is_file():
        return []
    return [{"step": line["step"], **line[PROBES]} for line in RunFolder(run).metrics() if PROBES in line]
