"""The model: what is computed once per pass, the layers in their order, and the way in and out."""

from collections.abc import Callable

from archlab.config.layers import final_norm
from archlab.config.model_schema import ModelConfig
from archlab.config.position import T5, Alibi, Rope
from archlab.flatten.bias import alibi, t5_bucket
from archlab.flatten.block import Blocks, blocks
from archlab.flatten.embedding import embedding, has_class, positions, scaled
from archlab.flatten.head import head
from archlab.flatten.kinds import Kind, kinds_of, period, runs
from archlab.flatten.norms import norm
from archlab.flatten.page import WIDTH, Page, lines
from archlab.flatten.rotary import rotation
from archlab.flatten.shared import Shared, shared_by
from archlab.flatten.visibility import visibility


def decoder(page: Page, model: ModelConfig) -> None:
    """Write the model's class, and all that it uses."""
    kinds, order = kinds_of(model)
    shared = shared_by(model, kinds)
    page.constant("", "N_LAYERS", model.n_layers)
    made_embedding = embedding(page, model)
    made_positions, added = positions(page, model)
    given = _given(page, kinds, shared)
    made_table = _shared_table(page, model, shared)
    made_blocks = blocks(page, kinds, shared)
    made_norm = norm(page, "outer", final_norm(model), "D_MODEL")
    made_head, logits = head(page, model)
    by_kind = any(
        len(set(per_kind.values())) > 1
        for per_kind in (*given.values(), made_blocks.classes, *made_blocks.parts.values())
    )
    if by_kind:
        _layers(page, order)
    rows = "self.embedding(tokens_BT)"
    scaling = [f"        x_BTD = {rows}"] if has_class(model) else scaled(page, model, "x_BTD", rows)
    page.define(
        "outer",
        "Decoder",
        lines(
            "class <name>(nn.Module):",
            '    """Tokens to logits: at every position, of the token that comes next."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            f"        self.embedding = {made_embedding}",
            f"        self.positions = {made_positions}" if made_positions else None,
            f"        self.position_bias = {made_table}" if made_table else None,
            _make_layers(made_blocks),
            f"        self.norm = {made_norm}" if made_norm else None,
            f"        self.head = {made_head}" if made_head else None,
            "",
            "    def forward(self, tokens_BT: Tensor) -> Tensor:",
            '        """[B, T] -> [B, T, V]."""',
            scaling,
            "        position_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)"
            if added or given
            else None,
            f"        x_BTD = x_BTD + {added}" if added else None,
            _embedding_dropout(page, model),
            _once(given),
            _loop(given, by_kind),
            "        x_BTD = self.norm(x_BTD)" if made_norm else None,
            _capped(page, model, logits),
        ),
    )


def _given(page: Page, kinds: list[Kind], shared: Shared) -> dict[str, dict[str, str]]:
    """Argument of a layer -> kind -> the expression it is made by."""
    makers: dict[str, Callable[[Kind], str]] = {
        "seen_TS": lambda kind: f"{visibility(page, kind.name, kind.layer.multi_head)}(position_T)",
        "bias_HTS": lambda kind: _bias(page, kind, shared),
        "rotation": lambda kind: f"{rotation(page, kind, shared.rope or Rope())}(position_T)",
    }
    return {name: {kind.name: makers[name](kind) for kind in kinds} for name in shared.names}


def _bias(page: Page, kind: Kind, shared: Shared) -> str:
    match kind.layer.position:
        case Alibi() as config:
            return f"{alibi(page, kind, config)}(position_T)"
        case T5(shared=True) if shared.t5:
            return f"self.position_bias({t5_bucket(page, 'outer', shared.t5)}(position_T)).permute(2, 0, 1)"
        case _:
            return "position_T.new_zeros(1, 1, 1)"


def _shared_table(page: Page, model: ModelConfig, shared: Shared) -> str | None:
    if shared.t5 is None:
        return None
    buckets = page.constant("outer", "BUCKETS", shared.t5.buckets)
    return f"nn.Embedding({buckets}, {page.constant('outer', 'N_HEADS', model.multi_head.n_heads)})"


def _layers(page: Page, order: list[str]) -> None:
    cycle = period(order)
    pattern = runs(cycle)
    if len(f"PATTERN = {pattern}") > WIDTH:
        rows, row = list[str](), ""
        for name in cycle:
            if len(row) + len(name) > 76:
                rows, row = [*rows, f"    {row.rstrip()}"], ""
            row += f'"{name}", '
        pattern = lines("(", [*rows, f"    {row.rstrip()}"], ")  # fmt: skip")
    page.constant("", "PATTERN", pattern)
    page.constant("", "LAYERS", "[PATTERN[i % len(PATTERN)] for i in range(N_LAYERS)]")


def _make_layers(blocks: Blocks) -> list[str]:
    tables = [f"        {name} = {_table(classes)}" for name, classes in blocks.parts.items()]
    if len(set(blocks.classes.values())) > 1:
        table = f"        block = {_table(blocks.classes)}"
        return [table, "        self.layers = nn.ModuleList(block[kind]() for kind in LAYERS)"]
    only = next(iter(blocks.classes.values()))
    if not tables:
        return [f"        self.layers = nn.ModuleList({only}() for _ in range(N_LAYERS))"]
    made = f"{only}({', '.join(f'{name}[kind]' for name in blocks.parts)})"
    return [*tables, f"        layers = ({made} for kind in LAYERS)", "        self.layers = nn.ModuleList(layers)"]


def _table(values: dict[str, str]) -> str:
    """Kind -> an expression, as a dict."""
    return "{" + ", ".join(f'"{kind}": {text}' for kind, text in values.items()) + "}"


def _once(given: dict[str, dict[str, str]]) -> list[str]:
    """Each argument made, once or once per kind of layer."""
    out: list[str] = []
    for name, per_kind in given.items():
        made = set(per_kind.values())
        if len(made) == 1:
            out.append(f"        {name} = {made.pop()}")
        else:
            out.append(f"        {name} = {_table(per_kind)}")
    return out


def _loop(given: dict[str, dict[str, str]], by_kind: bool) -> list[str]:
    several = {name for name, per_kind in given.items() if len(set(per_kind.values())) > 1}
    arguments = ["x_BTD", *(f"{name}[kind]" if name in several else name for name in given)]
    if several:
        start = "        for kind, layer in zip(LAYERS, self.layers, strict=True):"
    else:
        start = "        for layer in self.layers:"
    return [start, f"            x_BTD = layer({', '.join(arguments)})"]


def _embedding_dropout(page: Page, model: ModelConfig) -> str | None:
    if not model.dropout.embedding:
        return None
    rate = page.constant("", "EMBEDDING_DROPOUT", model.dropout.embedding)
    return f"        x_BTD = F.dropout(x_BTD, {rate}, self.training)"


def _capped(page: Page, model: ModelConfig, logits: str) -> list[str]:
    config = model.head
    if config.scale != 1:
        logits = f"{logits} * {page.constant('', 'LOGIT_SCALE', config.scale)}"
    if config.tied and len(logits) < 40:
        logits += "  # tied (Press & Wolf 2016)"
    if config.softcap is None:
        return [f"        return {logits}"]
    cap = page.constant("", "LOGIT_SOFTCAP", config.softcap)
    return [f"        logits_BTV = {logits}", f"        return {cap} * torch.tanh(logits_BTV / {cap})  # Gemma 2"]
