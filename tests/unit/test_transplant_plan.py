"""Trained weights of one config become the initial values of a model with another config."""

import pytest
import torch

from archlab.errors import UserError
from transplants import TOKENS, transplanted


def test_the_same_config_keeps_every_tensor():
    old, new, made = transplanted([], [])
    assert not made.steps
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
