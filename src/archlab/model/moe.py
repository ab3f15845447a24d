"""Mixture of experts.

Shapes: B batch, T tokens, N = B * T, D d_model, E experts, K active experts per token, F d_ff of one expert. Within the
experts, D is the width of their inputs and outputs, which is that of the latent space if there is one.
"""

import torch
from torch import Tensor, nn

from archlab.config.components.component import RoleName, Site
from archlab.config.components.moe import MoE as MoEConfig
from archlab.config.components.norm import NoNorm
from archlab.config.core.registry import implements
from archlab.model.activations import make_activation
from archlab.model.arithmetic import Same, as_autocast
from archlab.model.context import Context
from archlab.model.grouped import ends_for, gathered, grouped_linear
from archlab.model.mlp import MLP, inner
from archlab.model.norms import make_norm
from archlab.model.projection import Projection
from archlab.model.router import Router, collect, load_of
from archlab.model.state import State


@implements(MoEConfig)
class MoE(nn.Module):
    """Mixture of experts: the sum of weight_e * MLP_e(x), or of MLP_e(weight_e * x), over the chosen experts e.

    If the config has a shared expert, its output is added. If it sets `own_norms`, norms are around the experts. If it
    sets `latent`, projections map the input of the routed experts to a latent space, and the sum of their outputs back.
    """

    def __init__(self, config: MoEConfig, site: Site) -> None:
        super().__init__()
        self.config = config
        D, latent = site.d_model, config.latent
        self.router = Router(config, site)
        self.latent_down = Projection(D, latent.width, bias=latent.bias, role="narrow") if latent else Same()
        self.experts = Experts(config, D)
        self.latent_up = Projection(latent.width, D, bias=latent.bias, role="output") if latent else Same()
        shared = config.shared_mlp
        self.shared = None if shared is None else MLP(shared, site)
        is_gated = config.shared is not None and config.shared.gate
        self.shared_gate = Projection(site.d_model, 1, bias=False, role="narrow") if is_gated else None
        own_norm = site.norm if config.own_norms else NoNorm()
        self.experts_before, self.experts_after = make_norm(own_norm, site.d_model), make_norm(own_norm, site.d_model)
        self.shared_before, self.shared_after = make_norm(own_norm, site.d_model), make_norm(own_norm, site.d_model)

    def forward(self, x_BTD: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the mixture: [B, T, D] -> [B, T, D]."""
        x_ND = x_BTD.flatten(0, 1)
        routing = self.router(x_ND)
        read_ND = self.latent_down(self.experts_before(x_ND))
        y_ND = self.latent_up(self.experts(read_ND, routing.chosen_NK, routing.weights_NK))
        y_BTD = self.experts_after(y_ND).view_as(x_BTD)
        if context.collected is not None:
            collect(load_of(routing, context.is_real_BT), context.collected)
        if self.shared is None:
            return y_BTD
        x_BTD = self.shared_before(x_BTD)
        shared_BTD = self.shared(x_BTD, context, state)
        if self.shared_gate is not None:
            shared_BTD = self.shared_gate(x_BTD).sigmoid() * shared_BTD
        return y_BTD + self.shared_after(shared_BTD)


class Experts(nn.Module):
    """MLPs of all E experts, in stacked matrices.

    Rows are sorted by expert, so that each expert computes one matrix product. A token's outputs are then gathered and
    summed in the order in which the router chose the experts. This order is fixed, so a token's result does not depend
    on the other tokens. The backward pass sums in the same order.
    """

    def __init__(self, config: MoEConfig, d_model: int) -> None:
        super().__init__()
        self.config, E, F, D = config.expert_mlp, config.experts, config.d_ff, config.expert_width(d_model)
        self.weights_input = config.router.applied_to == "input"
        self.activation = make_activation(config.activation)
        self.up = nn.Parameter(torch.empty(E, F, D))
        self.gate = nn.Parameter(torch.empty(E, F, D)) if config.gated else None
        self.down = nn.Parameter(torch.empty(E, D, F))
        self.up_bias = nn.Parameter(torch.empty(E, F)) if config.bias else None
        self.gate_bias = nn.Parameter(torch.empty(E, F)) if config.bias and config.gated else None
        self.down_bias = nn.Parameter(torch.empty(E, D)) if config.bias else None
        down: RoleName = "narrow" if config.latent else "output"
        self.roles: dict[str, RoleName] = {"up": "input", "gate": "input", "down": down, "down_bias": "output_bias"}
        self.constants = {"up_bias": 0.0, "gate_bias": 0.0, "down_bias": 0.0}

    def forward(self, x_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
        """Return the sum of the chosen experts' outputs: [N, D] -> [N, D]. The weights multiply the outputs or the
        inputs of the experts.

        The indices of the chosen experts and their weights have the shape [N, K].
        """
        K = chosen_NK.shape[1]
        expert_R, order_R = chosen_NK.flatten().sort(stable=True)  # R = N * K rows
        inverse_R = order_R.argsort()
        x_RD = gathered(x_ND, order_R // K, inverse_R.unflatten(0, (-1, K)))
        if self.weights_input:
            x_RD = (x_RD * weights_NK.flatten()[order_R, None]).to(x_RD.dtype)
        y_RD = self.through(x_RD, expert_R)
        y_NKD = gathered(y_RD, inverse_R, order_R[:, None]).unflatten(0, (-1, K))
        if not self.weights_input:
            y_NKD = y_NKD * weights_NK[..., None]
        return y_NKD.sum(1).to(y_RD.dtype)

    def through(self, x_RD: Tensor, expert_R: Tensor) -> Tensor:
        """Apply the experts to rows sorted by expert: [R, D] -> [R, D]."""
        ends_E = torch.searchsorted(expert_R, torch.arange(len(self.up), device=x_RD.device), right=True).int()
        ends_E = ends_for(ends_E, *as_autocast(x_RD[:0], self.up[:0]))  # only dtypes and widths matter

        def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            y = grouped_linear(*as_autocast(x, weight), ends_E)
            return y if bias is None else y + bias[expert_R].to(y.dtype)

        up_RF = project(x_RD, self.up, self.up_bias)
        gate_RF = None if self.gate is None else project(x_RD, self.gate, self.gate_bias)
        return project(inner(self.config, self.activation, gate_RF, up_RF), self.down, self.down_bias)
