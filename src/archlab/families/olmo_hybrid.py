"""Configs and weights of OLMo Hybrid (OlmoHybridForCausalLM in transformers): layers of OLMo 3 without a window,
between layers with the gated delta rule.

Norms are on the outputs of the branches in layers with attention, and on the inputs in the other layers.
"""

from collections.abc import Mapping

from archlab.config.components.gated_delta import GatedDelta
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import AROUND, ATTENTION, GATED, MLP, SIZES, attention_biases
from archlab.families.olmo2 import NORMS, OUTPUT_NORMS
from archlab.families.qwen3 import QK_NORMS
from archlab.families.qwen3_next import LAYER, ConvolutionSilu, delta_of
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Field, Flag, Key
from archlab.hf.layer_types import FULL, LINEAR, MixerLayers
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row, linear

MIXER = f"{LAYER}.linear_attn"


class DeltaSizes:
    """Keys for the numbers and widths of the heads of the gated delta rule. Their defaults depend on other keys."""

    hf_keys: Mapping[str, str] = {
        "mixer.n_key_heads": "linear_num_key_heads", "mixer.n_value_heads": "linear_num_value_heads",
        "mixer.key_dim": "linear_key_head_dim", "mixer.value_dim": "linear_value_head_dim",
    }  # fmt: skip

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        n_heads, d_model = hf.need("num_attention_heads"), hf.need("hidden_size")
        n_key_heads = hf.get("linear_num_key_heads", n_heads)
        key_dim = hf.get("linear_key_head_dim", int(0.75 * d_model / n_key_heads))
        ours |= {
            "mixer.n_key_heads": n_key_heads,
            "mixer.n_value_heads": hf.get("linear_num_value_heads", n_heads),
            "mixer.key_dim": key_dim,
            "mixer.value_dim": hf.get("linear_value_head_dim", 2 * key_dim),
        }

    def write(self, model: ModelConfig, hf: Raw) -> None:
        for field, key in self.hf_keys.items():
            Key(key, field).write(model, hf)


DELTA: tuple[Field, ...] = (
    Always("mixer.kind", "gated_delta"),
    DeltaSizes(),
    Key("linear_conv_kernel_dim", "mixer.taps", 4),
    Flag("linear_allow_neg_eigval", "mixer.negative_eigenvalues", True),
    Always("mixer.norm_eps", 1e-5),
)


def types_of(_hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the type of each layer. Every fourth layer has attention, or the last one of fewer than four."""
    return [FULL if i % 4 == 3 or i == n_layers - 1 < 3 else LINEAR for i in range(n_layers)]


class HybridLayers(MixerLayers):
    """Layers with the gated delta rule, and layers with attention and output norms."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the layer kinds. Raise UserError if all layers are of one type, because the published code then refuses
        the model."""
        super().read(hf, ours)
        if "layers" not in ours:
            raise hf.refuse("layer_types", hf.get("layer_types"), f"a list with both {LINEAR} and {FULL}")
        ours["layers"]["full"]["norm.placement"] = "output"


class OptionalRope(RopeKeys):
    """RoPE, or no position encoding if theta is null, as in the published models."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the position encoding. Raise UserError if `rope_parameters` is null and theta is missing, because
        versions of transformers differ in what that means."""
        parameters = hf.or_null("rope_parameters", {})
        theta = hf.or_null("rope_theta", self.theta, object)
        if parameters is None and theta is not None and hf.get("rope_theta") is None:
            raise hf.refuse("rope_parameters", None, "an object; its rope_theta is null without position encoding")
        if (parameters or {}).get("rope_theta", theta) is None:
            ours["position"] = {"kind": "none"}
        else:
            super().read(hf, ours)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        hf.setdefault("rope_parameters", {"rope_type": "default", "rope_theta": None})


def _is_recurrent(layer: LayerConfig) -> bool:
    return isinstance(layer.mixer, GatedDelta)


def _conv_rows(layer: LayerConfig) -> Mapping[str, int]:
    return dict(zip("qkv", delta_of(layer).conv_widths, strict=True))


def conv_in_parts(mixer: str) -> Row:
    """Return the row for the convolution of a mixer with this name. Files contain it in three tensors."""
    return Row(f"{mixer}.{{h}}_conv1d.weight", "layers.{i}.mixer.conv.weight", when=_is_recurrent, pieces=_conv_rows)


LAYERS = HybridLayers(LINEAR, DELTA, types_of)

FAMILY = Family(
    model_type="olmo_hybrid",
    architecture="OlmoHybridForCausalLM",
    default_max_seq_len=65536,
    fields=[
        *SIZES,
        *(part for part in NORMS if not (isinstance(part, Always) and part.field == "norm.placement")),
        Key("rms_norm_eps", "norm.eps", 1e-6),
        Key("rms_norm_eps", "attention.qk_norm.eps", 1e-6),
        *GATED,
        OptionalRope(),
        *attention_biases(),
        LAYERS,
        ConvolutionSilu(LAYERS),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *linear(f"{LAYER}.attention_layer_norm", "layers.{i}.mixer_norms.before"),
        *linear(f"{LAYER}.feedforward_layer_norm", "layers.{i}.mlp_norms.before"),
        *(
            row
            for theirs, ours in (
                ("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("g_proj", "gate"), ("b_proj", "beta"),
                ("a_proj", "decay"), ("o_norm", "norm"), ("o_proj", "out"),
            )
            for row in linear(f"{MIXER}.{theirs}", f"layers.{{i}}.mixer.{ours}")
        ),
        *(Row(f"{MIXER}.{name}", f"layers.{{i}}.mixer.{name}") for name in ("A_log", "dt_bias")),
        conv_in_parts(MIXER),
        *ATTENTION,
        *QK_NORMS,
        *MLP,
        *OUTPUT_NORMS,
        *AROUND,
    ],
    # transformers saves this norm, too, under the name of the other layers' norm.
    alternatives=linear(f"{LAYER}.feedforward_layer_norm", "layers.{i}.attention_norms.after"),
    prefix="model.",
    # keys for the initialization of parameters
    no_effect=frozenset(
        {"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"}
    ),
)  # fmt: skip
