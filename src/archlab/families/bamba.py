"""Configs and weights of Bamba (BambaForCausalLM in transformers): Mamba 2 in most layers, attention in the others."""

from dataclasses import dataclass

from archlab.config.components.mamba2 import Mamba2
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import ATTENTION, GATED, SIZES, attention_biases, kv_heads, rms_norm
from archlab.families.mamba2 import StepLimit, mamba2_weights
from archlab.families.qwen3_next import ConvolutionSilu
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Field, Key, Only
from archlab.hf.layer_types import FULL, LINEAR, MixerLayers
from archlab.hf.repeated import RepeatedKeys
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import Row, linear


@dataclass(frozen=True)
class HeadWidth:
    """The keys `mamba_d_head` and `mamba_expand`. `mamba_expand` is the total width of all heads divided by d_model.

    If `mamba_d_head` is "auto", the width of a head follows from `mamba_expand`.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the two keys contradict each other. The number of heads must already have been read."""
        expand, heads = hf.get("mamba_expand", 2), ours["mixer.n_heads"]
        total = expand * hf.need("hidden_size")
        width = hf.get("mamba_d_head", "auto", kind=object)
        width = total // heads if width == "auto" else hf.get("mamba_d_head", kind=int)
        if width * heads != total:
            raise hf.refuse("mamba_expand", expand, "the number with mamba_expand * d_model = heads * width of a head")
        ours["mixer.head_dim"] = width

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the keys. If no layer has Mamba 2, write sizes that the published code accepts."""
        if isinstance(model.mixer, Mamba2):
            expand = model.mixer.inner_width / model.d_model
            hf["mamba_expand"] = int(expand) if expand.is_integer() else expand
            hf["mamba_d_head"] = model.mixer.head_dim
        else:
            hf |= {"mamba_n_heads": 1, "mamba_expand": 1, "mamba_d_head": model.d_model}


def repeated(hf: ConfigReader, layers: list[Raw]) -> Raw:
    """Return the right value of `attn_rotary_emb`, the number of dimensions of each head that RoPE rotates. Without
    attention, every value is right."""
    attention = next((layer for layer in layers if layer.get("attention.kind") != "none"), None)
    if attention is None:
        return {"attn_rotary_emb": hf.get("attn_rotary_emb")}
    width = attention.get("attention.head_dim") or attention["d_model"] // attention["attention.n_heads"]
    return {"attn_rotary_emb": int(width * attention["position"]["fraction"])}


MIXER_SIZES = (
    Always("mixer.kind", "mamba2"),
    Key("mamba_n_heads", "mixer.n_heads", 128),
    Key("mamba_d_state", "mixer.d_state", 256),
    Key("mamba_n_groups", "mixer.n_groups", 1),
    Key("mamba_d_conv", "mixer.taps", 4),
    Key("mamba_conv_bias", "mixer.conv_bias", True),
    Key("mamba_proj_bias", "mixer.in_bias", False),
    StepLimit(),
)
"""Fields of the mixer, without the width of a head, the bias of the output projection, and the norm."""


def mamba_keys(eps: float) -> tuple[Field, ...]:
    """Return the fields of the mixer. `eps` is the default of `rms_norm_eps`."""
    return (
        *MIXER_SIZES,
        HeadWidth(),
        Key("mamba_proj_bias", "mixer.out_bias", False),
        Key("rms_norm_eps", "mixer.norm.eps", eps),
    )


class ListedLayers(MixerLayers):
    """The key `attn_layer_indices`, a list of the layers that have attention. The others have Mamba 2."""

    def types(self, hf: ConfigReader, n_layers: int) -> list[str]:
        listed = hf.get("attn_layer_indices", kind=list) or []
        return [FULL if i in listed else LINEAR for i in range(n_layers)]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        hf["attn_layer_indices"] = [i for i, kind in enumerate(hf.pop("layer_types")) if kind == FULL]


LAYER = "model.layers.{i}"
LAYERS = ListedLayers(LINEAR, mamba_keys(1e-5))
MIXER = [
    *linear(f"{LAYER}.input_layernorm", "layers.{i}.mixer_norms.before"),
    *mamba2_weights(f"{LAYER}.mamba"),
]
AROUND_MIXER = [
    *ATTENTION,
    *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before"),
    *linear(f"{LAYER}.pre_ff_layernorm", "layers.{i}.mlp_norms.before"),
    *linear(f"{LAYER}.feed_forward.gate_proj", "layers.{i}.mlp.gate"),
    *linear(f"{LAYER}.feed_forward.up_proj", "layers.{i}.mlp.up"),
    *linear(f"{LAYER}.feed_forward.down_proj", "layers.{i}.mlp.down"),
    Row("model.embed_tokens.weight", "embedding.weight"),
    *linear("model.final_layernorm", "norm"),
    Row("lm_head.weight", "head.weight"),
]
"""Rows for all tensors but those of the mixer and of the norm before it."""

FAMILY = Family(
    model_type="bamba",
    architecture="BambaForCausalLM",
    default_max_seq_len=262144,
    fields=[
        *SIZES,
        kv_heads(8),
        *rms_norm(1e-5),
        *GATED,
        # The published code reads this key inside `rope_parameters` only.
        Only("partial_rotary_factor", 0.5, written=False),
        RopeKeys(fraction=0.5),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        LAYERS,
        ConvolutionSilu(LAYERS),
        Key("tie_word_embeddings", "head.tied", False),
        RepeatedKeys(repeated),
    ],
    weights=[*AROUND_MIXER, *MIXER],
    prefix="model.",
    # The first key affects rounding only, the others affect training and generation.
    no_effect=frozenset({"mamba_chunk_size", "z_loss_coefficient", "num_logits_to_keep"}),
)
