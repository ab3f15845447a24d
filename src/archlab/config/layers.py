"""From the authored model config to one resolved LayerConfig per layer, which is all that others read."""

import math
from typing import Any

from archlab.config.base import Base, Overrides
from archlab.config.merge import expand, merge
from archlab.config.model_schema import (
    MLP,
    Attention,
    Block,
    Dropout,
    Layers,
    ModelConfig,
    NoNorm,
    Norm,
    Placement,
    Position,
)

PER_LAYER = ("norm", "block", "attention", "position", "mlp", "dropout")
"""The sections of `model` that a layer kind may override."""


DERIVED = {"attention": ("n_kv_heads", "head_dim", "scale"), "mlp": ("d_ff",)}
"""The fields that are derived from others where they are null, per section."""


NORM_SLOTS: dict[Placement, tuple[str, ...]] = {
    "pre": ("before",),
    "post": ("stream",),
    "double": ("before", "after"),
    "output": ("after",),
    "carried": ("before",),
}
"""Placement -> where norms stand around a branch: before it (carried: and before the fork), after it, on the stream
after the addition."""


class ResolvedAttention(Attention):
    """Attention with every derived value filled in."""

    n_kv_heads: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    head_dim: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    scale: float  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]


class ResolvedMLP(MLP):
    """MLP with every derived value filled in."""

    d_ff: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]


class LayerConfig(Base):
    """One layer, whole: no `null` that means something else, no reference to its neighbours."""

    kind: str
    """The name in the layer pattern; `layer` where there is none."""
    d_model: int
    norm: Norm
    block: Block
    attention: ResolvedAttention
    position: Position
    mlp: ResolvedMLP
    dropout: Dropout


def resolve(model: ModelConfig) -> ModelConfig:
    """The same model with derived fields written out; resolving twice changes nothing."""
    return model.model_copy(
        update={
            "attention": _resolve_attention(model),
            "mlp": _resolve_mlp(model),
            "embedding": _resolve_embedding(model),
        }
    )


def resolve_layers(model: ModelConfig) -> Layers | None:
    """The layer kinds with what each derives for itself written out, where `resolve(model)` derives something else."""
    if model.layers is None:
        return None
    common = resolve(model)
    kinds = {name: _with_derived(expand(change), model, common) for name, change in model.layers.kinds.items()}
    return Layers.model_validate({**kinds, "pattern": model.layers.pattern})


def _with_derived(change: Overrides, model: ModelConfig, common: ModelConfig) -> Overrides:
    own = resolve(with_overrides(model, change))
    for section, names in DERIVED.items():
        values = {name: getattr(getattr(own, section), name) for name in names}
        differing = {n: v for n, v in values.items() if v != getattr(getattr(common, section), n)}
        if differing:
            change = {**change, section: {**differing, **change.get(section, {})}}
    return change


def layer_configs(model: ModelConfig) -> tuple[LayerConfig, ...]:
    """One LayerConfig per layer, in order."""
    if model.layers is None:
        return (_layer("layer", model),) * model.n_layers
    kinds = {name: _layer(name, with_overrides(model, change)) for name, change in model.layers.kinds.items()}
    pattern = model.layers.pattern
    return tuple(kinds[pattern[i % len(pattern)]] for i in range(model.n_layers))


def layer_runs(model: ModelConfig) -> list[tuple[int, int, LayerConfig]]:
    """Runs of identical layers: first index, last index, what they are."""
    runs: list[tuple[int, int, LayerConfig]] = []
    for index, layer in enumerate(layer_configs(model)):
        if runs and runs[-1][2] == layer:
            runs[-1] = (runs[-1][0], index, layer)
        else:
            runs.append((index, index, layer))
    return runs


def final_norm(model: ModelConfig) -> Norm:
    """The norm before the head: the model's, unless the last layer has just normalised the stream (post)."""
    last = layer_configs(model)[-1].norm
    ends_normed = not isinstance(last, NoNorm) and last.placement == "post"
    return NoNorm() if ends_normed else model.norm


def with_overrides(model: ModelConfig, change: Overrides) -> ModelConfig:
    """`model` with a layer kind's overrides; pydantic's ValidationError when they are wrong."""
    raw: dict[str, Any] = model.model_dump(exclude={"layers"})
    return ModelConfig.model_validate(merge(raw, expand(change), ModelConfig))


def _layer(kind: str, model: ModelConfig) -> LayerConfig:
    resolved = resolve(model)
    return LayerConfig.model_validate(
        {"kind": kind, "d_model": model.d_model, **{name: getattr(resolved, name) for name in PER_LAYER}}
    )


def _resolve_attention(model: ModelConfig) -> ResolvedAttention:
    given = model.attention
    head_dim = given.head_dim or model.d_model // given.n_heads
    derived = {
        "n_kv_heads": given.n_kv_heads or given.n_heads,
        "head_dim": head_dim,
        "scale": given.scale or 1 / math.sqrt(max(head_dim, 1)),
    }
    return ResolvedAttention.model_construct(**{**dict(given), **derived})


def _resolve_mlp(model: ModelConfig) -> ResolvedMLP:
    wanted = 4 * model.d_model if model.mlp.kind == "plain" else math.ceil(8 * model.d_model / 3)
    return ResolvedMLP.model_construct(**{**dict(model.mlp), "d_ff": model.mlp.d_ff or 8 * math.ceil(wanted / 8)})


def _resolve_embedding(model: ModelConfig) -> Any:
    scale = model.embedding.scale
    return model.embedding.model_copy(update={"scale": math.sqrt(model.d_model) if scale == "sqrt_d_model" else scale})
