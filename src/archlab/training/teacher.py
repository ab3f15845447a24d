"""Distillation: a run learns the predictions and hidden states of a frozen trained model (`train.teacher`).

Shapes: B batch, T tokens, N tokens that count, D d_model, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlab.config.teacher import TeacherConfig
from archlab.model.decoder import Decoder
from archlab.model.kernels import prefer_products
from archlab.training.compiling import compile_layers, uncompiled
from archlab.training.device import Device
from archlab.training.loss import logits_in_pieces
from archlab.training.shard import trained_model
from archlab.training.world import World
from archlab.transplant.weights import Weights

ForwardPass = Callable[[Decoder], tuple[Tensor, Tensor]]
"""Forward pass of a micro-batch through a model. It returns the hidden states, [N, D], and the targets, [N]."""


class Teacher:
    """Frozen model from which a run learns, without dropout. Each process holds its part, like that of the run's model.
    Weights are float32, and products use the run's dtype."""

    def __init__(
        self,
        weights: Weights,
        settings: TeacherConfig,
        device: Device,
        world: World,
        products_up_to: int,
        compiled: bool,
    ) -> None:
        """Read the weights. `products_up_to` and `compiled` are those of the run."""
        self.settings, self.device = settings, device
        model = trained_model(weights, device.type, world)
        self.model = model.requires_grad_(requires_grad=False).eval()
        prefer_products(self.model, products_up_to)
        if compiled and not settings.hidden:  # compiled code calls no hooks
            compile_layers(self.model)

    @torch.no_grad()
    def outputs(self, forward_pass: ForwardPass) -> "TeacherOutputs":
        """Pass a micro-batch through the teacher."""
        with _streams(self.model) if self.settings.hidden else nullcontext(()) as streams:
            hidden_ND, _ = forward_pass(self.model)
        return TeacherOutputs(self, forward_pass, hidden_ND, streams)

    def metrics(self, divergence: float, distance: float) -> dict[str, float]:
        """Return the losses whose weight is above 0, for the log."""
        losses = {
            "teacher_kl": (divergence, self.settings.logits),
            "teacher_distance": (distance, self.settings.hidden),
        }
        # Rounding makes the divergence of almost equal distributions slightly negative.
        return {name: max(loss, 0.0) for name, (loss, weight) in losses.items() if weight}


@dataclass(frozen=True)
class TeacherOutputs:
    """Outputs of the teacher for one micro-batch."""

    teacher: Teacher
    forward_pass: ForwardPass
    hidden_ND: Tensor
    """Hidden states from which the teacher predicts the targets that count. D is the teacher's d_model."""
    streams: Sequence[Tensor]
    """Input of each of the teacher's layers, then the output of the last one, [B, T, D] each. Empty if
    `train.teacher.hidden` is 0."""

    def logits(self, targets_N: Tensor) -> Iterator[Tensor] | None:
        """Return the teacher's logits, one chunk of tokens at a time as in `logits_in_pieces`, [n, V]. Return None if
        `train.teacher.logits` is 0."""
        return self._logits(targets_N) if self.teacher.settings.logits else None

    @torch.no_grad()
    def _logits(self, targets_N: Tensor) -> Iterator[Tensor]:
        for _, logits_NV, _ in logits_in_pieces(self.teacher.model, self.hidden_ND, targets_N, self.teacher.device):
            yield logits_NV

    def backward_through_layers(self, student: Decoder, counted_BT: Tensor | None, share: float) -> Tensor:
        """Backpropagate `share` times `train.teacher.hidden` times the distance of the student's layers from the
        teacher's. Return the distance; 0 if its weight is 0.

        Each layer reads the teacher's input. The distance is the Euclidean norm of the difference of the outputs,
        averaged over the tokens that count and summed over the layers (MOHAWK, Bick 2024, stage 2).
        """
        total, weight = torch.zeros((), device=self.hidden_ND.device), self.teacher.settings.hidden
        if not weight:
            return total
        with uncompiled(student), _with_inputs(student, self.streams[:-1]) as outputs:  # compiled code calls no hooks
            self.forward_pass(student)
        for output_BTD, target_BTD in zip(outputs, self.streams[1:], strict=True):
            difference_BTD = output_BTD.float() - target_BTD.float()
            difference_ND = difference_BTD.flatten(0, 1) if counted_BT is None else difference_BTD[counted_BT]
            total = total + torch.linalg.vector_norm(difference_ND, dim=-1).mean()
        (total * (weight * share)).backward()
        return total.detach()


@contextmanager
def _streams(model: Decoder) -> Iterator[list[Tensor]]:
    """Yield a list. A forward pass inside the block adds the input of each layer, and the output of the last one."""
    streams = list[Tensor]()

    def note_input(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        streams.append(inputs[0])

    with ExitStack() as stack:
        for layer in model.layers:
            stack.callback(layer.register_forward_pre_hook(note_input).remove)
        stack.callback(model.layers[-1].register_forward_hook(_adding_output(streams)).remove)
        yield streams


@contextmanager
def _with_inputs(model: Decoder, streams: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield a list. In a forward pass inside the block, layer i reads `streams[i]` instead of the output of the layer
    before it, and its output is added to the list."""
    outputs = list[Tensor]()

    def replace_input(stream: Tensor, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (stream, *inputs[1:])

    with ExitStack() as stack:
        for layer, stream in zip(model.layers, streams, strict=True):
            stack.callback(layer.register_forward_pre_hook(partial(replace_input, stream)).remove)
            stack.callback(layer.register_forward_hook(_adding_output(outputs)).remove)
        yield outputs


def _adding_output(outputs: list[Tensor]) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    """Return a forward hook that adds a module's output to the list."""

    def add(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> None:
        outputs.append(output)

    return add
