"""A wider model whose features are copies: the logits stay the same, or the field that prevents it is named."""

import re

import pytest
import torch

from archlab.errors import UserError
from transplants import TOKENS, gap, tiny_received, tiny_trained

LATENT = (
    "model.attention={kind: latent, nope_dim: 4, rope_dim: 4, v_dim: 6}",
    "model.attention.kv_rank=8",
    "model.attention.out_bias=true",
    "model.attention.qkv_bias=true",
)
NO_ATTENTION = ("model.attention.kind=none", "model.position.kind=none")
MAMBA = (*NO_ATTENTION, "model.mixer={kind: mamba2, head_dim: 4, d_state: 8, in_bias: true, out_bias: true}")
DELTA = (*NO_ATTENTION, "model.mixer={kind: gated_delta, key_dim: 4, value_dim: 6}")
KIMI = (*NO_ATTENTION, "model.mixer={kind: kimi_delta, key_dim: 4, value_dim: 6}")
RGLRU = (*NO_ATTENTION, "model.mixer.kind=rglru", "model.mixer.lru_width=24", "model.mixer.n_heads=2")
HYBRID = (
    "model.layers.mix={attention.kind: none, mixer: {kind: mamba2, head_dim: 8, n_heads: 4}}",
    "model.layers.full={}",
    "model.layers.pattern=[mix, full]",
)
EXPERTS = (
    "model.mlp={kind: moe, experts: 4, active: 2, bias: true}",
    "model.mlp.d_ff=16",
    "model.mlp.shared={gate: true, bias: true}",
    "model.mlp.shared.d_ff=24",
)

D_MODEL = ("model.d_model=64",)
HEADS = ("model.attention.n_heads=8",)
ALL = ("model.d_model=64", "model.attention.n_heads=12", "model.attention.n_kv_heads=4", "model.mlp.d_ff=192")

SOURCES = {
    "plain": (),
    "plain mlp with biases": ("model.mlp={kind: plain, bias: true, sub_norm: true}",),
    "layer norm": ("model.norm.kind=layernorm", "model.norm.placement=double"),
    "scale norm": ("model.norm.kind=scalenorm", "model.mlp.sub_norm=true", "model.attention.sub_norm=true"),
    "partial rms norm": ("model.norm={kind: prmsnorm, share: 0.25}", "model.attention.sub_norm=true"),
    "dynamic tanh": ("model.norm.kind=dyt", "model.norm.placement=output"),
    "post norm": ("model.norm.placement=post", "model.norm.kind=layernorm"),
    "carried norm with an offset": ("model.norm={placement: carried, unit_offset: true}",),
    "all biases": ("model.attention.qkv_bias=true", "model.attention.out_bias=true", "model.head.bias=true"),
    "parallel": ("model.block.parallel=separate", "model.attention.gate={per: head, bias: true}"),
    "gate and sinks": ("model.attention.gate={bias: true}", "model.attention.sinks=true"),
    "one kv head": ("model.attention.n_kv_heads=1",),
    "qk norm of heads": ("model.attention.qk_norm={kind: layernorm}",),
    "qk norm of each head": ("model.attention.qk_norm={kind: layernorm, scope: each_head}",),
    "qk norm of the width": ("model.attention.qk_norm={kind: rmsnorm, scope: width}",),
    "other v_dim": ("model.attention.v_dim=4",),
    "shared t5": ("model.position.kind=t5",),
    "own t5": ("model.position={kind: t5, shared: false}",),
    "shaw": ("model.position.kind=shaw",),
    "learned": ("model.position.kind=learned", "model.embedding.segments=2", "model.embedding.norm=sum"),
    "narrow": ("model.embedding.width=16", "model.embedding.norm=true"),
    "narrow and tied": ("model.embedding.width=16", "model.head.tied=true", "model.position.kind=learned"),
    "narrow sum": ("model.embedding={width: 16, widened: sum, norm: sum, segments: 2}", "model.head.transform={}"),
    "narrow sinusoids": ("model.embedding={width: 16, widened: sum}", "model.position.kind=sinusoidal"),
    "head transform": ("model.head.transform={activation: xielu}", "model.norm.kind=layernorm"),
    "scaled embedding": ("model.embedding.scale=sqrt_d_model", "model.head.bias=true", "model.head.softcap=5.0"),
    "mup": ("model.mup.base_width=16", "model.embedding.norm=true"),
    "mup, tied": ("model.mup.base_width=16", "model.head.tied=true", "model.embedding.scale=sqrt_d_model"),
    "xielu": ("model.mlp.activation=xielu", "model.mlp.clamp=1.0"),
    "encoder": ("model.encoder.n_layers=2", "model.encoder.position.kind=t5", "model.norm.kind=layernorm"),
    "scaled streams, normed values": (
        "model.block.stream_scale=true",
        "model.attention.v_norm.eps=0.01",
        "model.attention.keys_as_values=true",
    ),
    "windows": (
        "model.layers.local={attention.window: 4}",
        "model.layers.full={mlp.bias: true}",
        "model.layers.pattern=[local, full]",
    ),
}

OTHERS = {
    "latent": (LATENT, (*D_MODEL, *HEADS)),
    "latent with narrow queries": ((*LATENT, "model.attention.q_rank=12"), (*D_MODEL, *HEADS)),
    "transformer xl": (("model.position.kind=transformer_xl",), HEADS),
    "experts": (EXPERTS, (*D_MODEL, "model.mlp.d_ff=32", "model.mlp.shared.d_ff=72")),
    "experts in a latent space": (
        (*EXPERTS, "model.mlp.latent={width: 10, bias: true}"),
        (*D_MODEL, "model.mlp.d_ff=32", "model.mlp.shared.d_ff=72"),
    ),
    "norms of experts": (
        (*EXPERTS, "model.mlp.router={norm: true, expert_scale: true, bias: true}", "model.mlp.own_norms=true"),
        (*D_MODEL, "model.mlp.d_ff=32", "model.mlp.shared.d_ff=72"),
    ),
    "mamba 1": (
        (*NO_ATTENTION, "model.mixer={kind: mamba, d_state: 4, dt_rank: 3}", "model.mixer.inner_width=20"),
        (*D_MODEL, "model.mixer.inner_width=60"),
    ),
    "mamba 1 with norms": (
        (
            *NO_ATTENTION,
            "model.mixer={kind: mamba, dt_rank: 3, in_bias: true, out_bias: true, inner_norm: {kind: rmsnorm}}",
        ),
        (*D_MODEL, "model.mixer.inner_width=128"),
    ),
    "mamba": ((*MAMBA, "model.mixer.n_heads=4"), (*D_MODEL, "model.mixer.n_heads=12")),
    "mamba with groups": (
        (*MAMBA, "model.mixer.n_heads=4", "model.mixer.n_groups=2", "model.mixer.norm.kind=none"),
        (*D_MODEL, "model.mixer.n_heads=12", "model.mixer.n_groups=4"),
    ),
    "gated delta": (
        (*DELTA, "model.mixer.n_key_heads=2", "model.mixer.n_value_heads=4"),
        (*D_MODEL, "model.mixer.n_key_heads=4", "model.mixer.n_value_heads=8"),
    ),
    "more value heads": (
        (*DELTA, "model.mixer.n_key_heads=2", "model.mixer.n_value_heads=4"),
        ("model.mixer.n_value_heads=12",),
    ),
    "kimi delta": (
        (*KIMI, "model.mixer.n_key_heads=2", "model.mixer.n_value_heads=4"),
        (*D_MODEL, "model.mixer.n_key_heads=4", "model.mixer.n_value_heads=8"),
    ),
    "kimi delta of full rank": (
        (*KIMI, "model.mixer.n_key_heads=2", "model.mixer.low_rank=false"),
        (*D_MODEL, "model.mixer.n_key_heads=6", "model.mixer.n_value_heads=6"),
    ),
    "rglru": (RGLRU, (*D_MODEL, "model.mixer.lru_width=48")),
    "rglru with groups": (RGLRU, (*D_MODEL, "model.mixer.lru_width=72", "model.mixer.n_heads=6")),
    "short convolution": ((*NO_ATTENTION, "model.mixer={kind: short_conv, bias: true}"), ("model.d_model=96",)),
    "tied": (("model.head.tied=true", "model.head.bias=true"), (*D_MODEL, "model.head.scale=0.5")),
    "hybrid": (
        HYBRID,
        (*D_MODEL, "model.n_layers=4"),
    ),
}


@pytest.mark.parametrize("wider", [D_MODEL, HEADS, ALL], ids=["d_model", "heads", "all"])
@pytest.mark.parametrize("overrides", SOURCES.values(), ids=SOURCES)
def test_a_wider_model_has_the_same_logits(overrides, wider):
    old = tiny_trained(*overrides)
    new, made = tiny_received(old, *overrides, *wider)
    assert made.effect == "exact"
    assert not made.initialized
    assert gap(old, new) < 1e-10


@pytest.mark.parametrize(("overrides", "wider"), OTHERS.values(), ids=OTHERS)
def test_other_components_are_widened_too(overrides, wider):
    test_a_wider_model_has_the_same_logits(overrides, wider)


def test_copies_are_adjacent_and_the_parts_of_a_weight_add_up_to_it():
    old = tiny_trained()
    new, _ = tiny_received(old, "model.mlp.d_ff=192", "model.attention.n_heads=8")
    mlp, wide_mlp = old.layers[0].mlp, new.layers[0].mlp
    torch.testing.assert_close(wide_mlp.up.weight, mlp.up.weight.repeat_interleave(3, 0), rtol=0, atol=0)
    torch.testing.assert_close(wide_mlp.down.weight.unflatten(1, (-1, 3)).sum(-1), mlp.down.weight)
    heads, wide_heads = old.layers[0].attention, new.layers[0].attention
    q_of_heads = heads.q.weight.unflatten(0, (4, 8))
    torch.testing.assert_close(wide_heads.q.weight.unflatten(0, (4, 2, 8))[:, 1], q_of_heads, rtol=0, atol=0)
    torch.testing.assert_close(wide_heads.out.weight.unflatten(1, (4, 2, 8)).sum(2).flatten(1), heads.out.weight)


def test_copies_become_different_in_training():
    """With parts of equal size, the gradients of copies would be equal, and the copies would stay equal."""
    new, _ = tiny_received(tiny_trained(), *ALL)
    new(TOKENS).square().mean().backward()
    layer = new.layers[0]
    by_copy = {
        "hidden units": layer.mlp.up.weight.grad.unflatten(0, (-1, 3)),
        "heads": layer.attention.q.weight.grad.unflatten(0, (4, 3, 8)),
        "stream": new.embedding.weight.grad.T.unflatten(0, (-1, 2)),
    }
    for name, gradient in by_copy.items():
        a, b = gradient[:, 0].flatten(), gradient[:, 1].flatten()
        assert torch.cosine_similarity(a, b, dim=0) < 0.95, name


REFUSED = {
    "d_model": ((), ("model.d_model=48",), r"model\.d_model: 48, .* have 32; allowed: 32 or a multiple"),
    "d_ff": ((), ("model.mlp.d_ff=72",), r"model\.mlp\.d_ff: 72, .* have 64"),
    "fewer heads": ((), ("model.attention.n_heads=2",), r"model\.attention\.n_heads: 2, .* have 4"),
    "head_dim": ((), ("model.attention.head_dim=16",), r"model\.attention\.head_dim: 16, .*allowed: 8"),
    "kv_rank": (LATENT, ("model.attention.kv_rank=16",), r"model\.attention\.kv_rank: 16, .*allowed: 8"),
    "tied": (("model.head.tied=true",), D_MODEL, r"model\.head\.scale: 1; .* by 2; allowed: 0\.5, or an untied"),
    "alibi": (("model.position.kind=alibi",), HEADS, r"model\.attention\.n_heads: 8; .*alibi.*allowed: 4"),
    "sinusoids": (("model.position.kind=sinusoidal",), D_MODEL, r"model\.d_model: 64; .*sinusoidal"),
    "transformer xl": (("model.position.kind=transformer_xl",), D_MODEL, r"model\.d_model: 64; .*transformer_xl"),
    "share": (
        ("model.norm={kind: prmsnorm, share: 0.1}",), D_MODEL, r"model\.norm\.share: 0\.1 of 64 .* is 7 .* 8; allowed: 0\.125"
    ),
    "groups": (
        (*MAMBA, "model.mixer.n_groups=1"), ("model.mixer.n_groups=2",), r"model\.mixer\.n_groups: 2; .*allowed: 1"
    ),
    "groups of channels": (
        RGLRU, ("model.mixer.lru_width=96", "model.mixer.n_heads=4"), r"model\.mixer\.n_heads: 4, .*allowed: 2, or 8"
    ),
    "kv heads of cross": (
        ("model.encoder.n_layers=1",), ("model.encoder.cross={head_dim: 16}",), r"model\.encoder\.cross\.head_dim: 16"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "wider", "message"), REFUSED.values(), ids=REFUSED)
def test_what_copies_cannot_make_is_refused_by_name(overrides, wider, message):
    with pytest.raises(UserError, match=message):
        tiny_received(tiny_trained(*overrides), *overrides, *wider)


@pytest.mark.parametrize(
    ("field", "own", "width"),
    [
        ("model.head.scale", ("model.head.tied=true", "model.embedding.scale=sqrt_d_model"), 64),
        ("model.head.scale", ("model.head.tied=true", "model.head.scale=0.1234567"), 96),
        ("model.norm.share", ("model.norm.kind=prmsnorm", "model.norm.share=0.1"), 96),
    ],
)
def test_the_number_that_a_refusal_allows_is_accepted_as_it_is_printed(field, own, width):
    trained, wider = tiny_trained(*own), f"model.d_model={width}"
    with pytest.raises(UserError, match=rf"^{field}: ") as refused:
        tiny_received(trained, *own, wider)
    allowed = re.search(r"allowed: ([\d.e+-]+)", str(refused.value))[1].rstrip(".")
    received, made = tiny_received(trained, *own, wider, f"{field}={allowed}")
    assert made.effect == "exact"
    assert gap(trained, received) < 1e-10
