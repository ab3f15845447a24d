"""Configs and weights of Falcon-H1 (FalconH1ForCausalLM in transformers): Mamba 2 beside attention in every layer.

archlab has fields for the multipliers of the embedding, of the logits and of the branches' outputs. Loading multiplies
weights by the other multipliers. If the weights are stored in 16 bits, their products are rounded to 16 bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archlab.config.components.mamba2 import Mamba2
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.families.bamba import AROUND_MIXER, LAYER, MIXER_SIZES
from archlab.families.llama import SIZES, attention_biases, kv_heads, rms_norm
from archlab.families.mamba2 import IN, mamba2_weights
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key, Only, Switch, silu_of_mixer
from archlab.hf.rope import RopeKeys


@dataclass(frozen=True)
class HeadWidth:
    """The keys `mamba_d_ssm`, the total width of all heads, and `mamba_d_head`, the width of one head or "auto".

    If `mamba_d_ssm` is null, the total width is `mamba_expand` times d_model.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if the keys contradict each other. The number of heads must already have been read."""
        total, expand = hf.or_null("mamba_d_ssm", 1024), hf.get("mamba_expand", 2)
        key, value = ("mamba_expand", expand) if total is None else ("mamba_d_ssm", total)
        total, heads = int(expand * hf.need("hidden_size")) if total is None else total, ours["mixer.n_heads"]
        width = hf.get("mamba_d_head", "auto", kind=object)
        width = total // heads if width == "auto" else hf.get("mamba_d_head", kind=int)
        if width * heads != total:
            raise hf.refuse(key, value, f"a total width of {heads} heads of one width (mamba_d_head)")
        ours["mixer.head_dim"] = width

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.mixer, Mamba2):
            hf |= {"mamba_d_ssm": model.mixer.inner_width, "mamba_d_head": model.mixer.head_dim}


def multipliers(hf: ConfigReader, key: str, n: int) -> Sequence[float]:
    """Return the `n` multipliers in a list. null means that all of them are 1."""
    values = hf.get(key, [1.0] * n)
    if len(values) != n or not all(isinstance(value, int | float) for value in values):
        raise hf.refuse(key, values, f"a list of {n} numbers")
    return [float(value) for value in values]


def factors(hf: ConfigReader) -> Mapping[str, float]:
    """Return the factors of weights and biases. A multiplier of the input of a projection does not affect its bias."""
    attention, key, mixer = (float(hf.get(f"{name}_multiplier", 1.0)) for name in ("attention_in", "key", "ssm_in"))
    projections = {f"layers.{{i}}.attention.{name}": (attention, 1.0) for name in "qv"}
    projections["layers.{i}.attention.k"] = attention, key
    projections["layers.{i}.mlp.gate"] = 1.0, multipliers(hf, "mlp_multipliers", 2)[0]
    of_parts = multipliers(hf, "ssm_multipliers", len(IN))
    projections |= {name: (mixer, factor) for name, factor in zip(IN, of_parts, strict=True)}
    weights = {f"{name}.weight": before * after for name, (before, after) in projections.items()}
    return weights | {f"{name}.bias": after for name, (_, after) in projections.items()}


class OtherMultipliers:
    """The keys of the multipliers that go into weights, and the multiplier of the MLP's output, which has a field."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        factors(hf)
        ours["block.mlp_multiplier"] = multipliers(hf, "mlp_multipliers", 2)[1]

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the multiplier of the MLP's output. The others are 1 by default."""
        hf["mlp_multipliers"] = [1.0, model.block.mlp_multiplier]


FAMILY = Family(
    model_type="falcon_h1",
    architecture="FalconH1ForCausalLM",
    default_max_seq_len=8192,
    fields=[
        *SIZES,
        kv_heads(8),
        *rms_norm(1e-5),
        Always("mlp.kind", "gated"),
        silu_of_mixer("hidden_act"),
        RopeKeys(),
        *attention_biases(),
        Key("mlp_bias", "mlp.bias", False),
        Only("mamba_use_mlp", True, written=False),
        *MIXER_SIZES,
        HeadWidth(),
        Key("projectors_bias", "mixer.out_bias", False),
        Switch("mamba_rms_norm", "mixer.norm.kind", False, "rmsnorm", (
            Key("rms_norm_eps", "mixer.norm.eps", 1e-5),
            Key(
                "mamba_norm_before_gate", "mixer.norm.gate", True,
                lambda is_before: "after" if is_before else "before", lambda gate: gate == "after",
            ),
        )),
        Key("embedding_multiplier", "embedding.scale", 1.0, from_hf=float),
        Key("lm_head_multiplier", "head.scale", 1.0, from_hf=float),
        Key("attention_out_multiplier", "block.attention_multiplier", 1.0, from_hf=float),
        Key("ssm_out_multiplier", "block.mixer_multiplier", 1.0, from_hf=float),
        OtherMultipliers(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[*AROUND_MIXER, *mamba2_weights(f"{LAYER}.mamba")],
    factors=factors,
    prefix="model.",
    no_effect=frozenset({
        # keys that affect rounding or generation only
        "mamba_chunk_size", "num_logits_to_keep",
        # keys that the published code does not read, the first only if mamba_rms_norm is false
        "mamba_norm_before_gate", "mlp_expansion_factor",
    }),
)  # fmt: skip
