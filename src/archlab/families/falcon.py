"""Configs and weights of Falcon (FalconForCausalLM in transformers): 7B, 40B, 11B and RW."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.families.gpt2 import LAYER, LAYER_NORM, PlainMLP
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Key, Only
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import QKV, QKV_PER_HEAD, Row, linear


@dataclass(frozen=True)
class Generation:
    """Keys for parallel branches, their norms, and the number of key/value heads. Falcon has two generations of models.

    In the older generation, parallel branches share one norm, and there is one key/value head in total or one per query
    head. In the newer one (`new_decoder_architecture`), parallel branches have one or two norms, and the number of
    key/value heads is arbitrary.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        newer, parallel = hf.get("new_decoder_architecture", False), hf.or_null("parallel_attn", True)
        norms, single = hf.get("num_ln_in_parallel_attn", kind=int), hf.or_null("multi_query", True)
        heads = ours["attention.n_heads"]
        kv_heads = hf.get("num_kv_heads", heads)
        if newer and not parallel:
            raise hf.refuse("parallel_attn", parallel, "true with new_decoder_architecture")
        if parallel and norms not in ((None, 1, 2) if newer else (None, 1)):
            raise hf.refuse("num_ln_in_parallel_attn", norms, "1, and 2 with new_decoder_architecture")
        if not newer and not single and kv_heads != heads:
            raise hf.refuse("num_kv_heads", kv_heads, f"{heads} without new_decoder_architecture and multi_query")
        together = "separate" if newer and norms != 1 else "shared"
        ours["block.parallel"] = together if parallel else "none"
        ours["attention.n_kv_heads"] = 1 if single and not newer else kv_heads

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the keys of the older generation if they can express the model, otherwise those of the newer
        generation."""
        parallel, kv_heads = model.block.parallel, model.multi_head.n_kv_heads
        newer = parallel == "separate" or kv_heads not in (1, model.multi_head.n_heads)
        hf |= {
            "new_decoder_architecture": newer, "parallel_attn": parallel != "none", "multi_query": kv_heads == 1,
            "num_ln_in_parallel_attn": 2 if parallel == "separate" else 1, "num_kv_heads": kv_heads,
        }  # fmt: skip


@dataclass(frozen=True)
class AlibiOrRope:
    """ALiBi if the key `alibi` is true, otherwise RoPE. If `alibi` is true, the RoPE keys are ignored."""

    rope = RopeKeys()

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return self.rope.hf_keys

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        self.rope.read(hf, ours)
        if hf.get("alibi", False):
            ours["position"] = {"kind": "alibi", "form": "falcon"}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        hf["alibi"] = model.position.kind == "alibi"
        self.rope.write(model, hf)


def branches(*parallel: str) -> Callable[[LayerConfig], bool]:
    """Return a function that returns whether a layer's `block.parallel` is one of the values in `parallel`."""
    return lambda layer: layer.block.parallel in parallel


FAMILY = Family(
    model_type="falcon",
    architecture="FalconForCausalLM",
    default_max_seq_len=2048,
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("max_position_embeddings", "max_seq_len"),
        Key("num_attention_heads", "attention.n_heads"),
        Generation(),
        AlibiOrRope(),
        PlainMLP("ffn_hidden_size"),
        ActivationKey("activation", "gelu"),
        Key("bias", "attention.qkv_bias", False),
        Key("bias", "attention.out_bias", False),
        Key("bias", "mlp.bias", False),
        *LAYER_NORM,
        Always("norm.placement", "pre"),
        Key("tie_word_embeddings", "head.tied", True),
        Only("apply_residual_connection_post_layernorm", False, written=False),
        Only("ff_factor", 4, written=False),
    ],
    weights=[
        Row("transformer.word_embeddings.weight", "embedding.weight"),
        *linear(f"{LAYER}.self_attention.query_key_value", QKV, QKV_PER_HEAD),
        *linear(f"{LAYER}.self_attention.dense", "layers.{i}.attention.out"),
        *linear(f"{LAYER}.mlp.dense_h_to_4h", "layers.{i}.mlp.up"),
        *linear(f"{LAYER}.mlp.dense_4h_to_h", "layers.{i}.mlp.down"),
        *linear(f"{LAYER}.ln_attn", "layers.{i}.attention_norms.before", when=branches("separate")),
        *linear(f"{LAYER}.ln_mlp", "layers.{i}.mlp_norms.before", when=branches("separate")),
        *linear(f"{LAYER}.input_layernorm", "layers.{i}.attention_norms.before", when=branches("none", "shared")),
        *linear(f"{LAYER}.post_attention_layernorm", "layers.{i}.mlp_norms.before", when=branches("none")),
        *linear("transformer.ln_f", "norm"),
        Row("lm_head.weight", "head.weight"),
    ],
    prefix="transformer.",
    aliases={"n_embed": "hidden_size"},
)
