"""Configs and weights of XGLM (XGLMForCausalLM in transformers)."""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.hf.family import Family
from archlab.hf.fields import NO_CROSS_ATTENTION, ActivationKey, Always, ConfigReader, Key
from archlab.hf.weight_map import Row, linear

LAYER = "model.layers.{i}"

SCALED_EMBEDDING = Key(
    "scale_embedding", "embedding.scale", True, lambda on: "sqrt_d_model" if on else 1.0, lambda scale: scale != 1.0
)


def sinusoids(hf: ConfigReader, ours: Raw, offset: int) -> Raw:
    """Return the sinusoidal positions of fairseq. Raise UserError if d_model is odd or below 4.

    The features of position t are d/2 sines of t / 10000^(i / (d/2 - 1)), followed by the d/2 cosines. i goes from 0
    to d/2 - 1. archlab computes t / theta^(i / (d/2)), so theta depends on d.
    """
    half, odd = divmod(ours["d_model"], 2)
    if odd or half < 2:
        raise hf.refuse("d_model", ours["d_model"], "even numbers from 4")
    return {"kind": "sinusoidal", "layout": "halves", "offset": offset, "theta": 10000.0 ** (half / (half - 1))}


@dataclass(frozen=True)
class Sinusoids:
    """Sinusoidal positions, for which config.json has no key."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the positions. Raise UserError if the id of the padding token is above 1."""
        # transformers sets the row with this index to 0. Row 2 belongs to the first position.
        pad = hf.get("pad_token_id", 1)
        if pad > 1:
            raise hf.refuse(
                "pad_token_id", pad, "0 or 1, because a larger id zeroes the vector of position pad_token_id - 2"
            )
        ours["position"] = sinusoids(hf, ours, 2)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key to config.json. `Family.hf_config` reads the config back and refuses a model with different
        positions."""


FAMILY = Family(
    model_type="xglm",
    architecture="XGLMForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("d_model", "d_model"),
        Key("num_layers", "n_layers"),
        Key("max_position_embeddings", "max_seq_len", 2048),
        Key("ffn_dim", "mlp.d_ff"),
        Key("attention_heads", "attention.n_heads"),
        Always("norm.kind", "layernorm"),
        Always("norm.eps", 1e-5),
        Always("mlp.kind", "plain"),
        ActivationKey("activation_function", "gelu"),
        Always("mlp.bias", True),
        Always("attention.qkv_bias", True),
        Always("attention.out_bias", True),
        Sinusoids(),
        SCALED_EMBEDDING,
        NO_CROSS_ATTENTION,
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("model.embed_tokens.weight", "embedding.weight"),
        *linear(f"{LAYER}.self_attn.q_proj", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.self_attn.k_proj", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.self_attn.v_proj", "layers.{i}.attention.v"),
        *linear(f"{LAYER}.self_attn.out_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.fc1", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.fc2", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.self_attn_layer_norm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.final_layer_norm", "layers.{i}.mlp_norms.before"),
        *linear("model.layer_norm", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    ignored=("embed_positions.weights",),
    prefix="model.",
    aliases={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads"},
)
