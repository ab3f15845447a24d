"""Into the stream: tokens and positions that are added to them."""

from archlab.config.layers import resolve
from archlab.config.model_schema import ModelConfig
from archlab.config.position import Learned, Sinusoidal
from archlab.flatten.norms import norm
from archlab.flatten.page import Page, lines


def embedding(page: Page, model: ModelConfig) -> str:
    """What makes the token embedding."""
    V, D = page.constant("", "VOCAB_SIZE", model.vocab_size), page.constant("", "D_MODEL", model.d_model)
    width = model.embedding.width
    made = norm(page, "outer", model.norm, D) if model.embedding.norm else None
    if not width and not made:
        return f"nn.Embedding({V}, {D})"
    E = page.constant("", "EMBEDDING_WIDTH", width, "widened to D_MODEL (Lan 2019)") if width else D
    rows = "rows_BTE" if width else "rows_BTD"
    widened = f"self.widen({rows})" if width else rows
    name = page.define(
        "outer",
        "TokenEmbedding",
        lines(
            "class <name>(nn.Embedding):",
            f'    """A row per token{", widened" if width else ""}{", normalised" if made else ""}."""',
            "",
            "    def __init__(self) -> None:",
            f"        super().__init__({V}, {E})",
            f"        self.widen = nn.Linear({E}, {D}, bias=False)" if width else None,
            f"        self.norm = {made}" if made else None,
            "",
            "    def forward(self, tokens_BT: Tensor) -> Tensor:",
            '        """[B, T] -> [B, T, D]."""',
            scaled(page, model, rows, "super().forward(tokens_BT)"),
            f"        return {f'self.norm({widened})' if made else widened}",
        ),
    )
    return f"{name}()"


def has_class(model: ModelConfig) -> bool:
    """Whether the embedding scales by itself."""
    return bool(model.embedding.width) or model.embedding.norm


def scaled(page: Page, model: ModelConfig, name: str, rows: str) -> list[str]:
    """Lines that give the rows of the matrix, an expression, a name, and scale them."""
    factor = _scale(page, model)
    if factor and model.embedding.round_scale:
        return [
            f"        {name} = {rows}",
            "        # The factor is rounded to the weights' number format.",
            f"        {name} = {name} * {name}.new_full((), {factor})",
        ]
    return [f"        {name} = {rows}{f' * {factor}' if factor else ''}"]


def _scale(page: Page, model: ModelConfig) -> str | None:
    if model.embedding.scale == "sqrt_d_model":
        return "D_MODEL**0.5"
    value = float(resolve(model).embedding.scale)
    if abs(value - model.d_model**0.5) < 1e-9:
        return "D_MODEL**0.5"
    return None if value == 1 else page.constant("", "EMBEDDING_SCALE", value)


def positions(page: Page, model: ModelConfig) -> tuple[str | None, str | None]:
    """What makes the positions' module, and the expression that is added to the embedding."""
    match model.position:
        case Learned(offset=offset):
            size = page.constant("", "MAX_SEQ_LEN", model.max_seq_len, "learned positions end here")
            first = page.constant("", "FIRST_POSITION", offset, "rows before it are unused") if offset else None
            where = f"position_T + {first}" if first else "position_T"
            rows = f"{first} + {size}" if first else size
            return f"nn.Embedding({rows}, D_MODEL)", f"self.positions({where})"
        case Sinusoidal() as config:
            return None, f"{_sinusoids(page, model, config)}(position_T).type_as(x_BTD)"
        case _:
            return None, None


def _sinusoids(page: Page, model: ModelConfig, config: Sinusoidal) -> str:
    theta = page.constant("", "WAVE_THETA", config.theta)
    first = page.constant("", "FIRST_POSITION", config.offset) if config.offset else None
    where = f"(position_T[:, None] + {first})" if first else "position_T[:, None]"
    interleaved = config.layout == "interleaved"
    joined = "torch.stack(waves, -1).flatten(-2)" if interleaved else "torch.cat(waves, -1)"
    cut = "[:, :D_MODEL]" if model.d_model % 2 else ""
    return page.define(
        "outer",
        "sinusoids",
        lines(
            "def <name>(position_T: Tensor) -> Tensor:",
            '    """Sines and cosines of ever longer waves, [T, D] (Vaswani 2017)."""',
            "    exponent_P = torch.arange(0, D_MODEL, 2, device=position_T.device) / D_MODEL",
            f"    angle_TP = {where} * {theta}**-exponent_P",
            "    waves = (angle_TP.sin(), angle_TP.cos())",
            f"    return {joined}{cut}",
        ),
    )
