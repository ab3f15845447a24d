"""Another number of layers: new layers leave the logits as they are, and chosen layers are the ones that were named."""

import math

import pytest
import torch

from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.transplant.plan import plan
from archlab.transplant.similarity import angular_distances, least_changing_block
from tests.shared.tiny import config as tiny
from transplants import SOURCE, TOKENS, gap, tiny_received, tiny_trained, weights_of

LOCAL_AND_FULL = (
    "model.layers.local={attention.window: 4}",
    "model.layers.full={position.kind: none}",
    "model.layers.pattern=[local, local, local, full]",
)
HYBRID = (
    "model.layers.mix={attention.kind: none, mixer.kind: gated_delta, mixer.key_dim: 8}",
    "model.layers.full={}",
    "model.layers.pattern=[mix, full]",
)

EXACT = {
    "pre": (),
    "tied layer norm": ("model.head.tied=true", "model.norm.kind=layernorm", "model.mlp.bias=true"),
    "double": ("model.norm.placement=double",),
    "output with an offset": ("model.norm.placement=output", "model.norm.unit_offset=true"),
    "output layer norm": ("model.norm.placement=output", "model.norm.kind=layernorm"),
    "double without weights": ("model.norm.placement=double", "model.norm.weight=false"),
    "double dyt": ("model.norm.placement=double", "model.norm.kind=dyt"),
    "double scale norm": ("model.norm.placement=double", "model.norm.kind=scalenorm"),
    "parallel": ("model.block.parallel=shared", "model.attention.out_bias=true"),
    "experts": ("model.mlp.kind=moe", "model.mlp.bias=true", "model.mlp.shared={bias: true, gate: true}"),
    "latent": ("model.attention={kind: latent, kv_rank: 8, nope_dim: 4, rope_dim: 4, out_bias: true}",),
    "mamba": (
        "model.attention.kind=none",
        "model.position.kind=none",
        "model.mixer={kind: mamba2, head_dim: 8, d_state: 8, out_bias: true}",
    ),
    "short convolution": (
        "model.attention.kind=none",
        "model.position.kind=none",
        "model.mixer={kind: short_conv, bias: true}",
    ),
    "rglru": ("model.attention.kind=none", "model.position.kind=none", "model.mixer.kind=rglru"),
    "relative positions": ("model.position={kind: t5, shared: false}",),
    "multipliers": ("model.block.attention_multiplier=0.5", "model.block.mlp_multiplier=2.0"),
}


@pytest.mark.parametrize("overrides", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("n_layers", [3, 4, 7])
def test_new_layers_change_nothing(overrides, n_layers):
    old = tiny_trained(*overrides)
    new, made = tiny_received(old, *overrides, f"model.n_layers={n_layers}")
    assert made.effect == "exact"
    assert not made.initialized
    assert gap(old, new) < 1e-10


@pytest.mark.parametrize("placement", ["pre", "double", "output"])
def test_every_branch_of_a_new_layer_can_learn(placement):
    """If two factors of a branch were both 0, neither would ever have a gradient."""
    overrides = (f"model.norm.placement={placement}",)
    new, _ = tiny_received(tiny_trained(*overrides), *overrides, "model.n_layers=3")
    new(TOKENS).square().mean().backward()
    for branch in ("attention", "mlp"):
        of_branch = [p for n, p in new.layers[2].named_parameters() if n.startswith(branch)]
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in of_branch)


def test_new_layers_are_spread_evenly_and_copied_from_the_layer_before():
    old = tiny_trained("model.n_layers=4")
    new, made = tiny_received(old, "model.n_layers=6")
    assert "layers 2, 5 are new" in made.changes[0].detail
    up_new, up_old = ([layer.mlp.up.weight for layer in model.layers] for model in (new, old))
    for i, j in enumerate([0, 1, 1, 2, 3, 3]):
        torch.testing.assert_close(up_new[i], up_old[j], rtol=0, atol=0)
    down = [layer.mlp.down.weight.abs().max().item() for layer in new.layers]
    assert [value == 0 for value in down] == [False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("n_layers", "detail"),
    [
        (3, "2 layers to 3; layer 2 is new, and its output is 0"),
        (4, "2 layers to 4; layers 1, 3 are new, and their outputs are 0"),
    ],
)
def test_one_new_layer_is_reported_in_the_singular(n_layers, detail):
    _, made = tiny_received(tiny_trained("model.n_layers=2"), f"model.n_layers={n_layers}")
    assert made.changes[0].detail == detail


def test_in_a_pattern_trained_layers_keep_their_kind():
    old = tiny_trained(*LOCAL_AND_FULL, "model.n_layers=4")
    new, made = tiny_received(old, *LOCAL_AND_FULL, "model.n_layers=8")
    assert made.effect == "exact"
    assert gap(old, new) < 1e-10
    full = [new.layers[i].attention.q.weight for i in (3, 7)]
    torch.testing.assert_close(full[0], full[1], rtol=0, atol=0)


def test_in_a_hybrid_new_layers_are_copies_of_their_own_kind():
    old = tiny_trained(*HYBRID, "model.n_layers=4")
    new, made = tiny_received(old, *HYBRID, "model.n_layers=6")
    assert (made.effect, made.initialized) == ("exact", ())
    assert gap(old, new) < 1e-10


def test_new_layers_of_a_new_kind_begin_from_random_values_without_output():
    old = tiny_trained("model.n_layers=2")
    new, made = tiny_received(old, *HYBRID, "model.n_layers=4")
    assert made.effect == "exact"
    assert {name.split(".")[1] for name in made.initialized} == {"0", "2"}
    assert gap(old, new) < 1e-10


def test_layers_of_an_encoder_are_added_too():
    old = tiny_trained("model.encoder.n_layers=2", "model.norm.kind=layernorm")
    deeper = ("model.encoder.n_layers=3", "model.n_layers=3")
    new, made = tiny_received(old, "model.norm.kind=layernorm", *deeper)
    assert made.effect == "exact"
    assert gap(old, new) < 1e-10


@pytest.mark.parametrize("placement", ["post", "carried"])
def test_new_layers_that_would_normalize_the_stream_are_refused(placement):
    overrides = (f"model.norm.placement={placement}",)
    with pytest.raises(UserError, match=rf"model\.n_layers: 3.*norm\.placement={placement}.*train\.start_layers"):
        tiny_received(tiny_trained(*overrides), *overrides, "model.n_layers=3")


def test_chosen_layers_are_the_ones_that_were_named():
    old = tiny_trained("model.n_layers=4")
    new, made = tiny_received(old, "model.n_layers=5", layers=[0, 2, 1, 2, 3])
    assert made.effect == "approximate"
    stream = old.embedding(TOKENS)
    for j in (0, 2, 1, 2, 3):
        stream = _layer(old, j, stream)
    expected = old.head(old.norm(stream), old.embedding.weight)
    torch.testing.assert_close(new(TOKENS), expected, rtol=1e-10, atol=1e-10)


def test_a_layer_at_another_place_is_kept_and_a_left_out_one_is_dropped():
    old = tiny_trained("model.n_layers=4")
    _, made = tiny_received(old, "model.n_layers=3", layers=[0, 3, 2])
    of_layer = [name for name in old.state_dict() if name.startswith("layers.1.")]
    assert len(of_layer) == 9
    assert [*made.dropped] == of_layer
    assert {*made.kept} == {*made.tensors}
    assert made.counts() == f"{3 + 3 * 9} kept, 9 dropped"


def test_a_repeated_layer_is_kept_once():
    _, made = tiny_received(tiny_trained(), "model.n_layers=3", layers=[0, 1, 1])
    assert not made.dropped
    assert {name for name in made.tensors if name not in made.kept} == {
        name for name in made.tensors if name.startswith("layers.2.")
    }


def test_trained_layers_that_make_room_for_new_ones_are_kept():
    old = tiny_trained()
    _, made = tiny_received(old, "model.n_layers=4")
    assert not made.dropped
    assert sum(name.startswith("layers.") for name in made.kept) == 2 * 9
    assert not any(name.startswith(("layers.1.", "layers.3.")) for name in made.kept)


def test_all_layers_in_order_change_nothing():
    _, made = tiny_received(tiny_trained(), layers=[0, 1])
    assert not made.changes


@pytest.mark.parametrize(
    ("n_layers", "layers", "message"),
    [
        (1, None, r"model\.n_layers: 1, and the trained weights have 2; set train\.start_layers"),
        (1, [0, 1], r"train\.start_layers: 2 layers; allowed: 1"),
        (2, [0, 2], r"train\.start_layers: layer 2; allowed: 0 to 1"),
    ],
)
def test_a_wrong_choice_is_refused(n_layers, layers, message):
    with pytest.raises(UserError, match=message):
        tiny_received(tiny_trained(), f"model.n_layers={n_layers}", layers=layers)


def test_an_encoder_keeps_its_layers():
    with pytest.raises(UserError, match=r"model\.encoder\.n_layers: 1.*allowed: 2 or more"):
        tiny_received(tiny_trained("model.encoder={n_layers: 2}"), "model.encoder={n_layers: 1}")
    with pytest.raises(UserError, match=r"model\.encoder: null"):
        tiny_received(tiny_trained("model.encoder={n_layers: 2}"))


def test_distances_are_those_of_the_paper():
    model = tiny_trained("model.n_layers=5")
    inputs = [model.embedding(TOKENS)]
    for j in range(4):
        inputs.append(_layer(model, j, inputs[-1]))
    for n in (1, 2, 3):
        expected = []
        for before, after in zip(inputs, inputs[n:], strict=False):
            angles = []
            for x, y in zip(before[:, -1].tolist(), after[:, -1].tolist(), strict=True):
                product = sum(a * b for a, b in zip(x, y, strict=True))
                angles.append(math.acos(product / math.hypot(*x) / math.hypot(*y)) / math.pi)
            expected.append(sum(angles) / len(angles))
        assert angular_distances(model, TOKENS, n).tolist() == pytest.approx(expected, rel=1e-10)


def test_the_block_that_changes_the_stream_least_is_left_out():
    model = tiny_trained("model.n_layers=6")
    with torch.no_grad():
        for j in (2, 3):
            for name, x in model.layers[j].named_parameters():
                if name in ("attention.out.weight", "mlp.down.weight"):
                    x *= 1e-3
    chosen = least_changing_block(model, TOKENS, 4)
    assert chosen.layers == (0, 1, 4, 5)
    assert chosen.distance == angular_distances(model, TOKENS, 2)[2].item() < 0.01
    made = plan(weights_of(model), tiny("model.n_layers=4").model, chosen)
    assert (
        f"the angular distance across the layers that are left out is {chosen.distance:.2g}" in made.changes[0].detail
    )
    assert least_changing_block(model, TOKENS, 6).layers == (0, 1, 2, 3, 4, 5)
    assert least_changing_block(model, TOKENS, 1).layers == (5,)
    with pytest.raises(UserError, match=r"model\.n_layers: 7"):
        least_changing_block(model, TOKENS, 7)
    with pytest.raises(UserError, match=r"train\.start_layers: similar"):
        least_changing_block(tiny_trained("model.encoder={n_layers: 1}"), SOURCE, 1)


@torch.no_grad()
def _layer(model: Decoder, j: int, stream: torch.Tensor) -> torch.Tensor:
    """Return the output of one layer. The model has no windows, so its only other input are the positions."""
    contexts: list = []
    hook = model.layers[j].register_forward_pre_hook(lambda _, arguments: contexts.append(arguments[1]))
    model(TOKENS)
    hook.remove()
    return model.layers[j](stream, contexts[0])
