"""Configs and weights of Flint (FlintForCausalLM in transformers): Qwen 3 MoE with sinks, a sigmoid router, a shared
expert, and full layers without position encoding.
"""

from archlab.families.llama import SIZES, attention_biases, kv_heads
from archlab.families.mixtral import FUSED_EXPERTS, TRAINING_ONLY
from archlab.families.qwen2_moe import WEIGHTS, SharedExpert, experts, listed_dense
from archlab.families.qwen3 import QK_NORMS
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.mixture import shared_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row

SINKS = "layers.{i}.attention.sinks"


def full_at_both_ends(_hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types: the first two layers, every fourth layer and the last layer are full."""
    return [FULL if i < 2 or i % 4 == 1 or i == n_layers - 1 else SLIDING for i in range(n_layers)]


FAMILY = Family(
    model_type="flint",
    architecture="FlintForCausalLM",
    default_max_seq_len=262144,
    fields=[
        *SIZES,
        kv_heads(4),
        Key("head_dim", "attention.head_dim", 128),
        Always("norm.kind", "rmsnorm"),
        Key("rms_norm_eps", "norm.eps", 1e-6),
        Always("attention.qk_norm.kind", "rmsnorm"),
        Key("rms_norm_eps", "attention.qk_norm.eps", 1e-6),
        Always("attention.sinks", True),
        *experts(256, 6, 512),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        Always("mlp.router.score", "sigmoid"),
        SharedExpert(default=1024, gate=False),
        RopeKeys(),
        LayerTypes(full_at_both_ends, window=513, full={"position": {"kind": "none"}}, unused=513),
        *attention_biases(),
        Key("tie_word_embeddings", "head.tied", False),
        listed_dense(0, 1),
    ],
    weights=[
        *WEIGHTS,
        *QK_NORMS,
        *shared_expert("model.layers.{i}.mlp.shared_expert"),
        Row("model.layers.{i}.self_attn.softmax_offset", SINKS),
    ],
    alternatives=[*FUSED_EXPERTS, Row("model.layers.{i}.self_attn.sinks", SINKS)],
    prefix="model.",
    no_effect=TRAINING_ONLY,
)
