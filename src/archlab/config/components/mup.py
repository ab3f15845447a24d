"""The maximal update parametrisation: a model as wide as one likes that learns as one of a given width does."""

import math

from archlab.config.core.base import Settings, Width


class MuP(Settings):
    """Maximal update parametrisation (muP; Yang 2022, Tensor Programs V, table 8): rates tuned at one width hold.

    With m = d_model / base_width, against the same config without it: the rate of matrices by AdamW is m times lower
    (and their weight decay m times higher, so that what decays in a step stays), embeddings and an untied head start
    and are scaled as at base_width, given deviations of matrices are divided by the root of m, logits are divided by m,
    and scores by head_dim, not its root. At base_width and base_head_dim nothing differs. Widths within layers are
    meant to grow as d_model does.
    """

    base_width: Width
    """d_model at which all is as without muP: where rates and deviations are tuned."""
    base_head_dim: Width = 64
    """head_dim at which scores are divided by its root: their factor is sqrt(base_head_dim) / head_dim."""

    def wider(self, d_model: int) -> float:
        """How many times as wide as the base."""
        return d_model / self.base_width

    def score_scale(self, head_dim: int) -> float:
        """Factor on the product of a query and a key."""
        return math.sqrt(self.base_head_dim) / head_dim
