"""Positions that add to the scores: functions from positions to numbers per head, query and key."""

from archlab.config.position import T5, Alibi
from archlab.flatten.kinds import Kind
from archlab.flatten.page import Page, lines


def alibi(page: Page, kind: Kind, config: Alibi) -> str:
    """The name of the function from positions to the bias [H, T, S]."""
    heads = kind.layer.multi_head.n_heads
    H = page.constant(kind.name, "N_HEADS", heads)
    steepest = page.constant(kind.name, "MAX_BIAS", config.max_bias)
    falcon = config.form == "falcon"
    about = (
        "Later keys score higher, by a slope per head (Press 2021, in Falcon)."
        if falcon
        else "Scores fall with the distance, by a slope per head (Press 2021)."
    )
    return page.define(
        kind.name,
        "alibi",
        lines(
            "def <name>(position_T: Tensor) -> Tensor:",
            f'    """{about}"""',
            _slopes(heads, H, steepest),
            "    slope_H = torch.tensor(slopes, device=position_T.device)[:, None, None]",
            [
                "    # Both are rounded to bfloat16, as in training; the scale is that of the scores.",
                "    bias_HTS = slope_H.bfloat16() * position_T[None, None].bfloat16()",
                f"    return bias_HTS.float() * {scale(page, kind)}",
            ]
            if falcon
            else "    return slope_H * (position_T - position_T[:, None])",
        ),
    )


def scale(page: Page, kind: Kind) -> str:
    """The factor on q.k, an expression."""
    given = kind.layer.multi_head
    if abs(given.scale * given.head_dim**0.5 - 1) < 1e-12:
        return f"{page.constant(kind.name, 'HEAD_DIM', given.head_dim)}**-0.5"
    return page.constant(kind.name, "SCALE", given.scale, "of q.k")


def _slopes(heads: int, H: str, steepest: str) -> list[str]:
    power = 2 ** (heads.bit_length() - 1)
    if power == heads:
        return [f"    slopes = [2 ** (-{steepest} * i / {H}) for i in range(1, {H} + 1)]"]
    # Heads beyond a power of two lie between: every other slope of twice as many.
    return [
        f"    power = 2 ** ({H}.bit_length() - 1)",
        f"    slopes = [2 ** (-{steepest} * i / power) for i in range(1, power + 1)]",
        f"    between = [2 ** (-{steepest} * (i + 0.5) / power) for i in range({H} - power)]",
        "    slopes = slopes + between  # N_HEADS is no power of two".replace("N_HEADS", H),
    ]


def t5_bucket(page: Page, kind: str, config: T5) -> str:
    """The name of the function from positions to buckets [T, S]."""
    buckets = page.constant(kind, "BUCKETS", config.buckets)
    furthest = page.constant(kind, "MAX_DISTANCE", config.max_distance)
    return page.define(
        kind,
        "bucket",
        lines(
            "def <name>(position_T: Tensor) -> Tensor:",
            '    """Near distances have a bucket each, far ones share by logarithm (Raffel 2020)."""',
            f"    exact = {buckets} // 2",
            "    distance_TS = (position_T[:, None] - position_T).clamp(min=0)",
            f"    share_TS = (distance_TS / exact).log() / math.log({furthest} / exact)",
            f"    far_TS = exact + (share_TS * ({buckets} - exact)).clamp(min=0).long()",
            f"    far_TS = far_TS.clamp(max={buckets} - 1)",
            "    return torch.where(distance_TS < exact, distance_TS, far_TS)",
        ),
    )
