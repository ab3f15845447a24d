"""The architectures of llama.cpp that archlab writes, by the family whose models they run.

An architecture says where llama.cpp's files hold our tensors, and what its code fixes where the published code leaves a
choice. All name tensors alike. They differ in what is fused, in the order of rotated rows and in what a norm's weight
stands for. A row whose tensor a model does not have is left out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from archlab.config.components.visibility import is_plain_causal
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.layers import PER_LAYER, LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.hf.fields import ABSENT, lookup
from archlab.hf.weights import COPY, HALVES, QKV, QKV_BLOCKS, Conversion, Row, linear

# --- where the tensors are --------------------------------------------------------------------------------------------

LAYER = "blk.{i}"

AROUND = [
    Row("token_embd.weight", "embedding.weight"),
    *linear("token_embd_norm", "embedding.norm"),
    Row("position_embd.weight", "positions.weight"),
    Row("output.weight", "head.weight"),
]


def _turned(rows: Tensor, layer: LayerConfig | None, parts: int) -> Tensor:
    """Each head's rows, which are so many parts one after the other, with one of each part in turn."""
    assert layer is not None, "the width of a head is needed"
    return rows.unflatten(0, (-1, parts, layer.multi_head.head_dim // parts)).transpose(1, 2).flatten(0, 2)


SIDE_BY_SIDE = Conversion(
    lambda theirs, layer: [_turned(theirs, layer, layer.multi_head.head_dim // 2 if layer else 0)],
    lambda ours, layer: _turned(ours[0], layer, 2),
)
"""Theirs are the dimensions 2i and 2i + 1 that RoPE turns together; ours are i and i + head_dim / 2."""

ONE_MORE = Conversion(lambda theirs, _: [theirs - 1], lambda ours, _: ours[0].float() + 1)
"""Theirs is the factor, ours what 1 is added to (`unit_offset`)."""


def separate(turned: Conversion = COPY) -> list[Row]:
    """Queries, keys and values by themselves; `turned`: what becomes of the rows that RoPE turns."""
    return [
        *linear(f"{LAYER}.attn_q", "layers.{i}.attention.q", turned),
        *linear(f"{LAYER}.attn_k", "layers.{i}.attention.k", turned),
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
    """All norms but the embedding's; one before a branch and one after it have names of their own."""
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
"""The second norm is attention's, where there are two."""


# --- what it can run --------------------------------------------------------------------------------------------------

Limit = Callable[[ModelConfig], Iterator[str]]
"""Lines that say what was found and what is allowed; none where all is well."""


def only(field: str, *allowed: Any) -> Limit:
    """A dotted field has one of these values, in every layer that has the field."""

    def check(model: ModelConfig) -> Iterator[str]:
        holders = layer_configs(model) if field.partition(".")[0] in PER_LAYER else (model,)
        for found in dict.fromkeys(lookup(holder, field) for holder in holders):
            if found is not ABSENT and found not in allowed:
                yield f"model.{field} is {to_yaml_line(found)}; allowed: {', '.join(map(to_yaml_line, allowed))}"

    return check


SILU = only("mlp.activation", "silu")
GELU = only("mlp.activation", "gelu_tanh", "gelu")
"""The exact form too: llama.cpp computes the tanh form from a table in float16, which is as far from either."""
UNCAPPED = only("head.softcap", None)
TIED = only("head.tied", True)
NO_OUT_BIAS = only("attention.out_bias", False)


def all_biases(model: ModelConfig) -> Iterator[str]:
    """Every projection has a bias."""
    for field in ("attention.qkv_bias", "attention.out_bias", "mlp.bias"):
        yield from only(field, True)(model)


def scalings(*kinds: str) -> Limit:
    """RoPE is scaled in one of these ways, or not at all. Of YaRN's numbers only some are read from a file."""
    parts = (
        only("position.scaling.kind", "none", *kinds),
        only("position.scaling.truncate", True),
        only("position.scaling.beta_fast", 32.0),
        only("position.scaling.beta_slow", 1.0),
    )
    return lambda model: (line for part in parts for line in part(model))


def square(model: ModelConfig) -> Iterator[str]:
    """All heads together are as wide as the stream."""
    heads = model.multi_head.resolve(model.d_model)
    width = heads.n_heads * heads.head_dim
    if width != model.d_model:
        yield f"model.attention: n_heads * head_dim is {width}; allowed: {model.d_model}, as d_model"


def no_window(model: ModelConfig) -> Iterator[str]:
    """Every layer sees all that is before it."""
    for layer in layer_configs(model):
        if not is_plain_causal(layer.multi_head, model.max_seq_len):
            allowed = f"null, or from {model.max_seq_len}, which is max_seq_len"
            yield f"model.attention.window is {layer.multi_head.window}; allowed: {allowed}"


def scale(of_depth: int | None = None) -> Limit:
    """Scores are divided by the root of head_dim; with so many layers, by that of d_model / n_heads (Gemma's 27B)."""

    def divisor(layer: LayerConfig, model: ModelConfig) -> int:
        heads = layer.multi_head
        return model.d_model // heads.n_heads if model.n_layers == of_depth else heads.head_dim

    def check(model: ModelConfig) -> Iterator[str]:
        for layer in layer_configs(model):
            allowed = 1 / math.sqrt(divisor(layer, model))
            if not math.isclose(layer.multi_head.scale, allowed, rel_tol=1e-6):
                yield f"model.attention.scale is {layer.multi_head.scale:.6g}; allowed: {allowed:.6g}"

    return check


def capped(model: ModelConfig) -> Iterator[str]:
    """Scores and logits are capped."""
    for field, found in (("attention.softcap", model.multi_head.softcap), ("head.softcap", model.head.softcap)):
        if found is None:
            yield f"model.{field} is null; allowed: a number"


def local_unscaled(model: ModelConfig) -> Iterator[str]:
    """Only layers that see everything may scale RoPE."""
    for layer in layer_configs(model):
        kind = lookup(layer, "position.scaling.kind")
        if layer.multi_head.window is not None and kind != "none":
            yield f"model.position.scaling.kind is {kind} in a layer with a window; allowed: none"


def every_other(model: ModelConfig) -> Iterator[str]:
    """The first layer has a window, the second has none, and so on: what is written of a pattern is not read."""
    found = [layer.multi_head.window is not None for layer in layer_configs(model)]
    if found != [i % 2 == 0 for i in range(len(found))]:
        windows = ", ".join("window" if has else "full" for has in found)
        yield f"layers: {windows}; allowed: window and full in turn, window first"


def some_window(model: ModelConfig) -> Iterator[str]:
    """A file that says nothing of windows is read as one with the published pattern."""
    if all(layer.multi_head.window is None for layer in layer_configs(model)):
        yield "model.attention.window is null in every layer; allowed: a window in some layer"


def rounded(model: ModelConfig) -> Iterator[str]:
    """No limit, but worth knowing."""
    activation = layer_configs(model)[0].dense.activation
    if activation in ("gelu", "gelu_tanh"):
        yield (
            f"model.mlp.activation: {activation}, which llama.cpp computes in the tanh form, on a CPU from a table in "
            "float16; logits differ by about 0.1% of their deviation"
        )


# --- the architectures ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's, as its code in `src/models/` computes it and `convert_hf_to_gguf.py` writes it."""

    name: str
    """`general.architecture`."""
    rows: Sequence[Row]
    """Where its tensors are."""
    limits: Sequence[Limit]
    """What it can run of what the family can say."""
    needs_output: bool = False
    """Whether a head that is the embedding must be written once more."""
    reads_scales: bool = False
    """Whether it reads factors on embedding, scores, branches and logits."""

    def check(self, model: ModelConfig) -> list[str]:
        """UserError that names everything it could not run; what it computes a little differently, in words."""
        problems = [line for limit in self.limits for line in limit(model)]
        if problems:
            listed = [f"  {line}" for line in dict.fromkeys(problems)]
            raise UserError("\n".join([f"llama.cpp's {self.name} cannot run this model exactly", *listed]))
        return list(rounded(model))


ANY_SCALING = scalings("linear", "yarn")

LLAMA = Architecture(
    "llama",
    [*AROUND, *separate(SIDE_BY_SIDE), *MLP, *norms()],
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
    "gemma2", GEMMA_ROWS, [GELU, ANY_SCALING, NO_OUT_BIAS, TIED, capped, some_window, every_other, scale(of_depth=46)]
)
GEMMA3 = Architecture(
    "gemma3", GEMMA_ROWS, [GELU, UNCAPPED, scalings("linear"), local_unscaled, NO_OUT_BIAS, scale(of_depth=62)]
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
"""By `model_type`."""


def find_architecture(family: str) -> Architecture:
    """The architecture that runs a family's models; UserError that lists those there are."""
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    raise UserError(f"{family}: no family that archlab writes for llama.cpp; allowed: {', '.join(ARCHITECTURES)}")
