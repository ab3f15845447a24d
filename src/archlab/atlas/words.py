"""What the layers of a model are, in the field's words; read from the resolved layers, never from names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from archlab.config.components.activation import name_of_mlp
from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Absent, Component
from archlab.config.components.dense import Dense, GatedMLP
from archlab.config.components.latent_attention import Latent
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import Norm
from archlab.config.components.position import Rope
from archlab.config.layers import LayerConfig

Layers = Sequence[LayerConfig]

NOTHING = "-"
"""Where a model has no such part."""

_BIASES = ("qkv_bias", "out_bias", "in_bias", "bias")


def each(values: Iterable[str]) -> str:
    """Distinct values in order of appearance, joined: layers may differ."""
    return "+".join(dict.fromkeys(values))


def norm(layers: Layers) -> str:
    """LayerNorm, RMSNorm."""
    return each(layer.norm.display_name for layer in layers)


def placement(layers: Layers) -> str:
    """Pre, post, double, output."""
    return each(layer.norm.placement if isinstance(layer.norm, Norm) else "none" for layer in layers)


def block(layers: Layers) -> str:
    """Serial or parallel branches, of layers that have more than one."""
    several = [layer for layer in layers if len(layer.branches) > 1]
    return each("serial" if layer.block.parallel == "none" else "parallel" for layer in several) or NOTHING


def activation(layers: Layers) -> str:
    """The MLP, or an expert, by its name: ReLU, GELU, SwiGLU, GEGLU; either approximation of GELU is GELU."""
    return each(_activation(mlp) for mlp in mlps(layers)) or NOTHING


def mlps(layers: Layers) -> list[Dense | MoE]:
    """Of the layers that have one."""
    return [layer.mlp for layer in layers if isinstance(layer.mlp, Dense | MoE)]


def mixtures(layers: Layers) -> list[MoE]:
    """Of the layers whose MLP is a mixture of experts."""
    return [layer.mlp for layer in layers if isinstance(layer.mlp, MoE)]


def _activation(mlp: Dense | MoE) -> str:
    return name_of_mlp(mlp.activation, is_gated=_is_gated(mlp)).partition(" (")[0]


def _is_gated(mlp: Dense | MoE) -> bool:
    return mlp.gated if isinstance(mlp, MoE) else isinstance(mlp, GatedMLP)


def gated(layers: Layers) -> bool | None:
    """Whether a gate stands in every MLP; None without any."""
    found = mlps(layers)
    return all(map(_is_gated, found)) if found else None


def mlp_width(layers: Layers) -> int | None:
    """Of one matrix of the first MLP; of a mixture, if there is one, of all that a token passes through together."""
    for mixture in mixtures(layers):
        return mixture.active * mixture.d_ff + (mixture.shared.d_ff if mixture.shared else 0)
    return next((mlp.d_ff for mlp in mlps(layers) if isinstance(mlp, Dense)), None)


def mlp(layers: Layers) -> str:
    """`SwiGLU, 11008 wide`; of a mixture, how many experts there are and how wide one is."""
    widths = Counter(_width(mlp) for mlp in mlps(layers))
    return (
        ", ".join([activation(layers), *(share(text, n, layers) for text, n in widths.items())]) if widths else "none"
    )


def _width(mlp: Dense | MoE) -> str:
    if isinstance(mlp, Dense):
        return f"{mlp.d_ff} wide"
    shared = f" and a shared one {mlp.shared.d_ff} wide" if mlp.shared else ""
    return f"{experts(mlp)} {mlp.d_ff} wide{shared}"


def experts(mixture: MoE) -> str:
    """`2 of 8 experts`."""
    return f"{mixture.active} of {mixture.experts} experts"


def feed_forward(layers: Layers) -> str:
    """Dense MLPs, mixtures of experts, or both."""
    found = sorted({"mixture" if isinstance(mlp, MoE) else "dense" for mlp in mlps(layers)})
    return "+".join(found) or NOTHING


def with_attention(layers: Layers) -> list[LayerConfig]:
    """Those layers that have attention."""
    return [layer for layer in layers if isinstance(layer.attention, AnyAttention)]


def attentions(layers: Layers) -> list[MultiHead | Latent]:
    """Of the layers that have one."""
    return [x.attention for x in layers if isinstance(x.attention, MultiHead | Latent)]


def mixers(layers: Layers) -> str:
    """What brings tokens together: attention, recurrent mixers, or both."""
    branches = (branch for layer in layers for branch in layer.branches if branch.name != "mlp")
    named = ("attention" if branch.name == "attention" else branch.component.display_name for branch in branches)
    return each(named) or NOTHING


def recurrent(layers: Layers) -> list[str]:
    """`gated delta on 36 of 48`: each recurrent mixer, and how many layers have it where not all have."""
    counts = Counter(layer.mixer.display_name for layer in layers if not isinstance(layer.mixer, Absent))
    return [share(name, n, layers) for name, n in counts.items()]


def share(text: str, n: int, layers: Layers) -> str:
    """`NoPE on 9 of 36`: the text, and on how many layers where not on all."""
    return text if n == len(layers) else f"{text} on {n} of {len(layers)}"


def position(layers: Layers) -> str:
    """RoPE, NoPE, ALiBi, learned, ...; of layers that differ, each. Without attention only what is on the embedding."""
    where = with_attention(layers) or [layer for layer in layers if layer.position.acts_on == "embedding"]
    return each(layer.position.display_name for layer in where) or NOTHING


def heads(layers: Layers) -> str:
    """MHA: as many KV heads as query heads; MQA: one; GQA: between; MLA: made from a latent."""
    return each(_heads(attention) for attention in attentions(layers)) or NOTHING


def _heads(attention: MultiHead | Latent) -> str:
    if isinstance(attention, Latent):
        return "MLA"
    queries, keys = attention.n_heads, attention.n_kv_heads
    return "MHA" if keys == queries else "MQA" if keys == 1 else "GQA"


def attention(layers: Layers) -> str:
    """`GQA, 32/8 heads of 128`; `MLA, 16 heads of 192, values of 128, from 512+64 numbers per token`."""
    shapes = Counter(_shape(attention) for attention in attentions(layers))
    return ", ".join([heads(layers), *(share(text, n, layers) for text, n in shapes.items())]) if shapes else "none"


def _shape(attention: MultiHead | Latent) -> str:
    values = "" if attention.v_dim == attention.query_width else f", values of {attention.v_dim}"
    if isinstance(attention, Latent):
        return (
            f"{attention.n_heads} heads of {attention.query_width}{values}, from {latent(attention)} numbers per token"
        )
    return f"{attention.n_heads}/{attention.n_kv_heads} heads of {attention.head_dim}{values}"


def latent(attention: Latent) -> str:
    """What a cache keeps per token: the latent, and the part of a key that is rotated."""
    return f"{attention.kv_rank}+{attention.rope_dim}"


def reach(layers: Layers) -> str:
    """What layers see: all before them (full), a window (local), what a state has kept (state), or some of each."""
    found = {_reach(layer) for layer in layers}
    return "+".join(kind for kind in ("local", "state", "full") if kind in found) or NOTHING


def _reach(layer: LayerConfig) -> str:
    if isinstance(layer.attention, AnyAttention):
        return "local" if is_local(layer.attention) else "full"
    return NOTHING if isinstance(layer.mixer, Absent) else "state"


def is_local(attention: AnyAttention) -> bool:
    """Whether a query misses some earlier keys."""
    return attention.window is not None or attention.blocks is not None


def biases(layers: Layers) -> str:
    """On all projections, on some, on none."""
    flags = [flag for x in layers for branch in x.branches for flag in _flags(branch.component)]
    return "all" if all(flags) else "some" if any(flags) else "none"


def _flags(component: Component) -> list[bool]:
    """Whether each group of its projections has a bias; routers and gates aside."""
    flags = [getattr(component, name) for name in _BIASES if hasattr(component, name)] or [False]
    shared = component.shared if isinstance(component, MoE) else None
    return [*flags, shared.bias] if shared else flags


def ratio(layers: Layers) -> str:
    """`3:1 window 4096`: local layers to one full layer in the repeating pattern; empty where all are full."""
    found = attentions(layers)
    local = [is_local(attention) for attention in found]
    if not any(local):
        return ""
    windows = sorted({attention.window for attention in found if attention.window})
    chunks = sorted({x.blocks.size for x in found if x.blocks and not x.blocks.summary})
    named = [
        f"{name} {' '.join(map(str, sizes))}" for name, sizes in (("window", windows), ("chunks", chunks)) if sizes
    ]
    text = ", ".join(named) or "sparse"
    if all(local):
        return text
    runs = [(value, len(list(run))) for value, run in groupby(local)]
    most = {value: max(n for found, n in runs if found == value) for value in (True, False)}
    return f"{most[True]}:{most[False]} {text}"


def thetas(layers: Layers) -> list[float]:
    """Distinct RoPE bases in order of appearance."""
    return list(dict.fromkeys(x.position.theta for x in with_attention(layers) if isinstance(x.position, Rope)))
