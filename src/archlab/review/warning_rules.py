"""Warnings: shapes that work, but badly on the machines that there are."""

from collections.abc import Callable

from archlab.review import measures
from archlab.review.shape_rule import (
    Between,
    Case,
    MultipleOf,
    PublishedResult,
    ShapeRule,
    Shares,
    Usual,
    always,
    of_large,
    of_layers,
)

_TILES = "Matrix products are computed in tiles; what does not fill the last one is computed and thrown away."
_SIZING = ("anthony2024", "nvidia2020")


def usual_devices(n_parameters: float) -> int | None:
    """Over how many a model is cut where that is not said: the 8 of a server from 10B parameters on, else two; None
    below a billion, where one device is enough."""
    if n_parameters < 1_000_000_000:
        return None
    return 8 if n_parameters >= 10_000_000_000 else 2


def _over_devices(usual: Callable[[int], Usual]) -> Callable[[Case], Usual | None]:
    """For as many devices as were said; else for as many as are usual."""

    def of_case(case: Case) -> Usual | None:
        devices = case.tensor or usual_devices(case.counted.total)
        return usual(devices) if devices else None

    return of_case


WARNING_RULES: tuple[ShapeRule, ...] = (
    ShapeRule(
        name="head_dim of 8",
        level="warning",
        measure=of_layers(measures.head_widths),
        usual=of_large(MultipleOf(8)),
        why="Fused attention kernels load 8 numbers at a time: other widths are padded, or computed by slower kernels.",
        sources=("dao2023", *_SIZING),
        broken_by=("model.attention.head_dim=100",),
        kept_by=("model.attention.head_dim=80",),
    ),
    ShapeRule(
        name="head_dim up to 256",
        level="warning",
        measure=of_layers(measures.head_widths),
        usual=always(Between(None, 256)),
        why="FlashAttention stops at 256; beyond it attention falls back to slower kernels.",
        sources=("dao2023",),
        broken_by=("model.attention.head_dim=320",),
        kept_by=("model.attention.head_dim=256",),
    ),
    ShapeRule(
        name="vocabulary of 64",
        level="warning",
        measure=measures.vocabulary,
        usual=of_large(MultipleOf(64)),
        why=_TILES + " Rows that no token uses cost nothing: round up, as GPT-2's 50257 to 50304.",
        sources=_SIZING,
        broken_by=("model.vocab_size=50257",),
        kept_by=("model.vocab_size=50304",),
    ),
    ShapeRule(
        name="d_model of 64",
        level="warning",
        measure=measures.stream_width,
        usual=of_large(MultipleOf(64)),
        why=_TILES,
        sources=_SIZING,
        broken_by=("model.d_model=4000",),
        kept_by=("model.d_model=4032",),
    ),
    ShapeRule(
        name="d_ff of 64",
        level="warning",
        measure=of_layers(measures.mlp_widths),
        usual=of_large(MultipleOf(64)),
        why=_TILES + " 8/3 d_model is rounded up.",
        sources=_SIZING,
        broken_by=("model.mlp.d_ff=10923",),
        kept_by=("model.mlp.d_ff=10944",),
    ),
    ShapeRule(
        name="up to 100 layers",
        level="warning",
        measure=measures.depth,
        usual=always(Between(None, 100)),
        why="Layers wait for each other, so each adds to the time per token whatever the machine; width does not. "
        "Depth gains little beyond a number that grows with log d_model.",
        sources=("levine2020",),
        claims=(9,),
        broken_by=("model.n_layers=101",),
        kept_by=("model.n_layers=100",),
    ),
    ShapeRule(
        name="heads over devices",
        level="warning",
        measure=of_layers(measures.query_heads),
        usual=_over_devices(MultipleOf),
        why="Tensor parallelism gives every device whole heads. Counted for the --tensor size; without it for 2 "
        "devices from 1B parameters on, and for 8 from 10B. vLLM refuses other sizes.",
        sources=("shoeybi2019",),
        broken_by=("model.attention={n_heads: 31, n_kv_heads: 31}",),
        kept_by=("model.attention={n_heads: 30, n_kv_heads: 30}",),
    ),
    ShapeRule(
        name="KV heads over devices",
        level="warning",
        measure=of_layers(measures.kv_heads),
        usual=_over_devices(Shares),
        why="Tensor parallelism gives every device whole KV heads, or copies of one where there are fewer heads than "
        "devices. Counted for the --tensor size; without it for 2 devices from 1B "
        "parameters on, and for 8 from 10B. vLLM refuses other sizes.",
        sources=("pope2022",),
        broken_by=("model.attention={n_heads: 30, n_kv_heads: 3}",),
        kept_by=("model.attention.n_kv_heads=1",),
    ),
    ShapeRule(
        name="stages of a pipeline",
        level="warning",
        measure=measures.stages,
        usual=always(Between(None, 1.07)),
        why="All stages wait for the slowest. Counted are whole layers and the head, in the last stage, cut so that "
        "the slowest stage has the least work. Published pipelines are as even as this, counted in the same way.",
        sources=("llama3", "smith2022", "bloom"),
        broken_by=("model.n_layers=3",),
        kept_by=("model.n_layers=31",),
        measured=(
            PublishedResult(1.008, "BLOOM 176B: 70 layers in 12 stages", "bloom"),
            PublishedResult(
                1.011, "Llama 3.1 405B: 126 layers in 16 stages, the first and the last with one less", "llama3"
            ),
            PublishedResult(1.068, "MT-NLG 530B: 105 layers in 35 stages", "smith2022"),
        ),
    ),
)
