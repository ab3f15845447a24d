"""Models in float64 whose parameters are all random, and their transplants."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archlab.model.decoder import Decoder
from archlab.transplant.plan import Plan, fill, plan
from archlab.transplant.weights import Architecture, LazyTensor, Weights
from tests.shared.tiny import config

_DRAW = torch.Generator().manual_seed(0)
TOKENS = torch.randint(0, 300, (2, 14), generator=_DRAW)
SOURCE = torch.randint(0, 300, (2, 9), generator=_DRAW)


def trained(*overrides: str) -> Decoder:
    """Return the tiny model in float64. Norms, biases and corrections are random, too, as after training."""
    model = Decoder(config(*overrides).model, seed=1).double().eval()
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, x in model.state_dict().items():
            if x.ndim == 1 and not name.endswith(("A_log", "dt_bias", "Lambda")):
                x += 0.3 * torch.randn(x.shape, generator=draw, dtype=torch.float64)
    return model


def weights_of(model: Decoder) -> Weights:
    tensors = {n: LazyTensor(tuple(x.shape), lambda x=x: x) for n, x in model.state_dict().items()}
    return Weights(Architecture.of(model.config), tensors)


def transplanted(old: Decoder, *overrides: str, layers: Sequence[int] | None = None) -> tuple[Decoder, Plan]:
    """Return the model that the overrides describe, with the weights of a trained one, and the plan. The last override
    of a field counts."""
    wanted = config(*{override.partition("=")[0]: override for override in overrides}.values()).model
    made = plan(weights_of(old), wanted, layers)
    new = Decoder(wanted, seed=3).double().eval()
    fill(new, made.tensors)
    return new, made


@torch.no_grad()
def logits(model: Decoder) -> Tensor:
    more: dict[str, Any] = {} if model.encoder is None else {"source": SOURCE}
    if model.config.embedding.segments:
        more["segments"] = TOKENS % 2
    return model(TOKENS, **more)


def error(new: Decoder, old: Decoder) -> float:
    """Return the largest change of a logit, relative to the largest logit."""
    before = logits(old)
    return ((logits(new) - before).abs().max() / before.abs().max()).item()
