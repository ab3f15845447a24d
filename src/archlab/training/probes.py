"""Probes: measures of a model and its layers, computed in one forward and backward pass over a few windows.

docs/probes.md explains each measure.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archlab.data.batch import Batch, HeldOut
from archlab.model.context import Collected
from archlab.model.decoder import Decoder
from archlab.model.kernels import Attend
from archlab.model.mlp import MLP
from archlab.model.moe import MoE
from archlab.model.router import collected_loads
from archlab.training.compiling import uncompiled
from archlab.training.device import Device
from archlab.training.loss import logits_in_pieces, objective
from archlab.training.measures import CROSS, ENCODER, OF_LAYERS, Number
from archlab.training.probe_attention import Reached, WatchedAttend, measure_attention
from archlab.training.run_files import METRICS
from archlab.training.run_folder import RunFolder
from archlab.training.step import hidden_and_targets
from archlab.training.summary import PROBES

NEARLY_ZERO = 0.01
"""Fraction of the RMS of a layer's activations. A unit whose activation never exceeds this fraction is dead."""

PROBED_TOKENS = 512
"""Number of held-out tokens that a probe reads, always the same ones. If a window is longer, one window is read."""


@dataclass(frozen=True)
class Probed:
    """Values of one probe."""

    model_values: Mapping[str, Number]
    """Values for the whole model: loss, log_z, log_z_rms and embedding_rms.

    Models with a cap on the logits also have log_z_uncapped and log_z_uncapped_rms. Models with an encoder also have
    encoder.embedding_rms.
    """
    layer_values: Mapping[str, Sequence[Number]]
    """One number per layer for each measure in OF_LAYERS, by name. Measures that no layer has are left out.

    Measures whose names begin with `encoder.` belong to the layers of the encoder. All others belong to the layers of
    the decoder, or of the model's only stack.
    """

    def as_json(self) -> dict[str, Any]:
        return {**self.model_values, **self.layer_values}


@dataclass
class LayerNotes:
    """Measures of one layer in one forward pass."""

    values: dict[str, Tensor] = field(default_factory=dict)
    """Values by measure name."""
    stream_BTD: Tensor | None = None
    """Output of the layer, with its autograd graph."""
    is_real_BT: Tensor | None = None
    """Whether each token is not padding. None if there is no padding."""

    def real(self, x_BTD: Tensor) -> Tensor:
        """Return the values of all tokens except padding, [N, D]."""
        return x_BTD.flatten(0, 1) if self.is_real_BT is None else x_BTD[self.is_real_BT]


def probe(model: Decoder, batch: Batch, device: Device) -> Probed:
    """Probe a model on a batch, without dropout.

    The model's weights, gradients and mode stay the same, and so does the state of the random generators.
    """
    was_training = model.training
    model.eval()
    collected = Collected()
    try:
        with torch.enable_grad(), uncompiled(model):
            with watched(model) as notes:
                hidden_ND, targets_N = hidden_and_targets(model, batch, device, collected)
            gradient_ND, model_values = _through_head(model, hidden_ND, targets_N, device)
            # The gradient of this sum with respect to the hidden states is gradient_ND.
            _note_gradients(model, notes, (hidden_ND * gradient_ND).sum())
    finally:
        model.train(was_training)
    _note_loads(model, notes, collected)
    layer_values = [note.values for note in notes]
    for prefix, values in _by_stack(model, layer_values):
        model_values[f"{prefix}embedding_rms"] = values[0]["input_rms"]
    return Probed({name: _number(x) for name, x in model_values.items()}, per_layer(model, layer_values))


def _through_head(
    model: Decoder, hidden_ND: Tensor, targets_N: Tensor, device: Device
) -> tuple[Tensor, dict[str, Tensor]]:
    gradients, losses, log_z, uncapped = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
    for leaf_ND, logits_NV, piece_N in logits_in_pieces(model, hidden_ND, targets_N, device):
        share = len(piece_N) / len(targets_N)
        loss, _ = objective(logits_NV, piece_N, z_loss=0.0)
        gradients.extend(torch.autograd.grad(loss * share, leaf_ND))
        losses.append(loss.detach() * share)
        log_z.append(logits_NV.detach().float().logsumexp(-1))
        if model.head.config.softcap is not None:
            uncapped.append(_uncapped(model, leaf_ND, device).float().logsumexp(-1))
    measures = {"loss": torch.stack(losses).sum(), **_mean_and_rms("log_z", log_z)}
    if uncapped:
        measures |= _mean_and_rms("log_z_uncapped", uncapped)
    return torch.cat(gradients), measures


@torch.no_grad()
def _uncapped(model: Decoder, hidden_ND: Tensor, device: Device) -> Tensor:
    with device.autocast():
        return model.head.uncapped(hidden_ND, model.embedding.weight)


def _mean_and_rms(name: str, pieces: Sequence[Tensor]) -> dict[str, Tensor]:
    values_N = torch.cat(list(pieces))
    return {name: values_N.mean(), f"{name}_rms": rms(values_N)}


def _note_gradients(model: Decoder, notes: Sequence[LayerNotes], carrier: Tensor) -> None:
    streams = [note.stream_BTD for note in notes]
    parameters_by_layer = [_trained(layer) for layer in model.all_layers]
    inputs = [*streams, *(parameter for parameters in parameters_by_layer for parameter in parameters)]
    gradients = iter(torch.autograd.grad(carrier, inputs, allow_unused=True, materialize_grads=True))
    for note, gradient in zip(notes, [next(gradients) for _ in streams], strict=True):
        note.values["stream_gradient"] = norm([gradient])
    for note, parameters in zip(notes, parameters_by_layer, strict=True):
        if parameters:
            note.values["gradient"] = norm([next(gradients) for _ in parameters])


def _trained(layer: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a layer that are trained. With LoRA, others are frozen."""
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]


def _note_loads(model: Decoder, notes: Sequence[LayerNotes], collected: Collected) -> None:
    mixtures = [
        note
        for layer, note in zip(model.all_layers, notes, strict=True)
        if isinstance(getattr(layer, "mlp", None), MoE)
    ]
    for note, load in zip(mixtures, collected_loads(collected) if mixtures else (), strict=True):
        note.values["largest_load"] = (load.chosen_E / load.tokens).max().detach()
        note.values["dead_experts"] = (load.chosen_E == 0).sum()


def per_layer(model: Decoder, measures: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Number]]:
    """Return one number per layer for each measure, by name. Measures that no layer has are left out.

    `measures` holds one mapping for each layer of `model.all_layers`.
    """
    numbers = {
        f"{prefix}{name}": [_number(layer[name]) if name in layer else None for layer in layers]
        for prefix, layers in _by_stack(model, measures)
        for name in {name for layer in layers for name in layer}
    }
    return {name: numbers[name] for name in OF_LAYERS if name in numbers}


def _by_stack(
    model: Decoder, layers: Sequence[Mapping[str, Tensor]]
) -> Iterator[tuple[str, Sequence[Mapping[str, Tensor]]]]:
    """Yield, for each stack, the prefix of its measures' names and the values of its layers."""
    rest = iter(layers)
    for stack in model.stacks:
        yield ("" if stack is model else ENCODER), [next(rest) for _ in stack.layers]


def _number(x: Tensor) -> Number:
    value = x.item()
    return float(f"{value:.6g}") if math.isfinite(value) else None


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all elements of the tensors together."""
    return torch.stack([x.detach().float().norm() for x in tensors]).norm()


@contextmanager
def watched(model: Decoder) -> Iterator[list[LayerNotes]]:
    """Yield one `LayerNotes` for each layer of `model.all_layers`. Forward passes inside the block fill them in.

    Layers must not be compiled, because compiled code calls no hooks. Padding is not measured. Attention is measured on
    the first window of a batch, or on all windows if they have padding, because their lengths then differ. The residual
    stream and the MLP are measured on all windows.
    """
    notes = [LayerNotes() for _ in model.all_layers]
    with ExitStack() as stack:
        for layer, layer_notes in zip(model.all_layers, notes, strict=True):
            stack.callback(layer.register_forward_pre_hook(partial(_note_padding, layer_notes)).remove)
            stack.callback(layer.register_forward_hook(partial(_note_stream, layer_notes)).remove)
            if isinstance(mlp := getattr(layer, "mlp", None), MLP):
                stack.callback(mlp.activation.register_forward_hook(partial(_note_units, layer_notes)).remove)
            for branch, prefix in (("attention", ""), ("cross", CROSS)):
                attention = getattr(layer, branch, None)
                if isinstance(attend := getattr(attention, "attend", None), Attend):
                    stack.callback(setattr, attention, "attend", attend)  # `Attend` is not a module, so it has no hooks
                    watch = WatchedAttend(attend, partial(_note_attention, layer_notes, prefix))
                    setattr(attention, "attend", watch)  # noqa: B010
        yield notes


def _note_padding(notes: LayerNotes, _: nn.Module, inputs: tuple[Any, ...]) -> None:
    context = inputs[1]
    notes.is_real_BT = context.is_real_BT


def _note_stream(notes: LayerNotes, _: nn.Module, inputs: tuple[Any, ...], y_BTD: Tensor) -> None:
    notes.stream_BTD = y_BTD
    x_ND, y_ND = notes.real(inputs[0]), notes.real(y_BTD)
    notes.values |= {"input_rms": rms(x_ND), "stream_rms": rms(y_ND)}
    notes.values["drift"] = rms(y_ND - x_ND) / notes.values["input_rms"]


def _note_units(notes: LayerNotes, _module: nn.Module, _inputs: tuple[Any, ...], activations_BTF: Tensor) -> None:
    notes.values["dead_units"] = dead_units(notes.real(activations_BTF))


def _note_attention(notes: LayerNotes, prefix: str, attend: Attend, *inputs: Any) -> None:
    lengths = [None] if notes.is_real_BT is None else notes.is_real_BT.sum(-1).tolist()
    windows = [Reached.of(attend, *inputs, row=row, length=length) for row, length in enumerate(lengths)]
    measures = measure_attention(windows)
    notes.values |= {f"{prefix}{name}": value for name, value in measures.items()}


def rms(x: Tensor) -> Tensor:
    return x.detach().float().square().mean().sqrt()


def dead_units(activations_BTF: Tensor) -> Tensor:
    """Return the fraction of hidden units that are dead.

    A unit is dead if, for every token, its activation is at most 1% of the RMS over all units and tokens. The
    activation is the output of relu, silu or gelu, before the product with a gate. With relu, it can be exactly zero.
    With silu and gelu, it is never exactly zero for a whole sequence. A silu or gelu unit counts as dead if all its
    inputs are far below zero.
    """
    sizes_NF = activations_BTF.detach().float().flatten(0, -2).abs()
    return (sizes_NF.amax(0) <= NEARLY_ZERO * rms(sizes_NF)).float().mean()


class Probing:
    """Probes of a model during training, every `interval` steps. They do not affect training."""

    def __init__(self, model: Decoder, held_out: HeldOut, interval: int | None, device: Device) -> None:
        self._batch = held_out.batch.rows(slice(max(1, PROBED_TOKENS // held_out.seq_len)))
        self._model, self._interval, self._device = model, interval, device
        self._before: list[list[Tensor]] | None = None

    def before_update(self, step: int) -> None:
        """Copy the layers' weights if a probe is due after update `step`, counted from 1."""
        if self._is_due(step):
            self._before = [[weight.clone() for weight in weights] for weights in self._weights()]

    def after_update(self, step: int, folder: RunFolder) -> None:
        """Probe the model and log the result if a probe is due. Step 0 is before any update."""
        if not self._is_due(step):
            return
        values = probe(self._model, self._batch, self._device).as_json()
        if self._before is not None:
            values |= per_layer(self._model, list(self._ratios(self._before)))
            self._before = None
        folder.log(step=step, **{PROBES: values})

    def _is_due(self, step: int) -> bool:
        return self._interval is not None and step % self._interval == 0

    def _weights(self) -> Iterator[list[Tensor]]:
        return ([parameter.detach() for parameter in _trained(layer)] for layer in self._model.all_layers)

    def _ratios(self, before: list[list[Tensor]]) -> Iterator[dict[str, Tensor]]:
        for old, new in zip(before, self._weights(), strict=True):
            yield {"update_ratio": norm(b - a for a, b in zip(old, new, strict=True)) / norm(old)} if old else {}


def training_probes(run: Path) -> list[dict[str, Any]]:
    """Return all probes of a training run: each with the step and the values by name.

    The result is empty if `run` is not a run folder.
    """
    if not (run / METRICS).is_file():
        return []
    return [{"step": line["step"], **line[PROBES]} for line in RunFolder(run).metrics() if PROBES in line]
