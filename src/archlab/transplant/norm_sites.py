"""Norms of a model, and the matrices that read the output of each norm."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from archlab.config.components.component import Component
from archlab.config.components.dense import GatedMLP, PlainMLP
from archlab.config.components.gated_delta import GatedDelta
from archlab.config.components.kimi_delta import KimiDelta
from archlab.config.components.latent_attention import Latent
from archlab.config.components.mamba import Mamba
from archlab.config.components.mamba2 import Mamba2
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import BlockNorm, NoNorm
from archlab.config.components.rglru import RGLRU
from archlab.config.components.short_conv import ShortConv
from archlab.config.core.merge import expand
from archlab.config.layers import Branch, LayerConfig, encoder_of, final_norm
from archlab.config.model_schema import Encoder, ModelConfig
from archlab.transplant.weights import DECODER, ENCODER, Architecture, Weights

INPUTS: Mapping[type[Component], tuple[str, ...]] = {
    MultiHead: ("q", "k", "v", "gate"),
    Latent: ("q_down", "q_up", "kv_down"),
    PlainMLP: ("up",),
    GatedMLP: ("up", "gate"),
    MoE: ("router", "latent_down", "experts.up", "experts.gate", "shared.up", "shared.gate", "shared_gate"),
    GatedDelta: ("q", "k", "v", "gate", "beta", "decay"),
    KimiDelta: ("q", "k", "v", "gate", "beta", "decay", "gate.down", "decay.down"),
    Mamba: ("gate", "x"),
    Mamba2: ("gate", "x", "B", "C", "dt"),
    RGLRU: ("gate", "x"),
    ShortConv: ("x", "input_gate", "output_gate"),
}
"""Projections of each component that read its input. Some of them exist only with certain settings."""


class Reader(NamedTuple):
    """Matrix that reads the output of a norm, by the name of its tensor. Its last axis has the width of the norm."""

    weight: str
    bias: str | None
    """Name of the bias. None if a constant in the input is not a constant in the output."""
    is_shared: bool = False
    """Whether the matrix is also used elsewhere, so that it must not change."""


@dataclass(frozen=True)
class NormSite:
    """Norm at one place of a model."""

    name: str
    """Name of the module."""
    width: int
    readers: tuple[Reader, ...] = ()
    obstacle: str | None = None
    """Reason why no matrices could take over the weight of the norm. None if they can."""


class NormGroup(NamedTuple):
    """Norms that share one config: those of a layer, or those of a stack that are outside its layers."""

    name: str
    """Name of the layer, or of the stack."""
    own: BlockNorm
    wanted: BlockNorm
    """Norm of the target."""
    sites: tuple[NormSite, ...]


def norm_groups(weights: Weights, target: Architecture) -> Iterator[NormGroup]:
    """Yield the norms of each layer, then those around the layers of each stack."""
    for name, own, wanted in weights.pairs(target):
        yield NormGroup(name, own.norm, wanted.norm, tuple(_in_layer(name, own)))
    outside = {DECODER: _around_decoder, ENCODER: _around_encoder}
    after = outer_norms(target.model)
    for stack, norm in outer_norms(weights.model).items():
        yield NormGroup(stack, norm, after[stack], tuple(outside[stack](weights)))


def outer_norms(model: ModelConfig) -> dict[str, BlockNorm]:
    """Return the config of the norms outside the layers of each stack."""
    encoder = encoder_of(model)
    return {DECODER: model.norm} if encoder is None else {DECODER: model.norm, ENCODER: encoder.norm}


def with_outer_norms(model: ModelConfig, norms: Mapping[str, BlockNorm]) -> ModelConfig:
    """Return the model with other norms outside the layers of some stacks."""
    all_norms = {**outer_norms(model), **norms}
    changed = model.model_copy(update={"norm": all_norms[DECODER]})
    if model.encoder is None:
        return changed
    overrides = {**expand(model.encoder.overrides), "norm": all_norms[ENCODER].model_dump()}
    encoder = Encoder.model_validate(
        {"n_layers": model.encoder.n_layers, "cross": model.encoder.cross, **overrides},
    )
    return changed.model_copy(update={"encoder": encoder})


def _in_layer(name: str, layer: LayerConfig) -> Iterator[NormSite]:
    for stage in layer.stages:
        for branch in stage:
            for slot in branch.norms:
                yield _around_branch(name, layer, stage, branch, slot)
    for place, output in (("attention", "out"), ("cross", "out"), ("mlp", "down")):
        component = getattr(layer, place)
        if getattr(component, "sub_norm", False):
            width = component.out_width if isinstance(component, MultiHead) else component.d_ff
            is_gated = getattr(component, "gate", None) is not None  # the gate would multiply the bias
            reader = Reader(f"{name}.{place}.{output}.weight", None if is_gated else f"{name}.{place}.{output}.bias")
            yield NormSite(f"{name}.{place}.sub_norm", width, (reader,))
    if isinstance(layer.mlp, MoE):
        yield from _in_mixture(f"{name}.mlp", layer.mlp, layer)


def _in_mixture(name: str, mixture: MoE, layer: LayerConfig) -> Iterator[NormSite]:
    if mixture.router.norm:
        yield NormSite(f"{name}.router.norm", layer.d_model, (Reader(f"{name}.router.weight", None),))
    if not mixture.own_norms:
        return
    of_experts = ("latent_down",) if mixture.latent else ("experts.up", "experts.gate")
    readers = {"experts": of_experts, "shared": ("shared.up", "shared.gate", "shared_gate")}
    for part, names in readers.items():
        obstacle = "with mlp.own_norms, the outputs of norms are added up"
        yield NormSite(f"{name}.{part}_before", layer.d_model, tuple(_input(name, mixture, x) for x in names))
        yield NormSite(f"{name}.{part}_after", layer.d_model, obstacle=obstacle)


def _around_branch(name: str, layer: LayerConfig, stage: tuple[Branch, ...], branch: Branch, slot: str) -> NormSite:
    site, width = f"{name}.{branch.name}_norms.{slot}", layer.d_model
    if slot != "before" or layer.norm.is_carried:
        placement = getattr(layer.norm, "placement", None)
        return NormSite(site, width, obstacle=f"with norm.placement {placement}, the residual stream reads a norm")
    branches = [b for b in stage if b is branch or (branch is stage[0] and b.shares_input)]
    unknown = [b for b in branches if type(b.component) not in INPUTS]
    if unknown:
        obstacle = f"archlab does not know which matrices of {unknown[0].component.kind} read the norm"
        return NormSite(site, width, obstacle=obstacle)
    if any(isinstance(b.component, MoE) and b.component.router.norm for b in branches):
        return NormSite(site, width, obstacle="with mlp.router.norm, the norm of the router reads a norm")
    return NormSite(site, width, tuple(reader for b in branches for reader in _inputs(name, b)))


def _inputs(layer: str, branch: Branch) -> Iterator[Reader]:
    component, place = branch.component, f"{layer}.{branch.name}"
    for part in INPUTS[type(component)]:
        if branch.site.reads_source and part in ("k", "v"):  # they read the output of the encoder
            continue
        if _reads_narrow(component, part):
            continue
        yield _input(place, component, part)


def _reads_narrow(component: Component, part: str) -> bool:
    """Return whether a projection reads a narrow vector that another projection has computed."""
    if isinstance(component, Latent):
        return part == "q_up" and component.q_rank is not None
    return isinstance(component, MoE) and component.latent is not None and part.startswith("experts.")


def _input(place: str, component: Component, part: str) -> Reader:
    if part.startswith("experts."):
        weighted = isinstance(component, MoE) and component.router.applied_to == "input"
        return Reader(f"{place}.{part}", None if weighted else f"{place}.{part}_bias")
    return _projection(f"{place}.{part}")


def _projection(name: str) -> Reader:
    return Reader(f"{name}.weight", f"{name}.bias")


def _around_decoder(weights: Weights) -> Iterator[NormSite]:
    model = weights.model
    embedding, transform = model.embedding, model.head.transform
    matrix = Reader("embedding.weight", "head.bias", is_shared=True) if model.head.tied else _projection("head")
    if isinstance(model.norm, NoNorm):
        return
    if embedding.norm is True:
        obstacle = "with model.embedding.norm, the residual stream reads a norm"
        yield NormSite("embedding.norm", model.d_model, obstacle=obstacle)
    yield from _on_sum(model, "summed")
    if not isinstance(final_norm(model), NoNorm):
        narrow = Reader("head.narrow.weight", None) if embedding.width else matrix
        yield NormSite("norm", model.d_model, (_projection("head.transform.dense") if transform else narrow,))
    if transform and transform.norm:
        yield NormSite("head.transform.norm", embedding.width or model.d_model, (matrix,))


def _around_encoder(weights: Weights) -> Iterator[NormSite]:
    encoder = encoder_of(weights.model)
    if encoder is None or isinstance(encoder.norm, NoNorm):
        return
    yield from _on_sum(encoder, "encoder.summed")
    if not isinstance(final_norm(encoder), NoNorm):
        n_layers = len(weights.architecture.stacks[DECODER])
        readers = [_projection(f"{DECODER}.{i}.cross.{part}") for i in range(n_layers) for part in ("k", "v")]
        yield NormSite("encoder.norm", encoder.d_model, tuple(readers))


def _on_sum(model: ModelConfig, module: str) -> Iterator[NormSite]:
    if model.embedding.norm != "sum":
        return
    if model.embedding.widened == "sum":
        yield NormSite(f"{module}.norm", model.added_width, (_projection(f"{module}.widen"),))
    else:
        obstacle = "with model.embedding.norm sum, the residual stream reads a norm"
        yield NormSite(f"{module}.norm", model.added_width, obstacle=obstacle)
