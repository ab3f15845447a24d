"""Trained weights of one config become the initial values of a model with another config."""

import pytest
import torch

from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.transplant.plan import plan, set_values
from tiny import config
from transplants import DECODER, TOKENS, gap, trained, transplanted, weights_of


def test_the_same_config_keeps_every_tensor():
    old, new, made = transplanted([], [])
    assert not made.changes
    assert made.kept == list(old.state_dict())
    torch.testing.assert_close(new(TOKENS), old(TOKENS), rtol=0, atol=0)


def test_pooled_heads_are_means_of_neighbors():
    old, new, made = transplanted(["model.attention.n_kv_heads=4"], ["model.attention.n_kv_heads=2"])
    assert made.effect == "approximate"
    heads = old.layers[1].attention.k.weight.unflatten(0, (2, 2, -1))
    torch.testing.assert_close(new.layers[1].attention.k.weight, heads.mean(1).flatten(0, 1), rtol=0, atol=0)


def test_what_no_transformation_makes_is_refused_by_name():
    with pytest.raises(UserError, match=r"embedding\.weight"):
        transplanted(["model.embedding.width=16"], ["model.embedding.width=24"])


def test_weights_in_bfloat16_are_changed_in_float32():
    """Folding would otherwise round every column to bfloat16 again."""
    old = trained(config(*DECODER, "model.head.tied=false")).to(torch.bfloat16)
    made = plan(weights_of(old), config(*DECODER, "model.head.tied=false", "model.norm.weight=false").model)
    new = Decoder(config(*DECODER, "model.head.tied=false", "model.norm.weight=false").model, seed=None)
    set_values(new, new.config, 0, made.tensors)
    assert gap(old.float(), new) < 1e-5
