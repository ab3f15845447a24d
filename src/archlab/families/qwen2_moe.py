"""Configs and weights of the Qwen 1.5 and 2 mixture-of-experts models (Qwen2MoeForCausalLM in transformers)."""

from collections.abc import Iterable
from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import AROUND, ATTENTION, MLP, PRE_NORMS, SIZES, kv_heads, rms_norm
from archlab.families.mixtral import FUSED_EXPERTS, MIXTURE, ROUTER, TRAINING_ONLY
from archlab.families.qwen2 import Windows
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Field, Key
from archlab.hf.layer_types import FULL, SLIDING
from archlab.hf.mixture import DenseLayers, each_expert, shared_expert
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row


def even_lower_layers(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types.

    If `use_sliding_window` is true, layers with an even index below `max_window_layers` have sliding windows. All other
    layers have full attention.
    """
    slides = hf.get("use_sliding_window", False)
    first_full = hf.get("max_window_layers", 28)
    return [SLIDING if slides and i % 2 == 0 and i < first_full else FULL for i in range(n_layers)]


def listed_dense(*default: int) -> DenseLayers:
    """Return the translation of the keys for layers whose MLP is dense. `default` is the default of `mlp_only_layers`.

    Every `decoder_sparse_step`-th layer is a mixture of experts, except the layers in `mlp_only_layers`. If
    `num_experts` is 0, all layers are dense.
    """

    def are_dense(hf: ConfigReader, n_layers: int) -> Iterable[bool]:
        listed, step = hf.get("mlp_only_layers", list(default)), hf.get("decoder_sparse_step", 1)
        none = hf.get("num_experts") == 0
        return [none or i in listed or (i + 1) % step != 0 for i in range(n_layers)]

    def write_keys(dense: list[bool]) -> Raw:
        return {"mlp_only_layers": [i for i, is_dense in enumerate(dense) if is_dense], "decoder_sparse_step": 1}

    return DenseLayers(are_dense, write_keys)


def experts(number: int, active: int, d_ff: int) -> tuple[Field, ...]:
    return (
        *MIXTURE,
        Key("num_experts", "mlp.experts", number),
        Key("num_experts_per_tok", "mlp.active", active),
        Key("norm_topk_prob", "mlp.router.normalise", False),
        Key("moe_intermediate_size", "mlp.d_ff", d_ff),
    )


@dataclass(frozen=True)
class SharedExpert(Key):
    """Key for the width of the shared expert, or 0 if there is none."""

    hf_key: str = "shared_expert_intermediate_size"
    field: str = "mlp.shared.d_ff"
    gate: bool = True
    """Whether the output of the shared expert is multiplied by a gate."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        if hf.get(self.hf_key, self.default) != 0:
            super().read(hf, ours)
            ours["mlp.shared.gate"] = self.gate

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        hf.setdefault(self.hf_key, 0)


SOME_DENSE = listed_dense()

EXPERTS = [
    Row("model.layers.{i}.mlp.gate.weight", ROUTER),
    *each_expert("model.layers.{i}.mlp.experts"),
    *MLP,
]
"""Rows for layers with a mixture of experts and for dense layers.

In dense layers, the tensors have the names of Llama's.
"""

SHARED = [
    *shared_expert("model.layers.{i}.mlp.shared_expert"),
    Row("model.layers.{i}.mlp.shared_expert_gate.weight", "layers.{i}.mlp.shared_gate.weight"),
]

IGNORED = ("shared_expert_gate.weight",)
"""Name suffixes of tensors that archlab ignores if its model has no parameter for them.

Files contain `shared_expert_gate.weight` even if the width of the shared expert is 0.
"""

WEIGHTS = [*ATTENTION, *EXPERTS, *PRE_NORMS, *AROUND]

FAMILY = Family(
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *SIZES,
        kv_heads(16),
        *rms_norm(1e-6),
        *experts(60, 4, 1408),
        SharedExpert(default=5632),
        RopeKeys(),
        Windows(even_lower_layers),
        Key("qkv_bias", "attention.qkv_bias", True),
        Key("tie_word_embeddings", "head.tied", False),
        SOME_DENSE,
    ],
    weights=[*WEIGHTS, *SHARED],
    alternatives=FUSED_EXPERTS,
    ignored=IGNORED,
    prefix="model.",
    no_effect=TRAINING_ONLY,
    aliases={"num_local_experts": "num_experts"},
)
