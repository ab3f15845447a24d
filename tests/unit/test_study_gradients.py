"""The next-token loss has a gradient for every parameter of the models of archlab's studies, at their own scale."""

import pytest
import torch
import torch.nn.functional as F

from archlab import load_config
from archlab.config.io import studies
from archlab.config.schema import ModelConfig
from archlab.model.decoder import Decoder
from archlab.study.design import arms
from archlab.study.study_file import read_study


@pytest.mark.parametrize("name", studies())
def test_the_loss_reaches_every_parameter(name, monkeypatch):
    """An arm whose router or scale is not trained would be compared as if it were."""
    monkeypatch.setattr("archlab.study.design.tokens_per_byte", lambda data, vocab_size: 0.4)
    models = {arm.config.model.model_dump_json(): arm.config.model for arm in arms(read_study(name)[1])}
    untrained = {arm: names for arm, model in models.items() if (names := untrained_parameters(model))}
    assert untrained == {}


def test_a_router_whose_only_weight_is_always_1_has_no_gradient():
    mixture = [
        "model.n_layers=1",
        "model.mlp.kind=moe",
        "model.mlp.experts=4",
        "model.mlp.active=1",
        "model.mlp.d_ff=16",
    ]
    one = load_config("tiny-llama", *mixture).model
    scaled = load_config("tiny-llama", *mixture, "model.mlp.router.normalise=false").model
    assert untrained_parameters(one) == ["layers.0.mlp.router.weight"]
    assert untrained_parameters(scaled) == []


def untrained_parameters(config: ModelConfig) -> list[str]:
    model, generator = Decoder(config, seed=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # behind a matrix of zeros, no parameter would have a gradient
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    tokens = torch.randint(config.vocab_size, (2, 96), generator=generator)
    source = torch.randint(config.vocab_size, (2, 40), generator=generator) if config.encoder else None
    logits = model(tokens[:, :-1], source=source)
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    # Without rotation, a bias of the keys adds the same number to all scores of a query.
    changes_nothing = config.position.kind != "rope"
    return [
        name
        for name, parameter in model.named_parameters()
        if not (name.endswith(".k.bias") and changes_nothing)
        and (parameter.grad is None or parameter.grad.norm() < 1e-6)
    ]
