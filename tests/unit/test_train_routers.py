"""Training of mixtures of experts: auxiliary losses, corrections and the log."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.batch import next_token
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.model.moe import MoE
from archlab.model.router import Router
from archlab.training.device import Device
from archlab.training.optim import Treatment, groups_by_role, make_optimizer
from archlab.training.step import StepResult, update
from tests.reference.moe import Choices, balance_loss, router_z_loss
from tiny import config

CPU = Device("cpu", torch.float32)
WINDOWS = np.random.default_rng(0).integers(0, 300, (4, 17))
MOE = "model.mlp={kind: moe, experts: 6, active: 2, d_ff: 8%s}"
CORRECTED = MOE % ", router: {correction: {rate: 0.25}}"
DENSE_FIRST = "model.layers={dense: {mlp: {kind: gated}}, sparse: {}, pattern: [dense, sparse]}"


def step(config: Config) -> tuple[Decoder, StepResult, list[tuple[np.ndarray, dict[str, np.ndarray]]]]:
    """Return the model after one update, the result, and each router's inputs and state before it."""
    torch.manual_seed(0)
    settings, model = resolve_train(config), Decoder(config.model)
    read: dict[int, list[Tensor]] = {}
    routers = [module for module in model.modules() if isinstance(module, Router)]
    weights = [{"router.weight": router.weight.detach().double().numpy().copy()} for router in routers]
    for n, router in enumerate(routers):
        router.register_forward_pre_hook(lambda _, x, n=n: read.setdefault(n, []).append(x[0].detach().double()))
    result = update(model, make_optimizer(model, settings), next_token(Windows(WINDOWS)), settings, 0, CPU)
    return model, result, [(torch.cat(read[n]).numpy(), weights[n]) for n in range(len(routers))]


@pytest.mark.parametrize("pooled", [False, True])
def test_the_log_has_the_losses_and_loads_counted_directly(pooled: bool) -> None:
    balance = f", balance: {{loss: 0.5, pooled: {str(pooled).lower()}, router_z_loss: 0.1}}"
    _, result, layers = step(config(MOE % balance))
    assert result.routers["balance_loss"] == pytest.approx(balance_loss(layers, Choices(2), pooled=pooled), rel=1e-5)
    assert result.routers["router_z_loss"] == pytest.approx(router_z_loss(layers), rel=1e-5)
    counts = []
    for x_ND, weights in layers:
        best = np.argsort(-x_ND @ weights["router.weight"].T, axis=1)[:, :2]
        counts.append(np.bincount(best.flatten(), minlength=6))
    assert result.routers["largest_load"] == pytest.approx(np.max(counts) / 64, rel=1e-6)
    assert result.routers["dead_experts"] == np.sum(np.array(counts) == 0)


@pytest.mark.parametrize("more", ["loss: 0.5", "loss: 0.5, pooled: true", "loss: 0, router_z_loss: 0.1"])
def test_they_are_minimized_and_not_part_of_the_reported_loss(more: str) -> None:
    """A router's gradient is that of the cross-entropy plus the auxiliary loss, up to float32 rounding."""

    def gradient(balance: str) -> tuple[float, dict[str, Tensor]]:
        given = config(MOE % f", balance: {{{balance}}}", "train.grad_clip=null")
        settings, model, seen = resolve_train(given), Decoder(given.model), dict[str, Tensor]()
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.update({name: p.grad.clone()}))  # pyright: ignore[reportOptionalMemberAccess]
        return update(model, make_optimizer(model, settings), next_token(Windows(WINDOWS)), settings, 0, CPU).loss, seen

    (with_it, gradients), (without, plain) = gradient(more), gradient("loss: 0")
    assert with_it == without
    name = "layers.1.mlp.router.weight"
    assert not torch.allclose(gradients[name], plain[name], rtol=1e-2)
    assert torch.allclose(gradients["head.weight"], plain["head.weight"], rtol=1e-4, atol=1e-7)


def test_corrections_move_by_the_loads_of_all_micro_batches_together() -> None:
    """They move as for the whole batch at once."""
    for micro in (16, 32, 64):
        model, _, layers = step(config(CORRECTED, f"train.micro_batch_tokens={micro}"))
        mixtures = [module for module in model.modules() if isinstance(module, MoE)]
        for mixture, (x_ND, weights) in zip(mixtures, layers, strict=True):
            best = np.argsort(-x_ND @ weights["router.weight"].T, axis=1)[:, :2]
            load = np.bincount(best.flatten(), minlength=6)
            assert mixture.router.correction is not None
            np.testing.assert_allclose(mixture.router.correction, 0.25 * np.sign(load.mean() - load))


def test_a_diverged_step_moves_no_correction() -> None:
    given = config(CORRECTED)
    settings, model = resolve_train(given), Decoder(given.model)
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    assert not update(model, make_optimizer(model, settings), next_token(Windows(WINDOWS)), settings, 0, CPU).is_finite
    assert not any(router.correction.any() for router in model.modules() if isinstance(router, Router))


def test_dense_layers_do_not_affect_the_balance_loss() -> None:
    _, result, layers = step(config(MOE % "", DENSE_FIRST))
    assert len(layers) == 1
    assert result.routers["balance_loss"] == pytest.approx(balance_loss(layers, Choices(2), pooled=True), rel=1e-5)
    _, result, _ = step(config())
    assert result.routers == {}


def test_experts_and_routers_decay_as_projections_do_and_their_biases_do_not() -> None:
    whole = config(MOE % ", bias: true, router: {bias: true}, shared: {gate: true}", "train.decay_embeddings=true")
    model = Decoder(whole.model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    kept = {names[p] for p in groups_by_role(model, whole.train)[Treatment(0.0, 1.0)]}
    assert {name for name in names.values() if ".mlp." in name and "bias" in name} == {n for n in kept if ".mlp." in n}


def test_under_autocast_and_compiled_the_losses_are_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config(MOE % ", router: {score: sigmoid, correction: {}}, shared: {}")
    settings = resolve_train(given)
    seen: list[Any] = []
    for device, compiled in ((CPU, False), (CPU, True), (Device("cpu", torch.bfloat16), False)):
        model = Decoder(given.model)
        forward: Any = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        seen.append(update(forward, make_optimizer(model, settings), next_token(Windows(WINDOWS)), settings, 0, device))
    for other, near in zip(seen[1:], (1e-5, 2e-2), strict=True):
        assert other.loss == pytest.approx(seen[0].loss, rel=near)
        assert other.routers["balance_loss"] == pytest.approx(seen[0].routers["balance_loss"], rel=near)
