"""Facts about each box of a block diagram: shapes, parameters, and shares of FLOPs and memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from archlab.config.components.component import ProjectionShape
from archlab.config.components.moe import MoE
from archlab.config.components.work import Operation, Pass
from archlab.config.layers import distinct_layers, final_norm, stacks
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.pricing.by_branch import BranchCost, branch_costs
from archlab.pricing.memory import BYTES
from archlab.pricing.params import before_head, positions_of_stack, widening
from archlab.pricing.summary import Cost
from archlab.pricing.units import count, plural
from archlab.pricing.work import forward
from archlab.report.drawings.words import component_words


class PartFacts(NamedTuple):
    """Facts about one box, or about a table that all layers share. `key` is the `data-part` of the box, after that of
    the frame of its layer, if there is one."""

    key: str
    name: str
    shape: str
    n_parameters: int
    flops_share: str
    memory_share: str

    @property
    def parameters(self) -> str:
        """Number of parameters, or an empty string if they are those of another box."""
        return count(self.n_parameters) if self.n_parameters else ""


class _Outside(NamedTuple):
    """Parameters of one box outside the layers."""

    key: str
    name: str
    shape: str
    n: int


def part_facts(config: Config, costs: Cost) -> list[PartFacts]:
    """Return the facts about each box that has parameters. Their sum is the number of parameters of the model.

    FLOPs are those of a forward pass over all tokens of the served sequences. Memory is that of the weights, caches and
    recurrent states while they are served.
    """
    model = config.model
    model_pass = Pass(
        costs.batch, costs.context, counting="visible", bytes_each=BYTES[costs.dtype], source=costs.source
    )
    operations = list(forward(model, model_pass))
    flops = sum(operation.flops for operation in operations)
    memory = costs.weight_bytes + costs.state_bytes

    def facts(key: str, name: str, shape: str, n: int, own_flops: float | None, state: int = 0) -> PartFacts:
        flops_share = "" if own_flops is None else _share(own_flops / flops)
        n_bytes = n * BYTES[costs.dtype] + state
        return PartFacts(key, name, shape, n, flops_share, _share(n_bytes / memory) if n_bytes else "")

    found = list[PartFacts]()
    for cost in branch_costs(model, model_pass):
        found.append(facts(_key(cost), _name(cost), _shapes(cost), cost.parameters, cost.flops, cost.state_bytes))
    for stack in stacks(model):
        for layer, n in distinct_layers(stack).items():
            size = layer.norm.n_parameters(layer.d_model)
            for branch in layer.branches:
                for slot in branch.norms if size else ():
                    prefix = "" if stack is model else "encoder "
                    key = f"{prefix}layer {layer.kind}/{prefix}{branch.name} norm {slot}"
                    name = f"{layer.norm.display_name} {slot} {branch.name}, {plural(n, 'layer')}"
                    found.append(facts(key, name, f"{layer.d_model:,}", n * size, None))
    own_flops = _flops_outside(operations)
    before = [facts(*row, own_flops.get(row.key)) for stack in stacks(model) for row in _before_layers(model, stack)]
    after = [facts(*row, own_flops.get(row.key)) for row in _after_layers(model)]
    return [*before, *found, *after]


def _before_layers(model: ModelConfig, stack: ModelConfig) -> Iterator[_Outside]:
    """Yield the boxes before the layers of a stack of the model, which is the model itself or its encoder."""
    embedding, is_encoder = stack.embedding, stack is not model
    prefix, of = ("encoder ", " of the encoder") if is_encoder else ("", "")

    def box(key: str, name: str, shape: str, n: int, *, is_shared: bool = False) -> _Outside:
        if is_shared and is_encoder:
            return _Outside(f"{prefix}{key}", f"{name}{of}", f"{shape}, shared with the decoder", 0)
        return _Outside(f"{prefix}{key}", f"{name}{of}", shape, n)

    width, added = embedding.width or stack.d_model, stack.added_width
    yield box("embedding", "Token embedding", f"{stack.vocab_size:,} × {width:,}", stack.vocab_size * width,
              is_shared=True)  # fmt: skip
    if widen := widening(stack):
        yield box("embedding widening", "Widening", f"{widen.d_in:,} × {widen.d_out:,}", widen.n_parameters,
                  is_shared=embedding.widened == "tokens")  # fmt: skip
    if n := embedding.segments:
        yield box("segments", "Segments", f"{n:,} × {added:,}", n * added, is_shared=True)
    if n := positions_of_stack(stack):
        shape = f"{n // added:,} × {added:,}" if stack.position.acts_on == "embedding" else "shared by all layers"
        yield box("positions", f"Positions ({stack.position.display_name})", shape, n)
    norm, d = (stack.norm, added) if embedding.norm == "sum" else (model.norm, stack.d_model)
    if embedding.norm and (n := norm.n_parameters(d)):
        yield box("embedding norm", "Norm of the embedding", f"{d:,}", n,
                  is_shared=embedding.norm is True)  # fmt: skip
    if is_encoder and (n := final_norm(stack).n_parameters(stack.d_model)):
        yield box("final norm", "Final norm", f"{stack.d_model:,}", n)


def _after_layers(model: ModelConfig) -> Iterator[_Outside]:
    """Yield the boxes after the layers of the model, or of its decoder."""
    width, transform = model.embedding.width or model.d_model, model.head.transform
    if n := final_norm(model).n_parameters(model.d_model):
        yield _Outside("final norm", "Final norm", f"{model.d_model:,}", n)
    if before := before_head(model):
        key, name = ("head transform", "Dense layer") if transform else ("head narrowing", "Narrowing")
        yield _Outside(key, f"{name} before the head", f"{before.d_in:,} × {before.d_out:,}", before.n_parameters)
    if transform and transform.norm and (n := model.norm.n_parameters(width)):
        yield _Outside("head norm", "Norm before the head", f"{width:,}", n)
    shape = f"{width:,} × {model.vocab_size:,}" + (" (the embedding matrix)" if model.head.tied else "")
    n = model.vocab_size * (width * (not model.head.tied) + model.head.bias)
    yield _Outside("head", "Head", shape, n)


def _flops_outside(operations: Sequence[Operation]) -> dict[str, float]:
    """Return the FLOPs of the token embedding, of the head, and of the dense layers next to them, by box."""
    embedding = [o for o in operations if o.part == "embedding"]
    head = [o for o in operations if o.part == "head"]
    *_, output = (i for i, o in enumerate(head) if o.kind == "products")
    before = sum(o.flops for o in head[:output])
    return {
        "embedding": sum(o.flops for o in embedding if o.kind != "products"),
        "embedding widening": sum(o.flops for o in embedding if o.kind == "products"),
        "head transform": before,
        "head narrowing": before,
        "head": sum(o.flops for o in head[output:]),
    }


def _key(cost: BranchCost) -> str:
    prefix = "encoder " if cost.is_encoder else ""
    return f"{prefix}layer {cost.layer.kind}/{prefix}{cost.branch.name}"


def _name(cost: BranchCost) -> str:
    """Return the name of the component in the diagram, such as `Grouped-query attention`, and the number of layers."""
    kind = "" if cost.layer.kind == "layer" else f"{cost.layer.kind} "
    stack = "encoder " if cost.is_encoder else ""
    return f"{component_words(cost.branch).title}, {plural(cost.n_layers, f'{stack}{kind}layer')}"


def _shapes(cost: BranchCost) -> str:
    component, site = cost.branch.component, cost.branch.site
    shapes = component.projections(site)
    if not isinstance(component, MoE):
        return _listed(shapes)
    router = ProjectionShape(site.d_model, component.experts)
    of_expert = component.expert_mlp.projections(component.expert_site(site))
    routed = f"each of {component.experts:,} experts: {_listed(of_expert)}"
    return "; ".join(filter(None, (_listed({"router": router}), routed, _listed(shapes))))


def _listed(shapes: Mapping[str, ProjectionShape]) -> str:
    return ", ".join(f"{name} {shape.d_in:,} × {shape.d_out:,}" for name, shape in shapes.items())


def _share(value: float) -> str:
    return f"{value:.1%}" if value >= 0.001 else "below 0.1%" if value else "0%"
