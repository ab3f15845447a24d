"""Optimizers and their parameter groups. The role of a parameter determines its group."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import unwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from archlab.config.core.contract import breach
from archlab.config.core.registry import Registered, implements, make
from archlab.config.model_schema import ModelConfig
from archlab.config.optimizer import AdamW as AdamWConfig
from archlab.config.optimizer import Muon as MuonConfig
from archlab.config.schema import TrainConfig
from archlab.model.contract import check_arguments
from archlab.model.decoder import Decoder
from archlab.model.roles import Role, roles_of
from archlab.model.sharded import n_sharing, placements, sharded_again, whole_entries


class Treatment(NamedTuple):
    """Update settings of a parameter. Parameters with the same settings form one parameter group of the optimizer."""

    weight_decay: float
    lr_multiplier: float


def groups_by_role(model: Decoder, train: TrainConfig) -> dict[Treatment, list[nn.Parameter]]:
    """Return the trained parameters, grouped by the update settings of their roles. With LoRA, other parameters are
    frozen."""
    groups: dict[Treatment, list[nn.Parameter]] = {}
    for _, parameter, role, _ in roles_of(model):
        if parameter.requires_grad:
            groups.setdefault(_treatment(role, model.config, train), []).append(parameter)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for group in groups.values() for p in group) == sum(p.numel() for p in trained)
    return groups


def _treatment(role: Role, model: ModelConfig, train: TrainConfig) -> Treatment:
    """Return the update settings of the parameters with this role.

    With muP, AdamW's learning rate for matrices is divided by width / base width. The weight decay of matrices is
    multiplied by the same factor, so that the decay per step stays the same. Muon's updates need no such factor (Yang
    2023).
    """
    decays = role.decays == "always" or (role.decays == "if_asked" and train.decay_embeddings)
    weight_decay, multiplier = train.weight_decay * decays, getattr(train.lr_multipliers, role.name)
    if model.mup and role.group == "matrix" and isinstance(train.optimizer, AdamWConfig):
        wider = model.mup.wider(model.d_model)
        return Treatment(weight_decay * wider, multiplier / wider)
    return Treatment(weight_decay, multiplier)


@dataclass(frozen=True)
class ToTrain:
    """Model and training settings from which an optimizer is made."""

    model: Decoder
    train: TrainConfig

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for torch, each with its `weight_decay` and `lr_multiplier`."""
        by_role = groups_by_role(self.model, self.train)
        return [{"params": parameters, **how._asdict()} for how, parameters in by_role.items()]

    @property
    def groups_by_use(self) -> list[dict[str, Any]]:
        """Parameter groups as in `groups`, split further by the type of parameter.

        The key `group` of each group is this type: matrix, table or vector. Muon, for example, treats matrices
        differently.
        """
        uses = {parameter: role.group for _, parameter, role, _ in roles_of(self.model)}
        return [
            {**group, "params": [p for p in group["params"] if uses[p] == use], "group": use}
            for group in self.groups
            for use in dict.fromkeys(uses[p] for p in group["params"])
        ]


def make_optimizer(model: Decoder, train: TrainConfig) -> Optimizer:
    """Return the optimizer of the config. `set_rate` sets its learning rate before each update."""
    return make(train.optimizer, ToTrain(model, train), check=_check_optimizer)


def _check_optimizer(kind: type[Registered], optimizer: Any, *_: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        made = type(optimizer).__name__
        raise breach(kind, f"its factory returned a {made}; allowed: a torch.optim.Optimizer")
    if any("lr_multiplier" not in group for group in optimizer.param_groups):
        raise breach(kind, "it has parameter groups without lr_multiplier; pass on the groups unchanged")
    check_arguments(kind, optimizer.step, "")
    return optimizer


@implements(AdamWConfig)
def _adamw(config: AdamWConfig, to_train: ToTrain) -> Optimizer:
    train = to_train.train
    return LightAdamW(to_train.groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


@implements(MuonConfig)
def _muon(config: MuonConfig, to_train: ToTrain) -> Optimizer:
    train, groups = to_train.train, to_train.groups_by_use
    for group in groups:
        if group["group"] != "matrix":
            group["lr_multiplier"] *= (config.adam_lr or train.lr) / train.lr
    return Muon(groups, config, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of the next update. Each parameter group multiplies it by its `lr_multiplier`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_multiplier"]


class LightAdamW(AdamW):
    """AdamW without torch's decorators, which import the compiler. The import takes about a second."""

    add_param_group = unwrap(AdamW.add_param_group)
    zero_grad = unwrap(AdamW.zero_grad)
    state_dict = unwrap(AdamW.state_dict)
    load_state_dict = unwrap(AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(AdamW.step))


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the polynomial a s + b s^3 + c s^5, which every Newton-Schulz step applies to the singular values s.

The coefficients make the polynomial as steep as possible at 0, while the final singular values lie between 0.68 and
1.13 (Jordan 2024). torch.optim.Muon uses the same coefficients.
"""

LEAST_NORM = 1e-7
"""Lower bound on the norm by which a matrix is divided, so that a zero matrix causes no division by zero."""

_SCALES: dict[str, Callable[[int, int], float]] = {
    "adamw": lambda d_out, d_in: 0.2 * math.sqrt(max(d_out, d_in)),
    "jordan": lambda d_out, d_in: math.sqrt(max(1.0, d_out / d_in)),
    "spectral": lambda d_out, d_in: math.sqrt(d_out / d_in),
}


class Muon(LightAdamW):
    """Muon for the parameter groups whose `group` is matrix, AdamW for all others.

    Muon keeps one state tensor per matrix, `momentum`. All other parameters have AdamW's state.
    """

    def __init__(self, groups: list[dict[str, Any]], config: MuonConfig, **adamw_options: Any) -> None:
        super().__init__(groups, **adamw_options)
        self._config = config

    def __setstate__(self, state: dict[str, Any]) -> None:
        Optimizer.__setstate__(
            self, state
        )  # AdamW's version converts old checkpoints, and expects AdamW's state for every parameter

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        all_groups = self.param_groups
        for group in all_groups:
            if group["group"] == "matrix":
                for matrices in _dealt_together(group["params"]):
                    self._update(matrices, group["lr"], group["weight_decay"])
        self.param_groups = [group for group in all_groups if group["group"] != "matrix"]
        super().step()
        self.param_groups = all_groups

    def _update(self, matrices: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        """Update matrices of one shape and sharding, or one parameter that stacks several.

        Each process orthogonalizes its share.
        """
        config, first = self._config, matrices[0]
        is_stack, dtype = first.ndim > 2, _product_dtype(config, first.device)
        directions = [self._direction(matrix) for matrix in matrices]
        stack = (directions[0] if is_stack else torch.stack(directions)).to(dtype)  # rounded before it is sent
        updates = sharded_again(orthogonalized(whole_entries(stack), config.steps, dtype), stack)
        scale = _SCALES[config.scale](*first.shape[-2:])
        for matrix, update in zip(matrices, (updates,) if is_stack else updates.unbind(), strict=True):
            matrix.mul_(1 - lr * weight_decay)
            matrix.add_(update.to(matrix.dtype), alpha=-lr * scale)

    def _direction(self, matrix: Tensor) -> Tensor:
        config, state, gradient = self._config, self.state[matrix], matrix.grad
        assert gradient is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        mean = state["momentum"].lerp_(gradient, 1 - config.momentum)
        return gradient.lerp(mean, config.momentum) if config.nesterov else mean


def _dealt_together(matrices: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of matrices with gradients, of the same shape and sharding.

    A list has one matrix for each process that shares it, if there are that many, and otherwise one matrix. A parameter
    that stacks several matrices is a list of its own.
    """
    alike = defaultdict[object, list[Tensor]](list)
    for matrix in matrices:
        if matrix.grad is not None:
            alike[matrix.shape, placements(matrix)].append(matrix)
    for found in alike.values():
        n = n_sharing(found[0]) if found[0].ndim == 2 else 1
        whole = len(found) // n * n
        yield from (found[i : i + n] for i in range(0, whole, n))
        yield from ([matrix] for matrix in found[whole:])


def _product_dtype(config: MuonConfig, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    gains = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if gains else torch.float32


def orthogonalized(matrices: Tensor, steps: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Map each matrix U S V^T, [..., M, N], to approximately U V^T, whose singular values are near 1.

    The Newton-Schulz steps are computed in `dtype` and need only matrix products.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.to(dtype)
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=LEAST_NORM)  # no singular value above 1
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
