"""Multi-head attention, MHA to MQA. Shapes: B batch, T tokens, S keys, D d_model, H query heads, K key/value heads,
C head_dim."""

from torch import Tensor, nn

from archlab.config.attention import ResolvedMultiHead
from archlab.config.layers import LayerConfig
from archlab.config.norm import NoNorm
from archlab.config.position import Rope
from archlab.model.context import Context
from archlab.model.init import Projection
from archlab.model.kernels import Scores, choose_kernel, needs_of_call, needs_of_layer
from archlab.model.norms import make_norm
from archlab.model.position_bias import make_position_bias
from archlab.model.state import State


class Attention(nn.Module):
    """softmax(scale q k^T) v per head, then mixed by `out`."""

    def __init__(self, config: ResolvedMultiHead, layer: LayerConfig, kernel: str) -> None:
        super().__init__()
        D = layer.d_model
        width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.head_dim, self.clip = config.head_dim, config.clip_qkv
        self.scale, self.softcap, self.dropout = config.scale, config.softcap, layer.dropout.attention
        self.q = Projection(D, width, bias=config.qkv_bias, role="input")
        self.k = Projection(D, kv_width, bias=config.qkv_bias, role="input")
        self.v = Projection(D, kv_width, bias=config.qkv_bias, role="input")
        self.q_norm = HeadNorm(config, config.n_heads)
        self.k_norm = HeadNorm(config, config.n_kv_heads)
        self.norm_first = not (isinstance(layer.position, Rope) and layer.position.order == "before_qk_norm")
        self.position_bias = make_position_bias(layer.position, config)
        self.kernel, self.needs = kernel, needs_of_layer(config, layer)
        choose_kernel(kernel, self.needs)  # refuses at once what it can
        self.sub_norm = make_norm(layer.norm if config.sub_norm else NoNorm(), width)
        self.out = Projection(width, D, bias=config.out_bias, role="output")

    def forward(self, x_BTD: Tensor, context: Context, state: State | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]; the new keys and values are added to the state."""
        q_BHTC, k_BKTC, v_BKTC = (self._split(project(x_BTD)) for project in (self.q, self.k, self.v))
        q_BHTC = self._normed_and_rotated(q_BHTC, self.q_norm, context)
        k_BKTC = self._normed_and_rotated(k_BKTC, self.k_norm, context)
        k_BKSC, v_BKSC = state.extend(k=k_BKTC, v=v_BKTC) if state else (k_BKTC, v_BKTC)
        bias_BHTS = (
            context.bias_BHTS if self.position_bias is None else self.position_bias(context.distance_BTS, q_BHTC)
        )
        scoring = Scores(self.scale, self.softcap, self.dropout if self.training else 0.0)
        needs = self.needs | needs_of_call(state is not None, q_BHTC, k_BKSC, v_BKSC, bias_BHTS)
        kernel = choose_kernel(self.kernel, needs)
        mixed_BHTC = kernel(q_BHTC, k_BKSC, v_BKSC, context.mask_BTS, bias_BHTS, scoring)
        return self.out(self.sub_norm(mixed_BHTC.transpose(1, 2).flatten(-2)))

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, heads * C] -> [B, heads, T, C], clipped."""
        x = x if self.clip is None else x.clamp(-self.clip, self.clip)
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _normed_and_rotated(self, x: Tensor, norm: "HeadNorm", context: Context) -> Tensor:
        """In the config's order."""
        x = norm(x) if self.norm_first else x
        x = context.rotation.rotate(x) if context.rotation else x
        return x if self.norm_first else norm(x)


class HeadNorm(nn.Module):
    """The norm of queries or keys, [B, heads, T, C] -> the same, in one of three scopes."""

    def __init__(self, config: ResolvedMultiHead, heads: int) -> None:
        super().__init__()
        scope = "head" if isinstance(config.qk_norm, NoNorm) else config.qk_norm.scope
        shape = {"head": (config.head_dim,), "each_head": (heads, config.head_dim), "width": (heads * config.head_dim,)}
        self.scope = scope
        self.norm = make_norm(config.qk_norm, *shape[scope])

    def forward(self, x_BHTC: Tensor) -> Tensor:
        """[B, heads, T, C] -> the same."""
        if isinstance(self.norm, nn.Identity) or self.scope == "head":
            return self.norm(x_BHTC)
        x_BTHC = x_BHTC.transpose(1, 2)
        if self.scope == "each_head":
            return self.norm(x_BTHC).transpose(1, 2)
        return self.norm(x_BTHC.flatten(-2)).unflatten(-1, x_BTHC.shape[-2:]).transpose(1, 2)
