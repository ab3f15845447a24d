"""Errors for divisions of processes that are not possible, and one process's share of a component."""

import pytest
import torch
from torch import nn

from archlab.config.layers import layer_configs
from archlab.config.parallel import ParallelConfig
from archlab.config.problems import ConfigError
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.model.layer import make_component
from archlab.training.checks import check_context_parallel, check_expert_parallel, check_tensor_parallel
from archlab.training.compiling import is_compiled
from archlab.training.device import Device
from archlab.training.shard import _evenly_divided
from archlab.training.world import _check_devices, divided

TINY = ("model.d_model=32", "model.attention.n_heads=4", "model.n_layers=1")


def model(*changes):
    return load_config("tiny-llama", *TINY, *changes).model


@pytest.mark.parametrize(
    ("sizes", "n", "expected"),
    [
        ({}, 6, (1, 6, 1)),
        ({"tensor": 2}, 8, (1, 4, 2)),
        ({"expert": 2, "replicate": 2}, 8, (2, 2, 2)),
        ({"tensor": 2, "replicate": 2, "shard": 2}, 8, (2, 2, 2)),
        ({"context": 4, "replicate": 2}, 8, (2, 4, 1)),
    ],
)
def test_processes_are_divided(sizes, n, expected):
    assert divided(ParallelConfig(**sizes), n) == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"replicate": 3}, "parallel.replicate  3, with 8 processes; allowed: a divisor of the number of processes"),
        ({"tensor": 3}, "parallel.tensor  3, with 8 processes; allowed: a divisor of the number of processes"),
        ({"tensor": 2, "shard": 2}, "parallel.shard  2, with 8 processes / tensor 2; allowed: 4, or null"),
        ({"tensor": 2, "expert": 2}, "parallel.expert  2, with tensor 2; allowed: only one of them above 1"),
        ({"context": 2, "expert": 4}, "parallel.context  2, with expert 4; allowed: only one of them above 1"),
    ],
)
def test_what_does_not_divide_the_processes_is_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        divided(ParallelConfig(**sizes), 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.attention.n_heads=6", "model.attention.head_dim=8"], "attention: query heads: 6 cannot be divided"),
        (["model.mlp.d_ff=66"], "mlp: d_ff: 66 cannot be divided evenly among 4 devices"),
        (["model.mlp.kind=moe", "model.mlp.d_ff=18"], "mlp: d_ff of an expert: 18 cannot be divided"),
        (
            ["model.mlp={kind: moe, own_norms: true, router: {norm: true}, shared: {}}"],
            "mlp: own_norms: the norms need the sum of the experts' outputs",
        ),
        (["model.mixer={kind: mamba2, head_dim: 8}"], "mixer: groups of the mixer: 1 cannot be divided"),
        (["model.mixer={kind: rglru}"], "mixer: groups of the mixer's channels: 1 cannot be divided"),
        (["model.mixer={kind: gated_delta, key_dim: 16, n_key_heads: 2}"], "mixer: key heads of the mixer: 2"),
        (["model.mixer={kind: short_conv}", "model.d_model=34", "model.attention.head_dim=8"], "channels of the mixer: 34"),
        (["model.dropout.attention=0.1"], "model.dropout.attention would drop different scores"),
    ],
)  # fmt: skip
def test_components_that_cannot_be_shared_are_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check_tensor_parallel(model(*changes), 4)
    assert {problem.path for problem in refused.value.problems} == {"parallel.tensor"}


def test_experts_that_cannot_be_dealt_are_refused():
    with pytest.raises(ConfigError, match="2, but no layer has experts; allowed: 1"):
        check_expert_parallel(model(), 2)
    with pytest.raises(ConfigError, match=r"model\.mlp: experts: 8 cannot be divided evenly among 3 devices"):
        check_expert_parallel(model("model.mlp.kind=moe"), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["model.mixer={kind: rglru}"],
            "2; model.mixer must read the tokens of a window in order; allowed with this component: 1",
        ),
        (["model.dropout.embedding=0.1"], "2; model.dropout would drop different activations than in one process"),
        (["model.dropout.branch=0.1"], "2; model.dropout would drop different activations than in one process"),
        (["train.seq_len=66"], "2; windows have 66 tokens; allowed: a multiple of 4"),
    ],
)
def test_windows_that_cannot_be_divided_are_refused_by_name(changes, message):
    config = load_config("tiny-llama", *changes)
    with pytest.raises(ConfigError, match=message) as refused:
        check_context_parallel(config, resolve_train(config).seq_len, 2)
    assert {problem.path for problem in refused.value.problems} == {"parallel.context"}
    check_context_parallel(load_config("tiny-llama", "model.mlp.kind=moe"), 128, 2)


def test_more_processes_than_gpus_are_refused():
    _check_devices(2, 2)
    with pytest.raises(UserError, match="4 processes on this machine, which has 2 GPUs"):
        _check_devices(4, 2)


@pytest.mark.parametrize(
    "changes",
    [
        ["model.attention={n_kv_heads: 2, sinks: true, gate: {per: head}, qk_norm: {kind: rmsnorm, scope: each_head}}"],
        ["model.attention={kind: latent, kv_rank: 16, nope_dim: 8, rope_dim: 4}", "model.position.kind=rope"],
        ["model.mixer={kind: mamba2, head_dim: 8, d_state: 8, n_groups: 2}"],
        ["model.mixer={kind: gated_delta, key_dim: 8, n_key_heads: 4}", "model.mlp={kind: plain, activation: xielu}"],
        ["model.mixer={kind: kimi_delta, key_dim: 8, n_key_heads: 2, n_value_heads: 4}"],
        ["model.mixer={kind: rglru, n_heads: 2}", "model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16}"],
        [
            "model.mixer={kind: short_conv, bias: true}",
            "model.mlp={kind: moe, latent: {width: 8, bias: true}, d_ff: 96}",
        ],
        ["model.mixer={kind: short_conv, bias: true}", "model.mlp.bias=true"],
    ],
)
def test_a_share_says_what_its_module_has(changes):
    (layer,) = layer_configs(model(*changes))
    for branch in layer.branches:
        share = branch.component.share(2)
        made = sum(p.numel() for p in make_component(share, branch.site).parameters())
        assert made == sum(share.parameters(branch.site).values()), branch.name
        whole = sum(branch.component.parameters(branch.site).values())
        assert made < 0.8 * whole, branch.name


def test_compiling_shared_components_is_refused():
    config = load_config("tiny-llama", "parallel.tensor=2", "train.compile=true")
    with pytest.raises(ConfigError, match=r"train\.compile  true, but parallel\.tensor, expert or context"):
        is_compiled(config, resolve_train(config), Device("cpu", torch.float32))


@pytest.mark.parametrize(
    ("shape", "size", "axis"), [((64, 24, 2048), 8, 0), ((64, 24, 2048), 1024, 2), ((100, 64), 32, 1), ((6,), 4, None)]
)
def test_a_tensor_is_divided_along_an_axis_without_padding(shape, size, axis):
    """Along the axis of 64 experts, only 64 of 1,024 processes would have a part. Padding would fill the others."""
    placement = _evenly_divided(size, nn.Parameter(torch.empty(shape, device="meta")))
    assert (placement and placement.dim) == axis
