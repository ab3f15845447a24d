"""Activations: name -> the expression, and what a gated MLP with it is called."""

from archlab.config.activation import Activation
from archlab.flatten.page import Page

EXPRESSIONS: dict[str, str] = {
    "relu": "F.relu({})",
    "gelu": "F.gelu({})",
    "gelu_tanh": 'F.gelu({}, approximate="tanh")',
    "silu": "F.silu({})",
    "elu": "F.elu({})",
    "selu": "F.selu({})",
    "relu_squared": "F.relu({}).square()",
    "sigmoid": "torch.sigmoid({})",
    "softplus": "F.softplus({}, threshold=40)",
    "identity": "{}",
    "quick_gelu": "quick_gelu({})",
    "xielu": "self.activation({})",
}
"""What stands in the MLP's forward, around its argument."""

SOURCES = {
    "gelu": "Hendrycks 2016", "gelu_tanh": "Hendrycks 2016", "silu": "Ramachandran 2017", "relu_squared": "So 2021",
    "xielu": "Huang 2024", "elu": "Clevert 2015", "selu": "Klambauer 2017", "quick_gelu": "Hendrycks 2016",
}  # fmt: skip
"""Who proposed it."""

GATED = {"silu": "SwiGLU", "gelu": "GEGLU", "gelu_tanh": "GEGLU", "relu": "ReGLU", "sigmoid": "GLU"}
"""Shazeer's names."""

QUICK_GELU = '''\
def <name>(x: Tensor) -> Tensor:
    """A sigmoid in the place of gelu's error function (Hendrycks 2016)."""
    return x * torch.sigmoid(1.702 * x)'''

XIELU = '''\
class <name>(nn.Module):
    """Quadratic above 0, exponential below, both slopes learned (xIELU, Huang 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.tensor([0.20341]))  # softplus of it: 0.8
        self.alpha_n = nn.Parameter(torch.tensor([-1.05022]))  # softplus of it: 0.3

    def forward(self, x: Tensor) -> Tensor:
        """Element by element, in float32."""
        wide = x.float()
        above = F.softplus(self.alpha_p.float()) * wide.square()
        slope = 0.5 + F.softplus(self.alpha_n.float())
        below = slope * (torch.expm1(wide.clamp(max=-1e-6)) - wide)
        return (torch.where(wide > 0, above, below) + 0.5 * wide).type_as(x)'''


def activate(page: Page, kind: str, name: Activation, x: str) -> str:
    """The activation of `x`, an expression; what it needs is defined."""
    if name == "quick_gelu":
        page.define(kind, "quick_gelu", QUICK_GELU)
    return EXPRESSIONS[name].format(x)


def module(page: Page, kind: str, name: Activation) -> str | None:
    """What makes the activation, where it has parameters."""
    return f"{page.define(kind, 'XIELU', XIELU)}()" if name == "xielu" else None
