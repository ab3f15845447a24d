"""Trained weights of one config become the initial values of a model with another config."""

import pytest
import torch

from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.surgery import pool_kv_heads
from archlab.model.decoder import Decoder
from archlab.transplant.plan import Plan, fill, plan
from archlab.transplant.weights import Architecture, LazyTensor, Weights
from tests.shared.tiny import config

TOKENS = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(0))


def weights_of(model: Decoder) -> Weights:
    tensors = {n: LazyTensor(tuple(x.shape), lambda x=x: x) for n, x in model.state_dict().items()}
    return Weights(Architecture.of(model.config), tensors)


def transplanted(before: Config, after: Config) -> tuple[Decoder, Decoder, Plan]:
    """Return the trained model, the new one with its weights, and the plan."""
    old = Decoder(before.model, seed=1).eval()
    made = plan(weights_of(old), after.model)
    new = Decoder(after.model, seed=2).eval()
    fill(new, made.tensors)
    return old, new, made


def test_the_same_config_keeps_every_tensor():
    old, new, made = transplanted(config(), config())
    assert not made.steps
    assert made.kept == list(old.state_dict())
    torch.testing.assert_close(new(TOKENS), old(TOKENS), rtol=0, atol=0)


def test_heads_are_pooled_as_before():
    old, new, made = transplanted(config("model.attention.n_kv_heads=4"), config("model.attention.n_kv_heads=2"))
    assert made.effect == "approximate"
    torch.testing.assert_close(new(TOKENS), pool_kv_heads(old, 2)(TOKENS), rtol=0, atol=0)


def test_what_no_transformation_makes_is_refused_by_name():
    with pytest.raises(UserError, match=r"embedding\.weight"):
        transplanted(config("model.embedding.width=16"), config("model.embedding.width=24"))
