"""Configs and weights of Command R7B and Command A (Cohere2ForCausalLM in transformers): sliding-window layers have
RoPE, full-attention layers have no position encoding.
"""

from archlab.families.cohere import FIELDS, WEIGHTS
from archlab.hf.family import Family
from archlab.hf.fields import Only
from archlab.hf.layer_types import LayerTypes, full_every
from archlab.hf.rope import RopeKeys

FAMILY = Family(
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *FIELDS,
        RopeKeys(pairing="interleaved"),
        # These keys come from the original training code. The published class fixes their values.
        Only("layer_switch", 4, written=False),
        Only("order_of_interleaved_layers", "local_attn_first", written=False),
        Only("position_embedding_type", "rope_gptj", written=False),
        Only("rotary_pct", 1.0, written=False),
        Only("use_embedding_sharing", True, written=False),
        Only("use_gated_activation", True, written=False),
        Only("use_parallel_block", True, written=False),
        LayerTypes(full_every(4), full={"position": {"kind": "none"}}, unused=4096),
    ],
    weights=WEIGHTS,
    prefix="model.",
    no_effect=frozenset({"use_parallel_embedding"}),
)
