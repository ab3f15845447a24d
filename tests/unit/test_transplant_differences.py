"""A change of any field of the model has the effect on the logits that the plan promises."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
from pydantic import BaseModel

from archlab.config.core.registry import is_users, kinds
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.transplant.catalog import ENTRIES
from schema_classes import COMPONENTS, classes_in
from transplants import gap, transplanted, transplanted_to

MOE = "mlp.kind=moe mlp.experts=4 mlp.d_ff=16"
GROUPS = f"{MOE} mlp.router.groups.n=2 mlp.router.groups.kept=1"
LATENT = "attention.kind=latent attention.kv_rank=8 attention.nope_dim=8 attention.rope_dim=4"
DELTA = "mixer.kind=gated_delta mixer.n_key_heads=2 mixer.n_value_heads=4 mixer.key_dim=8 mixer.value_dim=8"
KIMI = DELTA.replace("gated_delta", "kimi_delta")
MAMBA_1 = "mixer.kind=mamba mixer.inner_width=32 mixer.d_state=8 mixer.dt_rank=4"
INNER_NORM = f"{MAMBA_1} mixer.inner_norm.kind=rmsnorm"
MAMBA = "mixer.kind=mamba2 mixer.n_heads=4 mixer.head_dim=8 mixer.d_state=8 mixer.n_groups=2"
QK_NORM = "attention.qk_norm.kind=rmsnorm"
ENCODER = "encoder.n_layers=2 attention.n_kv_heads=4"
YARN = "position.scaling.kind=yarn position.scaling.factor=4.0 position.scaling.original_max_seq_len=64 position.theta=100.0"
LLAMA3 = "position.scaling.kind=llama3 position.scaling.factor=8.0 position.scaling.original_max_seq_len=64"
ONES, THREES = "[1.0,1.0,1.0,1.0]", "[3.0,3.0,3.0,3.0]"
LONGROPE = (
    "position.scaling.kind=longrope position.scaling.factor=1 position.scaling.original_max_seq_len=8 "
    f"position.scaling.short_factor={ONES} position.scaling.long_factor={THREES}"
)
LONGER = LONGROPE.replace("original_max_seq_len=8", "original_max_seq_len=32")
WINDOW = "attention.window=4"
TEMPERATURE = "attention.temperature.beta=0.5 attention.temperature.length=4"
GATE = "attention.gate.bias=true"

ROWS = {
    "attention.blocks.size": ("", "attention.blocks.size=8 attention.blocks.summary=2", "approximate"),
    "attention.blocks.summary": (
        "attention.blocks.size=8 attention.blocks.summary=2", "attention.blocks.summary=1", "approximate",
    ),
    "attention.clip_qkv": ("", "attention.clip_qkv=0.5", "approximate"),
    "attention.gate.activation": (GATE, "attention.gate.activation=softplus", "approximate"),
    "attention.gate.bias": ("attention.gate.per=head", "attention.gate.bias=true", "exact"),
    "attention.gate.per": (GATE, "attention.gate.per=head", "refused"),
    "attention.global_tokens": (WINDOW, "attention.global_tokens=2", "approximate"),
    "attention.head_dim": ("", "attention.head_dim=4 attention.n_heads=8 attention.n_kv_heads=4", "refused"),
    "attention.kind": ("", LATENT, "approximate"),
    "attention.kv_rank": (LATENT, "attention.kv_rank=4", "refused"),
    "attention.n_heads": (LATENT, "attention.n_heads=2 attention.nope_dim=20", "refused"),
    "attention.n_kv_heads": ("", "attention.n_kv_heads=1", "approximate"),
    "attention.nope_dim": (LATENT, "attention.nope_dim=6 attention.v_dim=10", "refused"),
    "attention.norm_eps": (LATENT, "attention.norm_eps=0.1", "approximate"),
    "attention.out_bias": ("", "attention.out_bias=true", "exact"),
    "attention.q_rank": (LATENT, "attention.q_rank=8", "refused"),
    "attention.qk_norm.bias": (
        "attention.qk_norm.kind=layernorm attention.qk_norm.bias=false", "attention.qk_norm.bias=true", "exact",
    ),
    "attention.qk_norm.cast": (QK_NORM, "attention.qk_norm.cast=before_weight", "exact"),
    "attention.qk_norm.eps": (QK_NORM, "attention.qk_norm.eps=0.1", "approximate"),
    "attention.qk_norm.kind": ("", QK_NORM, "approximate"),
    "attention.qk_norm.scope": (QK_NORM, "attention.qk_norm.scope=width", "refused"),
    "attention.qk_norm.unit_offset": (QK_NORM, "attention.qk_norm.unit_offset=true", "exact"),
    "attention.qk_norm.weight": (QK_NORM, "attention.qk_norm.weight=false", "refused"),
    "attention.qkv_bias": (LATENT, "attention.qkv_bias=true", "exact"),
    "attention.rope_dim": (LATENT, "attention.rope_dim=2 attention.nope_dim=10 attention.v_dim=6", "refused"),
    "attention.scale": ("", "attention.scale=0.5", "approximate"),
    "attention.sinks": ("", "attention.sinks=true", "approximate"),
    "attention.softcap": ("", "attention.softcap=1.0", "approximate"),
    "attention.stride": (WINDOW, "attention.stride=2", "approximate"),
    "attention.sub_norm": ("", "attention.sub_norm=true", "approximate"),
    "attention.temperature.beta": (TEMPERATURE, "attention.temperature.beta=1.0", "approximate"),
    "attention.temperature.length": (TEMPERATURE, "attention.temperature.length=8", "approximate"),
    "attention.temperature.offset": (TEMPERATURE, "attention.temperature.offset=1", "approximate"),
    "attention.keys_as_values": ("", "attention.keys_as_values=true", "approximate"),
    "attention.v_norm.eps": ("attention.v_norm.eps=0.01", "attention.v_norm.eps=0.1", "approximate"),
    "attention.v_dim": ("", "attention.v_dim=4", "refused"),
    "attention.visibility": ("", "attention.visibility=two_sided", "approximate"),
    "attention.window": ("", "attention.window=8", "approximate"),
    "block.attention_multiplier": ("", "block.attention_multiplier=0.5", "approximate"),
    "block.attention_norm": ("", "block.attention_norm=false", "approximate"),
    "block.mixer_multiplier": (DELTA, "block.mixer_multiplier=0.5", "approximate"),
    "block.mlp_output_norm": ("", "block.mlp_output_norm=true", "approximate"),
    "block.mlp_multiplier": ("", "block.mlp_multiplier=0.5", "approximate"),
    "block.stream_scale": ("", "block.stream_scale=true", "exact"),
    "block.parallel": ("", "block.parallel=shared", "approximate"),
    "d_model": ("", "d_model=64", "exact"),
    "dropout.attention": ("", "dropout.attention=0.1", "exact"),
    "dropout.branch": ("", "dropout.branch=0.1", "exact"),
    "dropout.embedding": ("", "dropout.embedding=0.1", "exact"),
    "embedding.norm": ("", "embedding.norm=true", "approximate"),
    "embedding.round_scale": ("embedding.scale=1.1", "embedding.round_scale=true", "exact"),
    "embedding.scale": ("", "embedding.scale=sqrt_d_model", "approximate"),
    "embedding.segments": ("", "embedding.segments=2", "new"),
    "embedding.widened": ("embedding.width=16", "embedding.widened=sum", "new"),
    "embedding.width": ("", "embedding.width=16", "refused"),
    "encoder.cross": (ENCODER, "encoder.cross.softcap=1.0", "approximate"),
    "head.bias": ("", "head.bias=true", "exact"),
    "head.scale": ("", "head.scale=0.5", "approximate"),
    "head.softcap": ("", "head.softcap=1.0", "approximate"),
    "head.tied": ("", "head.tied=true", "approximate"),
    "head.transform.activation": ("head.transform={}", "head.transform.activation=relu", "approximate"),
    "head.transform.bias": ("head.transform.bias=false", "head.transform.bias=true", "exact"),
    "head.transform.norm": ("head.transform={}", "head.transform.norm=false", "approximate"),
    "init.depth_scaled": ("", "init.depth_scaled=true", "exact"),
    "init.embedding": ("", "init.embedding=0.1", "exact"),
    "init.head": ("", "init.head=0.1", "exact"),
    "init.input": ("", "init.input=0.1", "exact"),
    "init.output": ("", "init.output=0.1", "exact"),
    "max_seq_len": ("", "max_seq_len=32", "exact"),
    "mixer.bias": ("mixer.kind=short_conv", "mixer.bias=true", "exact"),
    "mixer.conv_bias": (f"{MAMBA} mixer.conv_bias=false", "mixer.conv_bias=true", "exact"),
    "mixer.d_state": (MAMBA, "mixer.d_state=4 mixer.n_groups=4", "refused"),
    "mixer.dt_max": (MAMBA, "mixer.dt_max=0.1", "approximate"),
    "mixer.dt_min": (MAMBA, "mixer.dt_min=0.5", "approximate"),
    "mixer.dt_rank": (MAMBA_1, "mixer.dt_rank=2", "refused"),
    "mixer.head_dim": (MAMBA, "mixer.head_dim=4", "refused"),
    "mixer.decay_bound": (KIMI, "mixer.decay_bound=2", "approximate"),
    "mixer.in_bias": (MAMBA, "mixer.in_bias=true", "exact"),
    "mixer.inner_norm.cast": (INNER_NORM, "mixer.inner_norm.cast=before_weight", "exact"),
    "mixer.inner_norm.eps": (INNER_NORM, "mixer.inner_norm.eps=0.1", "approximate"),
    "mixer.inner_norm.kind": (MAMBA_1, "mixer.inner_norm.kind=rmsnorm", "approximate"),
    "mixer.inner_norm.unit_offset": (INNER_NORM, "mixer.inner_norm.unit_offset=true", "approximate"),
    "mixer.inner_norm.weight": (INNER_NORM, "mixer.inner_norm.weight=false", "approximate"),
    "mixer.inner_width": (MAMBA_1, "mixer.inner_width=16", "refused"),
    "mixer.key_dim": (DELTA, "mixer.key_dim=16 mixer.n_key_heads=1", "refused"),
    "mixer.kind": ("", DELTA, "new"),
    "mixer.low_rank": (KIMI, "mixer.low_rank=false", "new"),
    "mixer.lru_width": ("mixer.kind=rglru", "mixer.lru_width=16", "refused"),
    "mixer.n_groups": (MAMBA, "mixer.n_groups=1 mixer.d_state=16", "refused"),
    "mixer.n_heads": ("mixer.kind=rglru", "mixer.n_heads=2", "refused"),
    "mixer.n_key_heads": (DELTA, "mixer.n_key_heads=4 mixer.key_dim=4", "refused"),
    "mixer.n_value_heads": (DELTA, "mixer.n_value_heads=2", "refused"),
    "mixer.negative_eigenvalues": (DELTA, "mixer.negative_eigenvalues=true", "approximate"),
    "mixer.norm.eps": (MAMBA, "mixer.norm.eps=0.1", "approximate"),
    "mixer.norm.gate": (MAMBA, "mixer.norm.gate=after", "approximate"),
    "mixer.norm.kind": (MAMBA, "mixer.norm.kind=none", "approximate"),
    "mixer.norm_eps": (DELTA, "mixer.norm_eps=0.1", "approximate"),
    "mixer.out_bias": (MAMBA, "mixer.out_bias=true", "exact"),
    "mixer.taps": (DELTA, "mixer.taps=2", "refused"),
    "mixer.value_dim": (DELTA, "mixer.value_dim=16", "refused"),
    "mlp.activation": ("", "mlp.activation=gelu", "approximate"),
    "mlp.active": (MOE, "mlp.active=1", "approximate"),
    "mlp.balance.loss": (MOE, "mlp.balance.loss=0.5", "exact"),
    "mlp.balance.pooled": (MOE, "mlp.balance.pooled=true", "exact"),
    "mlp.balance.router_z_loss": (MOE, "mlp.balance.router_z_loss=0.1", "exact"),
    "mlp.bias": (MOE, "mlp.bias=true", "exact"),
    "mlp.clamp": ("", "mlp.clamp=0.1", "approximate"),
    "mlp.d_ff": ("", "mlp.d_ff=72", "refused"),
    "mlp.experts": (MOE, "mlp.experts=6", "refused"),
    "mlp.gated": (MOE, "mlp.gated=false", "refused"),
    "mlp.kind": ("", f"{MOE} mlp.d_ff=64", "exact"),
    "mlp.latent.bias": (f"{MOE} mlp.latent.width=8", "mlp.latent.bias=true", "exact"),
    "mlp.latent.width": (MOE, "mlp.latent.width=8", "refused"),
    "mlp.own_norms": (f"{MOE} mlp.router.norm=true mlp.shared.d_ff=16", "mlp.own_norms=true", "approximate"),
    "mlp.router.expert_scale": (MOE, "mlp.router.expert_scale=true", "exact"),
    "mlp.router.norm": (MOE, "mlp.router.norm=true", "approximate"),
    "mlp.router.applied_to": (MOE, "mlp.router.applied_to=input", "approximate"),
    "mlp.router.bias": (MOE, "mlp.router.bias=true", "exact"),
    "mlp.router.correction.rate": (MOE, "mlp.router.correction.rate=0.01", "exact"),
    "mlp.router.factor": (MOE, "mlp.router.factor=2.5", "approximate"),
    "mlp.router.groups.by": (f"{GROUPS} mlp.active=2 mlp.experts=8", "mlp.router.groups.by=max", "approximate"),
    "mlp.router.groups.kept": (
        f"{MOE} mlp.experts=8 mlp.router.groups.n=4 mlp.router.groups.kept=2", "mlp.router.groups.kept=1", "approximate",
    ),
    "mlp.router.groups.n": (f"{GROUPS} mlp.experts=8", "mlp.router.groups.n=4", "approximate"),
    "mlp.router.normalise": (MOE, "mlp.router.normalise=false", "approximate"),
    "mlp.router.sparsemixer": (MOE, "mlp.router.sparsemixer=0.01", "approximate"),
    "mlp.router.score": (MOE, "mlp.router.score=sigmoid", "approximate"),
    "mlp.shared.bias": (f"{MOE} mlp.shared.d_ff=16", "mlp.shared.bias=true", "exact"),
    "mlp.shared.d_ff": (MOE, "mlp.shared.d_ff=16", "new"),
    "mlp.shared.gate": (f"{MOE} mlp.shared.d_ff=16", "mlp.shared.gate=true", "new"),
    "mlp.sub_norm": ("", "mlp.sub_norm=true", "approximate"),
    "mlp.up_offset": ("", "mlp.up_offset=1.0", "approximate"),
    "mup.base_head_dim": ("mup.base_width=32", "mup.base_head_dim=8", "approximate"),
    "mup.base_width": ("mup.base_width=32 mup.base_head_dim=8", "mup.base_width=16", "approximate"),
    "norm.alpha": ("norm.kind=dyt", "norm.alpha=0.7", "exact"),
    "norm.bias": ("norm.kind=layernorm", "norm.bias=false", "approximate"),
    "norm.cast": ("", "norm.cast=before_weight", "exact"),
    "norm.eps": ("", "norm.eps=0.1", "approximate"),
    "norm.kind": ("", "norm.kind=layernorm", "approximate"),
    "norm.placement": ("", "norm.placement=double", "approximate"),
    "norm.share": ("norm.kind=prmsnorm", "norm.share=0.5", "approximate"),
    "norm.unit_offset": ("", "norm.unit_offset=true", "exact"),
    "norm.weight": ("", "norm.weight=false", "exact"),
    "position.buckets": ("position.kind=t5 position.buckets=8", "position.buckets=16", "refused"),
    "position.form": ("position.kind=alibi", "position.form=falcon", "approximate"),
    "position.fraction": ("", "position.fraction=0.5", "approximate"),
    "position.kind": ("", "position.kind=none", "approximate"),
    "position.layout": ("position.kind=sinusoidal", "position.layout=halves", "refused"),
    "position.max_bias": ("position.kind=alibi", "position.max_bias=4.0", "approximate"),
    "position.max_distance": (
        "position.kind=t5 position.buckets=8 position.max_distance=32", "position.max_distance=16", "approximate",
    ),
    "position.offset": ("position.kind=learned", "position.offset=2 max_seq_len=8", "exact"),
    "position.order": (QK_NORM, "position.order=before_qk_norm", "approximate"),
    "position.pairing": ("", "position.pairing=interleaved", "refused"),
    "position.scaling.attention_factor": (YARN, "position.scaling.attention_factor=1.5", "approximate"),
    "position.scaling.beta_fast": (YARN, "position.scaling.beta_fast=1.5", "approximate"),
    "position.scaling.beta_slow": (YARN, "position.scaling.beta_slow=0.1", "approximate"),
    "position.scaling.factor": (YARN, "position.scaling.factor=8.0", "approximate"),
    "position.scaling.high_freq_factor": (LLAMA3, "position.scaling.high_freq_factor=16.0", "approximate"),
    "position.scaling.kind": ("", "position.scaling.kind=linear position.scaling.factor=2.0", "approximate"),
    "position.scaling.long_factor": (LONGROPE, f"position.scaling.long_factor={ONES}", "approximate"),
    "position.scaling.long_attention_factor": (LONGROPE, "position.scaling.long_attention_factor=1.5", "approximate"),
    "position.scaling.low_freq_factor": (LLAMA3, "position.scaling.low_freq_factor=0.5", "approximate"),
    "position.scaling.original_max_seq_len": (LONGER, "position.scaling.original_max_seq_len=8", "approximate"),
    "position.scaling.short_factor": (LONGER, f"position.scaling.short_factor={THREES}", "approximate"),
    "position.scaling.truncate": (YARN, "position.scaling.truncate=false", "approximate"),
    "position.scaling.turning": (
        "position.scaling.kind=proportional position.scaling.turning=0.25", "position.scaling.turning=0.5", "approximate",
    ),
    "position.shared": ("position.kind=t5 position.shared=false", "position.shared=true", "new"),
    "position.theta": ("", "position.theta=500000.0", "approximate"),
    "vocab_size": ("", "vocab_size=59", "refused"),
}  # fmt: skip
"""Overrides of the trained model, one change, and its effect, by the field that changes."""

LISTED = {entry.name: entry for entry in ENTRIES}
"""Changes that `archlab list transformations` shows, by name."""
OF_DEPTH = {"n_layers", "encoder.n_layers", "layers.pattern"}


def overrides(text: str) -> list[str]:
    return [f"model.{part}" for part in text.split()]


@pytest.mark.parametrize("field", ROWS)
def test_a_change_has_the_effect_that_the_plan_promises(field: str) -> None:
    source, change, effect = ROWS[field]
    if effect == "refused":
        section = field.partition(".")[0]
        with pytest.raises(UserError, match=rf"(^model\.{section}[.\w]*: .*allowed)|(^train\.start: )"):
            transplanted(overrides(source), overrides(change))
        return
    old, new, made = transplanted(overrides(source), overrides(change))
    assert made.effect == effect, made.changes
    patterns = [pattern for change in made.changes for pattern in LISTED[change.name].fields]
    changed = [text.partition("=")[0] for text in overrides(change)]
    assert not patterns or any(fnmatchcase(name, pattern) for name in changed for pattern in patterns)
    n_tokens = min(16, new.config.max_seq_len)
    assert effect == "new" or (gap(old, new, n_tokens) < 1e-10) == (effect == "exact")


def fields_of(schema: type[BaseModel], at: str) -> Iterator[str]:
    for name, field in schema.model_fields.items():
        inner = classes_in(field.annotation)
        if not inner:
            yield f"{at}{name}"
        for part in inner:
            yield from fields_of(part, f"{at}{name}.")


def test_every_field_of_a_model_has_a_row() -> None:
    built_in = [
        (root, kind) for root, base in COMPONENTS.items() if root != "activation" for kind in kinds(base).values()
    ]
    fields = {x for root, kind in built_in if not is_users(kind) for x in fields_of(kind, f"{root}.")}
    fields |= {field for field in fields_of(ModelConfig, "") if field.partition(".")[0] not in COMPONENTS}
    assert fields - OF_DEPTH == ROWS.keys()


LIMITS = {
    "window": ("", "attention.window=8", 8),
    "another window": ("attention.window=8", "attention.window=4", 4),
    "no window": ("attention.window=8", "attention.window=null", 8),
    "two-sided window": ("attention.visibility=two_sided", "attention.window=8", 8),
    "blocks": ("", "attention.blocks.size=8 attention.blocks.summary=0", 8),
    "dynamic": (
        "", "position.scaling.kind=dynamic position.scaling.factor=1 position.scaling.original_max_seq_len=8", 8,
    ),
    "LongRoPE": ("", LONGROPE, 8),
    "LongRoPE, from another length on": (LONGER, "position.scaling.original_max_seq_len=8", 8),
    "temperature": ("", TEMPERATURE, 4),
    "temperature with an offset": ("", f"{TEMPERATURE} attention.temperature.offset=1", 3),
}  # fmt: skip
"""Overrides of the trained model, a change, and the number of tokens up to which it does nothing."""


@pytest.mark.parametrize("name", LIMITS)
def test_a_change_does_nothing_in_short_texts_and_something_in_longer_ones(name: str) -> None:
    source, change, limit = LIMITS[name]
    old, new, made = transplanted(overrides(source), overrides(change))
    assert made.effect == "approximate"
    assert all(f"exact in texts of up to {limit} tokens" in change.detail for change in made.changes)
    assert gap(old, new, limit) < 1e-10 < gap(old, new, limit + 1)


IDLE = {
    "LongRoPE": (LONGROPE.replace(THREES, ONES), 1e-10),
    "position interpolation": ("position.scaling.kind=linear position.scaling.factor=1", 0),
    "Llama 3 scaling": (LLAMA3.replace("factor=8.0", "factor=1"), 0),
    "YaRN": (YARN.replace("factor=4.0", "factor=1"), 0),
    "p-RoPE": ("position.scaling.kind=proportional position.scaling.turning=1", 0),
}
"""Scalings by 1, and the largest difference of the logits: none, or that of rounding."""


@pytest.mark.parametrize("name", IDLE)
def test_scalings_by_1_are_exact_in_all_texts(name: str) -> None:
    scaling, largest = IDLE[name]
    old, new, made = transplanted(["model.position.theta=100"], overrides(scaling))
    assert [(change.name, change.effect) for change in made.changes] == [(name, "exact")]
    assert "texts of up to" not in made.changes[0].detail
    assert gap(old, new) <= largest


@pytest.mark.parametrize(
    ("before", "after", "values"),
    [
        ("", "position.kind=none", "model.position.kind in layers 0 to 1: rope to none"),
        (YARN, "position.kind=none", "model.position.kind in layers 0 to 1: rope to none"),
        ("position.kind=alibi", YARN, "model.position.kind in layers 0 to 1: alibi to rope"),
        ("position.kind=none", "", "model.position.kind in layers 0 to 1: none to rope"),
        (QK_NORM, "", "model.attention.qk_norm.kind in layers 0 to 1: rmsnorm to none"),
    ],
)
def test_another_kind_is_one_change(before: str, after: str, values: str) -> None:
    """Fields of only one of the kinds, also those of sections inside it, are not listed as changes of their own."""
    _, _, made = transplanted_to(overrides(before), overrides(after))
    assert [change.detail for change in made.changes] == [values]


@pytest.mark.parametrize(
    ("source", "change", "detail"),
    [
        ("attention.qkv_bias=true", "attention.qkv_bias=false", "the values of the biases are lost"),
        ("attention.visibility=prefix", "attention.visibility=causal", "exact in texts without a prefix"),
        ("", "attention.sinks=true", "the score of a new sink is 0"),
        ("", QK_NORM, "the weights of the new norms are 1"),
    ],
)
def test_what_an_approximation_does_is_said(source: str, change: str, detail: str) -> None:
    _, _, made = transplanted(overrides(source), overrides(change))
    assert made.effect == "approximate"
    assert any(detail in change.detail for change in made.changes), made.changes


@pytest.mark.parametrize(
    ("source", "after", "detail"),
    [
        (GATE, "", "the gate is lost"),
        (f"{MOE} mlp.router.correction.rate=0.1", MOE, "the biases of the experts are lost"),
    ],
)
def test_a_lost_part_is_said(source: str, after: str, detail: str) -> None:
    old, new, made = transplanted_to(overrides(source), overrides(after))
    assert made.effect == "approximate"
    assert any(detail in change.detail for change in made.changes), made.changes
    assert gap(old, new) > 1e-6


def test_an_encoder_cannot_be_left_out() -> None:
    with pytest.raises(UserError, match=r"model\.encoder: null"):
        transplanted_to(overrides(ENCODER), [])
