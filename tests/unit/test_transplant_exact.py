"""Each exact transformation of trained weights keeps the logits, whatever the rest of the model looks like."""

import re

import pytest

from archlab.config.components.component import MLP, Attention, Mixer
from archlab.config.core.registry import is_users, kinds
from archlab.config.problems import ConfigError
from archlab.errors import UserError
from archlab.transplant.norm_sites import INPUTS
from transplants import gap, transplanted

ENCODER = ["model.encoder.n_layers=2", "model.attention.n_kv_heads=4"]
MOE = ["model.mlp.kind=moe", "model.mlp.experts=4", "model.mlp.d_ff=16"]
LATENT = [
    "model.attention.kind=latent", "model.attention.kv_rank=8", "model.attention.nope_dim=8", "model.attention.rope_dim=4",
]  # fmt: skip
LAYERNORM = ["model.norm.kind=layernorm"]
NO_BIAS = [*LAYERNORM, "model.norm.bias=false"]
BIASES = [
    "model.attention.qkv_bias=true",
    "model.attention.out_bias=true",
    "model.mlp.bias=true",
    "model.head.bias=true",
]
SOURCES = {
    "plain": [],
    "tied": ["model.head.tied=true"],
    "tied, narrow embedding": ["model.head.tied=true", "model.embedding.width=16"],
    "untied, narrow embedding": ["model.embedding.width=16", "model.head.bias=true"],
    "layernorm": LAYERNORM,
    "layernorm, biases": [*LAYERNORM, *BIASES],
    "tied, layernorm, biases": [*LAYERNORM, *BIASES, "model.head.tied=true"],
    "layernorm without bias": NO_BIAS,
    "offsets": ["model.norm.unit_offset=true", "model.attention.qk_norm.kind=rmsnorm"],
    "weightless norms": ["model.norm.weight=false"],
    "parallel, one norm": [*LAYERNORM, *BIASES, "model.block.parallel=shared"],
    "parallel, two norms": [*LAYERNORM, *BIASES, "model.block.parallel=separate"],
    "double norms": ["model.norm.placement=double"],
    "post norms": [*LAYERNORM, "model.norm.placement=post"],
    "output norms": ["model.norm.placement=output"],
    "carried norms": ["model.norm.placement=carried"],
    "first layer without a norm": [
        "model.layers.first.block.attention_norm=false", "model.layers.rest.attention.window=8", "model.layers.pattern=[first, rest]",
    ],
    "normed embedding": ["model.embedding.norm=true"],
    "normed sum, widened": [
        *NO_BIAS, "model.embedding.norm=sum", "model.embedding.width=16", "model.embedding.widened=sum", "model.embedding.segments=2",
    ],
    "transform": [*LAYERNORM, "model.head.transform={}", "model.head.bias=true"],
    "tied transform": [*LAYERNORM, "model.head.transform={}", "model.head.bias=true", "model.head.tied=true"],
    "inner norms": [*LAYERNORM, *BIASES, "model.attention.sub_norm=true", "model.mlp.sub_norm=true"],
    "inner norms, gate": [*LAYERNORM, *BIASES, "model.attention.sub_norm=true", "model.attention.gate.bias=true"],
    "everything in attention": [
        "model.attention.qk_norm.kind=layernorm", "model.attention.clip_qkv=2.0", "model.attention.softcap=20.0",
        "model.attention.sinks=true", "model.attention.gate.per=head", "model.attention.v_dim=4", "model.head.softcap=30.0",
    ],
    "plain MLP": ["model.mlp.kind=plain", "model.mlp.activation=gelu", "model.block.mlp_multiplier=0.5"],
    "encoder": [*ENCODER, *LAYERNORM, *BIASES],
    "encoder, tied, other norm": [*ENCODER, "model.head.tied=true", "model.encoder.norm.kind=layernorm", "model.encoder.norm.bias=false"],
    "experts": [*MOE, "model.mlp.shared.gate=true", "model.mlp.bias=true", "model.mlp.router.bias=true", *NO_BIAS],
    "scaled streams, normed values": [
        "model.block.stream_scale=true", "model.attention.v_norm.eps=0.01", "model.attention.keys_as_values=true", *LAYERNORM,
    ],
    "experts in a latent space": [*MOE, "model.mlp.latent={width: 12, bias: true}", "model.mlp.shared.bias=true", *NO_BIAS],
    "normed router": [*MOE, "model.mlp.router.norm=true", "model.mlp.router.expert_scale=true", *BIASES, *LAYERNORM],
    "norms of experts": [
        *MOE, "model.mlp.router.norm=true", "model.mlp.own_norms=true", "model.mlp.shared.gate=true",
        "model.mlp.bias=true", "model.mlp.router.bias=true", *NO_BIAS,
    ],
    "weighted inputs of experts": [*MOE, "model.mlp.router.applied_to=input", "model.mlp.bias=true", *NO_BIAS],
    "latent": [*LATENT, *NO_BIAS, "model.attention.qkv_bias=true"],
    "latent with narrow queries": [*LATENT, "model.attention.q_rank=12", *LAYERNORM, "model.attention.qkv_bias=true"],
    "gated delta": ["model.mixer.kind=gated_delta", "model.mixer.key_dim=8", *NO_BIAS],
    "kimi delta": ["model.mixer.kind=kimi_delta", "model.mixer.key_dim=8", *NO_BIAS],
    "kimi delta of full rank": ["model.mixer={kind: kimi_delta, key_dim: 8, low_rank: false}", *NO_BIAS],
    "mamba": ["model.mixer.kind=mamba", "model.mixer.d_state=4", "model.mixer.in_bias=true", *LAYERNORM],
    "mamba2": ["model.mixer.kind=mamba2", "model.mixer.head_dim=16", "model.mixer.d_state=8", "model.mixer.in_bias=true", *LAYERNORM],
    "rglru only": ["model.mixer.kind=rglru", "model.attention.kind=none", "model.position.kind=none", "model.mlp.bias=true", *LAYERNORM],
    "short convolution": ["model.mixer.kind=short_conv", "model.mixer.bias=true", *LAYERNORM],
    "learned positions": ["model.position.kind=learned", "model.position.offset=2"],
    "encoder, learned positions": [*ENCODER, "model.position.kind=learned"],
    "shared position biases": ["model.position.kind=t5"],
    "encoder, shared position biases": [*ENCODER, "model.position.kind=t5"],
    "mup": ["model.mup.base_width=16", "model.embedding.scale=sqrt_d_model"],
}  # fmt: skip
CHANGES = {
    "untied": ["model.head.tied=false"],
    "own norms": ["model.block.parallel=separate"],
    "own position biases": ["model.position.shared=false"],
    "vocabulary": ["model.vocab_size=70"],
    "weights of norms folded": ["model.norm.weight=false", "model.norm.unit_offset=false", "model.head.tied=false"],
    "weights of norms folded, tied": ["model.norm.weight=false", "model.norm.unit_offset=false", "model.head.tied=true"],
    "biases of norms folded": ["model.norm.bias=false"],
    "biases of norms folded into new ones": ["model.norm.bias=false", *BIASES],
    "norms folded, without attention": ["model.norm.weight=false", "model.norm.bias=false", "model.head.bias=true"],
    "norms folded": ["model.norm.weight=false", "model.norm.bias=false", *BIASES, "model.head.tied=false"],
    "norms folded into one": [
        "model.norm.weight=false", "model.norm.bias=false", "model.block.parallel=shared", *BIASES, "model.head.tied=false",
    ],
    "new weights of norms": ["model.norm.weight=true"],
    "new biases of norms": ["model.norm.bias=true"],
    "offsets": ["model.norm.unit_offset=true", "model.attention.qk_norm.unit_offset=true"],
    "offsets, norms only": ["model.norm.unit_offset=true"],
    "no offsets": ["model.norm.unit_offset=false"],
    "new biases": BIASES,
    "new biases of mixers": ["model.mixer.bias=true"],
    "new biases of Mamba 2": ["model.mixer.in_bias=true", "model.mixer.out_bias=true"],
    "new biases of routers": ["model.mlp.router.bias=true", "model.mlp.router.correction.rate=0.001"],
    "new factors": ["model.block.stream_scale=true", "model.mlp.router.expert_scale=true"],
    "sigmoid gate": ["model.attention.gate.per=element"],
    "softplus gate": ["model.attention.gate.activation=softplus", "model.attention.gate.per=head", "model.attention.gate.bias=true"],
    "more positions": ["model.max_seq_len=32"],
    "fewer unused positions": ["model.position.offset=0"],
    "prefix": ["model.attention.visibility=prefix"],
    "wide window": ["model.attention.window=16"],
    "dynamic": ["model.position.scaling.kind=dynamic", "model.position.scaling.factor=2.0", "model.position.scaling.original_max_seq_len=16"],
    "temperature": ["model.attention.temperature.beta=0.5", "model.attention.temperature.length=16"],
    "dropout": ["model.dropout=0.1"],
    "balance": ["model.mlp.balance.loss=0.5"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", SOURCES)
def test_logits_stay_the_same_or_the_change_is_not_called_exact(source: str, change: str) -> None:
    """A change keeps the logits to 1e-10 if the plan calls it exact. Otherwise it changes them visibly, or it is refused
    with the name of a field."""
    try:
        old, new, made = transplanted(SOURCES[source], CHANGES[change])
    except ConfigError:
        pytest.skip("the model cannot have this change")
    except UserError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert (gap(old, new) < 1e-10) if made.effect == "exact" else (gap(old, new) > 1e-6), made.changes
    assert not refusal or re.match(r"model\.[a-z_.]+: ", refusal)


EXACT = [
    ("parallel, one norm", "own norms"),
    ("shared position biases", "own position biases"),
    ("encoder, shared position biases", "own position biases"),
    ("tied", "untied"), ("encoder, tied, other norm", "untied"), ("plain", "vocabulary"), ("tied", "vocabulary"),
    ("tied transform", "vocabulary"), ("encoder", "vocabulary"), ("untied, narrow embedding", "vocabulary"),
    *((source, "weights of norms folded") for source in (
        "plain", "tied", "tied, narrow embedding", "untied, narrow embedding", "layernorm without bias",
        "first layer without a norm", "normed sum, widened", "everything in attention", "plain MLP", "encoder, tied, other norm", "experts",
        "weighted inputs of experts", "experts in a latent space", "latent", "gated delta", "mup", "offsets",
    )),
    *((source, "norms folded") for source in (
        "layernorm", "layernorm, biases", "tied, layernorm, biases", "parallel, one norm",
        "transform", "tied transform", "inner norms", "encoder", "latent with narrow queries",
        "mamba", "mamba2", "short convolution",
    )),
    ("parallel, two norms", "norms folded into one"), ("rglru only", "norms folded, without attention"),
    ("tied, narrow embedding", "weights of norms folded, tied"),
    *((source, "biases of norms folded") for source in (
        "layernorm, biases", "tied, layernorm, biases", "parallel, one norm", "parallel, two norms",
    )),
    ("weightless norms", "new weights of norms"), ("layernorm without bias", "new biases of norms"),
    ("plain", "offsets, norms only"), ("offsets", "no offsets"), ("offsets", "offsets"), ("plain", "new biases"),
    ("encoder", "new biases"), ("plain", "sigmoid gate"), ("inner norms", "sigmoid gate"), ("encoder", "softplus gate"),
    ("learned positions", "more positions"), ("encoder, learned positions", "more positions"),
    ("learned positions", "fewer unused positions"), ("plain", "prefix"), ("plain", "wide window"), ("plain", "dynamic"),
    ("plain", "temperature"), ("plain", "dropout"), ("experts", "balance"), ("experts", "new biases of routers"),
    ("experts", "new factors"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "change"), EXACT)
def test_changes_that_the_theory_calls_exact_are_exact(source: str, change: str) -> None:
    old, new, made = transplanted(SOURCES[source], CHANGES[change])
    assert made.effect == "exact", made.changes
    assert gap(old, new) < 1e-10


def test_the_inputs_of_every_component_are_known() -> None:
    built_in = [kind for root in (Attention, Mixer, MLP) for kind in kinds(root).values() if not is_users(kind)]
    assert {kind for kind in built_in if kind.model_fields["kind"].default != "none"} == INPUTS.keys()
