"""What goes on inside a model, measured in one pass over a few windows and its gradient; docs/probes.md explains each
number."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archlab.data.training_data import HeldOut
from archlab.model.arithmetic import scaled
from archlab.model.context import Collected
from archlab.model.decoder import Decoder
from archlab.model.kernels import Attend
from archlab.model.mlp import MLP
from archlab.model.moe import MoE
from archlab.model.router import collected_loads
from archlab.training.checkpoint import METRICS
from archlab.training.compiling import uncompiled
from archlab.training.device import Device
from archlab.training.loss import logits_in_pieces, objective
from archlab.training.measures import OF_LAYERS
from archlab.training.probe_attention import WatchedAttend
from archlab.training.run_folder import PROBES, RunFolder
from archlab.training.step import chosen, hidden_and_targets

NEARLY_ZERO = 0.01
"""Of the RMS of a layer's activations: what never exceeds it is dead."""

PROBED_TOKENS = 512
"""Held-out tokens that a probe reads, always the same ones; one window where that is longer."""

Number = float | None
"""null: there is nothing to measure, or what was measured is not finite."""


@dataclass(frozen=True)
class Probed:
    """What one probe found."""

    of_model: Mapping[str, Number]
    """loss, log_z, log_z_rms, embedding_rms; with a cap on the logits also log_z_uncapped and log_z_uncapped_rms."""
    of_layers: Mapping[str, Sequence[Number]]
    """By the names in OF_LAYERS, a number per layer; without those that no layer has."""

    def as_json(self) -> dict[str, Any]:
        """All of it in one object."""
        return {**self.of_model, **self.of_layers}


@dataclass
class LayerNotes:
    """Of one layer and one pass."""

    found: dict[str, Tensor] = field(default_factory=dict)
    """Numbers by name."""
    stream_BTD: Tensor | None = None
    """What the layer gave, in autograd's graph."""


def probe(
    model: Decoder,
    windows_BT: Tensor,
    device: Device,
    separator: int | None = None,
    scored_BT: Tensor | None = None,
) -> Probed:
    """Of windows [B, T + 1], without dropout. The model is left as it was: weights, gradients, mode, random numbers.

    `separator` is the token that begins a document, where documents do not see each other; None where they do.
    `scored_BT`, bool [B, T]: which predicted tokens the loss is about; None: all.
    """
    was_training = model.training
    model.eval()
    collected = Collected()
    try:
        with torch.enable_grad(), uncompiled(model):
            with watched(model) as notes:
                hidden_BTD, targets_BT = hidden_and_targets(model, windows_BT, device, separator, collected)
            hidden_ND, targets_N = chosen(hidden_BTD, scored_BT), chosen(targets_BT, scored_BT)
            gradient_ND, of_model = _through_head(model, hidden_ND, targets_N, device)
            # A number whose gradient with respect to the hidden states is the one found.
            _note_gradients(model, notes, (hidden_ND * gradient_ND).sum())
    finally:
        model.train(was_training)
    _note_loads(model, notes, collected)
    of_model["embedding_rms"] = notes[0].found["input_rms"]
    return Probed({name: _number(x) for name, x in of_model.items()}, per_layer([one.found for one in notes]))


def _through_head(
    model: Decoder, hidden_ND: Tensor, targets_N: Tensor, device: Device
) -> tuple[Tensor, dict[str, Tensor]]:
    """(gradient of the mean cross-entropy with respect to the hidden states, [N, D]; what the logits show)."""
    gradients, losses, log_z, uncapped = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
    for leaf_ND, logits_NV, some_N in logits_in_pieces(model, hidden_ND, targets_N, device):
        share = len(some_N) / len(targets_N)
        loss, _ = objective(logits_NV, some_N, z_loss=0.0)
        gradients.extend(torch.autograd.grad(loss * share, leaf_ND))
        losses.append(loss.detach() * share)
        log_z.append(logits_NV.detach().float().logsumexp(-1))
        if model.head.config.softcap is not None:
            uncapped.append(_uncapped(model, leaf_ND, device).float().logsumexp(-1))
    found = {"loss": torch.stack(losses).sum(), **_mean_and_rms("log_z", log_z)}
    if uncapped:
        found |= _mean_and_rms("log_z_uncapped", uncapped)
    return torch.cat(gradients), found


@torch.no_grad()
def _uncapped(model: Decoder, hidden_ND: Tensor, device: Device) -> Tensor:
    """Logits [N, V] before their soft cap."""
    head = model.head
    with device.autocast():
        return scaled(head.product(head.narrow(hidden_ND), model.embedding.weight), head.config.scale)


def _mean_and_rms(name: str, pieces: Sequence[Tensor]) -> dict[str, Tensor]:
    values_N = torch.cat(list(pieces))
    return {name: values_N.mean(), f"{name}_rms": rms(values_N)}


def _note_gradients(model: Decoder, notes: Sequence[LayerNotes], carrier: Tensor) -> None:
    """With respect to each layer's parameters, and to the stream after it."""
    streams = [one.stream_BTD for one in notes]
    own = [[*layer.parameters()] for layer in model.layers]
    asked = [*streams, *(parameter for parameters in own for parameter in parameters)]
    found = iter(torch.autograd.grad(carrier, asked, allow_unused=True, materialize_grads=True))
    for one, gradient in zip(notes, [next(found) for _ in streams], strict=True):
        one.found["stream_gradient"] = norm([gradient])
    for one, parameters in zip(notes, own, strict=True):
        one.found["gradient"] = norm([next(found) for _ in parameters])


def _note_loads(model: Decoder, notes: Sequence[LayerNotes], collected: Collected) -> None:
    mixtures = [
        one for layer, one in zip(model.layers, notes, strict=True) if isinstance(getattr(layer, "mlp", None), MoE)
    ]
    for one, load in zip(mixtures, collected_loads(collected) if mixtures else (), strict=True):
        one.found["largest_load"] = (load.chosen_E / load.tokens).max().detach()
        one.found["dead_experts"] = (load.chosen_E == 0).sum()


def per_layer(found: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Number]]:
    """Name -> a number per layer; names that no layer has are left out."""
    names = [name for name in OF_LAYERS if any(name in one for one in found)]
    return {name: [_number(one[name]) if name in one else None for one in found] for name in names}


def _number(x: Tensor) -> Number:
    """With six digits."""
    value = x.item()
    return float(f"{value:.6g}") if math.isfinite(value) else None


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Euclidean, of all their numbers together."""
    return torch.stack([x.detach().float().norm() for x in tensors]).norm()


@contextmanager
def watched(model: Decoder) -> Iterator[list[LayerNotes]]:
    """Notes of every layer, filled by the passes within. Layers must run uncompiled, or their parts call no hooks.

    Attention is noted of the first window of a batch, the stream and the MLP of all.
    """
    notes = [LayerNotes() for _ in model.layers]
    with ExitStack() as stack:
        for layer, own in zip(model.layers, notes, strict=True):
            stack.callback(layer.register_forward_hook(partial(_note_stream, own)).remove)
            if isinstance(mlp := getattr(layer, "mlp", None), MLP):
                stack.callback(mlp.activation.register_forward_hook(partial(_note_units, own)).remove)
            attention = getattr(layer, "attention", None)
            if isinstance(attend := getattr(attention, "attend", None), Attend):
                stack.callback(setattr, attention, "attend", attend)  # no module, so that it has no hooks
                setattr(attention, "attend", WatchedAttend(attend, own.found))  # noqa: B010
        yield notes


def _note_stream(notes: LayerNotes, _: nn.Module, given: tuple[Any, ...], x_BTD: Tensor) -> None:
    notes.stream_BTD = x_BTD
    notes.found |= {"input_rms": rms(given[0]), "stream_rms": rms(x_BTD)}
    notes.found["drift"] = rms(x_BTD - given[0]) / notes.found["input_rms"]


def _note_units(notes: LayerNotes, _module: nn.Module, _given: tuple[Any, ...], activations_BTF: Tensor) -> None:
    notes.found["dead_units"] = dead_units(activations_BTF)


def rms(x: Tensor) -> Tensor:
    """Root of the mean square of all numbers, in float32."""
    return x.detach().float().square().mean().sqrt()


def dead_units(activations_BTF: Tensor) -> Tensor:
    """Share of hidden units that no token makes use of.

    A unit is dead where the size of its activation (what relu, silu or gelu gives, before a gate's product) is for
    every token at most 1% of the RMS over all units and tokens. For relu that is zero for all tokens, or as good as
    that; silu and gelu are never zero for all of a text, and a unit whose inputs are all far below zero counts.
    """
    sizes_NF = activations_BTF.detach().float().flatten(0, -2).abs()
    return (sizes_NF.amax(0) <= NEARLY_ZERO * rms(sizes_NF)).float().mean()


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
