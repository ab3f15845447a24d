"""What goes on inside a model, measured in one pass over a few windows and its gradient; docs/probes.md explains each
number."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archlab.model.arithmetic import scaled
from archlab.model.context import Collected
from archlab.model.decoder import Decoder
from archlab.model.moe import MoE
from archlab.model.router import collected_loads
from archlab.training.compiling import uncompiled
from archlab.training.device import Device
from archlab.training.loss import logits_in_pieces, objective
from archlab.training.probe_layers import LayerNotes, rms, watched
from archlab.training.step import chosen, hidden_and_targets

Number = float | None
"""null: there is nothing to measure, or what was measured is not finite."""

OF_LAYERS = (
    "gradient", "stream_gradient", "stream_rms", "drift", "update_ratio", "largest_score", "entropy", "entropy_share",
    "first_token", "learned_sink", "dead_units", "largest_load", "dead_experts",
)  # fmt: skip
"""What is measured of every layer, in the order in which it is shown."""


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


def per_layer(found: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Number]]:
    """Name -> a number per layer; names that no layer has are left out."""
    names = [name for name in OF_LAYERS if any(name in one for one in found)]
    return {name: [_number(one[name]) if name in one else None for one in found] for name in names}


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Euclidean, of all their numbers together."""
    return torch.stack([x.detach().float().norm() for x in tensors]).norm()


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


def _number(x: Tensor) -> Number:
    """With six digits."""
    value = x.item()
    return float(f"{value:.6g}") if math.isfinite(value) else None
