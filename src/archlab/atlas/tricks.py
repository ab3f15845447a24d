"""Unusual features of a model, each described in a few words."""

import math
from collections import Counter
from collections.abc import Iterator

from archlab.atlas.words import (
    Layers,
    attentions,
    biases,
    experts,
    is_encoder,
    latent,
    mixtures,
    mlps,
    ratio,
    recurrent,
    share,
    thetas,
    with_attention,
)
from archlab.config.about import About
from archlab.config.components.dense import Dense, GatedMLP
from archlab.config.components.latent_attention import Latent
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import LayerNorm, NoNorm, WeightedNorm
from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import NoScaling
from archlab.config.layers import layer_configs, resolve
from archlab.config.schema import Config

_PLAIN_THETA = 1e4

Trick = tuple[str, str]
"""Description of an unusual feature, and the field of `model` (or of the config) that sets it."""


def tricks(config: Config, about: About | None = None) -> list[str]:
    """Return descriptions of all features that a plain pre-norm Transformer does not have.

    Descriptions of unverified features end with `?`.
    """
    layers = layer_configs(config.model)
    features = [
        *([("encoder", "attention.visibility")] if is_encoder(layers) else []),
        *_encoder(config),
        *_mixers(layers),
        *_mixtures(layers),
        *_block(layers),
        *_norms(layers),
        *_attention(config, layers),
        *_positions(layers),
        *_ends(config),
    ]
    return [f"{text}?" if about and about.doubts(field) else text for text, field in features]


def _encoder(config: Config) -> Iterator[Trick]:
    if encoder := config.model.encoder:
        yield f"encoder of {encoder.n_layers} layer{'' if encoder.n_layers == 1 else 's'}", "encoder"


def _block(layers: Layers) -> Iterator[Trick]:
    first = layers[0]
    if first.block.parallel != "none":
        yield "parallel, one norm" if first.block.parallel == "shared" else "parallel, two norms", "block.parallel"
    multipliers = {branch.name: branch.multiplier for layer in layers for branch in layer.branches}
    if changed := [name for name, multiplier in multipliers.items() if multiplier != 1]:
        factors = "/".join(dict.fromkeys(f"{multiplier:g}" for multiplier in multipliers.values()))
        yield f"branches ×{factors}", f"block.{changed[0]}_multiplier"
    if any(layer.block.stream_scale for layer in layers):
        yield "scaled stream", "block.stream_scale"
    if biases(layers) == "all":
        yield "biases", "attention.qkv_bias"
        return
    for is_latent in dict.fromkeys(isinstance(x, Latent) for x in attentions(layers) if x.qkv_bias):
        yield "latent bias" if is_latent else "q,k,v bias", "attention.qkv_bias"
    if any(attention.out_bias for attention in attentions(layers)):
        yield "output bias", "attention.out_bias"
    if any(mlp.bias for mlp in mlps(layers)):
        yield "MLP bias", "mlp.bias"


def _mixers(layers: Layers) -> Iterator[Trick]:
    for text in recurrent(layers):
        yield text, "mixer"
    if not attentions(layers):
        yield "no attention", "attention.kind"
    if not mlps(layers):
        yield "no MLP", "mlp.kind"


def _mixtures(layers: Layers) -> Iterator[Trick]:
    mixtures_of_layers = mixtures(layers)
    for text, n in Counter(map(experts, mixtures_of_layers)).items():
        yield share(text, n, layers), "mlp.experts"
    if shared := [mixture.shared for mixture in mixtures_of_layers if mixture.shared]:
        yield "gated shared expert" if all(x.gate for x in shared) else "shared expert", "mlp.shared"
    routers = [mixture.router for mixture in mixtures_of_layers]
    if any(router.score == "sigmoid" for router in routers):
        yield "sigmoid router", "mlp.router.score"
    if any(router.sparsemixer is not None for router in routers):
        yield "SparseMixer", "mlp.router.sparsemixer"
    if any(router.correction for router in routers):
        yield "correction bias", "mlp.router.correction"
    for groups in dict.fromkeys(router.groups for router in routers if router.groups):
        yield f"{groups.kept} of {groups.n} groups", "mlp.router.groups"
    for factor in sorted({router.factor for router in routers} - {1.0}):
        yield f"experts ×{factor:g}", "mlp.router.factor"
    if any(router.expert_scale for router in routers):
        yield "scale per expert", "mlp.router.expert_scale"
    for width in dict.fromkeys(mixture.latent.width for mixture in mixtures_of_layers if mixture.latent):
        yield f"experts in latent {width}", "mlp.latent"
    if any(mixture.own_norms for mixture in mixtures_of_layers):
        yield "norms of experts", "mlp.own_norms"
    elif any(router.norm for router in routers):
        yield "norm before the router", "mlp.router.norm"
    if any(layer.block.mlp_output_norm for layer in layers):
        yield "norm on MLP output", "block.mlp_output_norm"
    if not all(router.normalise for router in routers):
        yield "weights not normalized", "mlp.router.normalise"
    if any(router.applied_to == "input" for router in routers):
        yield "weighted expert inputs", "mlp.router.applied_to"
    for clamp in sorted({mlp.clamp for mlp in (*mixtures_of_layers, *_gated(layers)) if mlp.clamp}):
        yield f"MLP clamped at {clamp:g}", "mlp.clamp"
    for offset in sorted({mlp.up_offset for mlp in (*mixtures_of_layers, *_gated(layers)) if mlp.up_offset}):
        yield f"MLP up +{offset:g}", "mlp.up_offset"


def _gated(layers: Layers) -> list[GatedMLP]:
    return [mlp for mlp in mlps(layers) if isinstance(mlp, GatedMLP)]


def _norms(layers: Layers) -> Iterator[Trick]:
    norm = layers[0].norm
    if not isinstance(norm, WeightedNorm):
        return
    if not norm.weight:
        yield "norm without weight", "norm.weight"
    elif isinstance(norm, LayerNorm) and not norm.bias:
        yield "norm without bias", "norm.bias"
    if norm.unit_offset:
        yield "norm ×(1+w)", "norm.unit_offset"


def _attention(config: Config, layers: Layers) -> Iterator[Trick]:
    all_attention = attentions(layers)
    multi_head = [attention for attention in all_attention if isinstance(attention, MultiHead)]
    for size in dict.fromkeys(latent(x) for x in all_attention if isinstance(x, Latent)):
        yield f"latent {size}", "attention.kv_rank"
    if pattern := ratio(layers):
        yield pattern, "attention.window"
    if any(not isinstance(heads.qk_norm, NoNorm) for heads in multi_head):
        yield "QK-norm", "attention.qk_norm"
    if any(heads.v_norm for heads in multi_head):
        yield "value norm", "attention.v_norm"
    if any(heads.keys_as_values for heads in multi_head):
        yield "keys as values", "attention.keys_as_values"
    if any(heads.sinks for heads in multi_head):
        yield "sinks", "attention.sinks"
    for per in dict.fromkeys(heads.gate.per for heads in multi_head if heads.gate):
        yield f"output gate per {per}", "attention.gate"
    if any(heads.temperature for heads in multi_head):
        yield "query temperature", "attention.temperature"
    if any(part.sub_norm for part in (*multi_head, *(mlp for mlp in mlps(layers) if isinstance(mlp, Dense)))):
        yield "sub-norm", "attention.sub_norm"
    caps = [f"{cap:g}" for cap in (*dict.fromkeys(x.softcap for x in all_attention), config.model.head.softcap) if cap]
    if caps:
        yield f"soft cap {'/'.join(caps)}", "attention.softcap"
    for heads in multi_head[:1]:
        if (all_heads := heads.n_heads * heads.head_dim) != config.model.d_model:
            yield f"heads {all_heads / config.model.d_model:.2g} d", "attention.head_dim"
    if widths := [heads.v_dim for heads in multi_head if heads.v_dim != heads.head_dim]:
        yield f"values {widths[0]} wide", "attention.v_dim"
    for attention in all_attention[:1]:
        if not math.isclose(attention.scale**2 * attention.query_width, 1, rel_tol=1e-3):
            yield f"scores ×{_factor(attention.scale)}", "attention.scale"
    if clips := [heads.clip_qkv for heads in multi_head if heads.clip_qkv]:
        yield f"q,k,v clipped at {clips[0]:g}", "attention.clip_qkv"


def _positions(layers: Layers) -> Iterator[Trick]:
    positions = [layer.position for layer in with_attention(layers)]
    ropes = [position for position in positions if isinstance(position, Rope)]
    if fractions := sorted({rope.fraction for rope in ropes} - {1.0}):
        yield f"RoPE on {fractions[0]:.0%}", "position.fraction"
    without = sum(position.kind == "none" for position in positions)
    if ropes and without:
        yield share("NoPE", without, layers), "position.kind"
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
    if n := model.embedding.segments:
        yield f"{n} segment{'' if n == 1 else 's'}", "embedding.segments"
    if model.head.transform:
        yield "dense layer before head", "head.transform"
    if model.head.bias:
        yield "head bias", "head.bias"
    if model.readout.scale != 1:
        yield f"logits ×{_factor(model.readout.scale)}", "head.scale"
    if model.dropout.branch:
        yield f"dropout {model.dropout.branch:g}", "dropout"
    if config.train.z_loss:
        yield f"z-loss {_short(config.train.z_loss)}", "train.z_loss"


def _short(number: float) -> str:
    mantissa, _, exponent = f"{number:.6e}".partition("e")
    short = f"{float(mantissa):g}e{int(exponent)}"
    return min(short, f"{number:.0f}", key=len) if number >= 1 else short


def _factor(number: float) -> str:
    inverse = 1 / number
    return f"1/{inverse:.0f}" if inverse > 1 and abs(inverse - round(inverse)) < 1e-6 else f"{number:.3g}"
