"""A mixture of experts: the router, the experts one after the other, and the one for all tokens."""

from archlab.config.dense import ResolvedGatedMLP
from archlab.config.moe import ResolvedMoE
from archlab.flatten.activations import module
from archlab.flatten.kinds import Kind
from archlab.flatten.mlp import clamped, describe, inner, mlp
from archlab.flatten.page import Page, lines


def moe(page: Page, kind: Kind, config: ResolvedMoE) -> str:
    """The name of the mixture's class."""
    D = page.constant("", "D_MODEL", kind.layer.d_model)
    X = page.constant(kind.name, "N_EXPERTS", config.experts)
    A = page.constant(kind.name, "ACTIVE_EXPERTS", config.active, "that each token passes through")
    router, experts = _router(page, kind, config, D, X, A), _experts(page, kind, config, D, X)
    shared = config.shared_mlp and mlp(page, kind, config.shared_mlp, "SharedExpert", "D_SHARED")
    gated = config.shared is not None and config.shared.gate
    routed, beside = "self.experts(x_BTD, *self.router(x_BTD))", "self.shared(x_BTD)"
    if gated:
        beside = f"torch.sigmoid(self.shared_gate(x_BTD)) * {beside}"
    return page.define(
        kind.name,
        "MoE",
        lines(
            "class <name>(nn.Module):",
            f'    """Experts that a router chooses{", and one for all" if shared else ""} (Shazeer 2017)."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            f"        self.router = {router}()",
            f"        self.experts = {experts}()",
            f"        self.shared = {shared}()" if shared else None,
            f"        self.shared_gate = nn.Linear({D}, 1, bias=False)" if gated else None,
            "",
            "    def forward(self, x_BTD: Tensor) -> Tensor:",
            '        """[B, T, D] -> [B, T, D]."""',
            [f"        y_BTD = {routed}", f"        return y_BTD + {beside}"] if shared else f"        return {routed}",
        ),
    )


def _router(page: Page, kind: Kind, config: ResolvedMoE, D: str, X: str, A: str) -> str:
    router = config.router
    bias = ", self.bias.float()" if router.bias else ""
    score = "logit_BTX.softmax(-1)" if router.score == "softmax" else "torch.sigmoid(logit_BTX)"
    weights = "weight_BTA"
    if router.factor != 1:
        weights += f" * {page.constant(kind.name, 'EXPERT_FACTOR', router.factor, 'on the weights of experts')}"
    total = "weight_BTA.sum(-1, keepdim=True)"
    if router.score == "sigmoid":
        total = f"({total} + 1e-20)"
    return page.define(
        kind.name,
        "Router",
        lines(
            "class <name>(nn.Module):",
            f'    """Each token\'s experts and their weights, by {router.score}, in float32."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            f"        self.weight = nn.Parameter(torch.empty({X}, {D}))",
            f"        self.bias = nn.Parameter(torch.zeros({X}))" if router.bias else None,
            f'        self.register_buffer("correction", torch.zeros({X}))' if router.correction else None,
            "",
            "    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:",
            '        """[B, T, D] -> experts and weights, [B, T, A]."""',
            f"        logit_BTX = F.linear(x_BTD.float(), self.weight.float(){bias})",
            f"        score_BTX = {score}",
            _choice(page, kind, config, A),
            f"        weight_BTA = weight_BTA / {total}" if router.normalise else None,
            f"        return expert_BTA, {weights}",
        ),
    )


def _choice(page: Page, kind: Kind, config: ResolvedMoE, A: str) -> list[str]:
    """Lines that set experts and their scores."""
    correction, groups = config.router.correction, config.router.groups
    if not correction and not groups:
        return [f"        weight_BTA, expert_BTA = score_BTX.topk({A})"]
    rank, out = "score_BTX", list[str]()
    if correction:
        out += ["        rank_BTX = score_BTX + self.correction  # balances the loads (Wang 2024)"]
        rank = "rank_BTX"
    if groups:
        n = page.constant(kind.name, "N_GROUPS", groups.n, "of experts")
        kept = page.constant(kind.name, "KEPT_GROUPS", groups.kept, "whose experts a token may choose")
        best = "amax(-1)" if groups.by == "max" else "topk(2).values.sum(-1)"
        out += [
            f"        rank_BTGX = {rank}.unflatten(-1, ({n}, -1))",
            f"        group_BTG = rank_BTGX.{best}",
            f"        kept_BTL = group_BTG.topk({kept}).indices",
            "        dropped_BTG = torch.ones_like(group_BTG).scatter(-1, kept_BTL, 0).bool()",
            "        rank_BTX = rank_BTGX.masked_fill(dropped_BTG[..., None], -math.inf).flatten(-2)",
        ]
    return [
        *out,
        f"        expert_BTA = rank_BTX.topk({A}).indices",
        "        weight_BTA = score_BTX.gather(-1, expert_BTA)",
    ]


def _experts(page: Page, kind: Kind, config: ResolvedMoE, D: str, X: str) -> str:
    expert = config.expert_mlp
    gated = isinstance(expert, ResolvedGatedMLP)
    width = page.constant(kind.name, "D_EXPERT", config.d_ff, "of each expert")
    own = module(page, kind.name, config.activation)
    inputs = ["gate", "up"] if gated else ["up"]
    shapes = {**dict.fromkeys(reversed(inputs), (width, D)), "down": (D, width)}

    def product(name: str, x: str) -> str:
        return f"F.linear({x}, self.{name}[i]{f', self.{name}_bias[i]' if config.bias else ''})"

    return page.define(
        kind.name,
        "Experts",
        lines(
            "class <name>(nn.Module):",
            f'    """Weighed sum of {describe(expert)}."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            f"        self.activation = {own}" if own else None,
            [f"        self.{n} = nn.Parameter(torch.empty({X}, {a}, {b}))" for n, (a, b) in shapes.items()],
            [f"        self.{n}_bias = nn.Parameter(torch.zeros({X}, {a}))" for n, (a, _) in shapes.items()]
            if config.bias
            else None,
            "",
            "    def forward(self, x_BTD: Tensor, expert_BTA: Tensor, weight_BTA: Tensor) -> Tensor:",
            '        """[B, T, D], experts and weights [B, T, A] -> [B, T, D]."""',
            "        y_BTD = torch.zeros_like(x_BTD, dtype=torch.float)",
            f"        for i in range({X}):",
            "            batch_R, token_R, choice_R = (expert_BTA == i).nonzero(as_tuple=True)",
            "            x_RD = x_BTD[batch_R, token_R]",
            [f"            {name}_RF = {product(name, 'x_RD')}" for name in inputs],
            [f"            {line}" for line in clamped(page, kind, expert, "RF")],
            f"            inner_RF = {inner(page, kind, expert, 'gate_RF', 'up_RF')}",
            f"            out_RD = {product('down', 'inner_RF')}",
            "            weight_R1 = weight_BTA[batch_R, token_R, choice_R, None]",
            "            y_BTD[batch_R, token_R] += weight_R1 * out_RD",
            "        return y_BTD.type_as(x_BTD)",
        ),
    )
