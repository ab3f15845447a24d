"""Configs and weights of Youtu-LLM (YoutuForCausalLM in transformers): latent attention and a dense MLP."""

from archlab.families.llama import AROUND, GATED, MLP, PRE_NORMS, RMS_NORM, WIDTHS
from archlab.hf.family import Family
from archlab.hf.fields import Key
from archlab.hf.latent import LATENT, LATENT_WEIGHTS, LatentHeads, LatentRope

FAMILY = Family(
    model_type="youtu",
    architecture="YoutuForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *WIDTHS,
        *LATENT,
        LatentHeads(kv_heads=16),
        *RMS_NORM,
        *GATED,
        LatentRope(interleave_key="rope_interleave"),
        Key("tie_word_embeddings", "head.tied", True),
    ],
    weights=[*LATENT_WEIGHTS, *MLP, *PRE_NORMS, *AROUND],
    prefix="model.",
    no_effect=frozenset({"qk_head_dim", "embedding_initializer_range"}),
)
