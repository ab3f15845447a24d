"""Rotary positions: how far each pair turns at each position, and the turn itself."""

import math

from archlab.config import position as schema
from archlab.config.layers import LayerConfig
from archlab.config.position import Rope
from archlab.flatten.kinds import Kind
from archlab.flatten.page import Page, lines


def rotation(page: Page, kind: Kind, like: Rope) -> str:
    """The name of the function from positions to cos and sin; `like` says how a layer without RoPE stands still."""
    config = kind.layer.position
    if not isinstance(config, Rope):
        dims = turning_dims(page, kind, like)
        return page.define(
            kind.name,
            "no_rope",
            lines(
                _HEADER,
                '    """cos and sin of no angle: these layers know no positions (NoPE)."""',
                f"    angle_T1P = position_T.new_zeros(len(position_T), 1, {dims} // 2)",
                "    return torch.stack((angle_T1P.cos(), angle_T1P.sin()))",
            ),
        )
    dims = turning_dims(page, kind, config)
    about, body, amplitude = _frequencies(page, kind, config, dims)
    times = f"{amplitude} * " if amplitude else ""
    return page.define(
        kind.name,
        "rope",
        lines(
            _HEADER,
            f'    """cos and sin of every angle {about}: [2, T, 1, P]."""',
            f"    pair_P = torch.arange({dims} // 2, device=position_T.device)",
            [f"    {line}" for line in body],
            "    angle_T1P = position_T[:, None, None] * frequency_P",
            f"    return {times}torch.stack((angle_T1P.cos(), angle_T1P.sin()))",
        ),
    )


_HEADER = "def <name>(position_T: Tensor) -> Tensor:"


def turning_dims(page: Page, kind: Kind, config: Rope) -> str:
    """The name of the constant that says how many dimensions of a head turn."""
    head_dim, turning = _widths(kind.layer, config)
    if turning == head_dim:
        return page.constant(kind.name, "HEAD_DIM", head_dim)
    return page.constant(kind.name, "ROTARY_DIM", turning, "of each head; the others do not turn")


def _widths(layer: LayerConfig, config: Rope) -> tuple[int, int]:
    return layer.multi_head.head_dim, int(layer.multi_head.head_dim * config.fraction)


def turn(page: Page, kind: Kind, config: Rope) -> str:
    """The name of the function that turns queries or keys."""
    head_dim, turning = _widths(kind.layer, config)
    partial = turning < head_dim
    x = f"x_BTHC[..., :{turning_dims(page, kind, config)}]" if partial else "x_BTHC"
    rest = f", x_BTHC[..., {turning_dims(page, kind, config)}:]" if partial else ""
    if config.pairing == "half":
        about, split, join = "i and i + half", "chunk(2, -1)", "torch.cat((turned_a, turned_b), -1)"
    else:
        about = "2i and 2i + 1"
        split, join = "unflatten(-1, (-1, 2)).unbind(-1)", "torch.stack((turned_a, turned_b), -1).flatten(-2)"
    joined = f"{join}.type_as(x_BTHC)"
    end = [f"    turned_BTHC = {joined}", f"    return torch.cat((turned_BTHC{rest}), -1)"]
    return page.define(
        kind.name,
        "turn",
        lines(
            "def <name>(x_BTHC: Tensor, cos_T1P: Tensor, sin_T1P: Tensor) -> Tensor:",
            f'    """Turn each pair of dimensions, {about}, like the hand of a clock."""',
            f"    a_BTHP, b_BTHP = {x}.float().{split}",
            "    turned_a = a_BTHP * cos_T1P - b_BTHP * sin_T1P",
            "    turned_b = b_BTHP * cos_T1P + a_BTHP * sin_T1P",
            end if partial else f"    return {joined}",
        ),
    )


def _frequencies(page: Page, kind: Kind, config: Rope, dims: str) -> tuple[str, list[str], str | None]:
    """The paper, lines that set `frequency_P`, and the factor on cos and sin."""
    n = _widths(kind.layer, config)[1]
    theta = page.constant(kind.name, "ROPE_THETA", config.theta)
    plain = f"frequency_P = 1 / {theta} ** (2 * pair_P / {dims})"

    def constant(name: str, value: float | str, comment: str = "") -> str:
        return page.constant(kind.name, f"ROPE_{name}", value, comment)

    match config.scaling:
        case schema.NoScaling():
            return "(RoPE, Su 2021)", [plain], None
        case schema.LinearScaling(factor=factor):
            divided = f"frequency_P = frequency_P / {constant('FACTOR', factor)}"
            return "(RoPE, stretched: Chen 2023)", [plain, divided], None
        case schema.DynamicNTK() as s:
            factor, original = constant("FACTOR", s.factor), constant("ORIGINAL_LEN", s.original_max_seq_len)
            body = [
                f"longer = max(len(position_T) / {original}, 1)",
                f"stretch = {factor} * longer - ({factor} - 1)",
                f"theta = {theta} * stretch ** ({dims} / ({dims} - 2))",
                f"frequency_P = 1 / theta ** (2 * pair_P / {dims})",
            ]
            return "(RoPE, dynamic NTK)", body, None
        case schema.Llama3Scaling() as s:
            factor, original = constant("FACTOR", s.factor), constant("ORIGINAL_LEN", s.original_max_seq_len)
            low = constant("LOW_TURNS", s.low_freq_factor, "pairs that turn less often within it are slowed")
            high = constant("HIGH_TURNS", s.high_freq_factor, "pairs that turn more often are kept")
            body = [
                plain,
                f"turns_P = {original} * frequency_P / (2 * math.pi)",
                f"band = {high} - {low}",
                f"kept_P = ((turns_P - {low}) / band).clamp(0, 1)",
                f"frequency_P = (kept_P + (1 - kept_P) / {factor}) * frequency_P",
            ]
            return "(RoPE as in Llama 3.1)", body, None
        case schema.Yarn() as s:
            factor = constant("FACTOR", s.factor)
            low, high = _yarn_range(s, config.theta, n)
            kept = constant("KEPT_PAIRS", low, f"faster pairs turn over {s.beta_fast:g} times in training")
            slowed = constant("SLOWED_PAIRS", high, f"slower ones less than {s.beta_slow:g} times")
            body = [
                plain,
                f"span = {slowed} - {kept}",
                f"slowed_P = ((pair_P - {kept}) / span).clamp(0, 1)",
                f"frequency_P = (slowed_P / {factor} + 1 - slowed_P) * frequency_P",
            ]
            amplitude = s.attention_factor or (0.1 * math.log(s.factor) + 1 if s.factor > 1 else 1.0)
            return "(YaRN, Peng 2023)", body, _amplitude(page, kind, amplitude)
        case schema.Longrope() as s:
            original = constant("ORIGINAL_LEN", s.original_max_seq_len)
            short = constant("SHORT_FACTOR", numbers(s.short_factor))
            long = constant("LONG_FACTOR", numbers(s.long_factor))
            body = [
                f"is_long = len(position_T) > {original}",
                f"factors = {long} if is_long else {short}",
                plain,
                "frequency_P = frequency_P / torch.tensor(factors, device=position_T.device)",
            ]
            known = math.sqrt(1 + math.log(s.factor) / math.log(s.original_max_seq_len))
            return "(LongRoPE, Ding 2024)", body, _amplitude(page, kind, s.attention_factor or known)
        case schema.Proportional() as s:
            turning = constant("TURNING_PAIRS", s.turning_pairs(n))
            body = [plain, f"frequency_P = torch.where(pair_P < {turning}, frequency_P, 0.0)"]
            return "(p-RoPE, Barbero 2024)", body, None


def _amplitude(page: Page, kind: Kind, value: float) -> str | None:
    return None if value == 1 else page.constant(kind.name, "ROPE_AMPLITUDE", value, "of cos and sin")


def _yarn_range(s: schema.Yarn, theta: float, n: int) -> tuple[float, float]:
    def pair_that_turns(times: float) -> float:
        return n * math.log(s.original_max_seq_len / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(s.beta_fast), pair_that_turns(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    return low, high if high != low else low + 1e-3


def numbers(values: tuple[float, ...]) -> str:
    """A tuple as text, several to a line."""
    rows, row = list[str](), ""
    for value in values:
        text = f"{value!r}, "
        if len(row) + len(text) > 80:
            rows, row = [*rows, f"    {row.rstrip()}"], ""
        row += text
    return lines("(", [*rows, f"    {row.rstrip()}"], ")  # fmt: skip")
