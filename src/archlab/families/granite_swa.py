"""Configs and weights of Granite SWA (GraniteSWAForCausalLM in transformers): Granite with sinks, windows and a theta
per layer.
"""

from dataclasses import dataclass, replace

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.granite import FAMILY as GRANITE
from archlab.families.llama import WEIGHTS, kv_heads
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes, with_each_layer
from archlab.hf.rope import rope_parameters
from archlab.hf.weight_map import Row


def full_first(_hf: ConfigReader, n_layers: int) -> list[str]:
    """Return the layer types: the first layer and every fourth layer after it are full, and the others are sliding."""
    return [SLIDING if i % 4 else FULL for i in range(n_layers)]


@dataclass(frozen=True)
class ThetaPerLayer:
    """List with theta of each layer. 0 means that the layer has no position encoding.

    `layer_types` and the RoPE of all layers must already have been read.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the position encoding of each layer. If the list is absent, keep the RoPE of all layers."""
        thetas = hf.or_null("layer_rope_theta", None, list)
        if thetas is None:
            return
        n_layers, rope = ours["n_layers"], ours["position"]
        if len(thetas) != n_layers:
            raise hf.refuse("layer_rope_theta", f"{len(thetas)} numbers", f"one for each of the {n_layers} layers")
        if wrong := [theta for theta in thetas if isinstance(theta, bool) or not isinstance(theta, int | float)]:
            raise hf.refuse("layer_rope_theta", wrong[0], "numbers")
        positions = {theta: {**rope, "theta": theta} if theta else {"kind": "none"} for theta in set(thetas)}
        if len(positions) == 1:
            ours["position"] = positions[thetas[0]]
            return
        # The model's own position is a plain RoPE, because a layer kind inherits all fields that it does not set.
        ours["position"] = {"kind": "rope"}
        ours["layers"] = with_each_layer(ours.get("layers"), "position", [positions[theta] for theta in thetas])

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write theta of each layer, and the scaling of the first layer that has RoPE."""
        positions = [layer.position for layer in layer_configs(model)]
        ropes = [position for position in positions if isinstance(position, Rope)]
        hf["layer_rope_theta"] = [position.theta if isinstance(position, Rope) else 0 for position in positions]
        if ropes:
            hf["rope_parameters"] = rope_parameters(ropes[0], model.max_seq_len)


LAYERS = (Always("attention.sinks", True), LayerTypes(full_first, window=128, unused=128), ThetaPerLayer())
SINKS = Row("model.layers.{i}.self_attn.sinks", "layers.{i}.attention.sinks")

FAMILY = replace(
    GRANITE,
    model_type="granite_swa",
    architecture="GraniteSWAForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *GRANITE.fields,
        kv_heads(4),
        Key("rms_norm_eps", "norm.eps", 1e-5),
        Key("tie_word_embeddings", "head.tied", True),
        *LAYERS,
    ],
    weights=[*WEIGHTS, SINKS],
)
