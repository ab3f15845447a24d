"""Configs and weights of StarCoder and SantaCoder (GPTBigCodeForCausalLM in transformers)."""

import math

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.gpt2 import ALIASES, ALWAYS_BIASED, LAYER, LAYER_NORM, PRE_NORMS, SIZES, PlainMLP
from archlab.hf.family import Family
from archlab.hf.fields import NO_CROSS_ATTENTION, ActivationKey, Always, ConfigReader, Key
from archlab.hf.weight_map import QKV, QKV_PER_HEAD, Row, linear


class Heads:
    """Keys for attention: `multi_query` (one key/value head instead of one per query head) and `scale_attn_weights`
    (scores are divided by sqrt(head_dim))."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        heads = ours["attention.n_heads"]
        ours["attention.n_kv_heads"] = 1 if hf.get("multi_query", True) else heads
        ours["attention.scale"] = 1 / math.sqrt(ours["d_model"] / heads) if hf.get("scale_attn_weights", True) else 1.0

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write `multi_query` and `scale_attn_weights`.

        `Family.hf_config` reads them back and refuses a model that they cannot express.
        """
        hf |= {"multi_query": model.multi_head.n_kv_heads == 1, "scale_attn_weights": model.multi_head.scale != 1.0}


FAMILY = Family(
    model_type="gpt_bigcode",
    architecture="GPTBigCodeForCausalLM",
    default_max_seq_len=1024,
    fields=[
        *SIZES,
        Heads(),
        PlainMLP("n_inner"),
        ActivationKey("activation_function", "gelu_pytorch_tanh"),
        *LAYER_NORM,
        Always("position.kind", "learned"),
        *ALWAYS_BIASED,
        Key("tie_word_embeddings", "head.tied", True),
        NO_CROSS_ATTENTION,
    ],
    weights=[
        Row("transformer.wte.weight", "embedding.weight"),
        Row("transformer.wpe.weight", "positions.weight"),
        # With one key/value head, the rows of all queries come first, then those of the key, then those of the value.
        *linear(f"{LAYER}.attn.c_attn", QKV, QKV_PER_HEAD),
        *linear(f"{LAYER}.attn.c_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.mlp.c_fc", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.c_proj", "layers.{i}.mlp.down"),
        *PRE_NORMS,
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="transformer.",
    no_effect=frozenset({
        # archlab always computes scores in float32.
        "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads",
        "inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache",
        "validate_runner_input", "n_ctx",
    }),
    aliases=ALIASES,
)  # fmt: skip
