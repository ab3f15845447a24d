"""Configs and weights of SmolLM 3 (SmolLM3ForCausalLM in transformers)."""

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import GATED, RMS_NORM, SIZES, WEIGHTS, attention_biases, kv_heads
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.layer_types import FULL, SLIDING, LayerTypes
from archlab.hf.rope import RopeKeys


class Layers(LayerTypes):
    """Up to four kinds of layers: with or without RoPE, and with a sliding window or full attention.

    In the key `no_rope_layers`, 1 stands for a layer with RoPE and 0 for a layer without RoPE.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the layer kinds.

        If `no_rope_layers` is absent, every n-th layer has no RoPE; n is `no_rope_layer_interval` (default: 4). If
        `layer_types` is absent and `use_sliding_window` is true, the layers without RoPE have a sliding window.
        """
        count, interval = ours["n_layers"], hf.get("no_rope_layer_interval", 4)
        rope = hf.get("no_rope_layers", kind=list) or [int((i + 1) % interval != 0) for i in range(count)]
        window, slides = hf.get("sliding_window", kind=int), hf.get("use_sliding_window", False)
        types = hf.get("layer_types", kind=list) or [
            SLIDING if slides and window and not has_rope else FULL for has_rope in rope
        ]
        for key, values, known in (("no_rope_layers", rope, {0, 1}), ("layer_types", types, {FULL, SLIDING})):
            if len(values) < count or not known.issuperset(values):
                raise hf.refuse(key, values, f"{' or '.join(map(str, known))} for each of the {count} layers")
        if SLIDING in types and not window:
            raise hf.refuse("sliding_window", window, f"a number, because layer_types has {SLIDING}")
        kinds = {
            "rope": {}, "nope": {"position": {"kind": "none"}}, "rope_sliding": {"attention.window": window},
            "nope_sliding": {"position": {"kind": "none"}, "attention.window": window},
        }  # fmt: skip
        pattern = [
            ("rope" if has_rope else "nope") + ("_sliding" if kind == SLIDING else "")
            for has_rope, kind in zip(rope[:count], types[:count], strict=True)
        ]
        if len(set(pattern)) == 1:
            ours |= kinds[pattern[0]]
        else:
            ours["layers"] = {name: kinds[name] for name in kinds if name in pattern} | {"pattern": pattern}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        hf["use_sliding_window"] = SLIDING in hf["layer_types"]
        hf["no_rope_layers"] = [int(isinstance(layer.position, Rope)) for layer in layer_configs(model)]


FAMILY = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *SIZES,
        kv_heads(4),
        *RMS_NORM,
        *GATED,
        RopeKeys(theta=2e6),
        Layers(),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=WEIGHTS,
    prefix="model.",
    no_effect=frozenset({"max_window_layers"}),
)
