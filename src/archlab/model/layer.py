"""One layer: branches that read and write the residual stream, and the norms around them."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from archlab.config.components.component import Component, Site
from archlab.config.core.contract import breach
from archlab.config.core.registry import make
from archlab.config.layers import Branch, LayerConfig
from archlab.model.arithmetic import Same, scaled
from archlab.model.attention import MultiHeadAttention, check_attend
from archlab.model.context import Context, SequenceShard
from archlab.model.contract import check_forward, like_input
from archlab.model.norms import BranchNorms
from archlab.model.projection import Projection
from archlab.model.roles import check_parameters
from archlab.model.state import NO_STATES, State


class Layer(nn.Module):
    """Transformer layer: stages of branches, each of which adds its output to the residual stream.

    Stages run one after another. A stage with branches f and g, and multipliers m:

    x ─┬─ before ─┬─ f ─ after ─ · m ─ dropout ─ + ─ stream ─>
       │          └─ g ─ after ─ · m ─ dropout ──┤
       └─────────────────────────────────────────┘

    A serial layer has attention in one stage and the MLP in the next. In a parallel layer, both are branches of one
    stage. They read the output of the same norm, or each has its own norm. A recurrent mixer is a branch next to
    attention, or replaces attention. In a decoder that reads an encoder, cross-attention has a stage between attention
    and the MLP. With the norm placement `carried`, outputs are added to the output of `before` instead of x. The
    attribute `f` holds the module of branch f, and `f_norms` holds its norms. If the config sets `stream_scale`, the
    stream is multiplied by a number after the last stage.
    """

    stream_scale: Tensor | None

    def __init__(self, layer: LayerConfig, kernel: str) -> None:
        super().__init__()
        self.stages = layer.stages
        for branch in layer.branches:
            self.add_module(branch.name, make_component(branch.component, replace(branch.site, kernel=kernel)))
        for branch in layer.branches:
            self.add_module(f"{branch.name}_norms", BranchNorms(layer, branch))
        self.dropout = nn.Dropout(layer.dropout.branch) if layer.dropout.branch else Same()
        self.is_carried = layer.norm.is_carried
        self.register_buffer("stream_scale", torch.ones(1) if layer.block.stream_scale else None)

    def forward(
        self, x_BTD: Tensor, context: Context, states: Mapping[str, State | SequenceShard] = NO_STATES
    ) -> Tensor:
        """Run all stages: [B, T, D] -> [B, T, D]. `states` maps branch names to states."""
        for stage in self.stages:
            x_BTD = self._stage(stage, x_BTD, context, states)
        return x_BTD if self.stream_scale is None else x_BTD * self.stream_scale.to(x_BTD.dtype)

    def _stage(
        self, stage: tuple[Branch, ...], x_BTD: Tensor, context: Context, states: Mapping[str, State | SequenceShard]
    ) -> Tensor:
        first = self._norms(stage[0])
        normed_BTD = first.before(x_BTD)
        sum_BTD = normed_BTD if self.is_carried else x_BTD
        for branch in stage:
            component, norms = getattr(self, branch.name), self._norms(branch)
            read_BTD = normed_BTD if branch is stage[0] or branch.shares_input else norms.before(x_BTD)
            own_context = context.cross if branch.name == "cross" else context
            output_BTD = norms.after(component(read_BTD, own_context, states.get(branch.name)))
            sum_BTD = sum_BTD + self.dropout(scaled(output_BTD, branch.multiplier))
        return first.stream(sum_BTD)

    def _norms(self, branch: Branch) -> BranchNorms:
        return getattr(self, f"{branch.name}_norms")


def make_component(config: Component, site: Site) -> nn.Module:
    """Create the module of a component. Its `forward(x_BTD, context, state)` returns a tensor [B, T, D]."""
    return make(config, site, check=check_component)


def check_component(kind: type[Component], module: nn.Module, config: Component, site: Site) -> nn.Module:
    """Check a plug-in's module.

    Raise UserError if the number or the roles of its parameters differ from what its config states.
    """
    made = check_parameters(kind, module, sum(config.parameters(site).values()))
    if other := [of.role.name for of in made if of.role.name not in (*config.roles(), "constant", "embedding")]:
        raise breach(
            kind,
            f"its module has a parameter with the role {other[0]}; allowed: {', '.join(config.roles())} "
            "(returned by `roles` of its config)",
        )
    for name, shape in config.projections(site).items():
        projection = dict(module.named_modules()).get(name)
        if not isinstance(projection, Projection) or projection.weight.shape != (shape.d_out, shape.d_in):
            raise breach(
                kind,
                f"{kind.__name__}.projections states {name} {[shape.d_out, shape.d_in]}, but its module has no "
                "archlab.Projection of this name and shape",
            )
    check_forward(kind, module, "x, context, state", like_input)
    if isinstance(module, MultiHeadAttention):
        check_attend(kind, module)
    return module
