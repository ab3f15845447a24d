"""Configs and weights of MiniCPM 3 (MiniCPM3ForCausalLM in transformers): latent attention, a dense MLP and the
multipliers of MiniCPM.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from archlab.config.core.merge import Raw
from archlab.config.layers import resolve
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import AROUND, GATED, MLP, PRE_NORMS, WIDTHS, rms_norm
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.latent import LATENT, LATENT_WEIGHTS, LatentHeads, LatentRope


class ValueWidth(Key):
    """Key for the width of a value. If it is absent or null, it is `hidden_size` divided by the number of heads."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        super().read(hf, ours)
        ours[self.field] = ours[self.field] or ours["d_model"] // ours["attention.n_heads"]


class EmbeddingScale(Key):
    """Key for the factor on the embedding. As in Gemma's code, it is rounded to the dtype of the weights."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        scale = float(hf.get(self.hf_key, self.default))
        ours |= {self.field: scale, "embedding.round_scale": scale != 1}


@dataclass(frozen=True)
class Multipliers:
    """The keys `scale_depth` and `dim_model_base`.

    The output of each branch is multiplied by scale_depth / sqrt(number of layers), and the logits by dim_model_base /
    hidden_size. If a key is null, its factor is 1.
    """

    hf_keys: ClassVar = {
        "block.attention_multiplier": "scale_depth", "block.mlp_multiplier": "scale_depth",
        "head.scale": "dim_model_base",
    }  # fmt: skip

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        depth, base = hf.or_null("scale_depth", 1.4), hf.or_null("dim_model_base", 256)
        of_branches = 1.0 if depth is None else depth / math.sqrt(ours["n_layers"])
        ours["block.attention_multiplier"] = ours["block.mlp_multiplier"] = of_branches
        ours["head.scale"] = 1.0 if base is None else base / ours["d_model"]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write null for factors of 1. `Family.hf_config` reads the keys back and refuses a model that they cannot
        express."""
        of_branches, of_logits = model.block.attention_multiplier, resolve(model).head.scale
        root = math.sqrt(model.n_layers)
        # Of the numbers that give exactly the same factor, prefer one with at most 15 significant digits.
        near = of_branches * root
        candidates = (float(f"{near:.15g}"), near, math.nextafter(near, 0), math.nextafter(near, math.inf))
        exact = next((number for number in candidates if number / root == of_branches), near)
        hf["scale_depth"] = None if of_branches == 1 else exact
        hf["dim_model_base"] = None if of_logits == 1 else max(1, round(of_logits * model.d_model))


FAMILY = Family(
    model_type="minicpm3",
    architecture="MiniCPM3ForCausalLM",
    default_max_seq_len=32768,
    fields=[
        *WIDTHS,
        *LATENT,
        Key("q_lora_rank", "attention.q_rank", 768, nullable=True),
        Key("kv_lora_rank", "attention.kv_rank", 256),
        Key("qk_nope_head_dim", "attention.nope_dim", 64),
        Key("qk_rope_head_dim", "attention.rope_dim", 32),
        ValueWidth("v_head_dim", "attention.v_dim", None),
        LatentHeads(kv_heads=40),
        *rms_norm(1e-5),
        *GATED,
        Key("mlp_bias", "mlp.bias", False),
        LatentRope(pairing="half"),
        EmbeddingScale("scale_emb", "embedding.scale", 12.0),
        Multipliers(),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[*LATENT_WEIGHTS, *MLP, *PRE_NORMS, *AROUND],
    prefix="model.",
    no_effect=frozenset({"qk_head_dim"}),
)
