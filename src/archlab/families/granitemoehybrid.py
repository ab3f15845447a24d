"""Configs and weights of the Granite 4 hybrid models (GraniteMoeHybridForCausalLM in transformers): Mamba 2 in most
layers, attention in the others, and a mixture with a shared expert or a dense MLP.
"""

from dataclasses import dataclass

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.families.bamba import MIXER, mamba_keys
from archlab.families.granitemoe import FIELDS, FUSED_EXPERTS, WEIGHTS
from archlab.families.granitemoeshared import SHARED, SHARED_WEIGHTS
from archlab.families.mixtral import TRAINING_ONLY
from archlab.families.qwen3_next import ConvolutionSilu
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Only, lookup
from archlab.hf.layer_types import LINEAR, MixerLayers
from archlab.hf.mixture import is_mixture
from archlab.hf.weight_map import HALVES, linear


def all_linear(_hf: ConfigReader, n_layers: int) -> list[str]:
    return [LINEAR] * n_layers


@dataclass(frozen=True)
class Position:
    """The key `position_embedding_type`: "rope" for RoPE in attention; null or "nope" for no positions."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Remove RoPE if the key does not name it. RoPE must already have been read."""
        kind = hf.get("position_embedding_type", "nope")
        if kind not in ("rope", "nope"):
            raise hf.refuse("position_embedding_type", kind, "rope, nope, null")
        if kind == "nope":
            ours["position"] = {"kind": "none"}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["position_embedding_type"] = "rope" if isinstance(model.position, Rope) else None


@dataclass(frozen=True)
class DenseOrMixture:
    """The key `shared_intermediate_size`: the width of the shared expert, or of the MLP if the model has no experts."""

    hf_key: str = "shared_intermediate_size"

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the width. The fields of the mixture must already have been read."""
        width = hf.get(self.hf_key, 1024)
        if ours["mlp.experts"] == 0:
            for field in ("mlp.experts", "mlp.active"):
                del ours[field]
            ours |= {"mlp.kind": "gated", "mlp.d_ff": width}
        else:
            ours["mlp.shared.d_ff"] = width

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the width. In a model without experts, the key `intermediate_size` has no effect."""
        if any(map(is_mixture, layer_configs(model))):
            hf[self.hf_key] = lookup(resolve(model), "mlp.shared.d_ff")
        else:
            hf |= {self.hf_key: lookup(model, "mlp.d_ff"), "num_local_experts": 0}


@dataclass(frozen=True)
class MixerMultiplier:
    """The key `residual_multiplier` in layers with Mamba 2 instead of attention."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        ours["block.mixer_multiplier"] = float(hf.get("residual_multiplier", 1.0))
        ours["block.attention_multiplier"] = 1.0

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key, because the multiplier of the MLP has the same key."""


LAYERS = MixerLayers(LINEAR, (*mamba_keys(1e-6), MixerMultiplier()), all_linear)

FAMILY = Family(
    model_type="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *FIELDS,
        DenseOrMixture(),
        Position(),
        LAYERS,
        ConvolutionSilu(LAYERS),
        Only("normalization_function", "rmsnorm", written=False),
        Only("init_method", "mup", written=False),
    ],
    weights=[
        *WEIGHTS,
        *MIXER,
        *SHARED_WEIGHTS,
        *linear(f"{SHARED}.input_linear", ("layers.{i}.mlp.gate", "layers.{i}.mlp.up"), HALVES),
        *linear(f"{SHARED}.output_linear", "layers.{i}.mlp.down"),
    ],
    alternatives=FUSED_EXPERTS,
    prefix="model.",
    no_effect=TRAINING_ONLY | {"mamba_chunk_size"},
    aliases={"num_experts": "num_local_experts", "layers_block_type": "layer_types"},
)
