"""Activations that training keeps, compared with those that autograd keeps when the model runs."""

import pytest
import torch

import archlab
from archlab.config.components.activation import Activation
from archlab.config.components.component import Site, StateTensor
from archlab.config.components.dense import GatedMLP, PlainMLP
from archlab.config.components.norm import BlockNorm, RMSNorm
from archlab.config.components.position import NoPosition
from archlab.config.components.recurrent import convolution
from archlab.config.components.work import Pass
from archlab.config.core.registry import kinds
from archlab.config.layers import final_norm, layer_configs
from archlab.exchange.configs import load_config
from archlab.model.layer import make_component
from archlab.pricing.memory import LayerPass, bytes_before, layer_bytes, saved_bytes
from autograd_memory import kept_by_autograd
from schema_classes import without_a_row

LATENT = ["model.attention={kind: latent, n_heads: 4, q_rank: 32, kv_rank: 64, nope_dim: 32, rope_dim: 16}"]
PADDED = 2 * 256 * 4 * ((48 - 32) + 48)
"""Numbers kept per layer. On a CPU, values are padded to the width of the keys, and the wide tensors are kept: both the
inputs and the output of attention."""

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
    [*MIXER, "model.mixer={kind: mamba}"],
    [*MIXER, "model.mixer={kind: mamba, d_state: 24, inner_norm: {kind: rmsnorm}}"],
    [*MIXER, "model.mixer={kind: mamba, dt_rank: 40, inner_norm: {kind: rmsnorm, cast: before_weight}}"],
    [*MIXER, "model.mixer={kind: gated_delta, n_key_heads: 2, n_value_heads: 4, key_dim: 16, value_dim: 24}"],
    [*MIXER, "model.mixer={kind: gated_delta, n_key_heads: 4, key_dim: 32}"],
    [*MIXER, "model.mixer={kind: kimi_delta, n_key_heads: 2, n_value_heads: 4, key_dim: 16, value_dim: 24}"],
    [*MIXER, "model.mixer={kind: kimi_delta, n_key_heads: 4, key_dim: 32, low_rank: false, decay_bound: 2}"],
    [*MIXER, "model.mixer={kind: rglru, n_heads: 4}"],
    [*MIXER, "model.mixer={kind: short_conv}"],
    ["model.norm.kind=scalenorm"],
    ["model.norm.kind=prmsnorm"],
    *(["model.position=" + kind] for kind in ("learned", "sinusoidal", "shaw", "transformer_xl", "t5")),
    *([f"model.mlp={{kind: plain, activation: {kind}}}"] for kind in kinds(Activation)),
)


def test_every_kind_has_a_row():
    configs = [load_config("tiny-llama", *overrides) for overrides in CONFIGS]
    assert without_a_row(configs) == set()


HEADS = "model.attention={n_heads: 4, "
BIASES = ("shaw", "transformer_xl", "t5", "alibi")
INNER_NORMS = ["model.attention.sub_norm=true", "model.mlp.sub_norm=true", "model.embedding={scale: 1, norm: true}"]
EXPERTS = "model.mlp={kind: moe, experts: 8, active: 2, d_ff: 300, "
OPTIONS = (
    *([f"model.mlp={{kind: gated, activation: {kind}}}"] for kind in kinds(Activation)),
    *([f"{EXPERTS}gated: false, activation: {kind}}}"] for kind in ("quick_gelu", "xielu")),
    *([f"model.norm.kind={kind}", *INNER_NORMS] for kind in kinds(BlockNorm) if kind != "none"),
    *([f"model.norm={{kind: {kind}, placement: double}}"] for kind in ("scalenorm", "prmsnorm")),
    *(
        [f"{HEADS}qk_norm: {{kind: {kind}, scope: {scope}}}}}"]
        for kind in ("rmsnorm", "layernorm")
        for scope in ("head", "each_head", "width")
    ),
    [HEADS + "qk_norm: {kind: rmsnorm, weight: false}}"],
    [HEADS + "qk_norm: {kind: rmsnorm, cast: before_weight}}"],
    *([f"model.position={kind}", HEADS + "n_kv_heads: 1}"] for kind in BIASES),
    *([f"model.position={kind}", HEADS + "softcap: 30}"] for kind in BIASES),
    *([f"model.position={kind}", HEADS + "v_dim: 16, sinks: true}"] for kind in BIASES),
    *([f"model.position={kind}", HEADS + "window: 20}"] for kind in ("rope", *BIASES)),
    ["model.position={kind: shaw, max_distance: 64}"],
    ["model.position={kind: t5, shared: false}"],
    ["model.position={kind: rope, fraction: 0.5}"],
    ["model.position={kind: rope, pairing: interleaved}"],
    ["model.mlp={kind: gated, clamp: 7, up_offset: 1}"],
    [EXPERTS + "clamp: 7, shared: {d_ff: 200, gate: true}}"],
    [EXPERTS + "router: {applied_to: input}}"],
    ["model.mlp={kind: moe, experts: 64, active: 3, d_ff: 100, router: {sparsemixer: 0.3, normalise: false}}"],
    ["model.block={mlp_output_norm: true}"],
    ["model.block={stream_scale: true}"],
    [HEADS + "v_norm: {}}"],
    [HEADS + "keys_as_values: true}"],
    [HEADS + "keys_as_values: true, v_norm: {}, qk_norm: {kind: rmsnorm}}", "model.position=none"],
    [HEADS + "n_kv_heads: 2, keys_as_values: true, v_norm: {}, qk_norm: {kind: rmsnorm}}"],
    [HEADS + "keys_as_values: true, qkv_bias: true}", "model.position=none"],
    [HEADS + "keys_as_values: true, softcap: 30}", "model.position=none"],
    [HEADS + "keys_as_values: true, sinks: true}", "model.position=none"],
    [HEADS + "keys_as_values: true, window: 20, n_kv_heads: 2}", "model.position=none"],
    [HEADS + "keys_as_values: true, v_norm: {}, qk_norm: {kind: rmsnorm}}", "model.position.order=before_qk_norm"],
    [EXPERTS + "router: {norm: true}, shared: {d_ff: 200, gate: true}}"],
    [EXPERTS + "router: {expert_scale: true}}"],
    [EXPERTS + "latent: {width: 90}}"],
    [EXPERTS + "gated: false, activation: relu_squared, latent: {width: 90, bias: true}, shared: {d_ff: 200}}"],
    [EXPERTS + "own_norms: true, latent: {width: 90}, router: {norm: true}, shared: {d_ff: 200}}"],
    [EXPERTS + "own_norms: true, router: {norm: true}, shared: {d_ff: 200, gate: true}}"],
    [HEADS + "clip_qkv: 1}"],
    [HEADS + "softcap: 30}"],
    [HEADS + "sinks: true}"],
    [HEADS + "v_dim: 48}"],
    [HEADS + "gate: {per: head}}"],
    [HEADS + "visibility: two_sided}"],
    [HEADS + "blocks: {size: 32, summary: 4}}"],
    [HEADS + "blocks: {size: 64, summary: 0}}"],
    ["model.attention={kind: latent, n_heads: 4, kv_rank: 64, nope_dim: 32, rope_dim: 16, v_dim: 48}"],
    ["model.block.parallel=separate"],
    ["model.embedding.width=64"],
    ["model.dropout=0.1"],
)


def kept_share(overrides: list[str], texts: int, tokens: int) -> float:
    """Return the counted bytes divided by those that autograd keeps."""
    model = archlab.Decoder(load_config("tiny-llama", *overrides).model).train()
    model_pass = Pass(texts, tokens, bytes_each=4, counting="computed", is_training=True)
    found = kept_by_autograd(model, lambda: model.hidden(torch.zeros(texts, tokens, dtype=torch.int64)))
    counted = sum(layer_bytes(layer, model_pass) for layer in layer_configs(model.config))
    final = sum(operation.saved for operation in model_pass.norm(final_norm(model.config), 128))
    return (counted + bytes_before(model.config, model_pass) + final) / found


@pytest.mark.parametrize(
    ("overrides", "tokens"), [*((config, 256) for config in CONFIGS), *((c, 100) for c in CONFIGS if MIXER[0] in c)]
)
def test_layers_keep_what_autograd_keeps(overrides, tokens):
    """Statistics of norms, cosines and indices are not counted, because they are small."""
    assert kept_share(overrides, 2, tokens) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("texts", "tokens"), [(1, 128), (3, 192)])
@pytest.mark.parametrize("overrides", OPTIONS, ids=" ".join)
def test_so_do_layers_with_other_options_and_shapes(overrides, texts, tokens):
    """With three layers, parts that all layers share are counted once. Widths and heads differ from the test above."""
    assert kept_share([*overrides, "model.n_layers=3"], texts, tokens) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("schema", [PlainMLP, GatedMLP])
@pytest.mark.parametrize("kind", kinds(Activation))
def test_bfloat16_halves_what_is_not_computed_in_float32(schema, kind):
    site = Site(96, RMSNorm(), NoPosition())
    config = schema(activation=kind).resolve(96)
    mlp = make_component(config, site)
    x = torch.randn(3, 50, 96, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kept_by_autograd(mlp, lambda: mlp(x))
    counted = sum(operation.saved for operation in config.work(site, Pass(3, 50, bytes_each=2, is_training=True)))
    assert counted == pytest.approx(found, rel=0.005)


def test_a_cpus_kernel_keeps_values_as_wide_as_keys():
    """Padding that the test above adds by hand is counted on machines whose kernels pad."""
    (layer, *_) = layer_configs(load_config("tiny-llama", *LATENT).model)
    asked, computed = (layer_bytes(layer, Pass(2, 256, bytes_each=4, counting=c)) for c in ("visible", "computed"))
    assert computed - asked == 4 * PADDED


def test_without_recomputation_all_waits():
    layers, model_pass = layer_configs(load_config("tiny-llama").model), Pass(2, 256)
    waiting = saved_bytes([LayerPass(layers[0], 3, model_pass)], recompute=False)
    assert waiting == (3 * layer_bytes(layers[0], model_pass), 0)


def test_a_convolution_keeps_its_input_with_the_zeros_before_it():
    kept = convolution(Pass(2, 10, bytes_each=4), 6, 4, StateTensor("conv", (3, 6))).saved
    assert kept == torch.nn.functional.pad(torch.zeros(2, 6, 10), (3, 0)).nbytes
