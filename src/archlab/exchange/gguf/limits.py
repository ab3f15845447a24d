"""What llama.cpp's code fixes where the published code leaves a choice: checks that name what it could not run."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from archlab.config.components.visibility import is_plain_causal
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.layers import PER_LAYER, LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ABSENT, lookup

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
