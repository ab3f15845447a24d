"""Configs and weights of T5, with versions 1.0 and 1.1, and FLAN-T5 (T5ForConditionalGeneration in transformers)."""

from collections.abc import Mapping
from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.hf.family import Family
from archlab.hf.fields import ACTIVATIONS, Always, ConfigReader, Field, Key, lookup
from archlab.hf.weight_map import Row, linear


@dataclass(frozen=True)
class Depths:
    """Keys `num_layers` and `num_decoder_layers`. If the second is null, both stacks have the same depth."""

    default: int

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {"encoder.n_layers": "num_layers", "n_layers": "num_decoder_layers"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        n_encoder = ours["encoder.n_layers"] = hf.get("num_layers", self.default)
        ours["n_layers"] = hf.get("num_decoder_layers", n_encoder, object)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["num_decoder_layers"] = model.n_layers
        if model.encoder is not None:
            hf["num_layers"] = model.encoder.n_layers


@dataclass(frozen=True)
class FeedForward:
    """Kind and activation of the MLP: `feed_forward_proj`, and two keys that transformers derives from it and saves.

    The two derived keys take precedence in a file that has them.
    """

    default: str

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {"mlp.kind": "feed_forward_proj", "mlp.activation": "feed_forward_proj"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the activation is unknown."""
        name = hf.get("feed_forward_proj", self.default)
        gated = name.startswith("gated-")
        activation = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
        if activation not in ACTIVATIONS:
            raise hf.refuse("feed_forward_proj", name, "gated-gelu, or an activation with or without gated- before it")
        derived = hf.get("dense_act_fn", activation)
        if derived not in ACTIVATIONS:
            raise hf.refuse("dense_act_fn", derived, ", ".join(ACTIVATIONS))
        ours["mlp.kind"] = "gated" if hf.get("is_gated_act", gated) else "plain"
        ours["mlp.activation"] = ACTIVATIONS[derived]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        activation, gated = lookup(model, "mlp.activation"), lookup(model, "mlp.kind") == "gated"
        name = next((name for name, ours in ACTIVATIONS.items() if ours == activation), None)
        if name is None:
            return
        usual = "gelu" if gated and name == "gelu_new" else name
        hf["feed_forward_proj"] = f"gated-{usual}" if gated else usual
        hf["dense_act_fn"], hf["is_gated_act"] = name, gated


@dataclass(frozen=True)
class ScaledLogits:
    """Factor d_model^-0.5 on the logits.

    The key `scale_decoder_outputs` decides whether T5 has it. Files without this key have the factor unless
    `tie_word_embeddings` is false.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        is_tied = hf.or_null("tie_word_embeddings", True) is not False
        is_scaled = hf.or_null("scale_decoder_outputs", is_tied)
        ours["head.scale"] = ours["d_model"] ** -0.5 if is_scaled else 1.0

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["scale_decoder_outputs"] = model.readout.scale != 1.0


def fields(*, d_ff: int, n_layers: int, n_heads: int, feed_forward: str) -> list[Field]:
    """Return the fields of T5 and its successors, apart from those of the position bias and the scale of the logits.
    The arguments are defaults."""
    return [
        Key("vocab_size", "vocab_size", 250112),
        Key("d_model", "d_model", 512),
        Key("d_kv", "attention.head_dim", 64),
        Key("d_ff", "mlp.d_ff", d_ff),
        Depths(n_layers),
        Key("num_heads", "attention.n_heads", n_heads),
        Key("n_positions", "max_seq_len", 512),
        Always("attention.scale", 1.0),
        Always("position.kind", "t5"),
        Key("relative_attention_num_buckets", "position.buckets", 32),
        Key("relative_attention_max_distance", "position.max_distance", 128),
        Always("norm.cast", "before_weight"),
        Key("layer_norm_epsilon", "norm.eps", 1e-6),
        FeedForward(feed_forward),
        Key("tie_word_embeddings", "head.tied", True),
    ]


def _attention(theirs: str, ours: str) -> list[Row]:
    names = {"q": "q", "k": "k", "v": "v", "o": "out"}
    return [Row(f"{theirs}.{name}.weight", f"{ours}.{own}.weight") for name, own in names.items()]


def _stack(side: str, prefix: str, n_mlp: int) -> list[Row]:
    """Return the rows of one stack, apart from the position bias and cross-attention. `n_mlp` is the index of the MLP
    within a layer of the file."""
    block, layer = f"{side}.block.{{i}}.layer", f"{prefix}layers.{{i}}"
    dense = f"{block}.{n_mlp}.DenseReluDense"
    return [
        *_attention(f"{block}.0.SelfAttention", f"{layer}.attention"),
        Row(f"{block}.0.layer_norm.weight", f"{layer}.attention_norms.before.weight"),
        Row(f"{dense}.wi.weight", f"{layer}.mlp.up.weight", when=lambda layer: layer.dense.kind == "plain"),
        Row(f"{dense}.wi_0.weight", f"{layer}.mlp.gate.weight"),
        Row(f"{dense}.wi_1.weight", f"{layer}.mlp.up.weight", when=lambda layer: layer.dense.kind == "gated"),
        Row(f"{dense}.wo.weight", f"{layer}.mlp.down.weight"),
        Row(f"{block}.{n_mlp}.layer_norm.weight", f"{layer}.mlp_norms.before.weight"),
        *linear(f"{side}.final_layer_norm", f"{prefix}norm", bias=False),
    ]


BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"

WEIGHTS = [
    Row("shared.weight", "embedding.weight"),
    *_stack("decoder", "", 2),
    *_attention("decoder.block.{i}.layer.1.EncDecAttention", "layers.{i}.cross"),
    Row("decoder.block.{i}.layer.1.layer_norm.weight", "layers.{i}.cross_norms.before.weight"),
    *_stack("encoder", "encoder.", 1),
    Row("lm_head.weight", "head.weight"),
]
"""Rows of T5 and its successors, apart from those of the position bias."""

SHARED_BIAS = [
    Row(f"decoder.block.0.{BIAS}", "position_bias.weight"),
    Row(f"encoder.block.0.{BIAS}", "encoder.position_bias.weight"),
]
"""Rows of the position bias, which all layers of one stack share."""

COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
IGNORED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
NO_EFFECT = frozenset({"dropout_rate", "initializer_factor", "classifier_dropout"})
ALIASES = {
    "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers", "head_dim": "d_kv",
}  # fmt: skip

FAMILY = Family(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    fields=[
        *fields(d_ff=2048, n_layers=6, n_heads=8, feed_forward="relu"),
        Key("vocab_size", "vocab_size", 32128),
        ScaledLogits(),
    ],
    weights=[*WEIGHTS, *SHARED_BIAS],
    ignored=IGNORED,
    has_encoder=True,
    copies=COPIES,
    tied_by_weights=True,
    no_effect=NO_EFFECT,
    aliases=ALIASES,
)
