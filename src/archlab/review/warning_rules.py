"""Rules for warnings: shapes that work, but run badly on existing hardware."""

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
    for_large_models,
    in_each_layer,
)

_TILES = "Matrix products are computed in tiles. A partly filled tile takes as long as a full one."
_SIZING = ("anthony2024", "nvidia2020")


def usual_devices(n_parameters: float) -> int | None:
    """Return the assumed number of tensor-parallel devices.

    From 10B parameters on, it is 8 (one server). From 1B parameters on, it is 2. For smaller models, it is None,
    because one device is enough.
    """
    if n_parameters < 1_000_000_000:
        return None
    return 8 if n_parameters >= 10_000_000_000 else 2


def _over_devices(usual: Callable[[int], Usual]) -> Callable[[Case], Usual | None]:
    """Return a function that maps a config under review to the accepted values for its number of devices.

    If the number is unknown, `usual_devices` supplies it.
    """

    def usual_for(case: Case) -> Usual | None:
        devices = case.tensor or usual_devices(case.counted.total)
        return usual(devices) if devices else None

    return usual_for


WARNING_RULES: tuple[ShapeRule, ...] = (
    ShapeRule(
        name="head_dim a multiple of 8",
        level="warning",
        measure=in_each_layer(measures.head_widths),
        usual=for_large_models(MultipleOf(8)),
        why="Fused attention kernels load 8 numbers at a time. Other widths are padded, or use slower kernels.",
        sources=("dao2023", *_SIZING),
        broken_by=("model.attention.head_dim=100",),
        kept_by=("model.attention.head_dim=80",),
    ),
    ShapeRule(
        name="head_dim up to 256",
        level="warning",
        measure=in_each_layer(measures.head_widths),
        usual=always(Between(None, 256)),
        why="FlashAttention supports widths up to 256. Wider heads use slower kernels.",
        sources=("dao2023",),
        broken_by=("model.attention.head_dim=320",),
        kept_by=("model.attention.head_dim=256",),
    ),
    ShapeRule(
        name="vocabulary a multiple of 64",
        level="warning",
        measure=measures.vocabulary,
        usual=for_large_models(MultipleOf(64)),
        why=_TILES + " Unused rows of the vocabulary do no harm, so round up: for example, GPT-2's 50257 to 50304.",
        sources=_SIZING,
        broken_by=("model.vocab_size=50257",),
        kept_by=("model.vocab_size=50304",),
    ),
    ShapeRule(
        name="d_model a multiple of 64",
        level="warning",
        measure=measures.stream_width,
        usual=for_large_models(MultipleOf(64)),
        why=_TILES,
        sources=_SIZING,
        broken_by=("model.d_model=4000",),
        kept_by=("model.d_model=4032",),
    ),
    ShapeRule(
        name="d_ff a multiple of 64",
        level="warning",
        measure=in_each_layer(measures.mlp_widths),
        usual=for_large_models(MultipleOf(64)),
        why=_TILES + " For this reason, 8/3 d_model is usually rounded up.",
        sources=_SIZING,
        broken_by=("model.mlp.d_ff=10923",),
        kept_by=("model.mlp.d_ff=10944",),
    ),
    ShapeRule(
        name="up to 100 layers",
        level="warning",
        measure=measures.depth,
        usual=always(Between(None, 100)),
        why="Layers run one after another, so each layer adds to the time per token on any machine; width does not. "
        "Beyond a number of layers that grows with log d_model, more depth gains little.",
        sources=("levine2020",),
        claims=(9,),
        broken_by=("model.n_layers=101",),
        kept_by=("model.n_layers=100",),
    ),
    ShapeRule(
        name="heads over devices",
        level="warning",
        measure=in_each_layer(measures.query_heads),
        usual=_over_devices(MultipleOf),
        why="Tensor parallelism gives every device whole heads, and vLLM refuses other numbers of heads. --tensor sets "
        "the number of devices. Without it, 2 devices are assumed from 1B parameters on, and 8 from 10B.",
        sources=("shoeybi2019",),
        broken_by=("model.attention={n_heads: 31, n_kv_heads: 31}",),
        kept_by=("model.attention={n_heads: 30, n_kv_heads: 30}",),
    ),
    ShapeRule(
        name="KV heads over devices",
        level="warning",
        measure=in_each_layer(measures.kv_heads),
        usual=_over_devices(Shares),
        why="Tensor parallelism gives every device whole KV heads, or copies of one head if there are fewer heads than "
        "devices. vLLM refuses other sizes. --tensor sets the number of devices. Without it, 2 devices are assumed "
        "from 1B parameters on, and 8 from 10B.",
        sources=("pope2022",),
        broken_by=("model.attention={n_heads: 30, n_kv_heads: 3}",),
        kept_by=("model.attention.n_kv_heads=1",),
    ),
    ShapeRule(
        name="stages of a pipeline",
        level="warning",
        measure=measures.stages,
        usual=always(Between(None, 1.07)),
        why="All stages wait for the slowest. archlab puts whole layers into stages, and the head into the last stage, "
        "so that the slowest stage has as little work as possible. Published pipelines, measured in the same way, are "
        "within this range.",
        sources=("llama3", "smith2022", "bloom"),
        broken_by=("model.n_layers=3",),
        kept_by=("model.n_layers=31",),
        measured=(
            PublishedResult(1.008, "BLOOM 176B: 70 layers in 12 stages", "bloom"),
            PublishedResult(
                1.011, "Llama 3.1 405B: 126 layers in 16 stages; the first and last have one layer less", "llama3"
            ),
            PublishedResult(1.068, "MT-NLG 530B: 105 layers in 35 stages", "smith2022"),
        ),
    ),
)
