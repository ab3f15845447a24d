"""Muon: its updates of matrices, and the parameters that it leaves to AdamW."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim._muon import _single_tensor_muon  # the class loads torch's compiler, which takes five seconds
from torch.utils.flop_counter import FlopCounterMode

from accelerator import Accelerator
from archlab.config.components.work import Pass, matrix_flops
from archlab.config.optimizer import Muon as Config
from archlab.config.training import resolve_train
from archlab.model.decoder import Decoder
from archlab.model.roles import roles_of
from archlab.pricing.params import matrix_shapes
from archlab.pricing.update import dealt, orthogonalizing
from archlab.pricing.work import training_step
from archlab.training import optim
from archlab.training.optim import Muon, make_optimizer, orthogonalized
from tiny import config


def stepped(parameter, gradients, settings, lr=0.02, weight_decay=0.1):
    """Return the parameter after one update per gradient."""
    parameter = nn.Parameter(parameter.clone())
    group = {"params": [parameter], "group": "matrix", "weight_decay": weight_decay}
    optimizer = Muon([group], settings, lr=lr)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def drawn(*shape, n=1):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(n)]


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (1, 16), (16, 16)])
@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"scale": "jordan"}, {"adjust_lr_fn": "original"}),
        ({"scale": "adamw", "nesterov": False}, {"adjust_lr_fn": "match_rms_adamw", "nesterov": False}),
        ({"scale": "adamw", "momentum": 0.8, "steps": 3}, {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8, "ns_steps": 3}),
    ],
)  # fmt: skip
def test_updates_of_one_matrix_are_equal_to_torchs(shape, settings, theirs, monkeypatch):
    """torch's Muon always multiplies in bfloat16; here it is patched to stay in float32."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    start, *gradients = drawn(*shape, n=4)
    reference, mean = start.clone(), torch.zeros_like(start)
    usual = {"momentum": 0.95, "nesterov": True, "ns_steps": 5, "eps": 1e-7, "has_complex": False}
    for gradient in gradients:
        _single_tensor_muon(
            [reference], [gradient], [mean], lr=0.02, weight_decay=0.1, ns_coefficients=(3.4445, -4.7750, 2.0315),
            **{**usual, **theirs},
        )  # fmt: skip
    torch.testing.assert_close(stepped(start, gradients, Config(**settings)), reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mlp", ["{kind: gated}", "{kind: moe, experts: 4, shared: {}}"])
def test_the_flops_of_its_products_are_counted(mlp):
    """torch counts the products of one update."""
    cfg = config(f"model.mlp={mlp}", "train.optimizer={kind: muon, steps: 3}")
    model = Decoder(cfg.model)
    optimizer = make_optimizer(model, cfg.train)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    work = orthogonalizing(cfg.train.optimizer, matrix_shapes(cfg.model), 4)
    assert matrix_flops(work) == {"optimiser": counter.get_total_flops()}


@pytest.mark.parametrize("mlp", ["{kind: gated}", "{kind: moe, experts: 4, shared: {}}", "{kind: moe, experts: 6}"])
@pytest.mark.parametrize("n", [2, 4, 5])
def test_costs_deal_the_matrices_that_training_deals(mlp, n, monkeypatch):
    """A group has one matrix for each of n processes. Experts form groups of their own, if n divides their number."""
    cfg = config("model.n_layers=5", f"model.mlp={mlp}", "train.optimizer=muon")
    model, found = Decoder(cfg.model), Counter[tuple[int, ...]]()

    def seen(stack):
        if len(stack) % n == 0:
            found[(*stack.shape[-2:], *stack.shape[:-2])] += 1
        return stack

    monkeypatch.setattr(optim, "n_sharing", lambda matrix: n)
    monkeypatch.setattr(optim, "whole_entries", seen)
    optimizer = make_optimizer(model, cfg.train)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    expected = Counter[tuple[int, ...]]()
    for shape, count in dealt(matrix_shapes(cfg.model), n).items():
        stacked = shape.stacked > 1
        expected[shape.d_out, shape.d_in, shape.stacked if stacked else n] += count if stacked else count // n
    assert found
    assert found == expected


def test_a_step_with_muon_has_more_work_than_one_with_adamw():
    cfg = config()
    plain, muon = (
        sum(o.flops for o in training_step(cfg.model, Pass(1, 8), optimizer=optimizer))
        for optimizer in (None, Config())
    )
    assert muon - plain == sum(o.flops for o in orthogonalizing(Config(), matrix_shapes(cfg.model), 4)) > 0


def test_bfloat16_is_another_rounding():
    (matrix,) = drawn(24, 40)
    exact, rounded = orthogonalized(matrix, 5), orthogonalized(matrix, 5, torch.bfloat16)
    assert rounded.dtype is torch.bfloat16
    assert (
        1e-3 < (exact - rounded).norm() / exact.norm() < 0.05
    )  # bfloat16 has eight bits, and each of five steps loses some


@pytest.mark.parametrize(
    ("setting", "supported", "device", "expected"),
    [
        ("auto", True, "cuda", torch.bfloat16),
        ("auto", False, "cuda", torch.float32),
        ("auto", True, "cpu", torch.float32),
        ("float32", True, "cuda", torch.float32),
        ("bfloat16", True, "cpu", torch.bfloat16),
    ],
)
def test_on_a_gpu_its_products_are_bfloat16(setting, supported, device, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    used = list[torch.dtype]()

    def seen(matrices, steps, dtype):
        used.append(dtype)
        return orthogonalized(matrices, steps, dtype)

    monkeypatch.setattr(optim, "orthogonalized", seen)
    with Accelerator():
        model = Decoder(config("model.n_layers=1").model).to(device)
        optimizer = make_optimizer(model, resolve_train(config(f"train.optimizer={{kind: muon, dtype: {setting}}}")))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert set(used) == {expected}


def by_svd(matrix, steps):
    """Apply the polynomial to the singular values in float64, without matrix products."""
    u, s, vt = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ vt


@pytest.mark.parametrize("shape", [(5, 12, 20), (2, 3, 20, 12), (16, 16)])
def test_every_matrix_of_a_stack_is_orthogonalized_by_itself(shape):
    (stack,) = drawn(*shape)
    found = orthogonalized(stack, 5).flatten(0, -3) if len(shape) > 2 else orthogonalized(stack, 5)[None]
    for ours, matrix in zip(found, stack.reshape(-1, *shape[-2:]), strict=True):
        np.testing.assert_allclose(ours.numpy(), by_svd(matrix, 5), atol=1e-5)
        values = torch.linalg.svdvals(ours)
        assert values[values > 0.3].min() > 0.6
        assert values.max() < 1.2


def test_a_matrix_without_a_gradient_or_with_one_of_zeros_only_decays():
    (start,) = drawn(8, 4)
    after = stepped(start, [torch.zeros(8, 4)], Config(), lr=0.1, weight_decay=0.5)
    torch.testing.assert_close(after, start * 0.95)
    parameter = nn.Parameter(start.clone())
    Muon([{"params": [parameter], "group": "matrix", "weight_decay": 0.5}], Config(), lr=0.1).step()
    assert torch.equal(parameter.detach(), start)


def test_by_default_its_update_is_as_large_as_adamws():
    """The RMS is 0.2 to 0.4 of the learning rate (Liu 2025), so a rate tuned for one optimizer suits the other."""
    (start,), (gradient,) = drawn(256, 64), drawn(256, 64)
    moved = stepped(start, [gradient], Config(), lr=1.0, weight_decay=0.0) - start
    assert 0.15 < moved.square().mean().sqrt() < 0.25


def test_adamw_updates_everything_but_matrices_at_its_own_rate():
    """Their updates are equal to AdamW's to the bit, and each optimizer keeps only its own state."""
    asked = resolve_train(config("train.optimizer={kind: muon, adam_lr: 5e-4}", "train.lr=2e-3"))
    alone = resolve_train(config("train.lr=5e-4"))
    models = [Decoder(config("model.mlp={kind: moe, experts: 4, d_ff: 16, bias: true}").model) for _ in range(2)]
    optimizers = [make_optimizer(model, train) for model, train in zip(models, (asked, alone), strict=True)]
    for optimizer, lr in zip(optimizers, (2e-3, 5e-4), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_multiplier"]
    for _ in range(2):
        for model, optimizer in zip(models, optimizers, strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                )
            optimizer.step()
    ours, theirs = (dict(model.named_parameters()) for model in models)
    kept = {}
    for name, parameter, role, _ in roles_of(models[0]):
        kept.setdefault(role.group, set()).add(frozenset(optimizers[0].state[parameter]))
        assert torch.equal(parameter, theirs[name.removeprefix(".")]) == (role.group != "matrix"), name
    averages = frozenset({"step", "exp_avg", "exp_avg_sq"})
    assert kept == {"matrix": {frozenset({"momentum"})}, "table": {averages}, "vector": {averages}}
    assert ours["layers.0.mlp.experts.up"].ndim == 3


def test_its_state_is_loaded_as_torchs_is():
    train = resolve_train(config("train.optimizer.kind=muon"))
    model = Decoder(config().model)
    optimizer = make_optimizer(model, train)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    again = make_optimizer(model, train)
    again.load_state_dict(optimizer.state_dict())
    again.step()
    assert all(again.state[p].keys() == optimizer.state[p].keys() for p in model.parameters())
