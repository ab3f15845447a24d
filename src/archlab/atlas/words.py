"""Standard terms for the layers of a model, computed from the resolved layers and never from names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from archlab.config.components.activation import name_of_mlp
from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import Absent, Component
from archlab.config.components.dense import Dense, GatedMLP
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.latent_attention import Latent
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import Norm
from archlab.config.components.position import Rope
from archlab.config.layers import Branch, LayerConfig

Layers = Sequence[LayerConfig]

NOTHING = "-"
"""Text for a component that a model does not have."""
BOTH_SIDES = "both sides"
"""Text for layers in which a token sees earlier and later tokens."""

_BIASES = ("qkv_bias", "out_bias", "in_bias", "bias")


def joined(values: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(values))


def norm(layers: Layers) -> str:
    return joined(layer.norm.display_name for layer in layers)


def placement(layers: Layers) -> str:
    """Return the placement of the norms: pre, post, double or output."""
    return joined(layer.norm.placement if isinstance(layer.norm, Norm) else "none" for layer in layers)


def block(layers: Layers) -> str:
    """Return how the branches of a layer are combined: `serial` or `parallel`.

    Layers with only one branch do not count.
    """
    several = [layer for layer in layers if len(layer.branches) > 1]
    return joined("serial" if layer.block.parallel == "none" else "parallel" for layer in several) or NOTHING


def activation(layers: Layers) -> str:
    """Return the kinds of MLPs and experts: ReLU, GELU, SwiGLU, GEGLU. Approximations of GELU are also called GELU."""
    return joined(_activation(mlp) for mlp in mlps(layers)) or NOTHING


def mlps(layers: Layers) -> list[Dense | MoE]:
    return [layer.mlp for layer in layers if isinstance(layer.mlp, Dense | MoE)]


def mixtures(layers: Layers) -> list[MoE]:
    return [layer.mlp for layer in layers if isinstance(layer.mlp, MoE)]


def _activation(mlp: Dense | MoE) -> str:
    return name_of_mlp(mlp.activation, is_gated=_is_gated(mlp)).partition(" (")[0]


def _is_gated(mlp: Dense | MoE) -> bool:
    return mlp.gated if isinstance(mlp, MoE) else isinstance(mlp, GatedMLP)


def gated(layers: Layers) -> bool | None:
    """Return whether all MLPs are gated, or None if there is no MLP."""
    all_mlps = mlps(layers)
    return all(map(_is_gated, all_mlps)) if all_mlps else None


def mlp_width(layers: Layers) -> int | None:
    """Return the width of one matrix of the first MLP.

    If there is a mixture, return the total width of all experts that a token uses.
    """
    for mixture in mixtures(layers):
        return mixture.active * mixture.d_ff + (mixture.shared.d_ff if mixture.shared else 0)
    return next((mlp.d_ff for mlp in mlps(layers) if isinstance(mlp, Dense)), None)


def mlp(layers: Layers) -> str:
    """Return the kind and width of the MLPs, for example `SwiGLU, 11008 wide`.

    For a mixture, an example is `SwiGLU, 2 of 8 experts 14336 wide`.
    """
    widths = Counter(_width(mlp) for mlp in mlps(layers))
    return (
        ", ".join([activation(layers), *(share(text, n, layers) for text, n in widths.items())]) if widths else "none"
    )


def _width(mlp: Dense | MoE) -> str:
    if isinstance(mlp, Dense):
        return f"{mlp.d_ff} wide"
    shared = f" and a shared one {mlp.shared.d_ff} wide" if mlp.shared else ""
    latent = f" in latent {mlp.latent.width}" if mlp.latent else ""
    return f"{experts(mlp)} {mlp.d_ff} wide{latent}{shared}"


def experts(mixture: MoE) -> str:
    """Return the number of active experts in words, for example `2 of 8 experts`."""
    return f"{mixture.active} of {mixture.experts} experts"


def feed_forward(layers: Layers) -> str:
    """Return the kinds of MLPs in the model: `dense`, `mixture`, or both."""
    kinds = sorted({"mixture" if isinstance(mlp, MoE) else "dense" for mlp in mlps(layers)})
    return "+".join(kinds) or NOTHING


def with_attention(layers: Layers) -> list[LayerConfig]:
    return [layer for layer in layers if isinstance(layer.attention, AnyAttention)]


def attentions(layers: Layers) -> list[MultiHead | Latent]:
    return [x.attention for x in layers if isinstance(x.attention, MultiHead | Latent)]


def mixers(layers: Layers) -> str:
    """Return the names of attention and of the recurrent mixers. All forms of the gated delta rule have the same
    name."""
    branches = (branch for layer in layers for branch in layer.branches if branch.name not in ("mlp", "cross"))
    return joined(map(_mixer, branches)) or NOTHING


def _mixer(branch: Branch) -> str:
    if branch.name == "attention":
        return "attention"
    known = GatedDelta if isinstance(branch.component, GatedDelta) else branch.component
    return known.display_name


def recurrent(layers: Layers) -> list[str]:
    """Return the names of the recurrent mixers.

    If not all layers have the mixer, the number of layers is added: `gated delta on 36 of 48`.
    """
    counts = Counter(
        layer.mixer.display_name + ("" if isinstance(layer.attention, Absent) else " beside attention")
        for layer in layers
        if not isinstance(layer.mixer, Absent)
    )
    return [share(name, n, layers) for name, n in counts.items()]


def share(text: str, n: int, layers: Layers) -> str:
    """Return the text. If it does not apply to all layers, add the number of layers: `NoPE on 9 of 36`."""
    return text if n == len(layers) else f"{text} on {n} of {len(layers)}"


def position(layers: Layers) -> str:
    """Return the kinds of position encodings in all layers: RoPE, NoPE, ALiBi, learned, ...

    In a model without attention, only positions added to the embedding count.
    """
    positioned = with_attention(layers) or [layer for layer in layers if layer.position.acts_on == "embedding"]
    return joined(layer.position.display_name for layer in positioned) or NOTHING


def heads(layers: Layers) -> str:
    """Return the kind of attention heads.

    MHA: one KV head per query head. MQA: a single KV head. GQA: a number in between. MLA: heads computed from a latent
    vector.
    """
    return joined(_heads(attention) for attention in attentions(layers)) or NOTHING


def _heads(attention: MultiHead | Latent) -> str:
    if isinstance(attention, Latent):
        return "MLA"
    queries, keys = attention.n_heads, attention.n_kv_heads
    return "MHA" if keys == queries else "MQA" if keys == 1 else "GQA"


def attention(layers: Layers) -> str:
    """Return the kind and shape of the attention.

    Examples: `GQA, 32/8 heads of 128`; `MLA, 16 heads of 192, values of 128, from 512+64 numbers per token`.
    """
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
    """Return the number of values cached per token: the width of the latent vector, plus the rotated part of the
    key."""
    return f"{attention.kv_rank}+{attention.rope_dim}"


def reach(layers: Layers) -> str:
    """Return what the layers see: all earlier tokens (full), all tokens (both sides), a window (local), a recurrent
    state (state), or a combination such as `local+full`."""
    kinds = {_reach(layer) for layer in layers}
    return "+".join(kind for kind in ("local", "state", "full", BOTH_SIDES) if kind in kinds) or NOTHING


def _reach(layer: LayerConfig) -> str:
    if isinstance(layer.attention, AnyAttention):
        whole = BOTH_SIDES if layer.attention.visibility == "two_sided" else "full"
        return "local" if is_local(layer.attention) else whole
    return NOTHING if isinstance(layer.mixer, Absent) else "state"


def is_encoder(layers: Layers) -> bool:
    """Return whether the model is an encoder: every layer with attention sees earlier and later tokens."""
    sides = {layer.attention.visibility for layer in layers if isinstance(layer.attention, AnyAttention)}
    return sides == {"two_sided"}


def is_local(attention: AnyAttention) -> bool:
    """Return whether some earlier keys are hidden from a query, for example by a window."""
    return attention.window is not None or attention.blocks is not None


def biases(layers: Layers) -> str:
    """Return which projections have biases: `all`, `some` or `none`."""
    flags = [flag for x in layers for branch in x.branches for flag in _flags(branch.component)]
    return "all" if all(flags) else "some" if any(flags) else "none"


def _flags(component: Component) -> list[bool]:
    """Return, for each group of projections, whether it has a bias. Routers and gates are not included."""
    flags = [getattr(component, name) for name in _BIASES if hasattr(component, name)] or [False]
    others = (component.shared, component.latent) if isinstance(component, MoE) else ()
    return [*flags, *(other.bias for other in others if other)]


def ratio(layers: Layers) -> str:
    """Return the ratio of local to full layers, and the windows, for example `3:1 window 4096`.

    The ratio is taken from the repeating pattern of layers. The text is empty if all layers are full.
    """
    all_attention = attentions(layers)
    local = [is_local(attention) for attention in all_attention]
    if not any(local):
        return ""
    windows = sorted({attention.window for attention in all_attention if attention.window})
    chunks = sorted({x.blocks.size for x in all_attention if x.blocks and not x.blocks.summary})
    named = [
        f"{name} {' '.join(map(str, sizes))}" for name, sizes in (("window", windows), ("chunks", chunks)) if sizes
    ]
    text = ", ".join(named) or "sparse"
    if windows and is_encoder(layers):
        text += " each side"
    if all(local):
        return text
    runs = [(value, len(list(run))) for value, run in groupby(local)]
    most = {value: max(n for run_value, n in runs if run_value == value) for value in (True, False)}
    return f"{most[True]}:{most[False]} {text}"


def thetas(layers: Layers) -> list[float]:
    return list(dict.fromkeys(x.position.theta for x in with_attention(layers) if isinstance(x.position, Rope)))
