"""Configs and weights of ModernBERT (ModernBertForMaskedLM in transformers)."""

from dataclasses import dataclass

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Field, Key
from archlab.hf.layer_types import FULL, SLIDING, layer_types
from archlab.hf.rope import rope_fields, rope_parameters
from archlab.hf.weight_map import HALVES, QKV, QKV_BLOCKS, Row, linear

LAYER = "model.layers.{i}"

THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
"""Key and default of theta for each layer type. Newer files have it in `rope_parameters`."""


@dataclass(frozen=True)
class Layers:
    """Layer types with their windows and RoPEs. The first layer has no norm before attention."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        every, n_layers = hf.get("global_attn_every_n_layers", 3), ours["n_layers"]
        implied = [SLIDING if i % every else FULL for i in range(n_layers)]
        types = layer_types(hf, implied, {SLIDING, FULL}, n_layers)
        nested, scaling = hf.get("rope_parameters", {}), hf.get("rope_scaling", {})
        if flat := set(nested) - set(THETAS):
            raise hf.refuse("rope_parameters", sorted(flat), f"RoPE parameters for {FULL} and for {SLIDING}")
        kinds: dict[str, Raw] = {}
        for kind, (key, default) in THETAS.items():
            own = {**(nested.get(kind) or {}), **scaling}
            theta = own.get("rope_theta", hf.get(key, default))
            rope = rope_fields(
                ConfigReader({}, hf.where), theta, 1.0, "half", own, hf.get("max_position_embeddings", 8192)
            )
            kinds[kind] = {"position": rope}
        kinds[SLIDING]["attention.window"] = self.window(hf)
        ours["position"] = {"kind": "rope"}
        ours["layers"] = {
            "first": {**kinds[types[0]], "block.attention_norm": False},
            **{kind.partition("_")[0]: kinds[kind] for kind in dict.fromkeys(types[1:])},
            "pattern": ["first", *(kind.partition("_")[0] for kind in types[1:])],
        }

    def window(self, hf: ConfigReader) -> int:
        """Return the window. A token sees `local_attention` / 2 tokens on each side, and itself."""
        return hf.get("local_attention", 128) // 2 + 1

    def write_window(self, window: int, hf: Raw) -> None:
        hf["local_attention"] = 2 * (window - 1)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        layers = layer_configs(model)
        hf["layer_types"] = [FULL if layer.multi_head.window is None else SLIDING for layer in layers]
        windows = [layer.multi_head.window for layer in layers if layer.multi_head.window is not None]
        if windows:
            self.write_window(windows[0], hf)
        hf["rope_parameters"] = {
            kind: rope_parameters(layer.position, model.max_seq_len)
            for kind, layer in zip(hf["layer_types"], layers, strict=True)
            if isinstance(layer.position, Rope)
        }


FIELDS: list[Field] = [
    Key("vocab_size", "vocab_size", 50368),
    Key("hidden_size", "d_model", 768),
    Key("num_hidden_layers", "n_layers", 22),
    Key("num_attention_heads", "attention.n_heads", 12),
    Key("intermediate_size", "mlp.d_ff", 1152),
    Key("max_position_embeddings", "max_seq_len", 8192),
    Always("mlp.kind", "gated"),
    ActivationKey("hidden_activation", "gelu"),
    Key("mlp_bias", "mlp.bias", False),
    *attention_biases(),
    Always("norm.kind", "layernorm"),
    Key("norm_eps", "norm.eps", 1e-5),
    Key("norm_bias", "norm.bias", False),
    Always("embedding.norm", True),
    Key("decoder_bias", "head.bias", True),
    Key("tie_word_embeddings", "head.tied", True),
    Always("head.transform.norm", True),
    ActivationKey("classifier_activation", "gelu", field="head.transform.activation"),
    Key("classifier_bias", "head.transform.bias", False),
]
"""Fields of the encoder and of the decoder. Each adds the layers and what a token sees."""

ROWS = [
    Row("model.embeddings.tok_embeddings.weight", "embedding.weight"),
    *linear("model.embeddings.norm", "embedding.norm"),
    *linear(f"{LAYER}.attn_norm", "layers.{i}.attention_norms.before"),
    *linear(f"{LAYER}.attn.Wo", "layers.{i}.attention.out"),
    *linear(f"{LAYER}.mlp_norm", "layers.{i}.mlp_norms.before"),
    *linear(f"{LAYER}.mlp.Wi", ("layers.{i}.mlp.gate", "layers.{i}.mlp.up"), HALVES),
    *linear(f"{LAYER}.mlp.Wo", "layers.{i}.mlp.down"),
    *linear("model.final_norm", "norm"),
    Row("decoder.weight", "head.weight"),
    Row("decoder.bias", "head.bias"),
]
"""Rows of tensors that have the same names in the encoder and in the decoder."""

FAMILY = Family(
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    fields=[
        Always("attention.visibility", "two_sided"),
        *FIELDS,
        Layers(),
    ],
    weights=[
        *ROWS,
        *linear(f"{LAYER}.attn.Wqkv", QKV, QKV_BLOCKS),
        *linear("head.dense", "head.transform.dense"),
        *linear("head.norm", "head.transform.norm"),
    ],
    prefix="model.",
    no_effect=frozenset({
        "initializer_cutoff_factor", "cls_token_id", "mlp_dropout", "classifier_pooling", "deterministic_flash_attn",
        "classifier_dropout", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
        "repad_logits_with_grad", "layer_norm_eps", "position_embedding_type",
    }),
)  # fmt: skip
