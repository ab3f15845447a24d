"""Configs and weights of Qwen3-Next (Qwen3NextForCausalLM in transformers): attention in every fourth layer, the gated
delta rule elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from archlab.config.components.gated_delta import GatedDelta
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import AROUND, SIZES, kv_heads
from archlab.families.mixtral import FUSED_EXPERTS, TRAINING_ONLY
from archlab.families.qwen2_moe import EXPERTS, IGNORED, SHARED, SOME_DENSE, SharedExpert, experts
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Field, Key, Only
from archlab.hf.layer_types import FULL, LINEAR, MixerLayers
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row, linear, per_group

LAYER = "model.layers.{i}"


def types_of(hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer. Every `full_attention_interval`-th layer (default: 4) has attention."""
    interval = hf.get("full_attention_interval", 4)
    return [LINEAR if (i + 1) % interval else FULL for i in range(n_layers)]


def delta_of(layer: LayerConfig) -> GatedDelta:
    assert isinstance(layer.mixer, GatedDelta)
    return layer.mixer


def _qkvz(layer: LayerConfig) -> Sequence[int]:
    mixer = delta_of(layer)
    values = mixer.value_width // mixer.n_key_heads
    return [mixer.key_dim, mixer.key_dim, values, values]


def _ba(layer: LayerConfig) -> Sequence[int]:
    return [delta_of(layer).n_value_heads // delta_of(layer).n_key_heads] * 2


def ours(*names: str) -> tuple[str, ...]:
    """Return the names of parameters of the gated delta rule."""
    return tuple(f"layers.{{i}}.mixer.{name}" for name in names)


PER_KEY_HEAD = per_group(lambda layer: delta_of(layer).n_key_heads, _qkvz)
BA_PER_KEY_HEAD = per_group(lambda layer: delta_of(layer).n_key_heads, _ba)
QUERY_AND_GATE = per_group(lambda layer: layer.multi_head.n_heads, lambda layer: [layer.multi_head.head_dim] * 2)

NORM = (
    Always("norm.kind", "rmsnorm"),
    Always("norm.unit_offset", True),
    Key("rms_norm_eps", "norm.eps", 1e-6),
    Always("attention.qk_norm.kind", "rmsnorm"),
    Always("attention.qk_norm.unit_offset", True),
    Key("rms_norm_eps", "attention.qk_norm.eps", 1e-6),
)

DELTA = (
    Always("mixer.kind", "gated_delta"),
    Key("linear_num_key_heads", "mixer.n_key_heads", 16),
    Key("linear_num_value_heads", "mixer.n_value_heads", 32),
    Key("linear_key_head_dim", "mixer.key_dim", 128),
    Key("linear_value_head_dim", "mixer.value_dim", 128),
    Key("linear_conv_kernel_dim", "mixer.taps", 4),
    Key("rms_norm_eps", "mixer.norm_eps", 1e-6),
)

LAYERS = MixerLayers(LINEAR, DELTA, types_of)


@dataclass(frozen=True)
class ConvolutionSilu:
    """Check that the activation `hidden_act` is SiLU.

    The published code applies it both in the MLP and after the convolution of the mixer. archlab always applies SiLU
    after the convolution.
    """

    layers: MixerLayers

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if `hidden_act` is not SiLU and at least one layer has the mixer.

        The fields of the MLP must already have been read.
        """
        if ours["mlp.activation"] != "silu" and LINEAR in self.layers.types(hf, ours["n_layers"]):
            raise hf.refuse("hidden_act", hf.get("hidden_act"), f"silu, swish, because layer_types has {LINEAR}")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key to config.json. `Family.hf_config` reads the written config back, and that runs the check."""


def attention_fields(n_kv_heads: int) -> tuple[Field, ...]:
    """Return the fields of the sizes, of the norms and of attention. `n_kv_heads` is the default number of key/value
    heads."""
    return (
        *(part for part in SIZES if part.field != "mlp.d_ff"),
        kv_heads(n_kv_heads),
        Key("head_dim", "attention.head_dim", 256),
        Always("attention.gate", {"per": "element"}),
        *(Key("attention_bias", f"attention.{field}", False) for field in ("qkv_bias", "gate.bias", "out_bias")),
        *NORM,
    )


AROUND_MLP = [
    *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before"),
    *linear(f"{LAYER}.input_layernorm", "layers.{i}.mixer_norms.before"),
    *linear(f"{LAYER}.self_attn.q_proj", ("layers.{i}.attention.q", "layers.{i}.attention.gate"), QUERY_AND_GATE),
    *linear(f"{LAYER}.self_attn.k_proj", "layers.{i}.attention.k"),
    *linear(f"{LAYER}.self_attn.v_proj", "layers.{i}.attention.v"),
    *linear(f"{LAYER}.self_attn.o_proj", "layers.{i}.attention.out"),
    *linear(f"{LAYER}.self_attn.q_norm", "layers.{i}.attention.q_norm.norm"),
    *linear(f"{LAYER}.self_attn.k_norm", "layers.{i}.attention.k_norm.norm"),
    *linear(f"{LAYER}.linear_attn.conv1d", "layers.{i}.mixer.conv"),
    *(Row(f"{LAYER}.linear_attn.{name}", f"layers.{{i}}.mixer.{name}") for name in ("A_log", "dt_bias")),
    *linear(f"{LAYER}.linear_attn.norm", "layers.{i}.mixer.norm"),
    *linear(f"{LAYER}.linear_attn.out_proj", "layers.{i}.mixer.out"),
    *linear(f"{LAYER}.post_attention_layernorm", "layers.{i}.mlp_norms.before"),
    *AROUND,
]
"""Rows for all tensors but those of the MLP and of the projections into the gated delta rule."""

FAMILY = Family(
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *attention_fields(2),
        RopeKeys(fraction=0.25),
        *experts(512, 10, 512),
        Key("norm_topk_prob", "mlp.router.normalise", True),
        SharedExpert(default=512),
        LAYERS,
        ConvolutionSilu(LAYERS),
        SOME_DENSE,
        Only("use_sliding_window", False, written=False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *AROUND_MLP,
        *linear(f"{LAYER}.linear_attn.in_proj_qkvz", ours("q", "k", "v", "gate"), PER_KEY_HEAD),
        *linear(f"{LAYER}.linear_attn.in_proj_ba", ours("beta", "decay"), BA_PER_KEY_HEAD),
        *EXPERTS,
        *SHARED,
    ],
    alternatives=FUSED_EXPERTS,
    has_mtp_layers=True,
    ignored=IGNORED,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"full_attention_interval"},
    aliases={"num_local_experts": "num_experts"},
)
