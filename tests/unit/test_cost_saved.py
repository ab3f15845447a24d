"""Activations that training keeps: against what autograd keeps when the model runs."""

import pytest
import torch

import archlab
from archlab.config.layers import layer_configs
from archlab.config.work import Pass
from archlab.cost.saved import layer_bytes
from archlab.errors import UserError
from archlab.exchange.configs import load_config

LATENT = ["model.attention={kind: latent, n_heads: 4, q_rank: 32, kv_rank: 64, nope_dim: 32, rope_dim: 16}"]
PADDED = 2 * 256 * 4 * ((48 - 32) + 48)
"""Numbers per layer: on a CPU its values are padded to the keys' width, and what is kept are the wide ones, of what
attention reads and of what it gives."""

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
)


@pytest.mark.parametrize("overrides", CONFIGS)
def test_layers_keep_what_autograd_keeps(overrides):
    """But for statistics of norms, cosines and indices, which are few."""
    model = archlab.Decoder(load_config("tiny-llama", *overrides).model).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.hidden(torch.zeros(2, 256, dtype=torch.int64))
    found = sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own)
    this = Pass(2, 256, bytes_each=4)
    counted = sum(layer_bytes(layer, this) for layer in layer_configs(model.config))
    final = sum(operation.saved for operation in this.norm(model.config.norm, 128))
    padded = 4 * PADDED * model.config.n_layers if overrides == LATENT else 0
    assert counted + final + padded == pytest.approx(found, rel=0.02)


def test_what_is_not_counted_is_refused():
    layer = layer_configs(load_config("mamba-2-2.7b").model)[0]
    with pytest.raises(UserError, match="recurrent mixer"):
        layer_bytes(layer, Pass(1, 16))
