"""What is unusual about a model, a few words each."""

import math
from collections.abc import Iterator

from archlab.atlas.words import Layers, biases, ratio, thetas
from archlab.config.about import About
from archlab.config.layers import layer_configs, resolve
from archlab.config.norm import LayerNorm, NoNorm, Scaling
from archlab.config.position import NoScaling, Rope
from archlab.config.schema import Config

_PLAIN_THETA = 1e4

Trick = tuple[str, str]
"""What is unusual, and the field of `model` (or of the config) that says so."""


def tricks(config: Config, about: About | None = None) -> list[str]:
    """Everything that a plain pre-norm Transformer of its kind does not have; `?` after what is unverified."""
    layers = layer_configs(config.model)
    found = [*_block(layers), *_norms(layers), *_attention(config, layers), *_positions(layers), *_ends(config)]
    return [f"{text}?" if about and about.doubts(field) else text for text, field in found]


def _block(layers: Layers) -> Iterator[Trick]:
    first = layers[0]
    if first.block.parallel != "none":
        yield "parallel, one norm" if first.block.parallel == "shared" else "parallel, two norms", "block.parallel"
    if first.block.attention_multiplier != 1 or first.block.mlp_multiplier != 1:
        yield f"branches ×{first.block.attention_multiplier:g}", "block.attention_multiplier"
    if biases(layers) == "all":
        yield "biases", "attention.qkv_bias"
    elif first.multi_head.qkv_bias:
        yield "q,k,v bias", "attention.qkv_bias"
    elif first.dense.bias:
        yield "MLP bias", "mlp.bias"


def _norms(layers: Layers) -> Iterator[Trick]:
    norm = layers[0].norm
    if not isinstance(norm, Scaling):
        return
    if not norm.weight:
        yield "norm without weight", "norm.weight"
    elif isinstance(norm, LayerNorm) and not norm.bias:
        yield "norm without bias", "norm.bias"
    if norm.unit_offset:
        yield "norm ×(1+w)", "norm.unit_offset"


def _attention(config: Config, layers: Layers) -> Iterator[Trick]:
    heads = layers[0].multi_head
    if pattern := ratio(layers):
        yield pattern, "attention.window"
    if not isinstance(heads.qk_norm, NoNorm):
        yield "QK-norm", "attention.qk_norm"
    caps = [f"{cap:g}" for cap in (heads.softcap, config.model.head.softcap) if cap]
    if caps:
        yield f"soft cap {'/'.join(caps)}", "attention.softcap"
    share = heads.n_heads * heads.head_dim / config.model.d_model
    if share != 1:
        yield f"heads {share:.2g} d", "attention.head_dim"
    if not math.isclose(heads.scale**2 * heads.head_dim, 1, rel_tol=1e-3):
        yield f"scores ×{_factor(heads.scale)}", "attention.scale"
    if heads.clip_qkv:
        yield f"q,k,v clipped at {heads.clip_qkv:g}", "attention.clip_qkv"


def _positions(layers: Layers) -> Iterator[Trick]:
    ropes = [layer.position for layer in layers if isinstance(layer.position, Rope)]
    if fractions := sorted({rope.fraction for rope in ropes} - {1.0}):
        yield f"RoPE on {fractions[0]:.0%}", "position.fraction"
    without = sum(layer.position.kind == "none" for layer in layers)
    if ropes and without:
        yield f"NoPE on {without} of {len(layers)}", "position.kind"
    if (bases := thetas(layers)) not in ([], [_PLAIN_THETA]):
        yield f"theta {'/'.join(map(_short, bases))}", "position.theta"
    for scaling in dict.fromkeys(r.scaling.kind for r in ropes if not isinstance(r.scaling, NoScaling)):
        yield f"{scaling} scaling", "position.scaling"


def _ends(config: Config) -> Iterator[Trick]:
    model = resolve(config.model)
    if model.embedding.norm:
        yield "embedding norm", "embedding.norm"
    if config.model.embedding.scale == "sqrt_d_model":
        yield "embedding ×sqrt(d)", "embedding.scale"
    elif model.embedding.scale != 1:
        yield f"embedding ×{model.embedding.scale:.4g}", "embedding.scale"
    if model.head.tied:
        yield "tied", "head.tied"
    if model.head.bias:
        yield "head bias", "head.bias"
    if model.head.scale != 1:
        yield f"logits ×{_factor(model.head.scale)}", "head.scale"
    if model.dropout.branch:
        yield f"dropout {model.dropout.branch:g}", "dropout"
    if config.train.z_loss:
        yield f"z-loss {_short(config.train.z_loss)}", "train.z_loss"


def _short(number: float) -> str:
    """5e5 for 500000; 500042 as it is."""
    mantissa, _, exponent = f"{number:.6e}".partition("e")
    short = f"{float(mantissa):g}e{int(exponent)}"
    return min(short, f"{number:.0f}", key=len) if number >= 1 else short


def _factor(number: float) -> str:
    """1/16 for 0.0625, where it is the inverse of a whole number."""
    inverse = 1 / number
    return f"1/{inverse:.0f}" if inverse > 1 and abs(inverse - round(inverse)) < 1e-6 else f"{number:.3g}"
