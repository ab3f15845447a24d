"""Multi-head attention (MHA), including its grouped-query (GQA) and multi-query (MQA) forms.

Shapes: B batch, T tokens, S keys, D d_model, H query heads, K key/value heads, C head_dim, V v_dim.
"""

import torch
from torch import Tensor, nn

from archlab.config.components.component import Site
from archlab.config.components.multi_head import MultiHead, Temperature
from archlab.config.components.norm import NoNorm
from archlab.config.components.position import Rope
from archlab.config.core.registry import Registered, implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import as_autocast, wide
from archlab.model.context import Context, SequenceShard
from archlab.model.contract import Result, check_arguments, checked_function
from archlab.model.kernels import Attend
from archlab.model.norms import HeadNorm, make_norm
from archlab.model.positions import make_position_bias, with_content_bias
from archlab.model.projection import Projection
from archlab.model.state import State


@implements(MultiHead)
class MultiHeadAttention(nn.Module):
    """Multi-head attention: softmax(scale q k^T) v per head, then the projection `out`."""

    def __init__(self, config: MultiHead, site: Site) -> None:
        super().__init__()
        D, H, K = site.d_model, config.n_heads, config.n_kv_heads
        self.config, self.reads_source = config, site.reads_source
        self.q = Projection(D, H * config.head_dim, bias=config.qkv_bias, role="input")
        self.k = Projection(D, K * config.head_dim, bias=config.qkv_bias, role="input")
        values = None if config.keys_as_values else Projection(D, K * config.v_dim, bias=config.qkv_bias, role="input")
        self.v = values
        self.q_norm = HeadNorm(config, H)
        self.k_norm = HeadNorm(config, K)
        self.v_norm = make_norm(config.value_norm, config.v_dim)
        self.norm_first = not (isinstance(site.position, Rope) and site.position.order == "before_qk_norm")
        self.position_bias = make_position_bias(site, config)
        self.attend = Attend(config, site)
        self.sinks = nn.Parameter(torch.empty(H)) if config.sinks else None
        self.constants = {"sinks": 0.0}
        self.sub_norm = make_norm(site.norm if config.sub_norm else NoNorm(), config.out_width)
        self.over_all = {"sub_norm": config.out_width}
        self.gate = Projection(D, config.gate_width, bias=config.gate.bias, role="input") if config.gate else None
        self.gate_activation = make_activation(config.gate.activation if config.gate else "identity")
        self.out = Projection(config.out_width, D, bias=config.out_bias, role="output")

    def forward(self, x_BTD: Tensor, context: Context, state: State | SequenceShard | None = None) -> Tensor:
        """Apply attention: [B, T, D] -> [B, T, D].

        `state` may be a cache, which stores the new keys and values. It may also be a sequence shard, which gathers the
        keys and values of all processes.
        """
        (x_BTD,) = as_autocast(x_BTD)
        q_BHTC = self._split(self.q(x_BTD), self.config.head_dim)
        q_BHTC = self._normed_and_rotated(q_BHTC, self.q_norm, context)
        if self.config.temperature is not None:
            q_BHTC = _with_temperature(q_BHTC, self.config.temperature, context.positions_BT)
        if self.reads_source:
            k_BKSC, v_BKSV = self._keys_of_source(context, state)
        else:
            k_BKSC, v_BKSV = self._keys_and_values(x_BTD, context)
            k_BKSC, v_BKSV = state.extend(k=k_BKSC, v=v_BKSV) if state else (k_BKSC, v_BKSV)
        bias_BHTS = (
            context.bias_BHTS if self.position_bias is None else self.position_bias(context.distance_BTS, q_BHTC)
        )
        q_BHTC = with_content_bias(q_BHTC, self.position_bias)
        mixed_BHTV = self.attend(
            q_BHTC,
            k_BKSC,
            v_BKSV,
            context.mask_BTS,
            bias_BHTS,
            sinks_H=self.sinks,
            training=self.training,
            is_cached=isinstance(state, State),
        )
        mixed_BTE = self.sub_norm(mixed_BHTV.transpose(1, 2).flatten(-2))
        return self.out(self._gated(mixed_BTE, x_BTD))

    def _keys_and_values(self, x_BSD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        k_BKSC = self._split(self.k(x_BSD), self.config.head_dim)
        v_BKSV = k_BKSC if self.v is None else self._split(self.v(x_BSD), self.config.v_dim)
        return self._normed_and_rotated(k_BKSC, self.k_norm, context), self.v_norm(v_BKSV)

    def _keys_of_source(self, context: Context, state: State | SequenceShard | None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the source. With a cache, they are computed once, in the first pass."""
        if context.source_BSD is None:
            assert isinstance(state, State)
            return state["k"], state["v"]
        (source_BSD,) = as_autocast(context.source_BSD)
        k_BKSC, v_BKSV = self._keys_and_values(source_BSD, context)
        if isinstance(state, State):
            state["k"].copy_(k_BKSC)
            state["v"].copy_(v_BKSV)
        return k_BKSC, v_BKSV

    def _split(self, x: Tensor, width: int) -> Tensor:
        """Split heads: [B, T, heads * width] -> [B, heads, T, width].

        If the config sets `clip_qkv`, all elements are clipped to the range -clip_qkv to clip_qkv.
        """
        clip = self.config.clip_qkv
        x = x if clip is None else x.clamp(-clip, clip)
        return x.unflatten(-1, (-1, width)).transpose(1, 2)

    def _gated(self, mixed_BTE: Tensor, x_BTD: Tensor) -> Tensor:
        if self.gate is None:
            return mixed_BTE
        gate_BTHG = self.gate_activation(self.gate(x_BTD)).unflatten(-1, (self.config.n_heads, -1))
        return (mixed_BTE.unflatten(-1, (self.config.n_heads, -1)) * gate_BTHG).flatten(-2)

    def _normed_and_rotated(self, x: Tensor, norm: HeadNorm, context: Context) -> Tensor:
        x = norm(x) if self.norm_first else x
        x = context.rotation.rotate(x) if context.rotation else x
        return x if self.norm_first else norm(x)


def check_attend(kind: type[Registered], module: MultiHeadAttention) -> None:
    """Check the arguments of a plug-in's replacement for `attend`, and make every call check its result."""
    if not isinstance(attend := module.attend, nn.Module):
        others = {"sinks_H": None, "training": None, "is_cached": None}
        check_arguments(kind, attend, "q, k, v, mask, bias", **others)
        module.__dict__["attend"] = checked_function(kind, "attend", attend, _mixed)


def _mixed(q_BHTC: Tensor, k_BKSC: Tensor, v_BKSV: Tensor, *_: object) -> Result:
    return Result((*q_BHTC.shape[:3], v_BKSV.shape[-1]), v_BKSV.dtype)


def _with_temperature(q_BHTC: Tensor, temperature: Temperature, positions_BT: Tensor) -> Tensor:
    """Multiply queries by 1 + beta ln(1 + floor((position + offset) / length)), computed in at least float32.

    The queries of padding tokens do not change.
    """
    steps_BT = (positions_BT + temperature.offset).clamp(min=0) // temperature.length
    factor_BT = 1 + temperature.beta * steps_BT.to(wide(q_BHTC.dtype)).log1p()
    return (q_BHTC * factor_BT[:, None, :, None]).to(q_BHTC.dtype)
