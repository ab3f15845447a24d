"""Command R7B and Command A: sliding layers turn, full layers have no positions. (transformers: Cohere2ForCausalLM)"""

from archlab.families.cohere import FIELDS, WEIGHTS
from archlab.families.family import Family
from archlab.families.layer_types import LayerTypes, every
from archlab.families.rope import RopeKeys

FAMILY = Family(
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    fields=[
        *FIELDS,
        RopeKeys(pairing="interleaved"),
        LayerTypes(every(4), full={"position": {"kind": "none"}}, unused=4096),
    ],
    weights=WEIGHTS,
    buffers=("rotary_emb.inv_freq",),
    prefix="model.",
    no_effect=frozenset({
        "layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct",
        "use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding",
    }),
)  # fmt: skip
