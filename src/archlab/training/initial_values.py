"""Trained weights from which a run begins (`train.start`), and how much the start changes their logits."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from archlab.config.schema import Config, DataConfig
from archlab.config.tasks import Task
from archlab.config.training import resolve_train
from archlab.data.batch import Batch
from archlab.data.objectives import Batches
from archlab.data.open import form_of_data
from archlab.errors import UserError, at
from archlab.exchange.configs import folder_first, source_kind
from archlab.model.decoder import Decoder
from archlab.training.device import Device
from archlab.training.shard import trained_model
from archlab.training.step import hidden_and_targets
from archlab.training.trained_weights import TrainedWeights, open_weights
from archlab.training.world import World
from archlab.transplant.logits_change import COMPARED
from archlab.transplant.plan import Plan, plan, set_values
from archlab.transplant.similarity import least_changing_block
from archlab.transplant.weights import ChosenLayers

_WINDOWS = 16
"""Number of training windows on which the similarity of layers is measured."""


@dataclass(frozen=True)
class Initial:
    """Initial values of a run that begins from trained weights."""

    start: TrainedWeights
    plan: Plan | None
    """Initial values of the tensors. None if the run has begun, so that its checkpoint has them."""

    def __str__(self) -> str:
        trained = "published" if self.start.step is None else f"step {self.start.step:,}"
        return f"from {self.start.name} ({trained}); tensors: {self.plan.counts() if self.plan else 'in a checkpoint'}"


def initial_of(config: Config, batches: Batches, *, has_begun: bool) -> Initial | None:
    """Return the initial values of a run, or None if it begins from random weights.

    A run that has begun no longer needs the weights, so they may be gone or changed. Raise UserError if the weights of
    a new run cannot become this model, or if they were trained on tokens with another meaning.
    """
    if config.train.start is None and config.train.start_layers is not None:
        raise UserError("train.start_layers: set, but train.start is null, so no layers are trained; leave it out")
    if config.train.start is None:
        return None
    if has_begun:
        return _of_begun_run(config.train.start)
    with at("train.start"):
        start = open_weights(config.train.start)
    data = batches.data
    if isinstance(config.data.task, Task) and start.has_tokenizer:
        raise UserError(
            f"data.task.kind: {config.data.task.kind}, but {start.name} was trained on text, so its tokens have "
            "another meaning; allowed: text, or weights that were trained on a task"
        )
    start.check_tokenizer(data, config.data.named, "train.start")
    _check_folds(start, config.data, data.fingerprint)
    made = planned(start, config, lambda: batches)
    if config.train.lora and made.initialized:
        raise UserError(
            f"train.lora: LoRA trains only its own matrices, so {made.initialized[0]} and other new tensors would keep "
            "their initial values; allowed: null, or a model whose tensors all come from the weights"
        )
    return Initial(start, made)


def _of_begun_run(name: str) -> Initial | None:
    """Return the weights from which a run has begun, or None if they cannot be opened, or only from the hub."""
    if source_kind(folder_first(name)) in (None, "hub id"):
        return None
    try:
        return Initial(open_weights(name), None)
    except UserError:
        return None


def _check_folds(start: TrainedWeights, data: DataConfig, corpus: str) -> None:
    """Raise UserError if the weights have read a fold that this run leaves unread for an evaluation."""
    for field, folds in (("fold", [data.fold]), ("excluded_folds", data.excluded_folds)):
        if read := start.read_folds(corpus, folds):
            hint = "allowed: its data.fold and data.excluded_folds"
            raise UserError(f"data.{field}: {read[0]}; {start.name} was trained on this fold; {hint}")


def planned(start: TrainedWeights, config: Config, open_batches: Callable[[], Batches]) -> Plan:
    """Return the plan of the initial values of a config's model. Layers that are left out because they change the
    hidden states least are found on training windows. Only one process at a time holds the trained model for this."""
    layers = config.train.start_layers
    if layers != "similar":
        return plan(start.weights, config.model, None if layers is None else ChosenLayers(layers))
    if form_of_data(config.data) not in ("text", "task"):
        raise UserError("train.start_layers: similar, but windows of this data have padding; allowed: a list of layers")
    train = resolve_train(config)
    tokens = open_batches().training(0, 0, _WINDOWS, train.seq_len).tokens
    model = Decoder(start.weights.model, seed=None)
    set_values(model, start.weights.model, 0, start.weights.tensors)
    return plan(
        start.weights, config.model, least_changing_block(model, torch.from_numpy(tokens), config.model.n_layers)
    )


def trained_logits(initial: Initial, batch: Batch, device: Device, world: World) -> Tensor | None:
    """Return the logits of the trained model for some tokens, [N, V] in float32, or None if it cannot read the batch.

    Nothing of the trained model stays in memory.
    """
    model = trained_model(initial.start.weights, device.type, world)
    try:
        return logits_of(model, batch, device)
    except UserError:  # for example, a causal model does not read a visible prefix
        return None


@torch.no_grad()
def logits_of(model: Decoder, batch: Batch, device: Device) -> Tensor:
    """Return logits for tokens of a batch that count, [N, V] in float32, without dropout: the last ones of as few
    windows as have enough of them."""
    was_training = model.training
    model.eval()
    try:
        hidden_ND, _ = hidden_and_targets(model, batch.rows(slice(0, _rows(batch))), device)
        with device.autocast():
            return model.head(hidden_ND[-COMPARED:], model.embedding.weight).float().cpu()
    finally:
        model.train(was_training)


def _rows(batch: Batch) -> int:
    counted = batch.targets.shape[1] if batch.counted is None else max(int(batch.counted[0].sum()), 1)
    return ceil(COMPARED / counted)
