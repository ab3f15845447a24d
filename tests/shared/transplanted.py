"""Small trained models, and the models that receive their weights."""

import torch

from archlab.config.schema import Config
from archlab.model.decoder import Decoder
from archlab.model.roles import roles_of
from archlab.transplant.plan import Plan, fill, plan
from archlab.transplant.weights import Architecture, LazyTensor, Weights

TOKENS = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(0))


def trained(config: Config, seed: int = 1) -> Decoder:
    """Return a model in float64 whose norms, biases and decays also have values of their own, as after training."""
    model, generator = Decoder(config.model, seed=seed).double().eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter, _, constant in roles_of(model):
            if constant is not None:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter += 0.3 * noise.clamp(-2, 2)
    return model


def weights_of(model: Decoder) -> Weights:
    """Return the weights of a model."""
    tensors = {n: LazyTensor(tuple(x.shape), lambda x=x: x) for n, x in model.state_dict().items()}
    return Weights(Architecture.of(model.config), tensors)


def transplanted(model: Decoder, config: Config, seed: int = 2) -> tuple[Decoder, Plan]:
    """Return a model of the config with the weights of another model, in float64, and the plan of its weights."""
    made = plan(weights_of(model), config.model)
    new = Decoder(config.model, seed=seed).double().eval()
    fill(new, made.tensors)
    return new, made
