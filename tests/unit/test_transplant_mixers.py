"""Recurrent mixers in place of attention: their projections compute what those of attention computed."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.model.decoder import Decoder
from tests.shared.tiny import config
from transplants import TOKENS, received, trained

EXACT = {"rtol": 1e-9, "atol": 1e-9}
MAMBA2 = "{kind: mamba2, n_heads: 4, head_dim: 6, d_state: 8, n_groups: 4, %s}"
DELTA = "{kind: gated_delta, n_key_heads: 4, n_value_heads: 4, key_dim: 8, value_dim: 6}"
NO_GATE = 1.2784645427610738  # silu of this is 1


def hybrid(mixer: str, *fields: str) -> str:
    kind = ", ".join(("attention.kind: none", f"mixer: {mixer}", *fields))
    return f"model.layers={{full: {{}}, recurrent: {{{kind}}}, pattern: [full, recurrent]}}"


def input_and_output(model: Decoder, module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return what a module of the model reads and writes, [B, T, D]."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = module.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    model(TOKENS)
    hook.remove()
    return seen[0]


def plain(mixer: nn.Module) -> None:
    """Make the convolutions identities and the decays 1."""
    mixer.conv.weight.zero_()
    mixer.conv.weight[:, 0, -1] = 1
    mixer.A_log.fill_(-math.inf)


def features(attention: nn.Module, x: Tensor, n_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return silu of attention's queries, keys and values, [B, H, T, width], with a copy for each query head."""
    heads = (
        F.silu(part(x)).unflatten(-1, (n, -1)) for part, n in ((attention.q, 4), (attention.k, 2), (attention.v, 2))
    )
    q, k, v = (y.repeat_interleave(n_heads // y.shape[2], 2).transpose(1, 2) for y in heads)
    return q, k, v


@torch.no_grad()
@pytest.mark.parametrize("bias", ["false", "true"])
def test_mamba2_is_linear_attention_with_the_projections_of_attention(bias):
    before = ["model.attention.v_dim=6", f"model.attention.qkv_bias={bias}", f"model.attention.out_bias={bias}"]
    old = trained(config(*before))
    mixer = MAMBA2 % f"norm: {{kind: none}}, in_bias: true, out_bias: {bias}"
    new, made = received(old, config(*before, hybrid(mixer)))
    assert made.effect == "new"
    module, attention = new.layers[1].mixer, old.layers[1].attention
    plain(module)
    module.D.zero_()
    module.dt.weight.zero_()
    module.dt_bias.fill_(math.log(math.e - 1))  # its softplus is 1
    module.gate.weight.zero_()
    module.gate.bias.fill_(NO_GATE)
    x, output = input_and_output(new, module)
    q, k, v = features(attention, x)
    mixed = (q @ k.mT).tril() @ v
    torch.testing.assert_close(output, attention.out(mixed.transpose(1, 2).flatten(-2)), **EXACT)


@torch.no_grad()
def test_the_gated_delta_rule_reads_and_writes_with_the_projections_of_attention():
    old = trained(config("model.attention.v_dim=6"))
    new, _ = received(old, config("model.attention.v_dim=6", hybrid(DELTA)))
    module, attention = new.layers[1].mixer, old.layers[1].attention
    plain(module)
    module.beta.weight.zero_()  # beta is 1/2
    x, output = input_and_output(new, module)
    q, k, v = features(attention, x)
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    state, read = torch.zeros(*q.shape[:2], 8, 6, dtype=q.dtype), []
    for t in range(q.shape[2]):
        stored = torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], 0.5 * (v[:, :, t] - stored))
        read.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]) / math.sqrt(8))
    mixed = torch.stack(read, 1)
    mixed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = attention.out(mixed.flatten(-2) * F.silu(module.gate(x)))
    torch.testing.assert_close(output, expected, **EXACT)


def test_only_what_attention_lacks_is_new_and_other_layers_stay():
    old = trained(config("model.attention.v_dim=6", "model.norm.placement=double"))
    new, made = received(old, config("model.attention.v_dim=6", "model.norm.placement=double", hybrid(DELTA)))
    parts = ("gate.weight", "beta.weight", "decay.weight", "conv.weight", "A_log", "dt_bias", "norm.weight")
    assert sorted(made.initialized) == sorted(f"layers.1.mixer.{part}" for part in parts)
    before, after = old.state_dict(), new.state_dict()
    for slot in ("before", "after"):
        moved = before[f"layers.1.attention_norms.{slot}.weight"]
        assert torch.equal(after[f"layers.1.mixer_norms.{slot}.weight"], moved)
    assert all(torch.equal(after[name], before[name]) for name in made.kept if "_norms" not in name)
    assert made.changes[0].detail == "layer 1: multihead to gated_delta, q from q, k from k, v from v, out from out"
    assert [change.name for change in made.changes] == ["recurrent mixer", "new tensors"]


def test_the_factor_on_attention_moves_into_the_output_projection():
    before = ["model.attention.v_dim=6", "model.block.attention_multiplier=0.5"]
    old = trained(config(*before))
    new, made = received(old, config(*before, hybrid(DELTA, "block.attention_multiplier: 1")))
    torch.testing.assert_close(new.layers[1].mixer.out.weight, 0.5 * old.layers[1].attention.out.weight)
    assert [change.name for change in made.changes] == ["recurrent mixer", "new tensors"]


@pytest.mark.parametrize(
    ("before", "mixer", "words"),
    [
        ([], "{kind: short_conv}", "multihead to short_conv, which begins as new, because no mapping"),
        ([], "{kind: rglru}", "multihead to rglru, which begins as new, because no mapping"),
        ([], DELTA.replace("value_dim: 6", "value_dim: 16"), "(value_dim = 8 would fit)"),
        ([], "{kind: mamba2}", "(n_heads = 4, n_groups = 4, d_state = 8, head_dim = 8 would fit)"),
        (
            ["model.attention.v_dim=6", "model.attention={qkv_bias: true, qk_norm: {kind: rmsnorm}, softcap: 5.0}"],
            DELTA,
            "out from out; without q bias, k bias, v bias, qk_norm, softcap",
        ),
    ],
)
def test_what_a_mixer_lacks_is_said(before, mixer, words):
    old = trained(config(*before))
    new, made = received(old, config(*before, hybrid(mixer)))
    assert words in made.changes[0].detail
    moved = old.layers[1].attention_norms.before.weight
    assert torch.equal(new.layers[1].mixer_norms.before.weight, moved)
    assert new(TOKENS).isfinite().all()
