"""Configs and weights of Mamba (MambaForCausalLM in transformers)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from archlab.config.components.mamba import Mamba
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Field, Key, silu_of_mixer
from archlab.hf.weight_map import Row, linear, stacked


@dataclass(frozen=True)
class Channels:
    """The keys `expand` and `intermediate_size`: the number of channels divided by d_model, and the number itself.

    If a file has both, the published code reads `intermediate_size` only.
    """

    hf_keys: ClassVar = {"mixer.inner_width": "intermediate_size"}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        implied = hf.get("expand", 2) * ours["d_model"]
        ours["mixer.inner_width"] = hf.get("intermediate_size", implied)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.mixer, Mamba):
            hf["expand"], hf["intermediate_size"] = model.mixer.inner_width // model.d_model, model.mixer.inner_width


@dataclass(frozen=True)
class StepRank:
    """The key for the rank of the projection to dt. "auto": d_model / 16, rounded up."""

    hf_key: str = "time_step_rank"

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {"mixer.dt_rank": self.hf_key}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        rank = hf.get(self.hf_key, "auto", kind=object)
        is_auto = rank == "auto"
        ours["mixer.dt_rank"] = math.ceil(hf.need("hidden_size") / 16) if is_auto else hf.get(self.hf_key, kind=int)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.mixer, Mamba):
            hf[self.hf_key] = model.mixer.dt_rank


def _rows(layer: LayerConfig) -> Sequence[int]:
    mixer = layer.mixer
    assert isinstance(mixer, Mamba)
    return [mixer.dt_rank, mixer.d_state, mixer.d_state]


def _halves(layer: LayerConfig) -> Sequence[int]:
    mixer = layer.mixer
    assert isinstance(mixer, Mamba)
    return [mixer.inner_width, mixer.inner_width]


OURS = "layers.{i}.mixer"

MIXED = stacked(_rows)
"""Conversion for a published tensor that has the rows of dt, then those of B, then those of C."""


def mamba_weights(theirs: str) -> list[Row]:
    """Return the weight map of the mixer. `theirs` is the prefix of its tensor names in published files."""
    return [
        *linear(f"{theirs}.in_proj", (f"{OURS}.x", f"{OURS}.gate"), stacked(_halves)),
        *linear(f"{theirs}.conv1d", f"{OURS}.conv"),
        *linear(f"{theirs}.x_proj", tuple(f"{OURS}.{name}" for name in ("dt_low", "B", "C")), MIXED),
        Row(f"{theirs}.dt_proj.weight", f"{OURS}.dt.weight"),
        Row(f"{theirs}.dt_proj.bias", f"{OURS}.dt_bias"),
        *(Row(f"{theirs}.{name}", f"{OURS}.{name}") for name in ("A_log", "D")),
        *linear(f"{theirs}.out_proj", f"{OURS}.out"),
    ]


FIELDS: Sequence[Field] = (
    Key("vocab_size", "vocab_size", 50280),
    Key("hidden_size", "d_model", 768),
    Key("num_hidden_layers", "n_layers", 32),
    Key("max_position_embeddings", "max_seq_len", 2048),  # published files do not contain this key
    Always("attention.kind", "none"),
    Always("position.kind", "none"),
    Always("mlp.kind", "none"),
    Always("mixer.kind", "mamba"),
    Key("state_size", "mixer.d_state", 16),
    Key("conv_kernel", "mixer.taps", 4),
    Key("use_conv_bias", "mixer.conv_bias", True),
    Key("use_bias", "mixer.in_bias", False),
    Key("use_bias", "mixer.out_bias", False),
    silu_of_mixer("hidden_act"),
    Always("norm.kind", "rmsnorm"),
    Always("norm.cast", "before_weight"),
    Key("layer_norm_epsilon", "norm.eps", 1e-5),
    Channels(),
    StepRank(),
    Key("tie_word_embeddings", "head.tied", True),
)

AROUND = [
    Row("backbone.embeddings.weight", "embedding.weight"),
    *linear("backbone.layers.{i}.norm", "layers.{i}.mixer_norms.before"),
    *linear("backbone.norm_f", "norm"),
    Row("lm_head.weight", "head.weight"),
]
"""Weight map of everything around the mixers, in models with nothing but mixers."""

FIRST_NAMES = [Row("backbone.embedding.weight", "embedding.weight")]
"""Names of tensors in files of the first code."""

WEIGHTS = [*AROUND, *mamba_weights("backbone.layers.{i}.mixer")]

NO_EFFECT = frozenset({
    # keys for the initialization of parameters
    "time_step_min", "time_step_max", "time_step_floor", "time_step_init_scheme", "time_step_scale",
    "rescale_prenorm_residual",
    # keys that affect rounding only
    "residual_in_fp32", "use_mambapy", "use_associative_scan",
})  # fmt: skip

FAMILY = Family(
    model_type="mamba",
    architecture="MambaForCausalLM",
    fields=FIELDS,
    weights=WEIGHTS,
    alternatives=FIRST_NAMES,
    prefix="backbone.",
    no_effect=NO_EFFECT | {
        # keys of the first code, which the published code does not read
        "d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm", "pad_vocab_size_multiple",
    },
)  # fmt: skip
