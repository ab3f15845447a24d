"""Activations that training keeps: against what autograd keeps when the model runs."""

import pytest
import torch

import archlab
from archlab.config.components.work import Pass
from archlab.config.layers import layer_configs
from archlab.exchange.configs import load_config
from archlab.pricing.memory import layer_bytes

LATENT = ["model.attention={kind: latent, n_heads: 4, q_rank: 32, kv_rank: 64, nope_dim: 32, rope_dim: 16}"]
PADDED = 2 * 256 * 4 * ((48 - 32) + 48)
"""Numbers per layer: on a CPU its values are padded to the keys' width, and what is kept are the wide ones, of what
attention reads and of what it gives."""

MIXER = ["model.attention.kind=none", "model.position=none"]

CONFIGS = (
    [],
    ["model.norm.kind=layernorm", "model.norm.placement=post"],
    ["model.norm.kind=dyt"],
    ["model.norm.placement=double", "model.block.parallel=shared"],
    ["model.mlp={kind: plain, activation: gelu}", "model.attention={n_heads: 4, n_kv_heads: 4, qkv_bias: true}"],
    ["model.attention={n_heads: 4, n_kv_heads: 1, qk_norm: {kind: rmsnorm}, gate: {}}"],
    LATENT,
    ["model.mlp={kind: moe, experts: 8, active: 2, d_ff: 300, shared: {d_ff: 200}}"],
    ["model.position=alibi"],
    [*MIXER, "model.mixer={kind: mamba2, d_state: 16}"],
    [*MIXER, "model.mixer={kind: mamba2, d_state: 24, n_heads: 8, head_dim: 16, n_groups: 2, norm: {kind: none}}"],
    [*MIXER, "model.mixer={kind: mamba2, d_state: 16, norm: {kind: rmsnorm, gate: after}}"],
    [*MIXER, "model.mixer={kind: gated_delta, n_key_heads: 2, n_value_heads: 4, key_dim: 16, value_dim: 24}"],
    [*MIXER, "model.mixer={kind: gated_delta, n_key_heads: 4, key_dim: 32}"],
    [*MIXER, "model.mixer={kind: rglru, n_heads: 4}"],
    [*MIXER, "model.mixer={kind: short_conv}"],
)


@pytest.mark.parametrize(
    ("overrides", "tokens"), [*((config, 256) for config in CONFIGS), *((c, 100) for c in CONFIGS if MIXER[0] in c)]
)
def test_layers_keep_what_autograd_keeps(overrides, tokens):
    """But for statistics of norms, cosines and indices, which are few."""
    model = archlab.Decoder(load_config("tiny-llama", *overrides).model).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.hidden(torch.zeros(2, tokens, dtype=torch.int64))
    found = sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own)
    this = Pass(2, tokens, bytes_each=4)
    counted = sum(layer_bytes(layer, this) for layer in layer_configs(model.config))
    final = sum(operation.saved for operation in this.norm(model.config.norm, 128))
    padded = 4 * PADDED * model.config.n_layers if overrides == LATENT else 0
    assert counted + final + padded == pytest.approx(found, rel=0.02)
