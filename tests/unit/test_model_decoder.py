"""The decoder as a whole: causality, what each choice changes, initial values by role, and the published shapes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archlab
from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.model.kernels import KERNELS

TINY: dict[str, Any] = {
    "model": {"vocab_size": 17, "d_model": 16, "n_layers": 2, "max_seq_len": 16, "attention": {"n_heads": 4}}
}


def tiny(*overrides: str) -> Config:
    return build_config(TINY, overrides)


def randomised(config: Config, **kwargs: Any) -> Decoder:
    """A float64 decoder with every parameter drawn, so that zero biases and unit norms hide nothing."""
    model = Decoder(config.model, **kwargs).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 0.1, generator=generator))
    return model


TOKENS = torch.randint(0, 17, (2, 12), generator=torch.Generator().manual_seed(0))

CHOICES = {
    "model.norm": [
        "{kind: rmsnorm}", "{kind: layernorm}", "{kind: layernorm, bias: false}", "{kind: none}",
        *(f"{{kind: rmsnorm, placement: {p}}}" for p in ("post", "double", "output", "carried")),
        "{kind: layernorm, placement: post, eps: 0.1}",
    ],
    "model.position": [
        "{kind: rope}", "{kind: none}", "{kind: sinusoidal}", "{kind: learned}", "{kind: rope, fraction: 0.5}",
        "{kind: rope, pairing: interleaved, theta: 7}", "{kind: alibi}", "{kind: alibi, form: falcon}",
    ],
    "model.mlp": [
        "{kind: gated, activation: silu}", "{kind: plain, activation: relu}", "{kind: gated, activation: gelu, bias: true}",
        "{d_ff: 24}",
    ],
    "model.attention": [
        "{n_heads: 4}", "{n_heads: 4, n_kv_heads: 2}", "{n_heads: 4, n_kv_heads: 1, head_dim: 8}", "{n_heads: 2, window: 3}",
        "{n_heads: 4, qkv_bias: true, out_bias: true}", "{n_heads: 4, scale: 0.9}",
    ],
    "model.block.parallel": ["none", "shared", "separate"],
    "model.head": ["{tied: false}", "{tied: true}", "{tied: true, bias: true}"],
    "model.embedding.width": ["null", "6"],
    "model.embedding.scale": ["1.0", "sqrt_d_model", "3.0"],
    "model.layers": ["null", "{a: {attention.window: 2}, b: {mlp.kind: plain}, pattern: [a, b]}"],
}  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> Config:
    overrides = [f"{field}={draw(st.sampled_from(values))}" for field, values in CHOICES.items()]
    try:
        return tiny(*overrides)
    except UserError:  # combinations that a rule forbids
        return tiny(*overrides, "model.block.parallel=none")


@settings(max_examples=60, deadline=None)
@given(configs(), st.integers(1, 11))
def test_the_future_does_not_move_the_past(config: Config, at: int) -> None:
    model, changed = randomised(config), TOKENS.clone()
    changed[:, at] = (changed[:, at] + 1) % 17
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(after[:, :at], before[:, :at], rtol=0, atol=1e-11)
    assert (after[:, at] - before[:, at]).abs().max() > 1e-9


@settings(max_examples=40, deadline=None)
@given(configs())
def test_kernels_agree_forward_and_backward(config: Config) -> None:
    results = []
    for kernel in KERNELS:
        model = randomised(config, kernel=kernel)
        logits = model(TOKENS)
        logits.square().mean().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        # Relative to the tensor's largest value: without norms values reach 1e8, and zeros beside them round.
        assert (a - b).abs().max() <= 1e-10 * a.abs().max()


BASE = {"model.norm.kind": "layernorm"}
OTHER_VALUES = [
    "model.norm.kind=rmsnorm", "model.norm.eps=0.1", "model.norm.bias=false", "model.norm.placement=post",
    "model.norm.placement=double", "model.norm.placement=output", "model.norm.placement=carried", "model.norm.kind=none", "model.block.parallel=shared",
    "model.block.parallel=separate", "model.attention.n_kv_heads=2", "model.attention.head_dim=6",
    "model.attention.window=3", "model.attention.scale=0.9", "model.attention.qkv_bias=true",
    "model.attention.out_bias=true", "model.position.kind=none", "model.position.kind=sinusoidal",
    "model.position.kind=learned", "model.position.theta=50", "model.position.fraction=0.5",
    "model.position.pairing=interleaved", "model.mlp.kind=plain", "model.mlp.activation=gelu", "model.mlp.d_ff=24",
    "model.mlp.bias=true", "model.embedding.width=8", "model.embedding.scale=2.0", "model.head.tied=true", "model.head.bias=true",
    "model.dropout.embedding=0.5", "model.dropout.attention=0.5", "model.dropout.branch=0.5",
    "model.init.embedding=0.5", "model.init.input=0.5", "model.init.output=0.5", "model.init.head=0.5",
    "model.init.depth_scaled=true",
]  # fmt: skip


@pytest.mark.parametrize("override", OTHER_VALUES)
def test_every_setting_changes_the_output(override: str) -> None:
    def logits(*overrides: str) -> torch.Tensor:
        config = tiny(*(f"{k}={v}" for k, v in BASE.items()), *overrides)
        model = Decoder(config.model) if ".init." in override else randomised(config).float()
        torch.manual_seed(0)
        return model.train()(TOKENS)

    assert (logits() - logits(override)).abs().max() > 1e-4


CHANGES = [
    "model.mlp.kind=plain", "model.mlp.activation=relu", "model.norm.kind=layernorm", "model.norm.placement=post",
    "model.position.kind=none", "model.position.kind=learned", "model.attention.qkv_bias=true", "model.attention.n_kv_heads=1",
    "model.head.tied=true", "model.block.parallel=shared", "model.n_layers=3", "model.mlp.d_ff=24", "model.vocab_size=19",
]  # fmt: skip


@pytest.mark.parametrize("override", CHANGES)
def test_a_choice_leaves_all_other_initial_values_bit_identical(override: str) -> None:
    before, after = (dict(Decoder(c.model).named_parameters()) for c in (tiny(), tiny(override)))
    same = [name for name in before.keys() & after.keys() if before[name].shape == after[name].shape]
    assert len(same) >= 13
    for name in same:
        assert torch.equal(before[name], after[name]), name


def test_initial_deviations_are_by_role() -> None:
    config = build_config(
        {"model": {"vocab_size": 512, "d_model": 128, "n_layers": 8, "attention": {"n_heads": 4}}},
        [
            "model.init={embedding: 0.5, input: 0.03, output: 0.04, head: 0.7, depth_scaled: true}",
            "model.mlp.bias=true",
        ],
    )
    model = Decoder(config.model)
    deviations = {"embedding.weight": 0.5, "head.weight": 0.7, "layers.1.attention.q.weight": 0.03,
                  "layers.1.mlp.gate.weight": 0.03, "layers.1.attention.out.weight": 0.01, "layers.1.mlp.down.weight": 0.01}  # fmt: skip
    values = dict(model.named_parameters())
    for name, deviation in deviations.items():
        # 16,384 draws or more: the deviation's own relative error is 1 / sqrt(2 n) < 0.6%.
        assert values[name].std().item() == pytest.approx(deviation, rel=0.03), name
    assert values["layers.1.mlp.up.bias"].abs().max() == 0
    assert torch.equal(values["norm.weight"], torch.ones(128))


def test_seeds_differ() -> None:
    a, b = (Decoder(tiny().model, seed=seed).layers[0].attention.q.weight for seed in (0, 1))
    assert not torch.equal(a, b)


def test_learned_positions_end() -> None:
    model = Decoder(tiny("model.position.kind=learned").model)
    with pytest.raises(UserError, match="max_seq_len = 16"):
        model(torch.zeros(1, 17, dtype=torch.int64))


def test_dropout_is_off_in_eval() -> None:
    model = Decoder(tiny("model.dropout=0.5").model).eval()
    assert torch.equal(model(TOKENS), model(TOKENS))


def test_generate_is_greedy_and_repeatable() -> None:
    model = randomised(tiny())
    out = archlab.generate(model, TOKENS, max_new_tokens=3)
    assert out.shape == (2, 15)
    expected = TOKENS
    for _ in range(3):
        expected = torch.cat((expected, model(expected)[:, -1].argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(out, expected)
    draws = [archlab.generate(model, TOKENS, max_new_tokens=8, temperature=1.0, seed=s) for s in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
