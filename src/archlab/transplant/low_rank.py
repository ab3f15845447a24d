"""Low-rank factors of matrices that read a normalized stream.

Shapes: N rows of a matrix, D d_model, R rank, H heads, C complex features of a head.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_RIDGE = 1e-12
"""Part of the mean square that is added to every feature, because a feature whose norm weight is 0 has no inverse."""


class Factors(NamedTuple):
    """Matrix of low rank as the product `up @ down`."""

    down: Tensor
    """Matrix that computes the narrow vector, [R, D]."""
    up: Tensor
    """Matrix that reads the narrow vector, [N, R]."""
    right: Tensor
    """Orthonormal directions that were kept, [D, R], as coordinates of the features before `root`."""

    def kept(self, matrix_ND: Tensor, root_DD: Tensor) -> float:
        """Return the fraction of the squared norm of `matrix @ root` that lies in the kept directions."""
        weighted_ND = matrix_ND @ root_DD
        whole = weighted_ND.square().sum().item()
        return (weighted_ND @ self.right).square().sum().item() / whole if whole else 1.0


def root_of_moment(weight_D: Tensor, bias_D: Tensor | None) -> Tensor:
    """Return a triangular root L of the second moment of a norm's output x: E[x x^T] = L L^T, [D, D].

    The features before the weight are taken as uncorrelated with variance 1. Activations would give the true moment,
    but transplanting reads only weights.
    """
    moment_DD = torch.diag(weight_D.square())
    if bias_D is not None:
        moment_DD = moment_DD + bias_D[:, None] * bias_D
    ridge = _RIDGE * moment_DD.diagonal().mean()
    return torch.linalg.cholesky(moment_DD + ridge * torch.eye(len(weight_D), dtype=moment_DD.dtype))


def factors(matrix_ND: Tensor, root_DD: Tensor, rank: int) -> Factors:
    """Return the best factors of this rank: they minimize E|matrix x - up down x|^2 for the x of `root_of_moment`.

    The narrow vector `down @ x` has uncorrelated elements with variance 1, so that an RMS norm with weight 1 leaves its
    scale unchanged on average. At the rank D, its mean square is that of the normalized features themselves.
    """
    weighted_ND = matrix_ND @ root_DD
    right_DR = torch.linalg.eigh(weighted_ND.T @ weighted_ND).eigenvectors.flip(-1)[:, :rank]
    down_RD = torch.linalg.solve_triangular(root_DD, right_DR.T, upper=False, left=False)
    return Factors(down_RD, weighted_ND @ right_DR, right_DR)


class Shared(NamedTuple):
    """One complex feature for all heads, in place of one for each head: feature of head h = coefficient h * shared."""

    coefficients_HC: Tensor
    shared_CD: Tensor
    kept: float
    """Fraction of the squared norm that the shared features keep."""


def shared_by_heads(features_HCD: Tensor, root_DD: Tensor) -> Shared:
    """Return the best shared features of complex matrices: for each of the C features, the largest component of the
    [H, D] matrix of its heads."""
    weighted_CHD = (features_HCD @ root_DD.to(features_HCD.dtype)).transpose(0, 1)
    values_CH, vectors_CHH = torch.linalg.eigh(weighted_CHD @ weighted_CHD.mH)
    largest_CH = vectors_CHH[..., -1]
    shared_CD = torch.einsum("ch,hcd->cd", largest_CH.conj(), features_HCD)
    return Shared(largest_CH.T, shared_CD, (values_CH[:, -1].sum() / values_CH.sum()).item())
