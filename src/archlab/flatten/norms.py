"""Norms: torch's own where it has the one wanted, else a class."""

from archlab.config.multi_head import QKNorm
from archlab.config.norm import DynamicTanh, LayerNormScaling, NoNorm, Norm, RMSNormScaling, ScaleNorm
from archlab.errors import UserError
from archlab.flatten.page import Page, lines

Scaling = LayerNormScaling | RMSNormScaling


def norm(page: Page, kind: str, config: Norm | QKNorm, *shape: str, prefix: str = "") -> str | None:
    """An expression that makes the norm over the last axis of `shape`; None for no norm. UserError for a norm that no
    flattened file has."""
    if isinstance(config, NoNorm):
        return None
    if not isinstance(config, DynamicTanh | ScaleNorm | LayerNormScaling | RMSNormScaling):
        raise UserError(f"model.norm.kind: {config.kind}; a flattened file has no such norm")
    if isinstance(config, DynamicTanh):
        alpha = page.constant(kind, "NORM_ALPHA", config.alpha)
        return f"{page.define(kind, 'DynamicTanh', _dynamic_tanh(alpha))}({shape[-1]})"
    eps = page.constant(kind, f"{prefix}NORM_EPS", config.eps)
    if isinstance(config, ScaleNorm):
        return f"{page.define(kind, 'ScaleNorm', _scale_norm(eps))}({shape[-1]})"
    is_layer_norm = isinstance(config, LayerNormScaling)
    if is_layer_norm and len(shape) == 1 and config.weight and not config.unit_offset:
        without = "" if config.bias else ", bias=False"
        return f"nn.LayerNorm({shape[0]}, eps={eps}{without})"
    name = "LayerNorm" if is_layer_norm else "RMSNorm"
    has_bias = is_layer_norm and config.bias
    text = _class(config, eps, has_bias)
    made = page.define(f"{kind}_head" if prefix else kind, name, text)
    return f"{made}({', '.join(shape)})" if config.weight or has_bias else f"{made}()"


def _class(config: Scaling, eps: str, has_bias: bool) -> str:
    weight = "(1 + weight)" if config.unit_offset else "weight" if config.weight else ""
    formula = "(x - mean) / sqrt(var + eps)" if config.kind == "layernorm" else "x / sqrt(mean(x^2) + eps)"
    formula += f" * {weight}" * bool(weight) + " + bias" * has_bias
    source = "Ba 2016" if config.kind == "layernorm" else "Zhang & Sennrich 2019"
    function = "layer_norm" if config.kind == "layernorm" else "rms_norm"
    start = "zeros" if config.unit_offset else "ones"
    init = [
        "    def __init__(self, *shape: int) -> None:",
        "        super().__init__()",
        f"        self.weight = nn.Parameter(torch.{start}(shape))" if config.weight else "",
        "        self.bias = nn.Parameter(torch.zeros(shape))" if has_bias else "",
    ]
    return lines(
        "class <name>(nn.Module):",
        f'    """{formula}, in float32 ({source})."""',
        "",
        [*(line for line in init if line), ""] if config.weight or has_bias else None,
        "    def forward(self, x: Tensor) -> Tensor:",
        '        """Over the last axis."""',
        f"        normed = F.{function}(x.float(), x.shape[-1:], eps={eps})",
        _scaled(config, has_bias),
    )


def _scale_norm(eps: str) -> str:
    return lines(
        "class <name>(nn.Module):",
        '    """g x / max(||x||, eps), in float32 (Nguyen & Salazar 2019)."""',
        "",
        "    def __init__(self, width: int) -> None:",
        "        super().__init__()",
        "        self.scale = nn.Parameter(torch.full((1,), width**0.5))",
        "",
        "    def forward(self, x: Tensor) -> Tensor:",
        '        """Over the last axis."""',
        f"        return (self.scale.float() * F.normalize(x.float(), dim=-1, eps={eps})).type_as(x)",
    )


def _dynamic_tanh(alpha: str) -> str:
    return lines(
        "class <name>(nn.Module):",
        '    """tanh(alpha x) * weight + bias, in float32 (Zhu 2025)."""',
        "",
        "    def __init__(self, width: int) -> None:",
        "        super().__init__()",
        f"        self.alpha = nn.Parameter(torch.full((1,), {alpha}))",
        "        self.weight = nn.Parameter(torch.ones(width))",
        "        self.bias = nn.Parameter(torch.zeros(width))",
        "",
        "    def forward(self, x: Tensor) -> Tensor:",
        '        """Element by element."""',
        "        squashed = torch.tanh(self.alpha.float() * x.float())",
        "        return (squashed * self.weight.float() + self.bias.float()).type_as(x)",
    )


def _scaled(config: Scaling, has_bias: bool) -> list[str]:
    before = isinstance(config, RMSNormScaling) and config.cast == "before_weight"
    if not config.weight:
        return [f"        return {'(normed + self.bias)' if has_bias else 'normed'}.type_as(x)"]
    if before:
        weight = "(1 + self.weight)" if config.unit_offset else "self.weight"
        return [f"        return normed.type_as(x) * {weight}"]
    bias = " + self.bias.float()" * has_bias
    wide = "self.weight.float()"
    if config.unit_offset:
        wide = "(1 + self.weight).float()" if config.kind == "layernorm" else "(1 + self.weight.float())"
    return [f"        return (normed * {wide}{bias}).type_as(x)"]
