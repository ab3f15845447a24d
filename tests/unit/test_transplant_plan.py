"""Trained weights of one config become the initial values of a model with another config."""

import re
from dataclasses import replace

import pytest
import torch

from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.transplant.plan import plan, set_values
from tiny import config
from transplants import DECODER, TOKENS, gap, trained, transplanted, transplanted_to, weights_of


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


@pytest.mark.parametrize(
    ("before", "changes", "fields"),
    [
        (
            ["model.norm.placement=double", "model.norm.unit_offset=true", "model.head.tied=true"],
            ["model.norm.unit_offset=false", "model.norm.weight=false"],
            ["model.norm.weight: .*placement double", "model.norm.weight: .*tied head"],
        ),
        (
            ["model.norm.kind=layernorm", "model.norm.placement=output", "model.head.tied=true"],
            ["model.norm.weight=false", "model.vocab_size=50", "model.mlp.d_ff=72"],
            ["vocab_size: 50", "bias of a norm", "placement output", "tied head", "d_ff: 72"],
        ),
        (
            ["model.attention.qk_norm.kind=rmsnorm"],
            ["model.attention.qk_norm.weight=false", "model.position.pairing=interleaved"],
            ["qk_norm.weight: false", "position.pairing: interleaved"],
        ),
    ],
)
def test_all_changes_that_cannot_be_made_are_named_at_once(before, changes, fields):
    with pytest.raises(UserError) as refused:
        transplanted(before, changes)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(fields)
    assert all(re.search(field, line) for field, line in zip(fields, lines, strict=True)), lines


NO_ATTENTION = "model.attention.kind=none model.position.kind=none"
LATENT = "model.attention={kind: latent, n_heads: 4, kv_rank: 8, nope_dim: 8, rope_dim: 4, v_dim: 8}"
DELTA = "model.mixer={kind: gated_delta, n_key_heads: 4, n_value_heads: 4, key_dim: 8, value_dim: 8}"


@pytest.mark.parametrize(
    ("before", "after", "n_dropped"),
    [
        ("", "model.head.tied=true", 1),
        ("model.head.tied=true", "model.head.tied=false", 0),
        ("model.attention.n_kv_heads=4", "model.attention.n_kv_heads=2", 0),
        ("model.norm.kind=layernorm", "model.norm.bias=false model.attention.qkv_bias=true", 3),
        ("model.norm.kind=layernorm", "model.norm.weight=false model.norm.bias=false model.head.bias=true", 4),
        ("", "model.mlp.kind=moe model.mlp.experts=4 model.mlp.d_ff=64", 0),
        ("", "model.mlp.kind=plain", 6),
        ("model.position.kind=t5", "model.position.shared=false", 0),
        ("model.position.kind=learned", "model.position.kind=rope", 1),
        ("", LATENT, 0),
        ("", f"{DELTA} {NO_ATTENTION}", 0),
        ("", f"model.mixer.kind=rglru {NO_ATTENTION}", 8),
        ("", "model.n_layers=3", 0),
    ],
)
def test_a_trained_tensor_is_dropped_if_no_value_depends_on_it(before, after, n_dropped):
    """Other values of a dropped tensor change no tensor of the new model. Other values of any other tensor do."""
    fields = [field for text in (before, after) for field in re.split(r" (?=model)", text) if field]
    old, _, made = transplanted_to([before] if before else [], fields)
    values, weights = new_values(made), weights_of(old)
    assert len(made.dropped) == n_dropped
    for name, tensor in weights.tensors.items():
        other = replace(
            tensor, read=lambda tensor=tensor: tensor.read() + torch.rand(tensor.shape, dtype=torch.float64)
        )
        again = plan(
            replace(weights, tensors={**weights.tensors, name: other}),
            config(*DECODER, *fields).model,
        )
        is_same = all(torch.equal(value, values[key]) for key, value in new_values(again).items())
        assert is_same == (name in made.dropped), name


def new_values(made):
    return {name: tensor.read() for name, tensor in made.tensors.items()}


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
