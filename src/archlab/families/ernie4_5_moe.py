"""Configs and weights of the ERNIE 4.5 mixture-of-experts models (Ernie4_5_MoeForCausalLM in transformers)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.glm4_moe import EXPERTS as GLM_EXPERTS
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, kv_heads, rms_norm
from archlab.families.mixtral import CORRECTION, FUSED_EXPERTS, MIXTURE, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only
from archlab.hf.mixture import DenseLayers, SharedExperts
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import FROM_ROW, Row


def between(hf: ConfigReader, n_layers: int) -> Iterable[bool]:
    """Return, for each layer, whether its MLP is dense.

    Layers are counted from 0. Layer i is a mixture of experts if `moe_layer_start_index` <= i <= `moe_layer_end_index`
    and i + 1 is a multiple of `moe_layer_interval`. All other layers are dense. An end index of -1 means the last
    layer.
    """
    first, last = hf.get("moe_layer_start_index", 1), hf.get("moe_layer_end_index", -1)
    last, interval = n_layers - 1 if last == -1 else last, hf.get("moe_layer_interval", 1)
    return [(i + 1) % interval != 0 or not first <= i <= last for i in range(n_layers)]


def _between(dense: list[bool]) -> Raw:
    """Return the keys `moe_layer_*` for a model: the range and the interval of its mixture layers. `dense` says which
    layers are dense.

    `Family.hf_config` reads the keys back and refuses a model that they cannot express.
    """
    sparse = [i for i, is_dense in enumerate(dense) if not is_dense] or [len(dense)]
    interval = min((b - a for a, b in pairwise(sparse)), default=1)
    return {
        "moe_layer_start_index": sparse[0], "moe_layer_end_index": sparse[-1], "moe_layer_interval": interval,
    }  # fmt: skip


@dataclass(frozen=True)
class LeastSum:
    """The key `moe_norm_min`. The weights of the chosen experts are divided by their sum, or by this value if the sum
    is smaller."""

    @property
    def limits(self) -> Mapping[str, str]:
        return {"moe_norm_min": "up to 1e-6"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if `moe_norm_min` is above 1e-6. A smaller value has an effect only if all scores are nearly
        0."""
        if (least := hf.get("moe_norm_min", 1e-12)) > 1e-6:
            raise hf.refuse("moe_norm_min", least, "up to 1e-6, because archlab divides by the sum alone")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key to config.json, because the default of the published code is small enough."""


FAMILY = Family(
    model_type="ernie4_5_moe",
    architecture="Ernie4_5_MoeForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(4),
        *rms_norm(1e-5),
        *MIXTURE,
        Always("mlp.router.correction.rate", 1e-3),
        Key("moe_num_experts", "mlp.experts", 64),
        Key("moe_k", "mlp.active", 6),
        Key("moe_intermediate_size", "mlp.d_ff", 1536),
        LeastSum(),
        SharedExperts("moe_num_shared_experts", 2, bias_key="use_bias"),
        RopeKeys(theta=5e5, pairing="interleaved"),
        Key("use_bias", "attention.qkv_bias", False),
        Key("use_bias", "attention.out_bias", False),
        Key("use_bias", "head.bias", False),
        Key("tie_word_embeddings", "head.tied", True),
        DenseLayers(between, _between, bias_key="use_bias"),
        Only("use_rmsnorm", True, written=False),
        Only("moe_gate", "topk", written=False),
        Only("moe_use_aux_free", True, written=False),  # the router adds the correction bias before it chooses experts
    ],
    weights=[
        *ATTENTION,
        *(row for row in GLM_EXPERTS if "correction" not in row.theirs),
        Row("model.layers.{i}.mlp.moe_statics.e_score_correction_bias", CORRECTION, FROM_ROW),
        *PRE_NORMS,
        *AROUND,
        Row("lm_head.bias", "head.bias"),
    ],
    alternatives=[
        *FUSED_EXPERTS,
        Row("model.layers.{i}.mlp.gate.moe_statics.e_score_correction_bias", CORRECTION, FROM_ROW),
    ],
    has_mtp_layers=True,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"moe_capacity", "num_nextn_predict_layers"},
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
)
