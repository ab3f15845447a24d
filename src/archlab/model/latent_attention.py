"""Multi-head latent attention (DeepSeek-V2).

Shapes: B batch, T tokens, S keys, D d_model, H heads, R width of the latent vector, V width of a value. Queries and
keys have C = N + P dimensions, of which RoPE rotates the last P. A cache stores E = R + P elements per token.
"""

import torch
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.latent_attention import Latent
from archlab.config.core.registry import implements
from archlab.model.arithmetic import Same, as_autocast
from archlab.model.context import Context, SequenceShard
from archlab.model.kernels import Attend
from archlab.model.masks import Mask
from archlab.model.norms import make_norm
from archlab.model.positions import make_position_bias, with_content_bias
from archlab.model.projection import Projection
from archlab.model.state import State


@implements(Latent)
class LatentAttention(nn.Module):
    """Multi-head latent attention with one latent vector per token.

    `kv_down` computes the latent vector, from which `kv_up` computes the keys and values of all heads.

    The expanded form materializes the keys and values of every head. It is used without a cache, and with a cache if
    many tokens are read together. The absorbed form does not materialize them. Let W be a head's key or value matrix
    and c a latent vector. Then q . (W c) = (W^T q) . c for keys and sum(p W c) = W sum(p c) for values. The absorbed
    form therefore applies the matrices to the queries and to the weighted sums of latent vectors. Both forms give the
    same output up to rounding.
    """

    def __init__(self, config: Latent, site: Site) -> None:
        super().__init__()
        self.config, D, H = config, site.d_model, config.n_heads
        rank = config.q_rank
        self.q_down = Projection(D, rank, bias=config.qkv_bias, role="narrow") if rank else Same()
        self.q_norm = make_norm(config.narrow_norm, rank) if rank else Same()
        self.q_up = Projection(rank or D, H * config.query_width, bias=False, role="input")
        self.kv_down = Projection(D, config.kept_width, bias=config.qkv_bias, role="narrow")
        self.kv_norm = make_norm(config.narrow_norm, config.kv_rank)
        self.kv_up = Projection(config.kv_rank, H * (config.nope_dim + config.v_dim), bias=False, role="input")
        self.position_bias = make_position_bias(site, config)
        self.attend = Attend(config, site)
        self.out = Projection(H * config.v_dim, D, bias=config.out_bias, role="output")

    def forward(self, x_BTD: Tensor, context: Context, state: State | SequenceShard | None = None) -> Tensor:
        """Apply attention: [B, T, D] -> [B, T, D].

        `state` may be a cache, which stores the new latent vectors. It may also be a sequence shard, which gathers the
        latent vectors of all processes.
        """
        (x_BTD,) = as_autocast(x_BTD)
        q_BHTC = self.q_up(self.q_norm(self.q_down(x_BTD))).unflatten(-1, (self.config.n_heads, -1)).transpose(1, 2)
        q_BHTC = self._rotated(q_BHTC, self.config.nope_dim, context)
        latent_B1TR, rope_B1TP = self.kv_down(x_BTD)[:, None].split((self.config.kv_rank, self.config.rope_dim), -1)
        kept_B1TE = torch.cat((self.kv_norm(latent_B1TR), rope_B1TP), -1)
        kept_B1SE = self._rotated(kept_B1TE, self.config.kv_rank, context)
        if state is not None:
            (kept_B1SE,) = state.extend(latent=kept_B1SE)
        bias_BHTS = (
            context.bias_BHTS if self.position_bias is None else self.position_bias(context.distance_BTS, q_BHTC)
        )
        q_BHTC = with_content_bias(q_BHTC, self.position_bias)
        is_cached = isinstance(state, State)
        is_absorbed = is_cached and self.config.absorbing_is_less(x_BTD.shape[1])
        mixed = self.absorbed if is_absorbed else self.expanded
        mixed_BHTV = mixed(q_BHTC, kept_B1SE, context.mask_BTS, bias_BHTS, is_cached=is_cached)
        return self.out(mixed_BHTV.transpose(1, 2).flatten(-2))

    def expanded(
        self, q_BHTC: Tensor, kept_B1SE: Tensor, mask_BTS: Mask | None, bias_BHTS: Tensor | None, *, is_cached: bool
    ) -> Tensor:
        """Return the attention output, [B, H, T, V]. Materialize keys and values."""
        config = self.config
        latent_B1SR, rope_B1SP = kept_B1SE.split((config.kv_rank, config.rope_dim), -1)
        kv_BHSX = self.kv_up(latent_B1SR[:, 0]).unflatten(-1, (config.n_heads, -1)).transpose(1, 2)
        k_BHSN, v_BHSV = kv_BHSX.split((config.nope_dim, config.v_dim), -1)
        k_BHSC = torch.cat((k_BHSN, rope_B1SP.expand(-1, config.n_heads, -1, -1)), -1)
        return self.attend(q_BHTC, k_BHSC, v_BHSV, mask_BTS, bias_BHTS, training=self.training, is_cached=is_cached)

    def absorbed(
        self, q_BHTC: Tensor, kept_B1SE: Tensor, mask_BTS: Mask | None, bias_BHTS: Tensor | None, *, is_cached: bool
    ) -> Tensor:
        """Return the attention output, [B, H, T, V], without materializing keys and values.

        All heads share one key of width E. The first R elements of this key are also the value. The kernel receives the
        whole key as the value, because values of another width than the keys would have to be copied. The surplus
        elements of the output are dropped.
        """
        config = self.config
        kv_up_HXR = self.kv_up.weight.unflatten(0, (config.n_heads, -1))
        k_up_HNR, v_up_HVR = kv_up_HXR.split((config.nope_dim, config.v_dim), 1)
        q_BHTN, q_BHTP = q_BHTC.split((config.nope_dim, config.rope_dim), -1)
        q_BHTE = torch.cat((q_BHTN @ k_up_HNR, q_BHTP), -1)
        mixed_BHTE = self.attend(
            q_BHTE, kept_B1SE, kept_B1SE, mask_BTS, bias_BHTS, training=self.training, is_cached=is_cached
        )
        return mixed_BHTE[..., : config.kv_rank] @ v_up_HVR.transpose(-1, -2)

    def _rotated(self, x: Tensor, start: int, context: Context) -> Tensor:
        """Rotate only the dimensions whose index is at least `start`: [B, heads, T, C] -> [B, heads, T, C]."""
        if context.rotation is None:
            return x
        return torch.cat((x[..., :start], context.rotation.rotate(x[..., start:])), -1)
