"""A dense feed-forward branch, and what every MLP has between its products."""

from archlab.config.dense import ResolvedDense, ResolvedGatedMLP
from archlab.flatten.activations import GATED, SOURCES, activate, module
from archlab.flatten.kinds import Kind
from archlab.flatten.norms import norm
from archlab.flatten.page import Page, lines


def mlp(page: Page, kind: Kind, config: ResolvedDense, name: str = "MLP", width: str = "D_FF") -> str:
    """The name of the MLP's class; `name` and `width` are those of class and constant, where layers do not differ."""
    D, hidden = page.constant("", "D_MODEL", kind.layer.d_model), page.constant(kind.name, width, config.d_ff)
    gated, bias = isinstance(config, ResolvedGatedMLP), "" if config.bias else ", bias=False"
    own = module(page, kind.name, config.activation)
    sub_norm = norm(page, kind.name, kind.layer.norm, hidden) if config.sub_norm else None
    up, gate = "self.up(x_BTD)", "self.gate(x_BTD)"
    limits = clamped(page, kind, config, "BTF")
    products = [f"gate_BTF, up_BTF = {gate}, {up}", *limits] if limits else []
    if products:
        up, gate = "up_BTF", "gate_BTF"
    return page.define(
        kind.name,
        name,
        lines(
            "class <name>(nn.Module):",
            f'    """{describe(config)}."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            f"        self.activation = {own}" if own else None,
            f"        self.up = nn.Linear({D}, {hidden}{bias})",
            f"        self.gate = nn.Linear({D}, {hidden}{bias})" if gated else None,
            f"        self.sub_norm = {sub_norm}" if sub_norm else None,
            f"        self.down = nn.Linear({hidden}, {D}{bias})",
            "",
            "    def forward(self, x_BTD: Tensor) -> Tensor:",
            '        """[B, T, D] -> [B, T, D]."""',
            [f"        {line}" for line in products],
            f"        inner_BTF = {inner(page, kind, config, gate, up)}",
            "        inner_BTF = self.sub_norm(inner_BTF)  # BitNet (Wang 2023)" if sub_norm else None,
            "        return self.down(inner_BTF)",
        ),
    )


def clamped(page: Page, kind: Kind, config: ResolvedDense, axes: str) -> list[str]:
    """Lines that hold the products `gate` and `up` within limits; none for a config without."""
    if not isinstance(config, ResolvedGatedMLP) or config.clamp is None:
        return []
    limit = page.constant(kind.name, "CLAMP", config.clamp)
    return [f"gate_{axes} = gate_{axes}.clamp(max={limit})", f"up_{axes} = up_{axes}.clamp(-{limit}, {limit})"]


def inner(page: Page, kind: Kind, config: ResolvedDense, gate: str, up: str) -> str:
    """What the last matrix reads, an expression of the products with the other two."""
    if not isinstance(config, ResolvedGatedMLP):
        return activate(page, kind.name, config.activation, up)
    if config.up_offset is not None:
        up = f"({up} + {page.constant(kind.name, 'UP_OFFSET', config.up_offset)})"
    return f"{activate(page, kind.name, config.activation, gate)} * {up}"


def describe(config: ResolvedDense) -> str:
    """The formula, and where it is from."""
    name = config.activation
    if not isinstance(config, ResolvedGatedMLP):
        return f"down({name}(up x))" + (f", {name} by {SOURCES[name]}" if name in SOURCES else "")
    called = f"{GATED[name]}, " if name in GATED else ""
    up = "up x" if config.up_offset is None else f"(up x + {config.up_offset:g})"
    return f"down({name}(gate x) * {up}) ({called}Shazeer 2020)"
