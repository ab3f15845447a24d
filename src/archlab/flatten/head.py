"""Out of the stream: logits."""

from archlab.config.model_schema import ModelConfig
from archlab.flatten.page import Page, lines


def head(page: Page, model: ModelConfig) -> tuple[str | None, str]:
    """What makes the head's module (None: it has no parameters), and the expression of the logits."""
    config, width = model.head, model.embedding.width
    out = "EMBEDDING_WIDTH" if width else "D_MODEL"
    if not config.tied and not width:
        return f"nn.Linear(D_MODEL, VOCAB_SIZE{'' if config.bias else ', bias=False'})", "self.head(x_BTD)"
    if config.tied and not width and not config.bias:
        return None, "F.linear(x_BTD, self.embedding.weight)"
    x = "self.narrow(x_BTD)" if width else "x_BTD"
    tied = config.tied
    name = page.define(
        "outer",
        "Head",
        lines(
            f"class <name>({'nn.Module' if tied else 'nn.Linear'}):",
            f'    """The logits{", by the embedding matrix (Press & Wolf 2016)" if tied else ""}."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()"
            if tied
            else f"        super().__init__({out}, VOCAB_SIZE{'' if config.bias else ', bias=False'})",
            f"        self.narrow = nn.Linear(D_MODEL, {out}, bias=False)" if width else None,
            "        self.bias = nn.Parameter(torch.zeros(VOCAB_SIZE))" if tied and config.bias else None,
            "",
            f"    def forward(self, x_BTD: Tensor{', embedding_VE: Tensor' if tied else ''}) -> Tensor:",
            '        """[B, T, D] -> [B, T, V]."""',
            f"        return F.linear({x}, embedding_VE{', self.bias' if config.bias else ''})"
            if tied
            else f"        return super().forward({x})",
        ),
    )
    return f"{name}()", f"self.head(x_BTD{', self.embedding.weight' if tied else ''})"
