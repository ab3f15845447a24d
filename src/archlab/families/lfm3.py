"""Configs and weights of LFM3 (Lfm3ForCausalLM in transformers): short convolutions, and gated attention with or
without a window.
"""

from dataclasses import dataclass

from archlab.config.components.component import Absent
from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.lfm2 import CONV, IN, LAYER, THIRDS
from archlab.families.llama import SIZES, attention_biases, kv_heads
from archlab.hf.family import Family
from archlab.hf.fields import ABSENT, Always, ConfigReader, Key, lookup
from archlab.hf.layer_types import FULL, SLIDING, MixerLayers, layer_types
from archlab.hf.rope import rope_parameters
from archlab.hf.rope_per_type import ProportionalRopePerType
from archlab.hf.weight_map import Row, linear

KINDS = {CONV: "recurrent", SLIDING: "sliding", FULL: "full"}
"""Name of the layer kind by layer type."""


@dataclass(frozen=True)
class HeadGate:
    """Key `use_attention_gate`, which says whether each head has a gate."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        if hf.get("use_attention_gate", True):
            ours["attention.gate"] = {"per": "head"}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["use_attention_gate"] = lookup(model, "attention.gate") not in (None, ABSENT)


ROPE = ProportionalRopePerType(
    {
        SLIDING: {"rope_theta": 1e4},
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    }
)


def implied(n_layers: int) -> list[str]:
    """Return the type of each layer for a config.json without `layer_types`."""
    return [FULL if i % 4 == 2 else SLIDING if i % 4 == 0 and i > 0 else CONV for i in range(n_layers)]


@dataclass(frozen=True)
class ConvAndAttention(MixerLayers):
    """Layer types: short convolutions, attention with a window, and attention without one. Each of the latter two has
    a RoPE of its own."""

    def listed(self, hf: ConfigReader, n_layers: int) -> list[str]:
        return layer_types(hf, implied(n_layers), set(KINDS), n_layers)

    def types(self, hf: ConfigReader, n_layers: int) -> list[str]:
        """Return the type of each layer. A layer with a window counts as full."""
        return [CONV if kind == CONV else FULL for kind in self.listed(hf, n_layers)]

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the mixer, the windows and the RoPEs. All attention fields must already have been read."""
        listed = self.listed(hf, ours["n_layers"])
        nested, window = ROPE.nested(hf), hf.or_null("sliding_window", 256)
        if SLIDING in listed and not window:
            raise hf.refuse("sliding_window", window, f"a number, because layer_types has {SLIDING}")
        kinds: dict[str, Raw] = {kind: {"position": ROPE.of_type(hf, nested, kind)} for kind in {*listed} - {CONV}}
        if SLIDING in kinds:
            kinds[SLIDING]["attention.window"] = window
        if len(kinds) == 1:
            ours |= next(iter(kinds.values()))
        super().read(hf, ours)
        if len(kinds) == 2:
            # The model's own position is a plain RoPE, because a layer kind inherits all fields that it does not set.
            ours["position"] = {"kind": "rope"}
            recurrent = {name: kind for name, kind in ours.get("layers", {}).items() if name == KINDS[CONV]}
            pattern = [KINDS[kind] for kind in listed]
            ours["layers"] = {**recurrent, "sliding": kinds[SLIDING], "full": kinds[FULL], "pattern": pattern}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the type of each layer, the window and the RoPEs."""
        super().write(model, hf)
        hf["rope_parameters"] = {}
        for i, layer in enumerate(layer_configs(model)):
            if isinstance(layer.attention, Absent):
                continue
            if window := layer.multi_head.window:
                hf["layer_types"][i], hf["sliding_window"] = SLIDING, window
            if isinstance(layer.position, Rope):
                hf["rope_parameters"][hf["layer_types"][i]] = rope_parameters(layer.position, model.max_seq_len)


FAMILY = Family(
    model_type="lfm3",
    architecture="Lfm3ForCausalLM",
    default_max_seq_len=128000,
    fields=[
        *SIZES,
        kv_heads(4),
        Key("head_dim", "attention.head_dim", 128),
        Always("norm.kind", "rmsnorm"),
        Always("norm.cast", "before_weight"),
        Key("norm_eps", "norm.eps", 1e-5),
        Key(
            "use_sandwich_norm", "norm.placement", True,
            lambda on: "double" if on else "pre", lambda placement: placement == "double",
        ),
        Always("attention.qk_norm.kind", "rmsnorm"),
        Always("attention.qk_norm.cast", "before_weight"),
        Key("norm_eps", "attention.qk_norm.eps", 1e-5),
        *attention_biases(),
        HeadGate(),
        Always("mlp.kind", "gated"),
        Always("mlp.activation", "silu"),
        ConvAndAttention(
            CONV,
            (
                Always("mixer.kind", "short_conv"),
                Key("conv_L_cache", "mixer.taps", 7),
                Key("conv_bias", "mixer.bias", False),
            ),
        ),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("model.embed_tokens.weight", "embedding.weight"),
        *linear(f"{LAYER}.operator_norm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.operator_norm", "layers.{i}.mixer_norms.before"),
        *linear(f"{LAYER}.post_operator_norm", "layers.{i}.attention_norms.after"),
        *linear(f"{LAYER}.post_operator_norm", "layers.{i}.mixer_norms.after"),
        *linear(f"{LAYER}.self_attn.q_proj", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.self_attn.k_proj", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.self_attn.v_proj", "layers.{i}.attention.v"),
        *linear(f"{LAYER}.self_attn.o_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.self_attn.gate_proj", "layers.{i}.attention.gate"),
        *linear(f"{LAYER}.self_attn.q_norm", "layers.{i}.attention.q_norm.norm"),
        *linear(f"{LAYER}.self_attn.k_norm", "layers.{i}.attention.k_norm.norm"),
        *linear(f"{LAYER}.conv.in_proj", IN, THIRDS),
        *linear(f"{LAYER}.conv.conv", "layers.{i}.mixer.conv"),
        *linear(f"{LAYER}.conv.out_proj", "layers.{i}.mixer.out"),
        *linear(f"{LAYER}.ffn_norm", "layers.{i}.mlp_norms.before"),
        *linear(f"{LAYER}.post_ffn_norm", "layers.{i}.mlp_norms.after"),
        *linear(f"{LAYER}.feed_forward.w1", "layers.{i}.mlp.gate"),
        *linear(f"{LAYER}.feed_forward.w3", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.feed_forward.w2", "layers.{i}.mlp.down"),
        *linear("model.embedding_norm", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="model.",
    aliases={"rms_norm_eps": "norm_eps"},
)  # fmt: skip
