"""Resolution of the model config into one complete LayerConfig per layer. All other code reads these layer configs
instead of the config that the user wrote."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any, NamedTuple

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.component import (
    MLP,
    Absent,
    Attention,
    Component,
    MatrixShape,
    Mixer,
    NoAttention,
    ProjectionShape,
    Site,
    StateTensor,
    expect,
)
from archlab.config.components.dense import Dense
from archlab.config.components.dropout import Dropout
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import BlockNorm, NoNorm
from archlab.config.components.position import NoPosition, Position
from archlab.config.components.visibility import Visibility
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import Base, Overrides
from archlab.config.core.merge import derived_fields, expand, merge
from archlab.config.core.registry import cache_of_configs
from archlab.config.model_schema import Block, Encoder, Layers, ModelConfig

COMPONENTS = ("attention", "mixer", "mlp")
"""Sections of `model` that are components, in their order within a layer."""

PLACES = ("attention", "mixer", "cross", "mlp")
"""Names of all components of a layer, in their order. `cross` is the cross-attention of a model with an encoder."""

PER_LAYER = ("norm", "block", *COMPONENTS, "position", "dropout")
"""Sections of `model` that a layer kind may override."""


_ONLY_KIND = "layer"
_SERIAL = (("attention", "mixer"), ("cross",), ("mlp",))
"""Components of each stage in a layer that is not parallel."""
_ROWS_OF_ATTENTION = ("attention", "projections", "scores")
_ALL_VISIBLE = {"visibility": "two_sided", "window": None, "stride": None, "global_tokens": 0, "blocks": None}


class Branch(NamedTuple):
    """Component at its place in a layer. The component reads the residual stream, and its output is added to the
    stream."""

    name: str
    """Name of the component, which is also the name of its module: one of PLACES."""
    component: Component
    site: Site
    multiplier: float
    """Factor on the branch's output before it is added to the stream."""
    norms: tuple[str, ...]
    """Places around the branch that have a norm. Without the place `before`, the branch reads the stream itself or
    shares the normalized input of the stage's first branch."""
    shares_input: bool
    """Whether the branch reads the normalized input of the stage's first branch."""

    def state(self, capacity: int, source: int) -> tuple[StateTensor, ...]:
        """Return the tensors that the component caches over up to `capacity` tokens, or over the `source` tokens of a
        source text that it reads."""
        return self.component.state(self.site, source if self.site.reads_source else capacity)


class LayerConfig(Base):
    """Complete config of one layer. Every derived field is filled in, and the config does not depend on other
    layers."""

    kind: str
    """Name of the layer kind in the pattern, or `layer` without a pattern."""
    d_model: int
    norm: BlockNorm
    block: Block
    attention: Attention
    mixer: Mixer
    position: Position
    mlp: MLP
    dropout: Dropout
    cross: Attention = NoAttention()
    """Cross-attention to the encoder's output. `none` in a model without an encoder, and in the encoder itself."""

    @property
    def stages(self) -> tuple[tuple[Branch, ...], ...]:
        """Stages of the layer in order. The branches of one stage read the same stream, and the sum of their outputs is
        added to the stream.

        Attention and mixer form the first stage, behind one norm. Cross-attention and the MLP each form a stage of
        their own. A parallel block has only one stage.
        """
        present = [name for name in PLACES if not isinstance(getattr(self, name), Absent)]
        if self.block.parallel == "none":
            groups = [[name for name in present if name in stage] for stage in _SERIAL]
        else:
            groups = [present]
        return tuple(tuple(self._stage(group)) for group in groups if group)

    def _stage(self, names: list[str]) -> Iterator[Branch]:
        filled = self.norm.slots
        if names[0] == "attention" and not self.block.attention_norm:
            filled = ()
        for name in names:
            is_first = name == names[0]
            shares = not is_first and not (name == "mlp" and self.block.parallel == "separate")
            # One norm serves all branches that share their input, and one norm on the stream serves the whole stage.
            missing = {"before"} if shares else set[str]()
            missing |= set() if is_first else {"stream"}
            slots = tuple(slot for slot in filled if slot not in missing)
            if name == "mlp" and isinstance(self.mlp, MoE) and self.mlp.own_norms:
                slots = tuple(slot for slot in slots if slot != "before")
            if name == "mlp" and self.block.mlp_output_norm:
                slots += ("after",)
            multiplier = getattr(self.block, f"{'attention' if name == 'cross' else name}_multiplier")
            yield Branch(name, getattr(self, name), self.site_of(name), multiplier, slots, shares)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return tuple(branch for stage in self.stages for branch in stage)

    def site_of(self, name: str) -> Site:
        """Return the site of a component. Cross-attention has no position encoding."""
        if name == "cross":
            return Site(self.d_model, self.norm, NoPosition(), self.dropout, reads_source=True)
        return Site(self.d_model, self.norm, self.position, self.dropout)

    @property
    def _placed(self) -> tuple[tuple[str, Component, Site], ...]:
        places = PLACES if isinstance(self.cross, MultiHead) else COMPONENTS
        return tuple((name, getattr(self, name), self.site_of(name)) for name in places)

    def projections(self) -> dict[str, ProjectionShape]:
        """Return the shapes of the layer's projections, by the paths of their modules, such as `attention.q`."""
        return {
            f"{branch.name}.{name}": shape
            for branch in self.branches
            for name, shape in branch.component.projections(branch.site).items()
        }

    def parameters(self) -> Counter[str]:
        """Return the parameter counts by row of the parameter table, including those of the norms around branches."""
        counts = Counter[str]()
        for name, component, site in self._placed:
            own = component.parameters(site)
            counts.update({row_of(name, part): n for part, n in own.items()})
        counts["norms"] += self._norms_around()
        return counts

    def matrix_shapes(self) -> Counter[MatrixShape]:
        """Return how many tensors of weight matrices have each shape."""
        shapes = Counter[MatrixShape]()
        for _, component, site in self._placed:
            shapes.update(component.matrix_shapes(site))
        return shapes

    def n_corrections(self) -> int:
        return sum(component.n_corrections() for _, component, _ in self._placed)

    def parameters_per_device(self, tensor: int) -> int:
        """Return the number of parameters on each of `tensor` devices that divide the components among them (tensor
        parallelism)."""
        shares = (branch.component.share(tensor).parameters(branch.site) for branch in self.branches)
        return self._norms_around() + sum(sum(share.values()) for share in shares)

    def active_parameters(self) -> int:
        return self._norms_around() + sum(b.component.active_parameters(b.site) for b in self.branches)

    def work(self, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations of this pass: those of components, of the norms around them, and of additions to the
        stream.

        The only work of dropout that counts is its mask: one factor per element, which training stores.
        """
        share = {branch.name for branch in self.branches if branch.shares_input}
        for name, component, site in self._placed:
            operations = component.work(site, model_pass)
            work = (o._replace(part=row_of(name, o.part)) for o in operations)
            if name in share:  # the first branch of the stage already stores this input
                yield next(work)._replace(saved=0.0)
            yield from work
        for branch, is_first in ((branch, branch is stage[0]) for stage in self.stages for branch in stage):
            for slot in branch.norms:  # all norms before the branches of a stage read the same stream
                yield from model_pass.norm(self.norm, self.d_model, shares_input=slot == "before" and not is_first)
            flops = 1 if branch.multiplier == 1 else 2
            added = model_pass.in_stream("element-wise", "stream", self.d_model, flops=flops, read=2)
            dropped = model_pass.rows * self.d_model * model_pass.bytes_each if self.dropout.branch else 0.0
            yield added._replace(saved=dropped)
        if self.block.stream_scale:
            yield model_pass.in_stream("element-wise", "stream", self.d_model, flops=1)

    def _norms_around(self) -> int:
        return sum(len(branch.norms) for branch in self.branches) * self.norm.n_parameters(self.d_model)

    @property
    def multi_head(self) -> MultiHead:
        """Attention of the layer, for callers that support only multi-head attention. Raise UserError if the attention
        is of another kind."""
        return expect(self.attention, MultiHead, "attention", f"layer kind {self.kind}", "multihead")

    @property
    def dense(self) -> Dense:
        """MLP of the layer, for callers that support only plain and gated MLPs. Raise UserError if the MLP is of
        another kind."""
        return expect(self.mlp, Dense, "mlp", f"layer kind {self.kind}", "plain, gated")


def row_of(name: str, part: str) -> str:
    """Return the table row for a part of the component `name`. Cross-attention has a row of its own, `cross`, in the
    table of parameters and in that of FLOPs."""
    return "cross" if name == "cross" and part in _ROWS_OF_ATTENTION else part


def resolve(model: ModelConfig) -> ModelConfig:
    """Return the model with the derived fields of its sections filled in. Resolving the result again changes
    nothing."""
    components = {name: getattr(model, name).resolve(model.d_model) for name in COMPONENTS}
    attention = components["attention"]
    if model.mup and isinstance(attention, AnyAttention) and getattr(model.attention, "scale", None) is None:
        scale = model.mup.score_scale(attention.query_width)
        components["attention"] = attention.model_copy(update={"scale": scale})
    around = {"embedding": model.embedding.resolve(model.base_width), "head": model.readout}
    return model.model_copy(update={**components, **around})


def resolve_layers(model: ModelConfig) -> Layers | None:
    """Return the layer kinds. Add derived fields to a kind if their values differ from those of `resolve(model)`.
    Return None if all layers are alike."""
    if model.layers is None:
        return None
    common = resolve(model)
    kinds = {name: _with_derived(expand(change), model, common) for name, change in model.layers.kinds.items()}
    return Layers.model_validate({**kinds, "pattern": model.layers.pattern})


def resolve_encoder(model: ModelConfig) -> Encoder | None:
    """Return the encoder's section. Add derived fields to its overrides if their values differ from those of
    `resolve(model)`. Return None without an encoder."""
    encoder = encoder_of(model)
    if model.encoder is None or encoder is None:
        return None
    own, cross = expand(model.encoder.overrides), expand(model.encoder.cross)
    resolved_cross = cross_attention(model).resolve(model.d_model)
    of_cross = _differing(resolved_cross, resolve(model).attention)
    overrides = _plus_derived(own, resolve(encoder), resolve(model))
    return Encoder.model_validate({**overrides, "n_layers": encoder.n_layers, "cross": {**of_cross, **cross}})


def _with_derived(change: Overrides, model: ModelConfig, common: ModelConfig) -> Overrides:
    return _plus_derived(change, resolve(with_overrides(model, change)), common)


def _plus_derived(change: Overrides, changed: ModelConfig, common: ModelConfig) -> Overrides:
    for section in COMPONENTS:
        if differing := _differing(getattr(changed, section), getattr(common, section)):
            change = {**change, section: {**differing, **change.get(section, {})}}
    return change


def _differing(section: Component, common: Component) -> Overrides:
    """Return the derived fields of a section whose values differ from those of the common section."""
    values = {name: getattr(section, name) for name in derived_fields(type(section))}
    return {name: value for name, value in values.items() if value != getattr(common, name, None)}


def encoder_of(model: ModelConfig) -> ModelConfig | None:
    """Return the encoder as a model of its own, whose layers see both directions; None without an encoder. Raise
    pydantic's ValidationError if its overrides are wrong."""
    if model.encoder is None:
        return None
    raw: dict[str, Any] = model.model_dump(exclude={"layers", "encoder"})
    own = {"n_layers": model.encoder.n_layers, "attention": {"visibility": "two_sided"}}
    return ModelConfig.model_validate(merge(merge(raw, own, ModelConfig), expand(model.encoder.overrides), ModelConfig))


def stacks(model: ModelConfig) -> tuple[ModelConfig, ...]:
    """Return the encoder, if there is one, and the model, each with its own layers."""
    encoder = encoder_of(model)
    return (model,) if encoder is None else (encoder, model)


def cross_attention(model: ModelConfig) -> Attention:
    """Return the cross-attention of the model's layers; none without an encoder. Raise pydantic's ValidationError if
    its overrides are wrong."""
    if model.encoder is None or not isinstance(model.attention, MultiHead):
        return NoAttention()
    raw = {**model.attention.model_dump(), **_ALL_VISIBLE, "temperature": None, **expand(model.encoder.cross)}
    return MultiHead.model_validate(raw)


def layer_configs(model: ModelConfig) -> tuple[LayerConfig, ...]:
    kinds = _kinds(model)
    return tuple(kinds[name] for name in _kind_names(model))


def distinct_layers(model: ModelConfig) -> dict[LayerConfig, int]:
    """Return each distinct layer config with the number of layers that have it."""
    kinds = _kinds(model)
    return {kinds[name]: n for name, n in Counter(_kind_names(model)).items()}


def layer_runs(model: ModelConfig) -> list[tuple[int, int, LayerConfig]]:
    """Return each run of identical layers as (index of its first layer, index of its last layer, config)."""
    runs: list[tuple[int, int, LayerConfig]] = []
    for index, layer in enumerate(layer_configs(model)):
        if runs and runs[-1][2] == layer:
            runs[-1] = (runs[-1][0], index, layer)
        else:
            runs.append((index, index, layer))
    return runs


def sees_as(model: ModelConfig, visibility: str) -> bool:
    """Return whether any layer has a component with this `visibility` of the layer's own tokens. Layers of an encoder
    that the model reads do not count."""
    branches = (branch for layer in distinct_layers(model) for branch in layer.branches if not branch.site.reads_source)
    components = (branch.component for branch in branches)
    return any(isinstance(component, Visibility) and component.visibility == visibility for component in components)


def final_norm(model: ModelConfig) -> BlockNorm:
    """Return the norm before the head: the model's norm, or no norm if the last layer has already normalized the stream
    (placement `post`)."""
    last = model.norm
    if model.layers is not None:
        pattern = model.layers.pattern
        last = with_overrides(model, model.layers.kinds[pattern[(model.n_layers - 1) % len(pattern)]]).norm
    return NoNorm() if "stream" in last.slots else model.norm


def parts_of_layers(model: ModelConfig) -> tuple[object, ...]:
    """Return everything that the sections in PER_LAYER determine: the layer configs without the names of their kinds,
    and the norms outside layers."""
    layers = tuple(layer.model_copy(update={"kind": _ONLY_KIND}) for layer in layer_configs(model))
    has_norm = model.embedding.norm or (model.head.transform and model.head.transform.norm)
    around = (final_norm(model), model.norm if has_norm else None)
    return (layers, *(norm and norm.model_dump(exclude={"placement"}) for norm in around))


def with_overrides(model: ModelConfig, change: Overrides) -> ModelConfig:
    """Return `model` with the overrides of a layer kind. Raise pydantic's ValidationError if the overrides are
    wrong."""
    raw: dict[str, Any] = model.model_dump(exclude={"layers"})
    return ModelConfig.model_validate(merge(raw, expand(change), ModelConfig))


@cache_of_configs
def _kinds(model: ModelConfig) -> Mapping[str, LayerConfig]:
    if model.layers is None:
        return {_ONLY_KIND: _layer(_ONLY_KIND, model)}
    return {name: _layer(name, with_overrides(model, change)) for name, change in model.layers.kinds.items()}


def _kind_names(model: ModelConfig) -> Iterator[str]:
    return islice(cycle((_ONLY_KIND,) if model.layers is None else model.layers.pattern), model.n_layers)


def _layer(kind: str, model: ModelConfig) -> LayerConfig:
    resolved = resolve(model)
    sections = {name: getattr(resolved, name) for name in PER_LAYER}
    cross = cross_attention(model).resolve(model.d_model)
    return LayerConfig.model_validate({"kind": kind, "d_model": model.d_model, **sections, "cross": cross})
