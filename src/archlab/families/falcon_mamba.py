"""Configs and weights of Falcon-Mamba (FalconMambaForCausalLM in transformers): Mamba 1 with norms of dt, B and C."""

from archlab.families.mamba import FIELDS, NO_EFFECT, WEIGHTS
from archlab.hf.family import Family
from archlab.hf.fields import Always, Key

FAMILY = Family(
    model_type="falcon_mamba",
    architecture="FalconMambaForCausalLM",
    fields=[
        *FIELDS,
        Always("mixer.inner_norm.kind", "rmsnorm"),
        Always("mixer.inner_norm.weight", False),
        Key("mixer_rms_eps", "mixer.inner_norm.eps", 1e-6),
    ],
    weights=WEIGHTS,
    prefix="backbone.",
    no_effect=NO_EFFECT | {"use_falcon_mambapy"},
)
