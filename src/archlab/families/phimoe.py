"""Configs and weights of Phi 3.5 MoE (PhimoeForCausalLM in transformers): layer norms with biases, and a mixture of
experts whose router is SparseMixer.
"""

from dataclasses import dataclass

from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import Longrope
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, attention_biases, kv_heads
from archlab.families.mixtral import EXPERTS, MIXTURE, ROUTER, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only
from archlab.hf.mixture import all_experts
from archlab.hf.rope import RopeKeys, refuse_flags, scaling_kind
from archlab.hf.weight_map import Row


@dataclass(frozen=True)
class PhimoeRope(RopeKeys):
    """Keys of RoPE whose factor on cosines and sines is `short_mscale`, or `long_mscale` in long texts. The published
    code divides the frequencies by `short_factor` in all texts."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        super().read(hf, ours)
        scaling = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
        if scaling_kind(scaling) == "longrope" and scaling["long_mscale"] != scaling["short_mscale"]:
            ours[self.field]["scaling"]["long_attention_factor"] = scaling["long_mscale"]

    def adapt(self, hf: ConfigReader, scaling: Raw) -> Raw:
        """Return LongRoPE with one list of divisors. Raise UserError for other scalings."""
        refuse_flags(hf, scaling)
        kind, short, long = scaling_kind(scaling), scaling.pop("short_mscale", None), scaling.pop("long_mscale", None)
        if kind == "default":
            return scaling
        if kind != "longrope":
            raise hf.refuse("rope_scaling.rope_type", kind, "default, longrope")
        for key, value in (("short_mscale", short), ("long_mscale", long)):
            if value is None:
                raise hf.refuse(f"rope_scaling.{key}", value, "a number, which the published code requires")
        return {**scaling, "long_factor": scaling.get("short_factor"), "attention_factor": short, "factor": 1.0}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        if isinstance(model.position, Rope) and isinstance(scaling := model.position.scaling, Longrope):
            short = scaling.attention_factor or 1.0
            rope = hf["rope_parameters"]
            rope.pop("long_attention_factor", None)
            rope |= {"short_mscale": short, "long_mscale": scaling.long_attention_factor or short}


FAMILY = Family(
    model_type="phimoe",
    architecture="PhimoeForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        Always("norm.kind", "layernorm"),
        Key("rms_norm_eps", "norm.eps", 1e-5),
        *MIXTURE,
        Key("num_local_experts", "mlp.experts", 16),
        Only("num_experts_per_tok", 2, "2, because the published code chooses two experts whatever the value"),
        Always("mlp.active", 2),
        Key("router_jitter_noise", "mlp.router.sparsemixer", 0.01),
        Always("mlp.router.normalise", False),
        PhimoeRope(theta=1e6),
        Key("sliding_window", "attention.window", None),
        *attention_biases(),
        Key("lm_head_bias", "head.bias", False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[*ATTENTION, *EXPERTS, *PRE_NORMS, *AROUND, Row("lm_head.bias", "head.bias")],
    alternatives=[
        Row("model.layers.{i}.mlp.router.weight", ROUTER),
        *all_experts("model.layers.{i}.mlp.experts.gate_up_proj", "model.layers.{i}.mlp.experts.down_proj"),
    ],
    prefix="model.",
    no_effect=TRAINING_ONLY - {"router_jitter_noise"} | {"input_jitter_noise"},
    aliases={"num_experts": "num_local_experts"},
)
