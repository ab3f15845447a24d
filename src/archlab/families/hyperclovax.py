"""Configs and weights of HyperCLOVA X SEED (HyperCLOVAXForCausalLM in transformers): Granite with a second norm after
each branch.
"""

from archlab.config.core.merge import Raw
from archlab.families.granite import MULTIPLIERS
from archlab.families.llama import AROUND, ATTENTION, GATED, MLP, PRE_NORMS, RMS_NORM, SIZES, attention_biases
from archlab.hf.family import Family
from archlab.hf.fields import ConfigReader, Key
from archlab.hf.rope import RopeKeys
from archlab.hf.weight_map import linear


class ScoreScale(Key):
    """Key for the factor on attention scores. If it is absent or null, it is head_dim^-0.5."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        super().read(hf, ours)
        width = ours["attention.head_dim"] or ours["d_model"] // ours["attention.n_heads"]
        ours[self.field] = ours[self.field] or width**-0.5


FAMILY = Family(
    model_type="hyperclovax",
    architecture="HyperCLOVAXForCausalLM",
    default_max_seq_len=2048,
    fields=[
        *SIZES,
        *RMS_NORM,
        Key(
            "use_post_norm", "norm.placement", True,
            from_hf=lambda is_double: "double" if is_double else "pre", to_hf=lambda placement: placement == "double",
        ),
        *GATED,
        RopeKeys(),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        *MULTIPLIERS,
        # Unlike in Granite, the scale of scores has the usual value by default, and the key of the logits is a factor.
        ScoreScale("attention_multiplier", "attention.scale", None, from_hf=float),
        Key("logits_scaling", "head.scale", 1.0, from_hf=float),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        *MLP,
        *PRE_NORMS,
        *linear("model.layers.{i}.post_norm1", "layers.{i}.attention_norms.after"),
        *linear("model.layers.{i}.post_norm2", "layers.{i}.mlp_norms.after"),
        *AROUND,
    ],
    prefix="model.",
    no_effect=frozenset({"end_token_id"}),
)  # fmt: skip
