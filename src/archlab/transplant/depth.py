"""Another number of layers: new layers that change nothing at first, or a choice of the trained layers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from archlab.config.layers import LayerConfig
from archlab.errors import UserError
from archlab.model.layer import Layer
from archlab.model.roles import roles_of
from archlab.pricing.units import plural
from archlab.transplant.differences import differences
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import (
    DECODER,
    ENCODER,
    Architecture,
    LazyTensor,
    Target,
    Weights,
    constant,
    numbered,
)

_FIELDS = {DECODER: "model.n_layers", ENCODER: "model.encoder.n_layers"}


def _more_layers(weights: Weights, target: Architecture) -> Weights:
    for stack, own in weights.architecture.stacks.items():
        if len(own) < len(target.stacks[stack]):
            weights = _with_more(weights, stack, target.stacks[stack])
    return weights


def _with_more(weights: Weights, stack: str, wanted: Sequence[LayerConfig]) -> Weights:
    own = weights.architecture.stacks[stack]
    trained = {place: j for j, place in enumerate(_places(own, wanted))}
    layers, tensors, new, inert = list[LayerConfig](), dict[str, LazyTensor](), list[str](), list[str]()
    for i, layer in enumerate(wanted):
        name = f"{stack}.{i}"
        source = trained[i] if i in trained else _to_copy(i, trained, wanted)
        layers.append(layer if source is None else own[source])
        if source is None:
            inert.append(f"{name}.")
        else:
            tensors |= _layer(weights, f"{stack}.{source}", name, "" if i in trained else MORE_LAYERS.name)
        if i not in trained:
            _check_can_be_silent(layer, stack, len(own), len(wanted))
            new.append(name)
            tensors |= {f"{name}.{part}": x for part, x in _silence(layers[-1]).items()}
    are_new = "are new, and their outputs are 0" if len(new) > 1 else "is new, and its output is 0"
    detail = f"{plural(len(own), 'layer')} to {len(wanted)}; {numbered(new)} {are_new}"
    return weights.with_stack(MORE_LAYERS.change(detail), stack, layers, tensors, inert)


class _Placed(NamedTuple):
    cost: tuple[int, int]
    """Number of fields that differ between layers and their places, and distance from evenly spread places."""
    place: int = -1
    before: "_Placed | None" = None


def _places(own: Sequence[LayerConfig], wanted: Sequence[LayerConfig]) -> list[int]:
    """Return the place of each trained layer in the model.

    A new layer follows each of several groups of trained layers, which are equally large. With a layer pattern, layers
    move away from these places if fewer fields then differ between a layer and its place.
    """
    n_new = len(wanted) - len(own)
    even = [j + j * n_new // len(own) for j in range(len(own))]
    if len(set(wanted)) == 1:
        return even
    n_differing = {(layer, place): len(differences(layer, place)) for layer in set(own) for place in set(wanted)}
    best = [_Placed((0, 0))] * (n_new + 1)  # best[k]: the layers so far, with at most k new layers among them
    for j, layer in enumerate(own):
        row: list[_Placed] = []
        for k, before in enumerate(best):
            (differing, uneven), place = before.cost, j + k
            cost = differing + n_differing[layer, wanted[place]], uneven + abs(place - even[j])
            row.append(min([_Placed(cost, place, before), *row[-1:]], key=lambda placed: placed.cost))
        best = row
    places, last = list[int](), best[-1]
    while last.before is not None:
        places.append(last.place)
        last = last.before
    return places[::-1]


def _to_copy(i: int, trained: dict[int, int], wanted: Sequence[LayerConfig]) -> int | None:
    """Return the trained layer that is copied to place `i`: the nearest earlier one that has the same config in the
    model, otherwise the nearest later one. Return None if there is none."""
    alike = [
        (place > i, abs(place - i), j) for place, j in trained.items() if not differences(wanted[place], wanted[i])
    ]
    return min(alike)[2] if alike else None


def _layer(weights: Weights, before: str, after: str, copied_by: str) -> dict[str, LazyTensor]:
    """Return the tensors of a layer at another place. `copied_by` is the transformation that copies them; empty if it
    only moves them."""
    tensors = weights.under(before).items()
    if not copied_by:
        return {f"{after}.{part}": x for part, x in tensors}
    return {f"{after}.{part}": x.then(copied_by, lambda value: value, x.shape) for part, x in tensors}


def _check_can_be_silent(layer: LayerConfig, stack: str, n_own: int, n_wanted: int) -> None:
    if "stream" in layer.norm.slots or layer.norm.is_carried:
        raise UserError(
            f"{_FIELDS[stack]}: {n_wanted}, and the trained weights have {n_own}; a new layer with "
            f"norm.placement={getattr(layer.norm, 'placement', None)} changes the logits even if its outputs are 0, "
            f"because it normalizes the stream; allowed: {n_own}{_OR_CHOSEN[stack]}"
        )


_OR_CHOSEN = {DECODER: ", or train.start_layers, a list of the trained layer for each layer", ENCODER: ""}


def _silence(layer: LayerConfig) -> dict[str, LazyTensor]:
    """Return the tensors of a layer, by name, whose values make the outputs of all branches 0.

    These are the weights of norms on outputs if there are such norms, otherwise the output matrices. If both were 0,
    neither would have a gradient.
    """
    with torch.device("meta"):
        parameters = list(roles_of(Layer(layer, "auto")))
    silent = dict[str, LazyTensor]()
    for branch in layer.branches:
        norm = f"{branch.name}_norms.after."
        weights = [p for p in parameters if p.name in (f"{norm}weight", f"{norm}scale")]
        outputs = [
            p
            for p in parameters
            if p.name.startswith(f"{branch.name}.") and (p.role.name == "output" or p.role.is_added_once)
        ]
        biases = [p for p in parameters if p.name == f"{norm}bias"]
        for name, parameter, _, _ in (weights or outputs) + biases:
            is_shifted = name == f"{norm}weight" and getattr(layer.norm, "unit_offset", False)
            silent[name] = constant(MORE_LAYERS.name, parameter.shape, -1.0 if is_shifted else 0.0)
    return silent


def _chosen_layers(weights: Weights, target: Target) -> Weights:
    """Return the weights whose decoder consists of the chosen layers, which may be left out, repeated or in another
    order."""
    _check_depth(weights, target)
    own, chosen = weights.architecture.stacks[DECODER], target.chosen
    if chosen is None or chosen.layers == tuple(range(len(own))):
        return weights
    layers = chosen.layers
    tensors = dict[str, LazyTensor]()
    for i, j in enumerate(layers):
        copied_by = CHOSEN_LAYERS.name if j in layers[:i] else ""
        tensors |= _layer(weights, f"{DECODER}.{j}", f"{DECODER}.{i}", copied_by)
    detail = f"{plural(len(own), 'layer')} to {len(layers)}: {', '.join(map(str, layers))}"
    if chosen.distance is not None:
        detail += f"; the angular distance across the layers that are left out is {chosen.distance:.2g}"
    return weights.with_stack(CHOSEN_LAYERS.change(detail), DECODER, [own[j] for j in layers], tensors)


def _check_depth(weights: Weights, target: Target) -> None:
    """Raise UserError if the model has fewer layers without a choice of the trained ones, or if the choice is wrong."""
    for stack, own in weights.architecture.stacks.items():
        n_own, n_wanted = len(own), len(target.stacks[stack])
        found = f"{_FIELDS[stack]}: {n_wanted}, and the trained weights have {n_own}"
        if n_wanted < n_own and stack == ENCODER:
            raise UserError(f"{found}; layers of an encoder cannot be left out; allowed: {n_own} or more")
        if n_wanted < n_own and target.chosen is None:
            raise UserError(
                f"{found}; set train.start_layers to a list of {plural(n_wanted, 'layer')} to keep "
                f"(0 to {n_own - 1}), or to `similar`, which leaves out the block of layers that changes its input "
                "least"
            )
    if target.chosen is None:
        return
    layers = target.chosen.layers
    n_own, n_wanted = (len(architecture.stacks[DECODER]) for architecture in (weights.architecture, target))
    if len(layers) != n_wanted:
        found = plural(len(layers), "layer")
        raise UserError(f"train.start_layers: {found}; allowed: {n_wanted}, which is model.n_layers")
    if wrong := [j for j in layers if not 0 <= j < n_own]:
        raise UserError(f"train.start_layers: layer {wrong[0]}; allowed: 0 to {n_own - 1}, the trained layers")


MORE_LAYERS = Transformation(
    name="more layers",
    effect="exact",
    fields=("model.n_layers", "model.encoder.n_layers"),
    rule="New layers are spread evenly. Each is a copy of the layer before it whose outputs are 0, so the logits stay "
    "the same. With a layer pattern, it is a copy of the nearest layer of the same kind.",
    paper="LLaMA Pro (Wu 2024, arXiv 2401.02415)",
    apply=_more_layers,
)
CHOSEN_LAYERS = Transformation(
    name="chosen layers",
    effect="approximate",
    fields=("model.n_layers", "train.start_layers"),
    rule="Each layer is the trained layer that train.start_layers names. Layers may be left out (Gromov 2024) or "
    "repeated (SOLAR). `similar` leaves out the layers that change the hidden states least, and states their angular "
    "distance.",
    paper="Gromov 2024, arXiv 2403.17887; SOLAR (Kim 2023, arXiv 2312.15166)",
    apply=_chosen_layers,
)
