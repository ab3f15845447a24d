"""Muon: updates of matrices by their orthogonalised momentum (Jordan 2024), beside AdamW for all other parameters.

torch.optim.Muon does the same to one whole 2-D matrix, in bfloat16 alone. Here a parameter may be a stack of matrices
(experts) or cut among processes, and float32 keeps the losses of several processes those of one.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from archlab.config import optimizer as schema
from archlab.model.cut import part_of, whole
from archlab.training.light import LightAdamW

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a s + b s^3 + c s^5 that every step takes of all singular values s: as steep at 0 as one may be
that leaves them between 0.68 and 1.13 (Jordan 2024; torch.optim.Muon has the same)."""
LEAST_NORM = 1e-7
"""By which a matrix is divided."""

_SCALES: dict[str, Callable[[int, int], float]] = {
    "adamw": lambda d_out, d_in: 0.2 * math.sqrt(max(d_out, d_in)),
    "jordan": lambda d_out, d_in: math.sqrt(max(1.0, d_out / d_in)),
    "spectral": lambda d_out, d_in: math.sqrt(d_out / d_in),
}


class Muon(LightAdamW):
    """AdamW, but for the groups that say they are matrices (`group`).

    Of a matrix it keeps one tensor, `momentum`; of the rest what AdamW keeps.
    """

    def __init__(self, groups: list[dict[str, Any]], config: schema.Muon, **of_adamw: Any) -> None:
        super().__init__(groups, **of_adamw)
        self._config = config

    def __setstate__(self, state: dict[str, Any]) -> None:
        Optimizer.__setstate__(self, state)  # AdamW's looks for its own averages everywhere, to mend old checkpoints

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient."""
        every = self.param_groups
        for group in every:
            if group["group"] == "matrix":
                for matrix in group["params"]:
                    self._update(matrix, group["lr"], group["weight_decay"])
        self.param_groups = [group for group in every if group["group"] != "matrix"]
        super().step()
        self.param_groups = every

    def _update(self, matrix: Tensor, lr: float, weight_decay: float) -> None:
        config, state, gradient = self._config, self.state[matrix], matrix.grad
        if gradient is None:
            return
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        mean = state["momentum"].lerp_(gradient, 1 - config.momentum)
        direction = gradient.lerp(mean, config.momentum) if config.nesterov else mean
        # All of a matrix decides its update, so each process that has a part of it computes the whole.
        orthogonal = orthogonalised(whole(direction), config.steps, getattr(torch, config.dtype))
        scale = _SCALES[config.scale](*matrix.shape[-2:])
        matrix.mul_(1 - lr * weight_decay)
        matrix.add_(part_of(orthogonal.to(matrix.dtype), matrix), alpha=-lr * scale)


def orthogonalised(matrices: Tensor, steps: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., M, N] -> the same: of each matrix U S V^T about U V^T, its singular values brought near to 1.

    By Newton-Schulz steps in `dtype`: products of matrices alone, no decomposition.
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
