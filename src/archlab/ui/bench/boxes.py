"""Facts about each box of a block diagram: shapes, parameters, and shares of FLOPs and memory."""

from collections.abc import Mapping
from typing import NamedTuple

from archlab.config.components.component import ProjectionShape
from archlab.config.components.moe import MoE
from archlab.config.components.work import Pass
from archlab.config.layers import distinct_layers, final_norm, stacks
from archlab.config.schema import Config
from archlab.pricing.by_branch import BranchCost, branch_costs
from archlab.pricing.memory import BYTES
from archlab.pricing.params import before_head
from archlab.pricing.summary import Cost
from archlab.pricing.units import count, plural
from archlab.pricing.work import forward
from archlab.report.drawings.words import component_words


class PartFacts(NamedTuple):
    """Facts about one box. `key` is the `data-part` of the box, after that of the frame of its layer, if there is
    one."""

    key: str
    name: str
    shape: str
    parameters: str
    flops_share: str
    memory_share: str


def part_facts(config: Config, costs: Cost) -> list[PartFacts]:
    """Return the facts about each box that has parameters.

    FLOPs are those of a forward pass over all tokens of the served sequences. Memory is that of the weights, caches and
    recurrent states while they are served.
    """
    model = config.model
    model_pass = Pass(
        costs.batch, costs.context, counting="visible", bytes_each=BYTES[costs.dtype], source=costs.source
    )
    operations = list(forward(model, model_pass))
    flops = sum(operation.flops for operation in operations)
    memory = costs.weight_bytes + costs.kv_cache_bytes + costs.recurrent_bytes

    def facts(key: str, name: str, shape: str, n: int, own_flops: float | None, state: int = 0) -> PartFacts:
        flops_share = "" if own_flops is None else _share(own_flops / flops)
        memory_share = _share((n * BYTES[costs.dtype] + state) / memory)
        return PartFacts(key, name, shape, count(n), flops_share, memory_share)

    width = model.embedding.width or model.d_model
    found = [
        facts(
            "embedding", "Token embedding", f"{model.vocab_size:,} × {width:,}", costs.parameters.embedding,
            sum(o.flops for o in operations if o.part == "embedding"),
        )
    ]  # fmt: skip
    for cost in branch_costs(model, model_pass):
        found.append(facts(_key(cost), _name(cost), _shapes(cost), cost.parameters, cost.flops, cost.state_bytes))
    for stack in stacks(model):
        for layer, n in distinct_layers(stack).items():
            size = layer.norm.n_parameters(layer.d_model)
            for branch in layer.branches:
                for slot in branch.norms:
                    prefix = "" if stack is model else "encoder "
                    key = f"{prefix}layer {layer.kind}/{prefix}{branch.name} norm {slot}"
                    name = f"{layer.norm.display_name} {slot} {branch.name}, {plural(n, 'layer')}"
                    found.append(facts(key, name, f"{layer.d_model:,}", n * size, None))
    size = final_norm(model).n_parameters(model.d_model)
    found.append(facts("final norm", "Final norm", f"{model.d_model:,}", size, None))
    shape = f"{width:,} × {model.vocab_size:,}" + (" (the embedding matrix)" if model.head.tied else "")
    head = sum(o.flops for o in operations if o.part == "head")
    if before := before_head(model):
        shape = f"{before.d_in:,} × {before.d_out:,}, then {shape}"
    found.append(facts("head", "Head", shape, costs.parameters.head, head))
    return found


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
    routed = f"each of {component.experts:,} experts: {_listed(component.expert_mlp.projections(site))}"
    return "; ".join(filter(None, (_listed({"router": router}), routed, _listed(shapes))))


def _listed(shapes: Mapping[str, ProjectionShape]) -> str:
    return ", ".join(f"{name} {shape.d_in:,} × {shape.d_out:,}" for name, shape in shapes.items())


def _share(value: float) -> str:
    return f"{value:.1%}" if value >= 0.001 else "below 0.1%" if value else "0%"
