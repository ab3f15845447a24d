"""Mixture of experts, compared with one that is written out token by token, and its other properties."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
from torch import Tensor, library, nn
from torch._inductor.utils import is_cudagraph_unsafe_fx_node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from archlab.config.components.moe import MoE as MoEConfig
from archlab.config.components.work import Pass
from archlab.config.io import build_config
from archlab.config.layers import LayerConfig, layer_configs
from archlab.exchange.configs import load_config
from archlab.model.context import Collected, Context
from archlab.model.decoder import Decoder
from archlab.model.grouped import grouped_linear, grouped_outer
from archlab.model.moe import MoE
from archlab.model.norms import RMSNorm
from archlab.model.router import Load, collected_loads
from tests.reference.moe import Choices, balance_loss, mixture, router_z_loss, scores

D, T = 12, 20
ACTIVE = 3

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("", {}),
    "olmoe": ("router: {normalise: false}", {"normalise": False}),
    "one-active": ("active: 1, router: {normalise: false, factor: 0.7}", {"active": 1, "normalise": False, "factor": 0.7}),
    "llama-4": (
        "active: 1, router: {score: sigmoid, normalise: false, applied_to: input}, shared: {}",
        {"active": 1, "score": "sigmoid", "normalise": False, "applied_to": "input"},
    ),
    "weighted-inputs": (
        "router: {applied_to: input, factor: 0.7}, bias: true, activation: gelu",
        {"applied_to": "input", "factor": 0.7, "activation": "gelu"},
    ),
    "all-active": ("active: 8", {"active": 8}),
    "deepseek-v2": (
        "router: {normalise: false, factor: 1.7, groups: {n: 4, kept: 2, by: max}}, shared: {d_ff: 5}",
        {"normalise": False, "factor": 1.7, "groups": (4, 2, "max")},
    ),
    "deepseek-v3": (
        "router: {score: sigmoid, factor: 2.5, correction: {}, groups: {n: 4, kept: 2, by: top2}}, shared: {}",
        {"score": "sigmoid", "factor": 2.5, "groups": (4, 2, "top2")},
    ),
    "ernie": ("router: {correction: {rate: 0.1}}, shared: {d_ff: 9, bias: true}", {}),
    "qwen2-moe": ("router: {normalise: false}, shared: {d_ff: 9, gate: true}", {"normalise": False}),
    "gpt-oss": (
        "bias: true, router: {bias: true}, activation: quick_gelu, clamp: 0.7, up_offset: 1",
        {"activation": "quick_gelu", "clamp": 0.7, "up_offset": 1.0},
    ),
    "phimoe": ("router: {sparsemixer: 0.3, normalise: false}", {"sparsemixer": 0.3, "normalise": False}),
    "clamp-shared": ("clamp: 0.7, shared: {gate: true}", {"clamp": 0.7}),
    "gemma-4": ("router: {norm: true, expert_scale: true}, shared: {d_ff: 9}, own_norms: true", {}),
    "normed router": (
        "router: {norm: true, bias: true, factor: 0.7, correction: {}}, shared: {gate: true}", {"factor": 0.7},
    ),
    "nemotron-3-super": (
        "gated: false, activation: relu, router: {score: sigmoid, factor: 2.5, correction: {}}, latent: {width: 5}, "
        "shared: {d_ff: 9}", {"score": "sigmoid", "factor": 2.5, "activation": "relu"},
    ),
    "latent, biases": (
        "bias: true, latent: {width: 20, bias: true}, router: {applied_to: input}, shared: {gate: true}",
        {"applied_to": "input"},
    ),
    "latent, norms": ("latent: {width: 5}, router: {norm: true}, shared: {d_ff: 9}, own_norms: true", {}),
    "plain": ("gated: false, activation: gelu, bias: true, shared: {bias: true}", {"activation": "gelu"}),
}  # fmt: skip
"""Setting of the config -> the same setting of the reference."""


def layer(text: str, d_model: int = D, d_ff: int = 7) -> LayerConfig:
    raw = {"vocab_size": 7, "d_model": d_model, "n_layers": 1, "attention": {"n_heads": 3}}
    mlp = f"kind: moe, experts: 8, d_ff: {d_ff}{', ' if text else ''}{text}"
    mlp = mlp if "active" in text else f"{mlp}, active: {ACTIVE}"
    return layer_configs(build_config({"model": raw}, [f"model.mlp={{{mlp}}}"]).model)[0]


def drawn(text: str, *widths: int, seed: int = 0) -> MoE:
    """Return the mixture in float64 with random parameters and corrections."""
    config = layer(text, *widths)
    assert isinstance(config.mlp, MoEConfig)
    module, rng = MoE(config.mlp, config).double(), np.random.default_rng(seed)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.copy_(torch.from_numpy(rng.normal(size=tensor.shape) * 0.5))
    return module


def tokens(seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(2, T // 2, D)))


def context(is_real_BT: Tensor | None = None, collected: Collected | None = None) -> Context:
    positions = torch.arange(T // 2)[None]
    return Context(positions, is_real_BT, None, None, None, None, None, collected)


def weights(module: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights under the names of the reference."""
    renamed = {}
    for name, tensor in module.state_dict().items():
        name = name.replace("shared_gate.weight", "shared_gate")
        if name.startswith("shared."):
            name = name.removesuffix(".weight").replace(".bias", "_bias")
        renamed[name] = tensor.numpy()[0] if name == "shared_gate" else tensor.numpy()
    return renamed


def choices(more: dict[str, Any]) -> Choices:
    return Choices(**{"active": ACTIVE, **more})


@pytest.mark.parametrize(("text", "more"), ROWS.values(), ids=ROWS)
def test_it_is_the_sum_over_the_chosen_written_out(text: str, more: dict[str, Any]) -> None:
    module, x_BTD = drawn(text), tokens()
    y_BTD = module(x_BTD, context(), None).detach()
    expected = mixture(x_BTD.flatten(0, 1).numpy(), weights(module), choices(more))
    np.testing.assert_allclose(y_BTD.flatten(0, 1).numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", [text for text, _ in ROWS.values()], ids=ROWS)
def test_the_config_counts_what_is_built_and_multiplied(text: str) -> None:
    module, config = drawn(text), layer(text)
    in_norms = sum(p.numel() for norm in module.modules() if isinstance(norm, RMSNorm) for p in norm.parameters())
    total = sum(p.numel() for p in module.parameters())
    assert config.mlp.parameters(config.site_of("mlp")) == {"mlp": total - in_norms, "norms": in_norms}
    idle = (8 - module.router.active) * sum(p[0].numel() for p in module.experts.parameters())
    assert config.mlp.active_parameters(config.site_of("mlp")) == total - idle
    with FlopCounterMode(display=False) as counted:
        y_BTD = module(tokens().requires_grad_(), context(collected=Collected()), None)
    forward = counted.get_total_flops()
    assert config.mlp.flops(config.site_of("mlp"), Pass(1, T)) == {"mlp": forward}
    with FlopCounterMode(display=False) as counted:
        y_BTD.sum().backward()
    assert counted.get_total_flops() == 2 * forward


def test_only_projections_that_write_to_the_stream_are_scaled_by_the_depth() -> None:
    """Experts in a latent space do not write to it."""
    changes = ["model.init={input: 0.5, output: 0.5, depth_scaled: true}", "model.n_layers=8"]
    for latent, scaled in (("{width: 64}", {"latent_up.weight"}), ("null", {"experts.down"})):
        mlp = f"model.mlp={{kind: moe, d_ff: 64, gated: false, latent: {latent}}}"
        model = Decoder(load_config("tiny-llama", *changes, mlp).model, seed=0)
        deviations = {name: x.std().item() for name, x in model.layers[0].mlp.named_parameters()}
        assert {name for name, x in deviations.items() if x == pytest.approx(0.5 / 16**0.5, rel=0.1)} == scaled
        assert {
            name for name, x in deviations.items() if x == pytest.approx(0.5, rel=0.1)
        } == deviations.keys() - scaled


@pytest.mark.parametrize(("text", "more"), ROWS.values(), ids=ROWS)
def test_what_it_hands_out_gives_the_losses_counted_directly(text: str, more: dict[str, Any]) -> None:
    """Neither includes padding."""
    is_real = torch.ones(2, T // 2, dtype=torch.bool)
    is_real[0, :4] = False
    layers, collected = [drawn(text), drawn(text, seed=1)], Collected()
    for module in layers:
        module(tokens(), context(is_real, collected), None)
    loads = collected_loads(collected)
    real = tokens()[is_real].numpy()
    pairs = [(real, weights(module)) for module in layers]
    pooled = Load(*map(sum, zip(*loads, strict=True)))
    for some, found in (
        *(([pair], load) for pair, load in zip(pairs, loads, strict=True)),
        (pairs, pooled),
    ):
        expected = balance_loss(some, choices(more), pooled=True)
        assert found.tokens == len(some) * len(real)
        assert found.chosen_E.sum() == found.tokens * module.router.active
        loss = 8 * (found.chosen_E * found.scores_E).sum() / found.tokens**2
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        assert (found.log_z_squared / found.tokens).item() == pytest.approx(router_z_loss(some), rel=1e-12)


def test_loads_that_are_equal_give_a_balance_loss_of_active() -> None:
    """Equal loads have a balance loss of `active`, also if scores are equal."""
    identity = {"router.weight": np.eye(4, D) * 1e-9}
    tokens_TD = np.eye(4, D)  # token t barely prefers expert t
    assert balance_loss([(tokens_TD, identity)], Choices(1), pooled=False) == pytest.approx(1)
    assert balance_loss([(tokens_TD, identity)], Choices(4), pooled=False) == pytest.approx(4)


@pytest.mark.parametrize("normalise", [True, False])
def test_equal_scores_are_ordered_as_by_topk(normalise: bool) -> None:
    """The choice does not depend on other tokens of the batch, even if pairs of rows of the router are equal."""
    module = drawn(f"active: 3, router: {{normalise: {str(normalise).lower()}}}")
    with torch.no_grad():
        module.router.weight[4:] = module.router.weight[:4]
    x_ND = tokens().flatten(0, 1)
    routing = module.router(x_ND)
    s_NE = (x_ND @ module.router.weight.T).softmax(-1)
    assert torch.equal(routing.chosen_NK, s_NE.topk(3).indices)
    alone = torch.cat([module.router(x_ND[n : n + 1]).chosen_NK for n in range(T)])
    assert torch.equal(alone, routing.chosen_NK)


@pytest.mark.parametrize("text", ["", ROWS["deepseek-v3"][0], ROWS["qwen2-moe"][0]])
def test_what_a_token_gets_does_not_depend_on_the_batch(text: str) -> None:
    module, x_BTD = drawn(text), tokens()
    whole = module(x_BTD, context(), None)
    alone = torch.stack([module(x_BTD[:, t : t + 1], context(), None)[:, 0] for t in range(T // 2)], dim=1)
    torch.testing.assert_close(alone, whole, rtol=1e-12, atol=1e-13)


def test_the_correction_decides_who_is_chosen_and_not_the_weights() -> None:
    module, x_ND = drawn(ROWS["ernie"][0]), tokens().flatten(0, 1)
    assert module.router.correction is not None
    module.router.correction.zero_()[5] = 10.0
    routing = module.router(x_ND)
    assert (routing.chosen_NK[:, 0] == 5).all()
    s_NE = np.stack([scores(z, "softmax") for z in (x_ND @ module.router.weight.T).detach().numpy()])
    chosen = np.take_along_axis(s_NE, routing.chosen_NK.numpy(), axis=1)
    np.testing.assert_allclose(routing.weights_NK.detach(), chosen / chosen.sum(1, keepdims=True), rtol=1e-10)


def test_corrections_bring_unequal_loads_together() -> None:
    """There is no gradient: similar tokens, and a router that does not change."""
    text = "active: 2, router: {score: sigmoid, correction: {rate: 0.02}}"
    module, x_ND = drawn(text), torch.from_numpy(np.random.default_rng(3).normal(loc=0.7, size=(400, D)))
    router = module.router
    assert router.correction is not None
    router.correction.zero_()
    largest = []
    for _ in range(200):
        load = torch.bincount(router(x_ND).chosen_NK.flatten(), minlength=8).double()
        largest.append((load / load.mean()).max().item())
        router.correct(load)
    assert largest[0] > 2
    assert np.mean(largest[-20:]) < 1.15
    assert not any(p.grad is not None for p in module.parameters())


def test_a_correction_moves_by_its_rate_against_the_load() -> None:
    router = drawn("active: 2, router: {correction: {rate: 0.25}}").router
    before = router.correction.clone()  # pyright: ignore[reportOptionalMemberAccess]
    router.correct(torch.tensor([9.0, 5.0, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0]))
    moved = router.correction - before  # pyright: ignore[reportOperatorIssue]
    np.testing.assert_allclose(moved, [-0.25, 0, 0.25, 0, 0, 0, 0, 0], atol=1e-12)


@pytest.mark.parametrize("text", [text for text, _ in ROWS.values()], ids=ROWS)
def test_gradients_reach_all_that_took_part_as_finite_differences_say(text: str) -> None:
    """All numbers are moved at once in a random direction, so that every wrong gradient has an effect."""
    module, x_BTD = drawn(text, 6, 2), tokens()[:, :4, :6]
    names, values = zip(*module.named_parameters(), strict=True)

    def total(*parameters: Tensor) -> Tensor:
        y_BTD = torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x_BTD, context(), None))
        return (y_BTD * torch.linspace(-1, 1, y_BTD.numel(), dtype=torch.float64).view_as(y_BTD)).sum()

    assert torch.autograd.gradcheck(total, values, eps=1e-6, atol=1e-7, rtol=1e-7, fast_mode=True)
    total(*values).backward()
    is_constant = ACTIVE == 1 and "normalise: false" not in text  # 1 divided by itself
    grad = module.router.weight.grad
    assert grad is not None
    assert grad.abs().max() > 1e-6 or is_constant


@pytest.mark.parametrize("text", [text for text, _ in ROWS.values()], ids=ROWS)
def test_bfloat16_errs_by_what_bfloat16_rounds(text: str) -> None:
    """The choice may differ if two scores are nearly equal, so only tokens with a clear choice are compared."""
    module = drawn(text)
    exact, x_BTD = module.bfloat16().double(), tokens().bfloat16()
    wanted, before = exact(x_BTD.double(), context(), None), exact.router(x_BTD.double().flatten(0, 1)).chosen_NK
    rounded = exact.bfloat16()
    same = (rounded.router(x_BTD.flatten(0, 1)).chosen_NK == before).all(-1)
    assert same.float().mean() > 0.9  # the router computes in float32 for weights of any dtype
    found = rounded(x_BTD, context(), None)
    assert found.dtype is torch.bfloat16
    gap = (found.double() - wanted).flatten(0, 1)[same]
    assert gap.abs().max() < 2**-6 * wanted.abs().max()


def test_autocast_rounds_the_experts_products_and_not_the_router() -> None:
    module, x_BTD = drawn("").float(), tokens().float()
    plain, routing = module(x_BTD, context(), None), module.router(x_BTD.flatten(0, 1))
    with torch.autocast("cpu", torch.bfloat16):
        cast, routed = module(x_BTD, context(), None), module.router(x_BTD.flatten(0, 1))
    assert torch.equal(routed.weights_NK, routing.weights_NK)
    assert 1e-4 < (cast - plain).abs().max() < 2**-5 * plain.abs().max()


@pytest.mark.parametrize("text", [text for text, _ in ROWS.values()], ids=ROWS)
def test_no_gradient_is_added_in_an_order_that_a_gpu_chooses(text: str) -> None:
    """torch adds rows by atomic operations, whose order differs from run to run.

    The router's `scatter_add` adds one number to each place, so it has no order.
    """
    module, x_BTD = drawn(text), tokens().requires_grad_()
    y_BTD = module(x_BTD, context(), None)
    with Named() as seen:
        y_BTD.square().sum().backward()
    assert not [name for name in seen.names if "index_add" in name]


class Named(TorchDispatchMode):
    """Record the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_training_compiles_into_one_graph() -> None:
    module, x_BTD = drawn(ROWS["deepseek-v3"][0]).float(), tokens().float()

    def step(x_BTD: Tensor, collected: Collected) -> Tensor:
        return module(x_BTD, context(collected=collected), None)

    seen, seen_compiled = Collected(), Collected()
    y_BTD, compiled = step(x_BTD, seen), torch.compile(step, fullgraph=True, backend="aot_eager")(x_BTD, seen_compiled)
    torch.testing.assert_close(compiled, y_BTD)
    for ours, theirs in zip(collected_loads(seen), collected_loads(seen_compiled), strict=True):
        torch.testing.assert_close(ours, theirs)
    compiled.sum().backward()
    assert module.router.weight.grad is not None


# --- products in groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grouped_linear", "grouped_outer"])
def test_a_cuda_graph_is_cut_around_products_in_groups(name: str) -> None:
    """They can read the sizes of the groups on the host, which the recording of a graph forbids."""
    graph = torch.fx.Graph()
    node = graph.call_function(getattr(torch.ops.archlab, name).default, (graph.placeholder("x"),))
    assert is_cudagraph_unsafe_fx_node(node)


def test_the_gradient_of_a_group_without_rows_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of some GPUs leaves it undefined."""
    kernel = torch.nn.functional.grouped_mm

    def undefined(*args: Any, offs: torch.Tensor) -> torch.Tensor:
        found = kernel(*args, offs=offs)
        found[offs.diff(prepend=offs.new_zeros(1)) == 0] = torch.nan
        return found

    monkeypatch.setattr("archlab.model.grouped.F.grouped_mm", undefined)
    y_NO, x_ND = torch.randn(10, 8).bfloat16(), torch.randn(10, 16).bfloat16()
    found = grouped_outer(y_NO, x_ND, torch.tensor([0, 3, 3, 10, 10], dtype=torch.int32))
    zeros = torch.zeros(8, 16).bfloat16()
    expected = torch.stack([zeros, y_NO[:3].T @ x_ND[:3], zeros, y_NO[3:].T @ x_ND[3:], zeros])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [5, 16])
@pytest.mark.slow
def test_a_product_in_groups_is_one_product_after_the_other(dtype: torch.dtype, width: int) -> None:
    """Some groups are empty. torch's checks accept the operator, and its gradients are those of the products.

    They are not equal to the bit, because BLAS adds in another order for another layout of the same matrices.
    """
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(10, width, generator=generator).to(dtype).requires_grad_()
    weight_EOD = torch.randn(5, 8, width, generator=generator).to(dtype).requires_grad_()
    ends_E = torch.tensor([0, 3, 3, 10, 10], dtype=torch.int32)
    y_NO = grouped_linear(x_ND, weight_EOD, ends_E)
    expected = torch.cat([x_ND[:3] @ weight_EOD[1].T, x_ND[3:] @ weight_EOD[3].T])
    torch.testing.assert_close(y_NO, expected)
    grad_NO = torch.randn(y_NO.shape, generator=generator).to(dtype)
    found, wanted = (torch.autograd.grad(y, (x_ND, weight_EOD), grad_NO) for y in (y_NO, expected))
    torch.testing.assert_close(found, wanted)
    library.opcheck(grouped_linear, (x_ND, weight_EOD, ends_E))
    library.opcheck(grouped_outer, (grad_NO, x_ND.detach(), ends_E))
