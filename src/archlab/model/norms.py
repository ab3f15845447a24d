"""Normalization over the feature axis, computed in at least float32 even if activations are narrower."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archlab.config.components import norm as schema
from archlab.config.components.multi_head import MultiHead
from archlab.config.core.registry import implements, make
from archlab.config.layers import Branch, LayerConfig
from archlab.model.arithmetic import Same, at_least_float32, has_format_of, is_training_eagerly
from archlab.model.contract import check_forward, like_input
from archlab.model.roles import check_parameters
from archlab.model.torch_private import layer_norm_backward

Shape = tuple[int, ...]


@implements(schema.AnyLayerNorm)
class LayerNorm(nn.Module):
    """LayerNorm: (x - mean) / sqrt(var + eps) * w + b."""

    timed_as = "norms"

    def __init__(self, config: schema.AnyLayerNorm, shape: Shape) -> None:
        super().__init__()
        # 1 + weight is rounded to the weights' dtype, as in the published code of Nemotron; Gemma's RMSNorm differs.
        self.eps, self.offset, self.per_feature = config.eps, float(config.unit_offset), len(shape) == 1
        self.weight = nn.Parameter(torch.empty(shape)) if config.weight else None
        self.bias = nn.Parameter(torch.empty(shape)) if config.bias else None
        self.constants = {"weight": 1 - self.offset, "bias": 0.0}

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axis: [..., *shape] -> [..., *shape]."""
        wide = at_least_float32(x)
        weight = None if self.weight is None else (self.weight + self.offset).to(wide.dtype)
        bias = None if self.bias is None else self.bias.to(wide.dtype)
        if self.per_feature:  # fused: half the time of separate steps
            return F.layer_norm(wide, x.shape[-1:], weight, bias, self.eps).to(x.dtype)
        wide = F.layer_norm(wide, x.shape[-1:], eps=self.eps)
        wide = wide if weight is None else wide * weight
        return (wide if bias is None else wide + bias).to(x.dtype)


@implements(schema.AnyRMSNorm)
class RMSNorm(nn.Module):
    """RMSNorm: x / sqrt(mean(x^2) + eps) * w."""

    timed_as = "norms"

    def __init__(self, config: schema.AnyRMSNorm, shape: Shape) -> None:
        super().__init__()
        self.eps, self.offset, self.cast = config.eps, float(config.unit_offset), config.cast
        self.is_fused = len(shape) == 1 and config.cast == "after_weight"
        self.weight = nn.Parameter(torch.empty(shape)) if config.weight else None
        self.constants = {"weight": 1 - self.offset}

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axis: [..., *shape] -> [..., *shape]."""
        if self.is_fused and not self.offset and has_format_of(self.weight, x):
            return rms_norm(x, self.weight, self.eps)
        wide = at_least_float32(x)
        if self.weight is None:
            return rms_norm(wide, None, self.eps).to(x.dtype)
        if self.is_fused:
            weight = self.weight.to(wide.dtype) + self.offset
            return rms_norm(wide, weight, self.eps).to(x.dtype)
        normed = rms_norm(wide, None, self.eps)
        if self.cast == "before_weight":
            normed = normed.to(x.dtype)
        return (normed * (self.weight.to(normed.dtype) + self.offset)).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight: [..., D] -> [..., D]. The weight, [D], has the dtype of x.

    The computation is in at least float32, and the result is rounded once to the dtype of x. On CUDA, torch's function
    is a fused kernel. On a CPU, torch has none, and `_RMSNormed` trains faster than autograd.
    """
    if is_training_eagerly() and x.device.type == "cpu":
        wide = at_least_float32(x)
        return _RMSNormed.apply(wide, None if weight is None else weight.to(wide.dtype), eps).to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


class _RMSNormed(torch.autograd.Function):
    """RMSNorm with few passes over memory. It keeps one tensor of the size of x for the backward pass.

    The backward pass is the fused one of LayerNorm with a mean of 0. The gradient of LayerNorm differs from that of
    RMSNorm only in a term that is constant over the features: -mean(gradient * weight) / rms.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        # The operations of F.rms_norm, so that training and evaluation give the same bits. A teacher that equals the
        # model then has a distance of exactly 0, whose gradient is 0.
        inverse = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        normed = x * inverse
        return normed if weight is None else normed.mul_(weight)

    @staticmethod
    @once_differentiable  # a second derivative would treat `inverse` as a constant
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor | None, None]:
        grad, (x, weight, inverse) = gradients[0].contiguous(), ctx.saved_tensors
        grad_x, grad_weight = layer_norm_backward(grad, x, torch.zeros_like(inverse), inverse, weight)
        total = grad.sum(-1, keepdim=True) if weight is None else (grad @ weight).unsqueeze(-1)
        return grad_x.add_(total.mul_(inverse).div_(x.shape[-1])), grad_weight, None


@implements(schema.PartialRMSNorm)
class PartialRMSNorm(nn.Module):
    """Partial RMSNorm: x / sqrt(mean(first^2) + eps) * w.

    `first` consists of the first features of x. The config's `share` is the fraction of features that it contains.
    """

    timed_as = "norms"

    def __init__(self, config: schema.PartialRMSNorm, shape: Shape) -> None:
        super().__init__()
        self.eps, self.n_first = config.eps, config.n_first(shape[-1])
        self.weight = nn.Parameter(torch.empty(shape))
        self.constants = {"weight": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root mean square of the first features: [..., *shape] -> [..., *shape]."""
        wide = at_least_float32(x)
        mean_square = wide[..., : self.n_first].square().mean(-1, keepdim=True)
        return (wide * torch.rsqrt(mean_square + self.eps) * self.weight.to(wide.dtype)).to(x.dtype)


@implements(schema.ScaleNorm)
class ScaleNorm(nn.Module):
    """ScaleNorm: g x / max(||x||, eps)."""

    timed_as = "norms"

    def __init__(self, config: schema.ScaleNorm, shape: Shape) -> None:
        super().__init__()
        self.eps = config.eps
        self.scale = nn.Parameter(torch.empty(1))
        self.constants = {"scale": math.sqrt(shape[-1])}

    def forward(self, x: Tensor) -> Tensor:
        """Normalize vectors along the last axis: [..., *shape] -> [..., *shape]."""
        wide = at_least_float32(x)
        return (self.scale.to(wide.dtype) * F.normalize(wide, dim=-1, eps=self.eps)).to(x.dtype)


@implements(schema.DynamicTanh)
class DynamicTanh(nn.Module):
    """Dynamic tanh: tanh(alpha x) * w + b."""

    timed_as = "norms"

    def __init__(self, config: schema.DynamicTanh, shape: Shape) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape))
        self.constants = {"alpha": config.alpha, "weight": 1.0, "bias": 0.0}

    def forward(self, x: Tensor) -> Tensor:
        """Apply dynamic tanh element by element: [..., *shape] -> [..., *shape]."""
        x_wide = at_least_float32(x)
        alpha, weight, bias = (p.to(x_wide.dtype) for p in (self.alpha, self.weight, self.bias))
        return (torch.tanh(alpha * x_wide) * weight + bias).to(x.dtype)


def make_norm(config: schema.AnyNorm, *shape: int) -> nn.Module:
    """Return the norm that a config describes. It normalizes over the last axis.

    `shape` is the shape of the weight if each feature has its own weight.
    """
    return make(config, shape, check=_check_norm)


def _check_norm(kind: type[schema.Norm], norm: nn.Module, config: schema.Norm, shape: Shape) -> nn.Module:
    check_parameters(kind, norm, config.n_parameters(shape[-1]))
    check_forward(kind, norm, "x", like_input)
    return norm


@implements(schema.NoNorm)
def _no_norm(config: schema.NoNorm, shape: Shape) -> nn.Module:
    return Same()


class HeadNorm(nn.Module):
    """Norm of queries or keys, over each head or over all heads concatenated."""

    timed_as = "norms"

    def __init__(self, config: MultiHead, heads: int) -> None:
        super().__init__()
        scope = "head" if isinstance(config.qk_norm, schema.NoNorm) else config.qk_norm.scope
        shape = {"head": (config.head_dim,), "each_head": (heads, config.head_dim), "width": (heads * config.head_dim,)}
        self.scope = scope
        self.over_all = {"norm": heads * config.head_dim} if scope == "width" else {}
        self.norm = make_norm(config.qk_norm, *shape[scope])

    def forward(self, x_BHTC: Tensor) -> Tensor:
        """Normalize queries or keys: [B, heads, T, C] -> [B, heads, T, C]."""
        if isinstance(self.norm, nn.Identity):
            return self.norm(x_BHTC)
        x_BTHC = x_BHTC.transpose(1, 2)  # the layout in memory; torch's LayerNorm and its gradient copy any other
        if self.scope == "width":
            return self.norm(x_BTHC.flatten(-2)).unflatten(-1, x_BTHC.shape[-2:]).transpose(1, 2)
        return self.norm(x_BTHC).transpose(1, 2)


class BranchNorms(nn.Module):
    """Norms around one branch: `before` it, `after` it, and on the residual `stream` that follows.

    If the config has no norm at one of these places, the module there returns its input.
    """

    timed_as = "norms"
    before: nn.Module
    after: nn.Module
    stream: nn.Module

    def __init__(self, layer: LayerConfig, branch: Branch) -> None:
        super().__init__()
        for slot in ("before", "after", "stream"):
            filled = slot in branch.norms
            setattr(self, slot, make_norm(layer.norm, layer.d_model) if filled else Same())
