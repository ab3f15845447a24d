"""Configs and weights of Helium (HeliumForCausalLM in transformers)."""

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import GATED, SIZES, WEIGHTS
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.rope import RopeKeys


class HeadsFillTheWidth:
    """Check that num_attention_heads * head_dim equals `hidden_size`. The output projection of the published code
    requires this."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        width, heads, head_dim = ours["d_model"], ours["attention.n_heads"], ours["attention.head_dim"]
        if heads * head_dim != width:
            raise hf.refuse("head_dim", head_dim, f"hidden_size / num_attention_heads ({width} / {heads})")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write no key to config.json. `Family.hf_config` reads the written config back, and that runs the check."""


FAMILY = Family(
    model_type="helium",
    architecture="HeliumForCausalLM",
    default_max_seq_len=4096,
    fields=[
        *SIZES,
        Key("num_key_value_heads", "attention.n_kv_heads", 20),
        Key("head_dim", "attention.head_dim", 128),
        HeadsFillTheWidth(),
        Always("norm.kind", "rmsnorm"),
        Key("rms_norm_eps", "norm.eps", 1e-8),
        *GATED,
        RopeKeys(theta=1e5, pairing="interleaved"),
        Key("attention_bias", "attention.qkv_bias", False),
        Always("attention.out_bias", False),
        Key("mlp_bias", "mlp.bias", False),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=WEIGHTS,
    prefix="model.",
)
