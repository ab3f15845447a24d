"""A mixture of experts: of many MLPs each token passes through a few, chosen by a router (Shazeer 2017)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from archlab.config.components.activation import ActivationName, activation_named
from archlab.config.components.component import MLP, RoleName, Site, shared_out
from archlab.config.components.dense import Dense, GatedMLP, PlainMLP
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, NonNegative, Positive, Settings, Width

Experts = Annotated[int, Field(ge=1, le=100_000)]
"""Published models have up to 2,048 in a layer."""


class Groups(Settings):
    """Only experts of the best groups may be chosen (DeepSeek-V2), so that a token visits few devices."""

    n: Experts
    """Groups, of equally many neighbouring experts."""
    kept: Experts
    """Groups whose experts may be chosen."""
    by: Literal["max", "top2"] = "top2"
    """A group's score: its best expert's (DeepSeek-V2), or the sum of its two best (DeepSeek-V3)."""


class Correction(Settings):
    """A number per expert, added to its score when experts are chosen, not when they are weighed; it balances the loads
    without a loss (Wang 2024, DeepSeek-V3)."""

    rate: NonNegative = 1e-3
    """After each update it grows by this for experts with less than the mean load, and falls for those with more."""


class Router(Settings):
    """Which experts a token passes through, and with what weights: logits z = W x, in float32."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: over all experts (Shazeer 2017); sigmoid: of each by itself (DeepSeek-V3)."""
    bias: bool = False
    """A learned bias on the logits (gpt-oss)."""
    normalise: bool = True
    """Divide the weights of the chosen by their sum (Mixtral); false: they are the scores (OLMoE)."""
    factor: Positive = 1.0
    """On all weights, after that (DeepSeek-V3: 2.5)."""
    correction: Correction | None = None
    """Balance without a loss. null: none."""
    groups: Groups | None = None
    """Limit the choice to groups of experts. null: not."""


class Shared(Settings):
    """An expert that all tokens pass through, beside those chosen (DeepSeekMoE, Dai 2024)."""

    d_ff: Derived[Width] = DERIVED
    """Width of one matrix. null: that of one expert. Several shared experts are one, as wide as all of them."""
    gate: bool = False
    """Multiply what it gives by sigmoid(w . x), a number per token (Qwen2-MoE)."""
    bias: bool = False
    """Biases on its projections (ERNIE 4.5)."""


class Balance(Settings):
    """Losses of the routers. They are minimised with the cross-entropy and logged, not part of the reported loss."""

    loss: NonNegative = 0.01
    """Times E * sum over experts of f_e P_e: f_e is how many times expert e is chosen per token, P_e its mean score,
    the scores of one token summing to 1 (Fedus 2021). The sum is `active` where all loads are equal."""
    pooled: bool = False
    """false: f and P are of the tokens of one layer, and the loss is the mean over layers; true: of those of
    all layers together (as transformers has it), which lets each layer prefer some experts."""
    router_z_loss: NonNegative = 0.0
    """Times the mean of log^2 Z, Z the softmax denominator of the router's logits (Zoph 2022: 1e-3)."""


class MoE(MLP):
    """sum over the chosen experts e of weight_e * MLP_e(x), and a shared expert's MLP(x) if there is one."""

    kind: Literal["moe"] = "moe"
    display_name: ClassVar[str] = "mixture of experts"
    experts: Experts = 8
    """MLPs that are chosen from."""
    active: Experts = 2
    """Experts that each token passes through; no token is dropped, however many choose the same."""
    d_ff: Derived[Width] = DERIVED
    """Width of one matrix of one expert. null: so that the active ones together are as wide as a dense MLP is by
    default, and cost as many FLOPs."""
    gated: bool = True
    """Each expert is a gated MLP, W2 (act(W1 x) * V x); false: a plain one, W2 act(W1 x)."""
    activation: ActivationName = "silu"
    """Of the experts, the shared one too; learned numbers of an activation are one set for all routed experts."""
    bias: bool = False
    """Biases on every projection of the experts (gpt-oss)."""
    clamp: Positive | None = None
    """Gated: as mlp.clamp of a gated MLP. null: not."""
    up_offset: Positive | None = None
    """Gated: as mlp.up_offset of a gated MLP."""
    router: Router = Router()
    """Scores, choice and weights."""
    shared: Shared | None = None
    """An expert for all tokens. null: none."""
    balance: Balance = Balance()
    """What training minimises beside, so that no expert is left out."""

    def resolve(self, d_model: int) -> Self:
        """Return the same mixture with the widths of its experts written out."""
        dense = GatedMLP() if self.gated else PlainMLP()
        d_ff = self.d_ff or 8 * math.ceil(dense.resolve(d_model).d_ff / self.active / 8)
        shared = self.shared and self.shared.model_copy(update={"d_ff": self.shared.d_ff or d_ff})
        return self.model_copy(update={"d_ff": d_ff, "shared": shared})

    @property
    def expert_mlp(self) -> Dense:
        """One expert, as the MLP that it is."""
        return self._mlp(self.d_ff, self.bias)

    @property
    def shared_mlp(self) -> Dense | None:
        """The shared expert, as the MLP that it is."""
        return self.shared and self._mlp(self.shared.d_ff, self.shared.bias)

    def _mlp(self, d_ff: int, bias: bool) -> Dense:
        if not self.gated:
            return PlainMLP(activation=self.activation, bias=bias, d_ff=d_ff)
        return GatedMLP(activation=self.activation, bias=bias, d_ff=d_ff, clamp=self.clamp, up_offset=self.up_offset)

    def describe(self) -> dict[str, str]:
        """How many experts, of which MLP, and the shared one's width."""
        shared = f" + shared {self.shared.d_ff}" if self.shared else ""
        return {"mlp": f"moe {self.active} of {self.experts} {self.expert_mlp.describe()['mlp']}{shared}"}

    def parameters(self, site: Site) -> dict[str, int]:
        """The router, every expert, the shared one and its gate."""
        return {"mlp": self._learned(site, self.experts)}

    def roles(self) -> tuple[RoleName, ...]:
        """Return the usual roles and `narrow`, that of its router."""
        return ("input", "narrow", "output")

    def vectors(self, site: Site) -> int:
        """Biases of the router and of every expert, and what activations learn."""
        own = activation_named(self.activation).n_parameters
        routed = self.experts * (self.expert_mlp.vectors(site) - own) + own
        beside = 0 if self.shared_mlp is None else self.shared_mlp.vectors(site)
        return self.experts * self.router.bias + routed + beside

    def active_parameters(self, site: Site) -> int:
        """The router, and as many experts as a token passes through."""
        return self._learned(site, self.active)

    def share(self, tensor: int) -> Self:
        """Some of the middle of every expert, and the router."""
        d_ff = shared_out(self.d_ff, tensor, "d_ff of an expert")
        beside = self.shared and self.shared.model_copy(
            update={"d_ff": shared_out(self.shared.d_ff, tensor, "d_ff of the shared expert")}
        )
        return self.model_copy(update={"d_ff": d_ff, "shared": beside})

    def dealt(self, n: int) -> Self:
        """What each of `n` devices has that are dealt the experts (expert parallelism, Lepikhin 2020), which are all
        that is divided. UserError where they cannot have equally many."""
        return self.model_copy(update={"experts": shared_out(self.experts, n, "experts")})

    def _learned(self, site: Site, experts: int) -> int:
        router = self.experts * (site.d_model + self.router.bias)
        own = activation_named(self.activation).n_parameters
        routed = experts * (self.expert_mlp.parameters(site)["mlp"] - own) + own
        shared = self.shared_mlp
        beside = 0 if shared is None else shared.parameters(site)["mlp"]
        gate = site.d_model if self.shared and self.shared.gate else 0
        return router + routed + beside + gate

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """The router, the chosen experts with rows put in their order and back, the shared one and its gate."""
        d, E, K = site.d_model, self.experts, self.active
        yield this.product("mlp", d, E, bias=E * self.router.bias)
        yield this.element_wise("element-wise", "mlp", E, flops=4)._replace(saved=this.rows * E * FLOAT32_BYTES)
        yield this.element_wise("element-wise", "mlp", K * d, flops=0)
        # As many experts as are met on average where each token chooses by chance.
        met, routed = E * (1 - (1 - K / E) ** this.rows), replace(this, texts=this.texts * K)
        for operation in self.expert_mlp.work(site, routed):
            if operation.kind == "products":  # one for each expert
                operation = operation._replace(weights=operation.weights * met, times=max(1, round(met)))
            yield operation
        yield this.element_wise("element-wise", "mlp", K * d, flops=0)
        yield this.element_wise("element-wise", "mlp", K * d, flops=2, written=1 / K, saved=1)
        if self.shared_mlp is not None:
            beside = self.shared_mlp.work(site, this)
            yield next(beside)._replace(saved=0.0)  # its input is the router's, too
            yield from beside
            yield this.element_wise("element-wise", "mlp", d, flops=1, read=2)
        if self.shared and self.shared.gate:
            yield this.product("mlp", d, 1, shares_input=True)
            yield this.element_wise("element-wise", "mlp", d, flops=1, saved=1)
