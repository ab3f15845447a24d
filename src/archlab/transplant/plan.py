"""Plan of the initial values of a model: which tensors trained weights provide, and by which transformations."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from archlab.config.model_schema import ModelConfig
from archlab.errors import Refusals, UserError
from archlab.model.decoder import Decoder
from archlab.model.init import initialize
from archlab.model.roles import roles_of
from archlab.model.sharded import part_of
from archlab.pricing.units import plural
from archlab.transplant.catalog import DEPTH, TRANSFORMATIONS
from archlab.transplant.differences import without_weights
from archlab.transplant.weights import (
    ENCODER,
    Architecture,
    Change,
    ChosenLayers,
    Effect,
    LazyTensor,
    Target,
    Weights,
    sources_of,
)

_MOST_LISTED = 8


@dataclass(frozen=True)
class Plan:
    """Initial values of a model's tensors."""

    tensors: Mapping[str, LazyTensor]
    """Tensors that come from the trained weights, by name."""
    initialized: tuple[str, ...]
    """Tensors that begin from the initial values of a new model."""
    dropped: tuple[str, ...]
    """Tensors of the trained weights, by their names there, on which no tensor of the model depends."""
    changes: tuple[Change, ...]
    """All changes, in order. Empty if the model is the trained one."""

    @property
    def kept(self) -> list[str]:
        """Names of the tensors that are as they were stored."""
        return [name for name, tensor in self.tensors.items() if not tensor.changes]

    @property
    def new(self) -> list[str]:
        """Names of the tensors whose values do not depend on the trained weights."""
        return [*(name for name, tensor in self.tensors.items() if not tensor.is_trained), *self.initialized]

    def counts(self) -> str:
        """Return the numbers of tensors by their origin, as in `17 kept, 4 changed`."""
        kept, new = len(self.kept), len(self.new)
        changed = len(self.tensors) + len(self.initialized) - kept - new
        counts = {"kept": kept, "changed": changed, "new": new, "dropped": len(self.dropped)}
        return ", ".join(f"{n} {what}" for what, n in counts.items() if n)

    @property
    def effect(self) -> Effect:
        """Effect of all changes together on the logits."""
        effects = {change.effect for change in self.changes}
        return "new" if "new" in effects else "approximate" if "approximate" in effects else "exact"


def plan(weights: Weights, model: ModelConfig, chosen: ChosenLayers | None = None) -> Plan:
    """Return the plan of the initial values of `model`.

    `chosen` holds the trained layers of the model's decoder. None: all of them in order. A tensor that no
    transformation provides is new. Raise UserError, with the fields, if the weights cannot become this model.
    """
    wanted, n_tokens = Architecture.of(model), min(weights.model.max_seq_len, model.max_seq_len)
    target = Target(wanted.model, wanted.stacks, chosen)
    _check_encoder(weights, target)
    trained = weights.tensors
    weights = _transformed(weights, target)
    with torch.device("meta"):
        decoder = Decoder(model, seed=None)
    random = [role.name for role in roles_of(decoder) if role.constant is None]
    changes = [*weights.changes, *without_weights(weights, target, random, n_tokens)]
    parameters = decoder.state_dict()
    provided = {name: x for name, x in weights.tensors.items() if name in parameters}
    _check_shapes(provided, parameters)
    initialized = tuple(name for name in parameters if name not in provided)
    used = sources_of(provided.values())
    dropped = tuple(name for name in trained if name not in used)
    return Plan(provided, initialized, dropped, tuple(changes))


def _transformed(weights: Weights, target: Target) -> Weights:
    """Return the weights after all transformations. Raise UserError with all changes that cannot be made."""
    refusals = Refusals()
    for transformation in TRANSFORMATIONS:
        if transformation in DEPTH:  # all later ones compare layer by layer
            weights = transformation.apply(weights, target)
            continue
        with refusals.collecting():
            weights = transformation.apply(weights, target)
    refusals.raise_any()
    return weights


def _check_encoder(weights: Weights, target: Architecture) -> None:
    if ENCODER in weights.architecture.stacks and ENCODER not in target.stacks:
        raise UserError(
            "model.encoder: null, but the layers of the trained weights read the output of an encoder; keep it as it is"
        )


def _check_shapes(tensors: Mapping[str, LazyTensor], wanted: Mapping[str, Tensor]) -> None:
    wrong = [
        f"  {name}  is {list(tensor.shape)}, and the model needs {list(wanted[name].shape)}"
        for name, tensor in tensors.items()
        if tensor.shape != tuple(wanted[name].shape)
    ]
    if wrong:
        more = [f"  and {len(wrong) - _MOST_LISTED} more"] if len(wrong) > _MOST_LISTED else []
        raise UserError(
            "\n".join(
                [
                    f"train.start: no transformation makes {plural(len(wrong), 'tensor')} of the model from the "
                    "trained weights (`archlab list transformations` shows what can change):",
                    *wrong[:_MOST_LISTED],
                    *more,
                ]
            )
        )


@torch.no_grad()
def set_values(model: Decoder, config: ModelConfig, seed: int, tensors: Mapping[str, LazyTensor]) -> None:
    """Copy tensors into the model, one at a time, and initialize the others. A sharded parameter receives only this
    process's part."""
    initialize(model, config, seed, tensors)
    for name, parameter in model.state_dict().items():
        if name in tensors:
            value = tensors[name].read().to(parameter.dtype)
            parameter.copy_(part_of(value, parameter))
