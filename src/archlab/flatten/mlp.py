"""The feed-forward branch."""

from archlab.flatten.activations import GATED, SOURCES, activate, module
from archlab.flatten.kinds import Kind
from archlab.flatten.norms import norm
from archlab.flatten.page import Page, lines


def mlp(page: Page, kind: Kind) -> str:
    """The name of the MLP's class."""
    config, name = kind.layer.dense, kind.layer.dense.activation
    D, hidden = page.constant("", "D_MODEL", kind.layer.d_model), page.constant(kind.name, "D_FF", config.d_ff)
    gated, bias = config.kind == "gated", "" if config.bias else ", bias=False"
    own = module(page, kind.name, name)
    sub_norm = norm(page, kind.name, kind.layer.norm, hidden) if config.sub_norm else None
    inner = activate(page, kind.name, name, "self.gate(x_BTD)" if gated else "self.up(x_BTD)")
    return page.define(
        kind.name,
        "MLP",
        lines(
            "class <name>(nn.Module):",
            f'    """{_describe(gated, name)}"""',
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
            f"        inner_BTF = {inner}{' * self.up(x_BTD)' if gated else ''}",
            "        inner_BTF = self.sub_norm(inner_BTF)  # BitNet (Wang 2023)" if sub_norm else None,
            "        return self.down(inner_BTF)",
        ),
    )


def _describe(gated: bool, activation: str) -> str:
    if gated:
        called = f"{GATED[activation]}, " if activation in GATED else ""
        return f"down({activation}(gate x) * up x) ({called}Shazeer 2020)."
    return f"down({activation}(up x))" + (f", {activation} by {SOURCES[activation]}." if activation in SOURCES else ".")
