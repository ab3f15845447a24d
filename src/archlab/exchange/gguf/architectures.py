"""The llama.cpp architectures that archlab can write, by model family.

An architecture maps archlab's parameters to tensors of a GGUF file. It also lists settings that llama.cpp fixes
although the published code lets the user choose them. All architectures use the same tensor names. They differ in which
projections are fused, in the order of rotated rows, and in the meaning of a norm's weight. Rows for tensors that a
model does not have are skipped.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from archlab.config.components.visibility import is_plain_causal
from archlab.config.core.text import exact
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.layers import PER_LAYER, LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.hf.fields import ABSENT, lookup
from archlab.hf.weight_map import COPY, HALVES, QKV, QKV_BLOCKS, Conversion, Row, linear

# --- tensors ----------------------------------------------------------------------------------------------------------

LAYER = "blk.{i}"

AROUND = [
    Row("token_embd.weight", "embedding.weight"),
    *linear("token_embd_norm", "embedding.norm"),
    Row("position_embd.weight", "positions.weight"),
    Row("output.weight", "head.weight"),
]


def _interleaved(rows: Tensor, layer: LayerConfig | None, parts: int) -> Tensor:
    assert layer is not None, "the width of a head is needed"
    return rows.unflatten(0, (-1, parts, layer.multi_head.head_dim // parts)).transpose(1, 2).flatten(0, 2)


ADJACENT_PAIRS = Conversion(
    lambda theirs, layer: [_interleaved(theirs, layer, layer.multi_head.head_dim // 2 if layer else 0)],
    lambda ours, layer: _interleaved(ours[0], layer, 2),
)
"""Conversion for RoPE. The file pairs dimensions 2i and 2i + 1; archlab pairs dimensions i and i + head_dim / 2."""

ONE_MORE = Conversion(lambda theirs, _: [theirs - 1], lambda ours, _: ours[0].float() + 1)
"""Conversion for norms with `unit_offset`. The file stores the factor; archlab stores the factor minus 1."""


def separate(rotated: Conversion = COPY) -> list[Row]:
    """Return the weight mapping for separate query, key and value projections, and for the output projection.

    `rotated` is the conversion of the query and key rows, which RoPE rotates.
    """
    return [
        *linear(f"{LAYER}.attn_q", "layers.{i}.attention.q", rotated),
        *linear(f"{LAYER}.attn_k", "layers.{i}.attention.k", rotated),
        *linear(f"{LAYER}.attn_v", "layers.{i}.attention.v"),
        *OUT,
    ]


OUT = linear(f"{LAYER}.attn_output", "layers.{i}.attention.out")

FUSED = [*linear(f"{LAYER}.attn_qkv", QKV, QKV_BLOCKS), *OUT]

MLP = [
    *linear(f"{LAYER}.ffn_gate", "layers.{i}.mlp.gate"),
    *linear(f"{LAYER}.ffn_up", "layers.{i}.mlp.up"),
    *linear(f"{LAYER}.ffn_down", "layers.{i}.mlp.down"),
]

FUSED_MLP = [
    *linear(f"{LAYER}.ffn_up", ("layers.{i}.mlp.gate", "layers.{i}.mlp.up"), HALVES),
    *linear(f"{LAYER}.ffn_down", "layers.{i}.mlp.down"),
]


def norms(conversion: Conversion = COPY) -> list[Row]:
    """Return the weight mapping for all norms except the embedding norm.

    Norms before and after a branch have different names in the file.
    """
    return [
        *linear(f"{LAYER}.attn_norm", "layers.{i}.attention_norms.before", conversion),
        *linear(f"{LAYER}.ffn_norm", "layers.{i}.mlp_norms.before", conversion),
        *linear(f"{LAYER}.post_attention_norm", "layers.{i}.attention_norms.after", conversion),
        *linear(f"{LAYER}.post_ffw_norm", "layers.{i}.mlp_norms.after", conversion),
        *linear(f"{LAYER}.attn_q_norm", "layers.{i}.attention.q_norm.norm", conversion),
        *linear(f"{LAYER}.attn_k_norm", "layers.{i}.attention.k_norm.norm", conversion),
        *linear("output_norm", "norm", conversion),
    ]


def _parallel(kind: str) -> Callable[[LayerConfig], bool]:
    return lambda layer: layer.block.parallel == kind


FALCON_NORMS = [
    *linear(f"{LAYER}.attn_norm", "layers.{i}.attention_norms.before", when=_parallel("shared")),
    *linear(f"{LAYER}.attn_norm", "layers.{i}.mlp_norms.before", when=_parallel("separate")),
    *linear(f"{LAYER}.attn_norm_2", "layers.{i}.attention_norms.before", when=_parallel("separate")),
    *linear("output_norm", "norm"),
]
"""Weight mapping for Falcon's norms.

In a layer with two norms, `attn_norm` precedes the MLP and `attn_norm_2` precedes attention.
"""


# --- limits -----------------------------------------------------------------------------------------------------------

Limit = Callable[[ModelConfig], Iterator[str]]
"""Check of a model config: a function that yields one line per problem, with the value found and the allowed values."""


def only(field: str, *allowed: Any) -> Limit:
    """Return a check that a dotted field has one of the allowed values in every layer that has the field."""

    def check(model: ModelConfig) -> Iterator[str]:
        holders = layer_configs(model) if field.partition(".")[0] in PER_LAYER else (model,)
        for value in dict.fromkeys(lookup(holder, field) for holder in holders):
            if value is not ABSENT and value not in allowed:
                yield f"model.{field} is {to_yaml_line(value)}; allowed: {', '.join(map(to_yaml_line, allowed))}"

    return check


SILU = only("mlp.activation", "silu")
GELU = only("mlp.activation", "gelu_tanh", "gelu")
"""Check that the activation is GELU, in its tanh form or its exact form.

llama.cpp computes both from a float16 table of the tanh form. The error is about the same for both.
"""
UNCAPPED = only("head.softcap", None)
TIED = only("head.tied", True)
NO_OUT_BIAS = only("attention.out_bias", False)


def all_biases(model: ModelConfig) -> Iterator[str]:
    for field in ("attention.qkv_bias", "attention.out_bias", "mlp.bias"):
        yield from only(field, True)(model)


def scalings(*kinds: str) -> Limit:
    """Return a check that RoPE has no scaling, or scaling of one of these kinds.

    The check also rejects YaRN parameters that differ from the values fixed in llama.cpp.
    """
    parts = (
        only("position.scaling.kind", "none", *kinds),
        only("position.scaling.truncate", True),
        only("position.scaling.beta_fast", 32.0),
        only("position.scaling.beta_slow", 1.0),
    )
    return lambda model: (line for part in parts for line in part(model))


def square(model: ModelConfig) -> Iterator[str]:
    heads = model.multi_head.resolve(model.d_model)
    width = heads.n_heads * heads.head_dim
    if width != model.d_model:
        yield f"model.attention: n_heads * head_dim is {width}; allowed: d_model ({model.d_model})"


def no_window(model: ModelConfig) -> Iterator[str]:
    for layer in layer_configs(model):
        if not is_plain_causal(layer.multi_head, model.max_seq_len):
            allowed = f"null, or at least max_seq_len ({model.max_seq_len})"
            yield f"model.attention.window is {layer.multi_head.window}; allowed: {allowed}"


def scale(special_depth: int | None = None) -> Limit:
    """Return a check that attention scores are divided by sqrt(head_dim).

    In a model with exactly `special_depth` layers (Gemma 27B), they must be divided by sqrt(d_model / n_heads) instead.
    """

    def divisor(layer: LayerConfig, model: ModelConfig) -> int:
        heads = layer.multi_head
        return model.d_model // heads.n_heads if model.n_layers == special_depth else heads.head_dim

    def check(model: ModelConfig) -> Iterator[str]:
        for layer in layer_configs(model):
            allowed = 1 / math.sqrt(divisor(layer, model))
            if not math.isclose(layer.multi_head.scale, allowed, rel_tol=1e-6):
                yield f"model.attention.scale is {exact(layer.multi_head.scale)}; allowed: {exact(allowed)}"

    return check


def capped(model: ModelConfig) -> Iterator[str]:
    for field, cap in (("attention.softcap", model.multi_head.softcap), ("head.softcap", model.head.softcap)):
        if cap is None:
            yield f"model.{field} is null; allowed: a number"


def local_unscaled(model: ModelConfig) -> Iterator[str]:
    for layer in layer_configs(model):
        kind = lookup(layer, "position.scaling.kind")
        if layer.multi_head.window is not None and kind != "none":
            yield f"model.position.scaling.kind is {kind} in a layer with a window; allowed: `none`"


def every_other(model: ModelConfig) -> Iterator[str]:
    """Check that the first, third, fifth, ... layers have a window and the others do not.

    llama.cpp assumes this pattern and does not read it from the file.
    """
    has_window = [layer.multi_head.window is not None for layer in layer_configs(model)]
    if has_window != [i % 2 == 0 for i in range(len(has_window))]:
        windows = ", ".join("window" if has else "full" for has in has_window)
        yield f"model.layers has the pattern {windows}; allowed: window and full in turn, starting with window"


def some_window(model: ModelConfig) -> Iterator[str]:
    """Check that at least one layer has a window.

    If a file contains no window, llama.cpp assumes the published pattern.
    """
    if all(layer.multi_head.window is None for layer in layer_configs(model)):
        yield "model.attention.window is null in every layer; allowed: a window in some layer"


def rounded(model: ModelConfig) -> Iterator[str]:
    """Yield a note, not an error, if llama.cpp computes the activation less precisely than archlab."""
    activation = layer_configs(model)[0].dense.activation
    if activation in ("gelu", "gelu_tanh"):
        yield (
            f"model.mlp.activation is {activation}; llama.cpp computes the tanh form, and on a CPU reads it from a "
            "float16 table, so logits differ by about 0.1% of their standard deviation"
        )


# --- the architectures ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """Architecture of llama.cpp.

    Its forward pass is in llama.cpp's `src/models/`. Its export is in `convert_hf_to_gguf.py`.
    """

    name: str
    """Value of the GGUF key `general.architecture`."""
    rows: Sequence[Row]
    """Weight mapping between tensors of the GGUF file and archlab's parameters."""
    limits: Sequence[Limit]
    """Checks for features of the family that llama.cpp cannot compute."""
    needs_output: bool = False
    """Whether the file must contain the output head even if the head is tied to the embedding."""
    reads_scales: bool = False
    """Whether llama.cpp reads the scale factors of the embedding, attention scores, branches and logits from the file.
    """

    def check(self, model: ModelConfig) -> list[str]:
        """Return notes on small differences between the results of archlab and llama.cpp.

        Raise a UserError that lists everything llama.cpp cannot run.
        """
        problems = [line for limit in self.limits for line in limit(model)]
        if problems:
            listed = [f"  {line}" for line in dict.fromkeys(problems)]
            raise UserError("\n".join([f"llama.cpp's {self.name} cannot run this model exactly", *listed]))
        return list(rounded(model))


ANY_SCALING = scalings("linear", "yarn")

LLAMA = Architecture(
    "llama",
    [*AROUND, *separate(ADJACENT_PAIRS), *MLP, *norms()],
    [SILU, scalings("linear", "llama3", "yarn"), no_window],
)
GRANITE = replace(LLAMA, name="granite", reads_scales=True)
QWEN2 = Architecture("qwen2", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, no_window, square])
QWEN3 = Architecture("qwen3", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, no_window, NO_OUT_BIAS])
OLMO2 = Architecture(
    "olmo2", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, NO_OUT_BIAS, square], needs_output=True
)

GEMMA_ROWS = [*AROUND, *separate(), *MLP, *norms(ONE_MORE)]
GEMMA = Architecture("gemma", GEMMA_ROWS, [GELU, ANY_SCALING, NO_OUT_BIAS, TIED])
GEMMA2 = Architecture(
    "gemma2",
    GEMMA_ROWS,
    [GELU, ANY_SCALING, NO_OUT_BIAS, TIED, capped, some_window, every_other, scale(special_depth=46)],
)
GEMMA3 = Architecture(
    "gemma3", GEMMA_ROWS, [GELU, UNCAPPED, scalings("linear"), local_unscaled, NO_OUT_BIAS, scale(special_depth=62)]
)

PHI3 = Architecture("phi3", [*AROUND, *FUSED, *FUSED_MLP, *norms()], [SILU, scalings("linear"), no_window, square])
STABLELM = Architecture(
    "stablelm", [*AROUND, *separate(), *MLP, *norms()], [SILU, ANY_SCALING, square], needs_output=True
)
STARCODER2 = Architecture(
    "starcoder2", [*AROUND, *separate(), *MLP, *norms()], [GELU, ANY_SCALING, no_window, square, all_biases]
)

GPT2 = Architecture("gpt2", [*AROUND, *FUSED, *MLP, *norms()], [GELU, scale()])
GPT_NEOX = Architecture(
    "gptneox", [*AROUND, *FUSED, *MLP, *norms()], [GELU, ANY_SCALING, all_biases], needs_output=True
)
BLOOM = Architecture("bloom", [*AROUND, *FUSED, *MLP, *norms()], [GELU, only("norm.placement", "pre")])
MPT = Architecture("mpt", [*AROUND, *FUSED, *MLP, *norms()], [GELU, scale()])
FALCON = Architecture(
    "falcon",
    [*AROUND, *FUSED, *MLP, *FALCON_NORMS],
    [
        GELU, ANY_SCALING, NO_OUT_BIAS, only("position.kind", "rope"), only("block.parallel", "shared", "separate"),
    ],
)  # fmt: skip

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": LLAMA, "mistral": LLAMA, "granite": GRANITE, "qwen2": QWEN2, "qwen3": QWEN3, "olmo2": OLMO2,
    "gemma": GEMMA, "gemma2": GEMMA2, "gemma3_text": GEMMA3, "phi3": PHI3, "stablelm": STABLELM,
    "starcoder2": STARCODER2, "gpt2": GPT2, "gpt_neox": GPT_NEOX, "bloom": BLOOM, "mpt": MPT, "falcon": FALCON,
}  # fmt: skip
"""Architecture by family (`model_type`)."""


def find_architecture(family: str) -> Architecture:
    """Return the llama.cpp architecture that runs the models of a family. Raise UserError if there is none."""
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    raise UserError(f"archlab cannot write the family {family} for llama.cpp; allowed: {', '.join(ARCHITECTURES)}")
