"""Configs and weights of GPT-J (GPTJForCausalLM in transformers)."""

import math
from dataclasses import dataclass

from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.gpt2 import ALIASES, IGNORED, LAYER, LAYER_NORM, SIZES, PlainMLP
from archlab.hf.family import Family
from archlab.hf.fields import ActivationKey, Always, ConfigReader, Key, Only
from archlab.hf.weight_map import Row, linear


@dataclass(frozen=True)
class RotaryDim:
    """RoPE on the first `rotary_dim` dimensions of each head. It rotates pairs of adjacent dimensions."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set `position.fraction` to `rotary_dim` / head_dim. If rounding makes int(head_dim * fraction) too small, use
        the next larger float."""
        head_dim = ours["d_model"] // ours["attention.n_heads"]
        rotary_dim = hf.get("rotary_dim", 64)
        if rotary_dim > head_dim:
            raise hf.refuse("rotary_dim", rotary_dim, f"up to the width of a head ({head_dim})")
        fraction = rotary_dim / head_dim
        if int(head_dim * fraction) < rotary_dim:
            fraction = math.nextafter(fraction, 1.0)
        ours["position"] = {"kind": "rope", "theta": 10000.0, "pairing": "interleaved", "fraction": fraction}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.position, Rope):
            hf["rotary_dim"] = int((model.multi_head.head_dim or 0) * model.position.fraction)


FIELDS = [
    *SIZES,
    RotaryDim(),
    PlainMLP("n_inner"),
    Always("mlp.bias", True),
    ActivationKey("activation_function", "gelu_new"),
    *LAYER_NORM,
    Always("block.parallel", "shared"),
    Always("head.bias", True),
    Key("tie_word_embeddings", "head.tied", False),
    Only("scale_attn_weights", True, written=False),
]

AROUND_ATTENTION = [
    Row("transformer.wte.weight", "embedding.weight"),
    *linear(f"{LAYER}.attn.out_proj", "layers.{i}.attention.out", bias=False),
    *linear(f"{LAYER}.mlp.fc_in", "layers.{i}.mlp.up"),
    *linear(f"{LAYER}.mlp.fc_out", "layers.{i}.mlp.down"),
    *linear(f"{LAYER}.ln_1", "layers.{i}.attention_norms.before"),
    *linear("transformer.ln_f", "norm"),
    *linear("lm_head", "head"),
]

FAMILY = Family(
    model_type="gptj",
    architecture="GPTJForCausalLM",
    default_max_seq_len=2048,
    fields=[*FIELDS, Only("rotary", True, written=False)],
    weights=[
        *linear(f"{LAYER}.attn.q_proj", "layers.{i}.attention.q", bias=False),
        *linear(f"{LAYER}.attn.k_proj", "layers.{i}.attention.k", bias=False),
        *linear(f"{LAYER}.attn.v_proj", "layers.{i}.attention.v", bias=False),
        *AROUND_ATTENTION,
    ],
    ignored=IGNORED,
    prefix="transformer.",
    no_effect=frozenset({"n_ctx"}),
    aliases=ALIASES,
)
