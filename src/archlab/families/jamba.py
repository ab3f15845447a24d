"""Configs and weights of Jamba (JambaForCausalLM in transformers): Mamba 1 in most layers, attention in the others, and
a mixture of experts in some layers.
"""

from dataclasses import dataclass

from archlab.config.components.mamba import Mamba
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.bamba import AROUND_MIXER, LAYER
from archlab.families.llama import SIZES, kv_heads, rms_norm
from archlab.families.mamba import StepRank, mamba_weights
from archlab.families.mixtral import MIXTURE, ROUTER, TRAINING_ONLY
from archlab.families.qwen3_next import ConvolutionSilu
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only
from archlab.hf.layer_types import FULL, LINEAR, MixerLayers
from archlab.hf.mixture import DenseLayers, all_experts, each_expert
from archlab.hf.weight_map import Row, linear


@dataclass(frozen=True)
class Periodic:
    """The keys `..._layer_period` and `..._layer_offset`: layers that return regularly, and the first one."""

    name: str
    period: int
    offset: int

    def read(self, hf: ConfigReader, n_layers: int) -> list[bool]:
        """Return, for each layer, whether it is one of these layers."""
        key = f"{self.name}_layer_offset"
        period, offset = hf.get(f"{self.name}_layer_period", self.period), hf.get(key, self.offset)
        if not 0 <= offset < period:
            raise hf.refuse(key, offset, f"a number from 0 to {self.name}_layer_period - 1, {period - 1}")
        return [i % period == offset for i in range(n_layers)]

    def keys(self, listed: list[bool]) -> Raw:
        """Return the keys for a list that says, for each layer, whether it is one of these layers. Without any, the
        offset is the number of layers."""
        indices, n = [i for i, is_one in enumerate(listed) if is_one], len(listed)
        period = indices[1] - indices[0] if len(indices) > 1 else n + 1
        return {f"{self.name}_layer_period": period, f"{self.name}_layer_offset": indices[0] if indices else n}


ATTENTION_LAYERS, EXPERT_LAYERS = Periodic("attn", 8, 4), Periodic("expert", 2, 1)


class AttentionLayers(MixerLayers):
    """The layers that have attention. The others have Mamba 1."""

    def types(self, hf: ConfigReader, n_layers: int) -> list[str]:
        return [FULL if is_full else LINEAR for is_full in ATTENTION_LAYERS.read(hf, n_layers)]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        hf |= ATTENTION_LAYERS.keys([kind == FULL for kind in hf.pop("layer_types")])


@dataclass(frozen=True)
class Expand:
    """The key `mamba_expand`: the number of channels divided by d_model."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours["mixer.inner_width"] = hf.get("mamba_expand", 2) * hf.need("hidden_size")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.mixer, Mamba):
            hf["mamba_expand"] = model.mixer.inner_width // model.d_model


def _are_dense(hf: ConfigReader, n_layers: int) -> list[bool]:
    has_experts = hf.get("num_experts", 16) > 1
    return [not (has_experts and is_mixture) for is_mixture in EXPERT_LAYERS.read(hf, n_layers)]


LAYERS = AttentionLayers(
    LINEAR,
    (
        Always("mixer.kind", "mamba"),
        Key("mamba_d_state", "mixer.d_state", 16),
        Key("mamba_d_conv", "mixer.taps", 4),
        Key("mamba_conv_bias", "mixer.conv_bias", True),
        Key("mamba_proj_bias", "mixer.in_bias", False),
        Key("mamba_proj_bias", "mixer.out_bias", False),
        Expand(),
        StepRank("mamba_dt_rank"),
        Always("mixer.inner_norm.kind", "rmsnorm"),
        Always("mixer.inner_norm.cast", "before_weight"),
        Key("rms_norm_eps", "mixer.inner_norm.eps", 1e-6),
    ),
)

FAMILY = Family(
    model_type="jamba",
    architecture="JambaForCausalLM",
    default_max_seq_len=262144,
    fields=[
        *SIZES,
        kv_heads(8),
        *rms_norm(1e-6),
        Always("position.kind", "none"),
        *MIXTURE,
        Key("num_experts", "mlp.experts", 16),
        Key("num_experts_per_tok", "mlp.active", 2),
        Always("mlp.router.normalise", False),
        LAYERS,
        ConvolutionSilu(LAYERS),
        DenseLayers(_are_dense, lambda dense: EXPERT_LAYERS.keys([not is_dense for is_dense in dense])),
        Only("mamba_inner_layernorms", True, written=False),
        Only("sliding_window", None, written=False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *AROUND_MIXER,
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.mixer_norms.before"),
        *mamba_weights(f"{LAYER}.mamba"),
        Row(f"{LAYER}.mamba.dt_layernorm.weight", "layers.{i}.mixer.dt_norm.weight"),
        Row(f"{LAYER}.mamba.b_layernorm.weight", "layers.{i}.mixer.B_norm.weight"),
        Row(f"{LAYER}.mamba.c_layernorm.weight", "layers.{i}.mixer.C_norm.weight"),
        Row(f"{LAYER}.feed_forward.router.weight", ROUTER),
        *each_expert(f"{LAYER}.feed_forward.experts"),
    ],
    alternatives=all_experts(f"{LAYER}.feed_forward.experts.gate_up_proj", f"{LAYER}.feed_forward.experts.down_proj"),
    prefix="model.",
    no_effect=TRAINING_ONLY | {
        # keys that affect generation or rounding only
        "n_ctx", "num_logits_to_keep", "calc_logits_for_entire_prompt", "use_mamba_kernels", "use_mambapy",
        "use_associative_scan",
    },
    aliases={"num_local_experts": "num_experts"},
)  # fmt: skip
