"""Trained models in float64 whose weights become the initial values of models with other configs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from archlab.config.schema import Config
from archlab.model.decoder import Decoder
from archlab.transplant.plan import Plan, plan, set_values
from archlab.transplant.weights import Architecture, ChosenLayers, Weights, stored
from tiny import config

_DRAW = torch.Generator().manual_seed(0)
TOKENS = torch.randint(0, 60, (2, 14), generator=_DRAW)
SOURCE = torch.randint(0, 60, (2, 9), generator=_DRAW)
DECODER = ["model.vocab_size=60"]
"""Overrides of the smallest model, for tests that use `TOKENS`."""


def weights_of(model: Decoder) -> Weights:
    """Return the weights of a model, which stay in memory."""
    tensors = {name: stored(name, x.shape, lambda x=x: x) for name, x in model.state_dict().items()}
    return Weights(Architecture.of(model.config), tensors)


def trained(built: Config, seed: int = 1) -> Decoder:
    """Return a model in float64 whose biases, norms and other constants have values as after training."""
    model = Decoder(built.model, seed=seed).double().eval()
    generator = torch.Generator().manual_seed(seed + 2)
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict().items()):
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor += (0.03 if "embedding" in name or name == "head.weight" else 0.2) * noise
    return model


def transplanted(before: list[str], changes: list[str]) -> tuple[Decoder, Decoder, Plan]:
    """Return a trained model, the model with further overrides and its weights, and the plan."""
    return transplanted_to(before, [*before, *changes])


def transplanted_to(before: list[str], after: list[str]) -> tuple[Decoder, Decoder, Plan]:
    """Return a trained model, a model with all of its overrides replaced and its weights, and the plan."""
    old = trained(config(*DECODER, *before))
    return old, *received(old, config(*DECODER, *after))


def received(model: Decoder, built: Config, seed: int = 2, layers: Sequence[int] | None = None) -> tuple[Decoder, Plan]:
    """Return a model with the weights of another model, in float64, and the plan."""
    made = plan(weights_of(model), built.model, None if layers is None else ChosenLayers(tuple(layers)))
    new = Decoder(built.model, seed=None).double().eval()
    set_values(new, built.model, seed, made.tensors)
    return new, made


@torch.no_grad()
def gap(old: Decoder, new: Decoder, n_tokens: int = 16) -> float:
    """Return the largest difference of the logits of the old tokens, relative to the largest logit."""
    expected, found = (logits(model, n_tokens) for model in (old, new))
    return float((found[..., : expected.shape[-1]] - expected).abs().max() / expected.abs().max())


def logits(model: Decoder, n_tokens: int) -> Tensor:
    """Return the logits of a fixed text, for which an encoder reads another text, with segments if the model has them."""
    generator = torch.Generator().manual_seed(0)
    tokens, source = (torch.randint(0, 60, (2, n), generator=generator) for n in (n_tokens, 11))
    more = {} if model.encoder is None else {"source": source}
    if model.config.embedding.segments:
        more["segments"] = tokens % 2
    return model(tokens, **more)


def tiny_trained(*overrides: str) -> Decoder:
    """Return the tiny model with these overrides, as `trained` makes it."""
    return trained(config(*overrides))


def tiny_received(old: Decoder, *overrides: str, layers: Sequence[int] | None = None) -> tuple[Decoder, Plan]:
    """Return the tiny model with these overrides and the weights of a trained one, and the plan. The last override of
    a field counts."""
    last = {override.partition("=")[0]: override for override in overrides}
    return received(old, config(*last.values()), 3, layers)
