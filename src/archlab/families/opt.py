"""Configs and weights of OPT and Galactica (OPTForCausalLM in transformers)."""

from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Key, Only
from archlab.hf.weight_map import Row, linear

LAYER = "model.decoder.layers.{i}"


@dataclass(frozen=True)
class NarrowEmbedding:
    """The key `word_embed_proj_dim`. If its value equals d_model, the embedding has no projections."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        width = hf.get("word_embed_proj_dim")
        ours["embedding.width"] = None if width == ours["d_model"] else width

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["word_embed_proj_dim"] = model.embedding.width or model.d_model


FAMILY = Family(
    model_type="opt",
    architecture="OPTForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        NarrowEmbedding(),
        Key("num_hidden_layers", "n_layers"),
        Key("max_position_embeddings", "max_seq_len", 2048),
        Always("position.kind", "learned"),
        Always("position.offset", 2),
        Key("num_attention_heads", "attention.n_heads"),
        Key("enable_bias", "attention.qkv_bias", True),
        Key("enable_bias", "attention.out_bias", True),
        Key("enable_bias", "mlp.bias", True),
        Key("ffn_dim", "mlp.d_ff", 3072),
        Always("mlp.kind", "plain"),
        ActivationKey("activation_function", "relu"),
        Always("norm.kind", "layernorm"),
        Always("norm.eps", 1e-5),
        Key("layer_norm_elementwise_affine", "norm.weight", True),
        Key("layer_norm_elementwise_affine", "norm.bias", True),
        Key(
            "do_layer_norm_before", "norm.placement", True,
            lambda before: "pre" if before else "post", lambda ours: ours == "pre",
        ),
        Only("_remove_final_layer_norm", False, "false, because archlab always has the norm before the head"),
        Only("learned_embeddings", True, written=False),
        Only("scale_embeddings", False, written=False),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[
        Row("model.decoder.embed_tokens.weight", "embedding.weight"),
        Row("model.decoder.project_in.weight", "embedding.widen.weight"),
        Row("model.decoder.embed_positions.weight", "positions.weight"),
        *linear(f"{LAYER}.self_attn.q_proj", "layers.{i}.attention.q"),
        *linear(f"{LAYER}.self_attn.k_proj", "layers.{i}.attention.k"),
        *linear(f"{LAYER}.self_attn.v_proj", "layers.{i}.attention.v"),
        *linear(f"{LAYER}.self_attn.out_proj", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.fc1", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.fc2", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.self_attn_layer_norm", "layers.{i}.attention_norms.before"),
        *linear(f"{LAYER}.final_layer_norm", "layers.{i}.mlp_norms.before"),
        *linear(f"{LAYER}.self_attn_layer_norm", "layers.{i}.attention_norms.stream"),
        *linear(f"{LAYER}.final_layer_norm", "layers.{i}.mlp_norms.stream"),
        *linear("model.decoder.final_layer_norm", "norm"),
        Row("model.decoder.project_out.weight", "head.narrow.weight"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="model.",
)  # fmt: skip
