"""Changes of trained weights keep the promise of their class, state their errors, and count new tensors as new."""

import math
import re

import numpy as np
import pytest
import torch

from archlab.model.decoder import Decoder
from archlab.transplant.catalog import ENTRIES
from archlab.transplant.weight_errors import relative_error
from tests.shared.tiny import config
from transplants import gap, received, tiny_received, tiny_trained, trained

WINDOW = "model.attention.window=16"
HEADS = "model.attention.n_heads=8 model.attention.n_kv_heads=4"
MOE = "model.mlp.kind=moe model.mlp.experts=4 model.mlp.active=2 model.mlp.d_ff=64"
SCALING = (
    "model.position.scaling.original_max_seq_len=%d model.position.scaling.factor=%s model.position.scaling.kind=%s"
)
LONGROPE = (
    f"{SCALING % (16, 1, 'longrope')} model.position.scaling.short_factor=[%s] model.position.scaling.long_factor=[%s]"
)
LATENT = "model.attention={kind: latent, n_heads: 4, kv_rank: 8, nope_dim: 8, rope_dim: 4, v_dim: 8}"
DELTA = "{kind: gated_delta, n_key_heads: 4, n_value_heads: 4, key_dim: 8, value_dim: 8}"
KIMI = DELTA.replace("gated_delta", "kimi_delta")
MAMBA2 = "{kind: mamba2, n_heads: 4, head_dim: 8, d_state: 8, n_groups: 4}"


def hybrid(mixer: str) -> str:
    return (
        f"model.layers={{full: {{}}, recurrent: {{attention.kind: none, mixer: {mixer}}}, pattern: [full, recurrent]}}"
    )


CLASSES = {
    "exact": {
        "untied head": ("model.head.tied=true", "model.head.tied=false"),
        "larger vocabulary": ("", "model.vocab_size=310"),
        "folded norm weights": ("model.head.tied=true", "model.norm.weight=false model.head.tied=false"),
        "more layers": ("", "model.n_layers=4"),
        "sparse upcycling": ("", f"{MOE} model.mlp.router.normalise=true"),
        "copied features": ("", f"model.d_model=64 {HEADS} model.mlp.d_ff=128"),
        "window": ("", WINDOW),
        "dynamic NTK": ("", SCALING % (16, 4, "dynamic")),
        "LongRoPE": ("", LONGROPE % ("1,1,1,1", "1,1,1,1")),
        "new output gate": ("", "model.attention.gate={activation: softplus}"),
    },
    "approximate": {
        "fewer key/value heads": ("", "model.attention.n_kv_heads=1"),
        "latent attention": ("", LATENT),
        "position interpolation": ("", "model.position.scaling={kind: linear, factor: 2.0}"),
        "YaRN": ("model.position.theta=100", f"model.position.theta=100 {SCALING % (8, 4, 'yarn')}"),
        "LongRoPE": ("", LONGROPE % ("1,1,1,2", "1,1,1,4")),
        "late QK-norm": ("", "model.attention.qk_norm.kind=rmsnorm"),
        "tied head": ("", "model.head.tied=true"),
        "attention sinks": ("", "model.attention.sinks=true"),
        "soft cap": ("", "model.attention.softcap=1.0"),
    },
    "new": {mixer: ("", hybrid(mixer)) for mixer in (DELTA, KIMI, MAMBA2, "{kind: short_conv}")},
}
"""Changes of each class: overrides before and after, by the name of the change."""


@pytest.mark.parametrize(("effect", "name"), [(effect, name) for effect, rows in CLASSES.items() for name in rows])
def test_a_change_keeps_the_promise_of_its_class(effect: str, name: str) -> None:
    before, after = (re.split(r" (?=model)", text) if text else [] for text in CLASSES[effect][name])
    old = tiny_trained(*before)
    new, made = tiny_received(old, *before, *after)
    assert made.effect == effect, made.changes
    assert (name if effect != "new" else "recurrent mixer") in {change.name for change in made.changes}
    assert (gap(old, new) < 1e-10) == (effect == "exact")


def test_left_out_layers_are_approximate() -> None:
    old = tiny_trained("model.n_layers=3")
    new, made = tiny_received(old, "model.n_layers=2", layers=[0, 2])
    assert made.effect == "approximate"
    assert [change.name for change in made.changes] == ["chosen layers"]
    assert gap(old, new) > 1e-6


def test_names_of_changes_are_unique() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len({*names}) == len(names)


def of_layers(model: Decoder, name: str) -> list[np.ndarray]:
    return [layer.get_parameter(name).detach().numpy() for layer in model.layers]


@pytest.mark.parametrize("offset", ["false", "true"])
def test_pooling_states_the_distance_of_heads_from_their_means(offset: str) -> None:
    norm = f"model.attention.qk_norm={{kind: rmsnorm, scope: each_head, unit_offset: {offset}}}"
    fields = ("model.attention.qkv_bias=true", norm)
    old = trained(config("model.attention.n_kv_heads=4", *fields))
    _, made = received(old, config("model.attention.n_kv_heads=2", *fields))
    expected = {}
    for part in ("k.weight", "v.weight", "k.bias", "v.bias", "k_norm.norm.weight"):
        errors = []
        for stored in of_layers(old, f"attention.{part}"):
            heads = stored.reshape(4, -1) + (part.startswith("k_norm") and offset == "true")
            means = np.stack([heads[:2].mean(0), heads[:2].mean(0), heads[2:].mean(0), heads[2:].mean(0)])
            errors.append(np.linalg.norm(means - heads) / np.linalg.norm(heads))
        expected[part] = max(errors)
    (change,) = made.changes
    assert change.errors() == pytest.approx(expected, rel=1e-6)
    assert "; largest relative error: " in change.report()
    assert f"k.weight {expected['k.weight']:.2g}" in change.report()


def test_tying_states_the_distance_of_the_head_from_the_embedding() -> None:
    old = tiny_trained()
    _, made = tiny_received(old, "model.head.tied=true")
    head, embedding = (x.detach().numpy() for x in (old.head.weight, old.embedding.weight))
    expected = np.linalg.norm(head - embedding) / np.linalg.norm(head)
    (change,) = made.changes
    assert change.errors() == {"head.weight": pytest.approx(expected, rel=1e-10)}
    assert change.report().endswith(f"; largest relative error: head.weight {expected:.2g}")


def test_a_lost_bias_of_a_norm_states_the_error_of_its_output() -> None:
    """The error over many random inputs with variance 1, in the layer in which it is largest."""
    old = tiny_trained("model.norm.kind=layernorm")
    _, made = tiny_received(old, "model.norm.kind=layernorm", "model.norm.bias=false")
    draw = np.random.default_rng(0).standard_normal((20000, 32))
    errors = []
    for name, module in old.named_modules():
        if name == "norm" or name.endswith("_norms.before"):
            weight, bias = (x.detach().numpy() for x in (module.weight, module.bias))
            output = draw * weight + bias
            errors.append(math.sqrt((bias**2).sum() / (output**2).sum(1).mean()))
    (change,) = made.changes
    assert change.errors() == {"output of a norm": pytest.approx(max(errors), rel=0.01)}


def test_a_change_without_errors_reports_its_detail() -> None:
    _, made = tiny_received(tiny_trained(), WINDOW)
    assert [change.report() for change in made.changes] == [change.detail for change in made.changes]


def test_the_error_of_zeros() -> None:
    zeros, ones = torch.zeros(3, 2), torch.ones(3, 2)
    assert (relative_error(zeros, zeros), relative_error(zeros, ones), relative_error(ones, zeros)) == (0, math.inf, 1)
    rows = torch.randn(9000, 2, generator=torch.Generator().manual_seed(0))
    assert relative_error(rows, 3 * rows) == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "new", "changed"),
    [
        ("model.attention.gate.bias=true", ["attention.gate.weight", "attention.gate.bias"], ["attention.out.weight"]),
        ("model.mlp.bias=true", ["mlp.up.bias", "mlp.gate.bias", "mlp.down.bias"], []),
        (MOE, ["mlp.router.weight"], ["mlp.experts.up", "mlp.experts.gate", "mlp.experts.down"]),
    ],
)
def test_tensors_that_do_not_depend_on_the_weights_count_as_new(change: str, new: list, changed: list) -> None:
    old = tiny_trained()
    _, made = tiny_received(old, *change.split())
    assert {*made.new} == {f"layers.{i}.{name}" for i in (0, 1) for name in new}
    transformed = {name for name, tensor in made.tensors.items() if tensor.changes and tensor.is_trained}
    assert transformed == {f"layers.{i}.{name}" for i in (0, 1) for name in changed}
    kept = len(made.kept)
    counts = [f"{kept} kept", *([f"{2 * len(changed)} changed"] if changed else []), f"{2 * len(new)} new"]
    assert made.counts().startswith(", ".join(counts))
