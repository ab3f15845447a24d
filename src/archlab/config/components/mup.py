"""Maximal update parametrization (muP), under which a model of any width trains like a model of a chosen base width."""

import math

from archlab.config.core.base import Settings, Width


class MuP(Settings):
    """Maximal update parametrization (muP; Yang 2022, Tensor Programs V, table 8): learning rates tuned at one width
    hold at all widths.

    With m = d_model / base_width, training differs from the same config without muP as follows. Under AdamW, the
    learning rate of matrices is divided by m. Their weight decay is multiplied by m, so that the decay per step stays
    the same. Embeddings and an untied head are initialized and scaled as at base_width. If the config sets the standard
    deviation of initial matrices, it is divided by sqrt(m). Logits are divided by m. The factor on attention scores is
    sqrt(base_head_dim) / head_dim instead of 1 / sqrt(head_dim).

    If d_model is base_width and head_dim is base_head_dim, muP changes nothing. The widths inside layers should grow in
    proportion to d_model.
    """

    base_width: Width
    """Value of d_model at which the model trains as it does without muP. Tune learning rates and initial standard
    deviations at this width."""
    base_head_dim: Width = 64
    """Value of head_dim at which attention scores have the same factor as without muP. In general, the factor is
    sqrt(base_head_dim) / head_dim."""

    def wider(self, d_model: int) -> float:
        return d_model / self.base_width

    def score_scale(self, head_dim: int) -> float:
        return math.sqrt(self.base_head_dim) / head_dim
