"""Mixture of experts: a router sends each token through a few of many MLPs (Shazeer 2017)."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from archlab.config.components.activation import ActivationName, activation_named
from archlab.config.components.component import (
    MLP,
    MatrixShape,
    ProjectionShape,
    RoleName,
    Site,
    divide_evenly,
    weights_in,
)
from archlab.config.components.dense import Dense, GatedMLP, PlainMLP
from archlab.config.components.work import FLOAT32_BYTES, Operation, Pass
from archlab.config.core.base import DERIVED, Derived, NonNegative, Positive, Settings, Width
from archlab.errors import UserError

Experts = Annotated[int, Field(ge=1, le=100_000)]
"""Number of experts. Published models have up to 2,048 experts per layer."""


class Groups(Settings):
    """Groups of experts. A token may choose experts from the best groups only (DeepSeek-V2), so that each token
    visits few devices."""

    n: Experts
    """Number of groups. Each group consists of the same number of consecutive experts."""
    kept: Experts
    """Number of groups from which each token may choose its experts."""
    by: Literal["max", "top2"] = "top2"
    """Score of a group. `max`: the highest score of its experts (DeepSeek-V2). `top2`: the sum of the two highest
    scores (DeepSeek-V3)."""


class Correction(Settings):
    """Per-expert bias on the scores that affects which experts are chosen, but not their weights. It balances the load
    of the experts without a loss (Wang 2024, DeepSeek-V3)."""

    rate: NonNegative = 1e-3
    """Amount by which each bias changes per update. The bias of an expert rises if its load is below the mean, and
    falls if its load is above the mean."""


class Router(Settings):
    """Router, which chooses the experts of each token and sets their weights. The logits are z = W x, in float32."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    """Function that turns logits into scores. `softmax`: softmax over all experts (Shazeer 2017). `sigmoid`: sigmoid of
    each expert's logit (DeepSeek-V3)."""
    bias: bool = False
    """Whether a learned bias is added to the logits (gpt-oss)."""
    normalise: bool = True
    """Whether the scores of a token's chosen experts are divided by their sum to get the weights (Mixtral). false: the
    weights are the scores themselves (OLMoE)."""
    applied_to: Literal["output", "input"] = "output"
    """Vector that the weight of a chosen expert multiplies. `output`: the output of the expert (Shazeer 2017). `input`:
    its input (Llama 4)."""
    factor: Positive = 1.0
    """Factor by which the weights of the chosen experts are multiplied at the end (DeepSeek-V3: 2.5)."""
    norm: bool = False
    """Whether a norm of the block's kind precedes the matrix W, whose input is then divided by the square root of
    d_model (Gemma 4)."""
    expert_scale: bool = False
    """Whether the weight of each chosen expert is multiplied at the end by a learned number of the expert, which is
    initialized to 1 (Gemma 4)."""
    sparsemixer: NonNegative | None = None
    """Tolerance of SparseMixer (Liu 2024). null: no SparseMixer. With SparseMixer, the experts are chosen by logit. The
    weight of each choice is its share in a softmax over the experts that no earlier choice took. This softmax leaves
    out experts whose logit is lower than that of the choice by more than 2 * sparsemixer, relative to the larger of the
    choice's logit and the size of their own. archlab computes the same in training, where the published code draws the
    experts at random."""
    correction: Correction | None = None
    """Per-expert bias on the scores that balances the load without a loss. null: no bias."""
    groups: Groups | None = None
    """Groups of experts, of which each token may use only the best. null: a token may choose any experts."""


class Shared(Settings):
    """Shared expert, which every token passes through in addition to its chosen experts (DeepSeekMoE, Dai 2024)."""

    d_ff: Derived[Width] = DERIVED
    """Width of the hidden layer of the shared expert. null: the width of one routed expert. Write several shared
    experts as one expert with their total width."""
    gate: bool = False
    """Whether the output of the shared expert is multiplied by sigmoid(w . x), one factor per token (Qwen2-MoE)."""
    bias: bool = False
    """Whether the projections of the shared expert have biases (ERNIE 4.5)."""


class LatentSpace(Settings):
    """Latent space of the routed experts (LatentMoE, Elango 2026). One projection computes the latent vector of each
    token, and another projection maps the sum of the experts' outputs back. The router and the shared expert read the
    token itself."""

    width: Width
    """Width of the latent vectors, which are the inputs and outputs of the routed experts."""
    bias: bool = False
    """Whether both projections have biases."""


class Balance(Settings):
    """Auxiliary losses of the router. Training minimizes them together with the cross-entropy and logs them. The
    reported loss excludes them."""

    loss: NonNegative = 0.01
    """Coefficient of the load-balancing loss E * sum over experts of f_e P_e (Fedus 2021).

    E is the number of experts, f_e is the fraction of tokens that choose expert e, and P_e is the mean score of e. The
    scores of each token are first divided by their sum. If all experts have the same load, the sum multiplied by E is
    equal to `active`.
    """
    pooled: bool = False
    """Whether f and P of the load-balancing loss are means over the tokens of all layers together, as in transformers.
    A single layer may then prefer some experts. false: f and P are computed for each layer, and the loss is the mean
    over layers."""
    router_z_loss: NonNegative = 0.0
    """Coefficient of the router's z-loss, the mean of log^2 Z, where Z is the softmax denominator of the router's
    logits (Zoph 2022: 1e-3)."""


class MoE(MLP):
    """Mixture of experts: the sum of weight_e * MLP_e(x) over the chosen experts e, plus the output of a shared
    expert if there is one. If the weights multiply the inputs, the sum is that of MLP_e(weight_e * x)."""

    kind: Literal["moe"] = "moe"
    display_name: ClassVar[str] = "mixture of experts"
    experts: Experts = 8
    """Number of routed experts."""
    active: Experts = 2
    """Number of routed experts that each token passes through. No token is dropped, even if many tokens choose the same
    expert."""
    d_ff: Derived[Width] = DERIVED
    """Width of the hidden layer of one expert. null: the active experts together have the width of the default dense
    MLP, and also its FLOPs if `latent` is null."""
    gated: bool = True
    """Whether each expert is a gated MLP, W2 (act(W1 x) * V x). false: each expert is a plain MLP, W2 act(W1 x)."""
    activation: ActivationName = "silu"
    """Activation of all experts, including the shared expert. If the activation has parameters, all routed experts
    share them."""
    bias: bool = False
    """Whether every projection of the experts has a bias (gpt-oss)."""
    clamp: Positive | None = None
    """Clamping limit c of gated experts: W1 x is clamped to at most c before the activation, and V x to [-c, c]
    (gpt-oss: 7). null: no clamping."""
    up_offset: Positive | None = None
    """Number added to V x of gated experts after clamping and before the multiplication by act(W1 x) (gpt-oss: 1).
    null: nothing is added."""
    router: Router = Router()
    """Router, which scores the experts, chooses some of them for each token, and weights their outputs."""
    shared: Shared | None = None
    """Shared expert, which every token passes through. null: none."""
    latent: LatentSpace | None = None
    """Latent space in which the routed experts work (Nemotron 3 Super). null: they read and write vectors of width
    d_model."""
    own_norms: bool = False
    """Whether the routed experts and the shared expert each have two norms of the block's kind, on their input and on
    the sum of their outputs. The mixture then reads the stream itself (Gemma 4)."""
    balance: Balance = Balance()
    """Auxiliary losses that balance the load of the experts."""

    def resolve(self, d_model: int) -> Self:
        dense = GatedMLP() if self.gated else PlainMLP()
        d_ff = self.d_ff or 8 * math.ceil(dense.resolve(d_model).d_ff / self.active / 8)
        shared = self.shared and self.shared.model_copy(update={"d_ff": self.shared.d_ff or d_ff})
        return self.model_copy(update={"d_ff": d_ff, "shared": shared})

    @property
    def expert_mlp(self) -> Dense:
        return self._mlp(self.d_ff, self.bias)

    @property
    def shared_mlp(self) -> Dense | None:
        return self.shared and self._mlp(self.shared.d_ff, self.shared.bias)

    def expert_site(self, site: Site) -> Site:
        """Return the site of a routed expert, whose d_model is the width of the expert's input and output."""
        return replace(site, d_model=self.expert_width(site.d_model))

    def expert_width(self, d_model: int) -> int:
        return d_model if self.latent is None else self.latent.width

    def _mlp(self, d_ff: int, bias: bool) -> Dense:
        if not self.gated:
            return PlainMLP(activation=self.activation, bias=bias, d_ff=d_ff)
        return GatedMLP(activation=self.activation, bias=bias, d_ff=d_ff, clamp=self.clamp, up_offset=self.up_offset)

    def describe(self) -> dict[str, str]:
        latent = f" in latent {self.latent.width}" if self.latent else ""
        shared = f" + shared {self.shared.d_ff}" if self.shared else ""
        return {"mlp": f"moe {self.active} of {self.experts} {self.expert_mlp.describe()['mlp']}{latent}{shared}"}

    def parameters(self, site: Site) -> dict[str, int]:
        learned = self.in_projections(site) + weights_in(self.other_matrices(site)) + self.vectors(site)
        return {"mlp": learned, "norms": self._norms(site)}

    def _norms(self, site: Site) -> int:
        """Return the number of parameters of the norms: that of the router, and those of the experts."""
        return (self.router.norm + 4 * self.own_norms) * site.norm.n_parameters(site.d_model)

    def roles(self) -> tuple[RoleName, ...]:
        return ("input", "narrow", "output")

    def projections(self, site: Site) -> dict[str, ProjectionShape]:
        shared = self.shared_mlp.projections(site) if self.shared_mlp else {}
        gate = {"shared_gate": ProjectionShape(site.d_model, 1)} if self.shared and self.shared.gate else {}
        return {**self._around_experts(site), **{f"shared.{name}": shape for name, shape in shared.items()}, **gate}

    def _around_experts(self, site: Site) -> dict[str, ProjectionShape]:
        if self.latent is None:
            return {}
        return {
            "latent_down": ProjectionShape(site.d_model, self.latent.width),
            "latent_up": ProjectionShape(self.latent.width, site.d_model, "mixed"),
        }

    def other_matrices(self, site: Site) -> Counter[MatrixShape]:
        shapes = Counter({MatrixShape(self.experts, site.d_model): 1})  # the router
        for shape in self.expert_mlp.projections(self.expert_site(site)).values():
            shapes[MatrixShape(shape.d_out, shape.d_in, self.experts)] += 1
        return shapes

    def vectors(self, site: Site) -> int:
        per_activation = activation_named(self.activation).n_parameters
        routed = self.experts * (self.expert_mlp.vectors(self.expert_site(site)) - per_activation) + per_activation
        shared = 0 if self.shared_mlp is None else self.shared_mlp.vectors(site)
        of_router = self.experts * (self.router.bias + self.router.expert_scale)
        of_latent = 0 if self.latent is None else self.latent.bias * (self.latent.width + site.d_model)
        return of_router + of_latent + routed + shared

    def active_parameters(self, site: Site) -> int:
        expert = self.expert_mlp.parameters(self.expert_site(site))["mlp"]
        of_one = expert - activation_named(self.activation).n_parameters  # all experts share the activation
        return super().active_parameters(site) - (self.experts - self.active) * of_one

    def n_corrections(self) -> int:
        return self.experts if self.router.correction else 0

    def share(self, tensor: int) -> Self:
        """Return the mixture with narrower experts. Every device computes the router and the whole latent vector."""
        if self.own_norms and tensor > 1:
            raise UserError(
                "own_norms: the norms need the sum of the experts' outputs, but each device has a summand; allowed: "
                "tensor=1"
            )
        d_ff = divide_evenly(self.d_ff, tensor, "d_ff of an expert")
        shared = self.shared and self.shared.model_copy(
            update={"d_ff": divide_evenly(self.shared.d_ff, tensor, "d_ff of the shared expert")}
        )
        return self.model_copy(update={"d_ff": d_ff, "shared": shared})

    def divide_experts(self, n: int) -> Self:
        """Return the mixture with the routed experts of one of `n` devices (expert parallelism, Lepikhin 2020).

        The router and the shared expert stay whole. Raise UserError if the experts cannot be divided evenly.
        """
        return self.model_copy(update={"experts": divide_evenly(self.experts, n, "experts")})

    def work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        """Yield the operations of the router, the chosen experts, the shared expert and its gate, and of their norms.
        Sorting the rows before and after the chosen experts is included."""
        yield from self._router_work(site, model_pass)
        yield from self._routed_work(site, model_pass)
        if self.shared_mlp is not None:
            yield from self._shared_work(self.shared_mlp, site, model_pass)
        if self.shared and self.shared.gate:
            yield model_pass.product("mlp", site.d_model, 1, shares_input=True)
            yield model_pass.element_wise("element-wise", "mlp", site.d_model, flops=1, saved=1)

    def _router_work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        d, E, K = site.d_model, self.experts, self.active
        matrix = model_pass.product("mlp", d, E, bias=E * self.router.bias)
        if self.router.norm:
            yield from model_pass.norm(site.norm, d)
            yield model_pass.element_wise("element-wise", "mlp", d, flops=1)
            matrix = matrix._replace(saved=model_pass.rows * d * FLOAT32_BYTES)
        yield matrix
        # The scores. For each choice, SparseMixer has a mask (4 FLOPs per expert) and a softmax of its own.
        n_own = 0 if self.router.sparsemixer is None else K
        saved = model_pass.rows * E * (FLOAT32_BYTES + n_own * (FLOAT32_BYTES + 1))
        yield model_pass.element_wise("element-wise", "mlp", E, flops=4 + 8 * n_own)._replace(saved=saved)
        if self.router.expert_scale:
            scaled = model_pass.element_wise("element-wise", "mlp", K, flops=1, read=2, weights=E)
            yield scaled._replace(saved=2 * model_pass.rows * K * FLOAT32_BYTES)

    def _routed_work(self, site: Site, model_pass: Pass) -> Iterator[Operation]:
        d, E, K = site.d_model, self.experts, self.active
        W = self.expert_width(d)
        if self.own_norms:  # the norm of the router stores the stream
            yield from model_pass.norm(site.norm, d, shares_input=True)
        if self.latent:  # without norms, the router already stores this input
            yield model_pass.product("mlp", d, W, bias=W * self.latent.bias, shares_input=not self.own_norms)
        yield model_pass.element_wise("element-wise", "mlp", K * W, flops=0)
        weights_input = self.router.applied_to == "input"
        if weights_input:
            yield model_pass.element_wise("element-wise", "mlp", K * W, flops=1, saved=1)
        # The expected number of distinct experts if each token chooses at random.
        n_distinct, routed = E * (1 - (1 - K / E) ** model_pass.rows), replace(model_pass, texts=model_pass.texts * K)
        for operation in self.expert_mlp.work(self.expert_site(site), routed):
            if operation.kind == "products":  # one for each expert
                operation = operation._replace(weights=operation.weights * n_distinct, times=max(1, round(n_distinct)))
            yield operation
        yield model_pass.element_wise("element-wise", "mlp", K * W, flops=0)
        if weights_input:
            yield model_pass.element_wise("element-wise", "mlp", K * W, flops=1, written=1 / K)
        else:
            yield model_pass.element_wise("element-wise", "mlp", K * W, flops=2, written=1 / K, saved=1)
        if self.latent:
            yield model_pass.product("mlp", W, d, bias=d * self.latent.bias)
        if self.own_norms:
            yield from model_pass.norm(site.norm, d)

    def _shared_work(self, shared_mlp: Dense, site: Site, model_pass: Pass) -> Iterator[Operation]:
        d, work = site.d_model, shared_mlp.work(site, model_pass)
        if self.own_norms:
            yield from model_pass.norm(site.norm, d, shares_input=True)
        else:
            yield next(work)._replace(saved=0.0)  # the router already stores this input
        yield from work
        if self.own_norms:
            yield from model_pass.norm(site.norm, d)
        yield model_pass.element_wise("element-wise", "mlp", d, flops=1, read=2)
