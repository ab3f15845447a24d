"""Activations that training keeps: against what autograd keeps when the model runs."""

import pytest
import torch

import archlab
from archlab.config.components.activation import Activation
from archlab.config.components.component import StateTensor
from archlab.config.components.recurrent import convolution
from archlab.config.components.work import Pass
from archlab.config.core.registry import kinds
from archlab.config.layers import layer_configs
from archlab.exchange.configs import load_config
from archlab.pricing.memory import layer_bytes, saved_bytes
from schema_classes import without_a_row

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
    ["model.norm.kind=scalenorm"],
    ["model.norm.kind=prmsnorm"],
    *(["model.position=" + kind] for kind in ("learned", "sinusoidal", "shaw", "t5")),
    *([f"model.mlp={{kind: plain, activation: {kind}}}"] for kind in kinds(Activation)),
)


UNDERCOUNTED = {
    "model.norm.kind=scalenorm": 0.889,
    "model.norm.kind=prmsnorm": 0.890,
    "model.position=shaw": 0.715,
    "model.position=t5": 0.798,
    "model.mlp={kind: plain, activation: quick_gelu}": 0.820,
    "model.mlp={kind: plain, activation: xielu}": 0.588,
}
"""Kinds whose price is too low: the counted part of what autograd keeps."""


def test_every_kind_has_a_row():
    configs = [load_config("tiny-llama", *overrides) for overrides in CONFIGS]
    assert without_a_row(configs) == set()


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
    share = UNDERCOUNTED.get(overrides[0], 1) if overrides else 1
    assert counted + final + padded == pytest.approx(share * found, rel=0.02)


def test_a_cpus_kernel_keeps_values_as_wide_as_keys():
    """The padding that the test above adds by hand is counted where kernels are."""
    (layer, *_) = layer_configs(load_config("tiny-llama", *LATENT).model)
    asked, computed = (layer_bytes(layer, Pass(2, 256, bytes_each=4, counting=c)) for c in ("visible", "computed"))
    assert computed - asked == 4 * PADDED


def test_without_recomputation_all_waits():
    layers, this = layer_configs(load_config("tiny-llama").model), Pass(2, 256)
    assert saved_bytes({layers[0]: 3}, this, recompute=False) == (3 * layer_bytes(layers[0], this), 0)


def test_a_convolution_keeps_its_input_with_the_zeros_before_it():
    kept = convolution(Pass(2, 10, bytes_each=4), 6, 4, StateTensor("conv", (3, 6))).saved
    assert kept == torch.nn.functional.pad(torch.zeros(2, 6, 10), (3, 0)).nbytes
