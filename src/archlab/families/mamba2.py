"""Configs and weights of Mamba 2 (Mamba2ForCausalLM in transformers)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archlab.config.components.mamba2 import Mamba2
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.families.mamba import AROUND, FIRST_NAMES
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Field, Key, silu_of_mixer
from archlab.hf.weight_map import Row, linear, stacked


@dataclass(frozen=True)
class Expand:
    """The key `expand`: the total width of all heads divided by d_model."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if expand * d_model differs from the number of heads times their width."""
        heads, width, d_model = ours["mixer.n_heads"], ours["mixer.head_dim"], ours["d_model"]
        if (expand := hf.get("expand", 2)) * d_model != heads * width:
            raise hf.refuse("expand", expand, f"{heads * width / d_model}, which follows from num_heads and head_dim")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.mixer, Mamba2):
            expand = model.mixer.inner_width / model.d_model
            hf["expand"] = int(expand) if expand.is_integer() else expand


@dataclass(frozen=True)
class StepLimit:
    """The key `time_step_limit`: the minimum and the maximum of the time step dt. A maximum of infinity means no
    maximum.

    The file contains infinity as a JSON number or as {"__float__": "Infinity"}, which transformers 5 writes.
    """

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        minimum, maximum = (_number(limit) for limit in hf.get("time_step_limit", [0.0, math.inf]))
        ours["mixer.dt_min"], ours["mixer.dt_max"] = minimum, None if maximum == math.inf else maximum

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.mixer, Mamba2):
            maximum = model.mixer.dt_max
            hf["time_step_limit"] = [model.mixer.dt_min, {"__float__": "Infinity"} if maximum is None else maximum]


def _number(limit: Any) -> float:
    return float(limit["__float__"] if isinstance(limit, dict) else limit)


def _rows(layer: LayerConfig) -> Sequence[int]:
    mixer = layer.mixer
    assert isinstance(mixer, Mamba2)
    group_width = mixer.n_groups * mixer.d_state
    return [mixer.inner_width, mixer.inner_width, group_width, group_width, mixer.n_heads]


IN = tuple(f"layers.{{i}}.mixer.{name}" for name in ("gate", "x", "B", "C", "dt"))
IN_PARTS = stacked(_rows)
"""Conversion for a published tensor that has the rows of the parameters in IN, one after the other."""


def mamba2_weights(theirs: str) -> list[Row]:
    """Return the weight map of the mixer. `theirs` is the prefix of its tensor names in published files."""
    return [
        *linear(f"{theirs}.in_proj", IN, IN_PARTS),
        *linear(f"{theirs}.conv1d", "layers.{i}.mixer.conv"),
        *(Row(f"{theirs}.{name}", f"layers.{{i}}.mixer.{name}") for name in ("A_log", "D", "dt_bias")),
        *linear(f"{theirs}.norm", "layers.{i}.mixer.norm"),
        *linear(f"{theirs}.out_proj", "layers.{i}.mixer.out"),
    ]


NORM: Sequence[Field] = (
    Always("norm.kind", "rmsnorm"),
    Always("norm.cast", "before_weight"),
    Key("layer_norm_epsilon", "norm.eps", 1e-5),
    Key("layer_norm_epsilon", "mixer.norm.eps", 1e-5),
)

FAMILY = Family(
    model_type="mamba2",
    architecture="Mamba2ForCausalLM",
    fields=[
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("max_position_embeddings", "max_seq_len", 2048),  # published files do not contain this key
        Always("attention.kind", "none"),
        Always("position.kind", "none"),
        Always("mlp.kind", "none"),
        Always("mixer.kind", "mamba2"),
        Key("num_heads", "mixer.n_heads", 128),
        Key("head_dim", "mixer.head_dim", 64),
        Key("state_size", "mixer.d_state", 128),
        Key("n_groups", "mixer.n_groups", 8),
        Key("conv_kernel", "mixer.taps", 4),
        Key("use_conv_bias", "mixer.conv_bias", True),
        Key("use_bias", "mixer.in_bias", False),
        Key("use_bias", "mixer.out_bias", False),
        silu_of_mixer("hidden_act"),
        *NORM,
        Expand(),
        StepLimit(),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[*AROUND, *mamba2_weights("backbone.layers.{i}.mixer")],
    alternatives=FIRST_NAMES,
    prefix="backbone.",
    no_effect=frozenset({
        # keys for the initialization of parameters
        "time_step_min", "time_step_max", "time_step_floor", "time_step_rank", "time_step_init_scheme",
        "time_step_scale", "rescale_prenorm_residual",
        # keys that affect rounding only
        "chunk_size", "residual_in_fp32",
        # keys that the published code does not read
        "norm_before_gate", "rms_norm", "intermediate_size",
    }),
)  # fmt: skip
