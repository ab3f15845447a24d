"""The loss trains every part of the models that the studies of archlab compare."""

import pytest
import torch
import torch.nn.functional as F

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


def untrained_parameters(config: ModelConfig) -> list[str]:
    model, generator = Decoder(config, seed=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # behind a matrix of zeros, no parameter would have a gradient
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    tokens = torch.randint(config.vocab_size, (2, 96), generator=generator)
    source = torch.randint(config.vocab_size, (2, 40), generator=generator) if config.encoder else None
    logits = model(tokens[:, :-1], source=source)
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return [
        name
        for name, parameter in model.named_parameters()
        # Without rotation, a bias of the keys adds the same number to all scores of a query, which changes nothing.
        if not name.endswith(".k.bias") and (parameter.grad is None or parameter.grad.norm() < 1e-6)
    ]
