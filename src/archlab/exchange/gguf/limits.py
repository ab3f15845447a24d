"""Settings that llama.cpp fixes although the published code lets the user choose them."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from archlab.config.components.component import Absent
from archlab.config.components.visibility import is_plain_causal
from archlab.config.core.text import exact
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.layers import PER_LAYER, LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ABSENT, lookup

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
RELU_SQUARED = only("mlp.activation", "relu_squared")
GELU = only("mlp.activation", "gelu_tanh", "gelu")
"""Check that the activation is GELU, in its tanh form or its exact form.

llama.cpp computes both from a float16 table of the tanh form. The error is about the same for both.
"""
UNCAPPED = only("head.softcap", None)
TIED = only("head.tied", True)
NO_OUT_BIAS = only("attention.out_bias", False)
NO_QKV_BIAS = only("attention.qkv_bias", False)
ALL_MIXTURES = only("mlp.kind", "moe")
NORMALIZED = only("mlp.router.normalise", True)
NOT_NORMALIZED = only("mlp.router.normalise", False)


def has_attention(layer: LayerConfig) -> bool:
    return not isinstance(layer.attention, Absent)


def some_attention(model: ModelConfig) -> Iterator[str]:
    """Check that some layers have attention and the others a recurrent mixer, as llama.cpp assumes."""
    n_layers, n_full = model.n_layers, sum(map(has_attention, layer_configs(model)))
    if n_full in (0, n_layers):
        yield f"model.attention is in {n_full} of {n_layers} layers; allowed: in some layers, and a mixer in the others"


def no_biases(model: ModelConfig) -> Iterator[str]:
    for field in ("attention.qkv_bias", "attention.out_bias", "mlp.bias"):
        yield from only(field, False)(model)


def all_biases(model: ModelConfig) -> Iterator[str]:
    for field in ("attention.qkv_bias", "attention.out_bias", "mlp.bias"):
        yield from only(field, True)(model)


def scalings(*kinds: str, required: bool = False) -> Limit:
    """Return a check that RoPE has no scaling, or scaling of one of these kinds. With `required`, RoPE must have one.

    The check also rejects YaRN parameters that differ from the values fixed in llama.cpp.
    """
    parts = (
        only("position.scaling.kind", *(() if required else ("none",)), *kinds),
        only("position.scaling.truncate", True),
        only("position.scaling.beta_fast", 32.0),
        only("position.scaling.beta_slow", 1.0),
    )
    return lambda model: (line for part in parts for line in part(model))


ANY_SCALING = scalings("linear", "yarn")


YARN_OF_SIZE_1 = only("position.scaling.attention_factor", 1.0)
"""Check that YaRN leaves the size of cos and sin unchanged."""


def square(model: ModelConfig) -> Iterator[str]:
    for layer in filter(has_attention, layer_configs(model)):
        width = layer.multi_head.n_heads * layer.multi_head.head_dim
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
    yield from _some_full(has_window)


def _some_full(has_window: Sequence[bool]) -> Iterator[str]:
    """Check that some layer has no window. Otherwise, llama.cpp stops."""
    if all(has_window):
        yield "model.attention.window is set in every layer; allowed: a layer without a window"


def windows_except_every(n: int, *, or_none: bool = False) -> Limit:
    """Return a check that every n-th layer has no window and all other layers have one, as llama.cpp assumes.

    Only the newest versions of llama.cpp read the pattern from the file. With `or_none`, the model may also have no
    window at all.
    """

    def check(model: ModelConfig) -> Iterator[str]:
        windows = [layer.multi_head.window for layer in layer_configs(model)]
        if or_none and not any(windows):
            return
        for i, window in enumerate(windows):
            is_full = (i + 1) % n == 0
            if (window is None) != is_full:
                allowed = "null" if is_full else "a window"
                yield f"model.attention.window is {to_yaml_line(window)} in layer {i}; allowed: {allowed}"
        yield from _some_full([window is not None for window in windows])

    return check


def positions_except_every(n: int) -> Limit:
    """Return a check that every n-th layer has no position encoding and all other layers have RoPE, as llama.cpp
    assumes."""

    def check(model: ModelConfig) -> Iterator[str]:
        for i, layer in enumerate(layer_configs(model)):
            allowed = "none" if (i + 1) % n == 0 else "rope"
            if layer.position.kind != allowed:
                yield f"model.position.kind is {layer.position.kind} in layer {i}; allowed: {allowed}"

    return check


def windows_if_deep(model: ModelConfig) -> Iterator[str]:
    """Check that a model of 64 layers has windows and RoPE in all layers except every fourth, as llama.cpp assumes.

    Any other model must have RoPE and no window.
    """
    if model.n_layers == 64:
        yield from windows_except_every(4)(model)
        yield from positions_except_every(4)(model)
    else:
        yield from only("attention.window", None)(model)
        yield from only("position.kind", "rope")(model)


def qk_norm_if_deep(model: ModelConfig) -> Iterator[str]:
    """Check that exactly the models with 64 or more layers have a norm of queries and keys, as llama.cpp assumes."""
    kind, allowed = model.multi_head.qk_norm.kind, "layernorm" if model.n_layers >= 64 else "none"
    if kind != allowed:
        yield f"model.attention.qk_norm.kind is {kind} in a model of {model.n_layers} layers; allowed: {allowed}"


def one_theta(model: ModelConfig) -> Iterator[str]:
    thetas = {lookup(layer, "position.theta") for layer in layer_configs(model)}
    if len(thetas) > 1:
        yield f"model.position.theta is {', '.join(map(str, sorted(thetas)))}; allowed: one number for all layers"


def inner_width(model: ModelConfig) -> Iterator[str]:
    for layer in layer_configs(model):
        if (width := lookup(layer, "mixer.inner_width")) not in (ABSENT, 2 * model.d_model):
            yield f"model.mixer.inner_width is {width}; allowed: 2 * d_model ({2 * model.d_model})"


def state_divides_width(model: ModelConfig) -> Iterator[str]:
    """Check that `d_state` divides `inner_width` in Mamba 2. Otherwise, llama.cpp stops."""
    for layer in layer_configs(model):
        width, state = lookup(layer, "mixer.inner_width"), lookup(layer, "mixer.d_state")
        if width is not ABSENT and width % state:
            yield f"model.mixer.d_state is {state}; allowed: a divisor of inner_width ({width})"


def all_kv_heads(model: ModelConfig) -> Iterator[str]:
    heads = model.multi_head.resolve(model.d_model)
    if heads.n_kv_heads != heads.n_heads:
        yield f"model.attention.n_kv_heads is {heads.n_kv_heads}; allowed: n_heads ({heads.n_heads})"


def one_number_of_experts(model: ModelConfig) -> Iterator[str]:
    numbers = {lookup(layer, "mlp.active") for layer in layer_configs(model)} - {ABSENT}
    if len(numbers) > 1:
        yield f"model.mlp.active is {', '.join(map(str, sorted(numbers)))}; allowed: one number for all layers"


def no_groups(model: ModelConfig) -> Iterator[str]:
    for layer in layer_configs(model):
        if (number := lookup(layer, "mlp.router.groups.n")) is not ABSENT:
            yield f"model.mlp.router.groups.n is {number}; allowed: no groups (null)"


def n_dense(model: ModelConfig) -> int:
    """Return the number of layers that are not mixtures of experts."""
    return sum(layer.mlp.kind != "moe" for layer in layer_configs(model))


def dense_first(model: ModelConfig) -> Iterator[str]:
    """Check that the dense layers, if there are any, are the first ones, and that the last layer is a mixture."""
    kinds = [layer.mlp.kind for layer in layer_configs(model)]
    if kinds[-1] != "moe" or "moe" in kinds[: n_dense(model)]:
        yield f"model.mlp.kind is {', '.join(kinds)}; allowed: first all dense layers, then one or more mixtures (moe)"


def corrected(model: ModelConfig) -> Iterator[str]:
    if any(lookup(layer, "mlp.router.correction") is None for layer in layer_configs(model)):
        yield "model.mlp.router.correction is null; allowed: a correction"


def shared_expert(model: ModelConfig) -> Iterator[str]:
    if any(lookup(layer, "mlp.shared") is None for layer in layer_configs(model)):
        yield "model.mlp.shared is null; allowed: a shared expert"


def some_window(model: ModelConfig) -> Iterator[str]:
    """Check that at least one layer has a window.

    If a file contains no window, llama.cpp assumes the published pattern.
    """
    if all(layer.multi_head.window is None for layer in layer_configs(model)):
        yield "model.attention.window is null in every layer; allowed: a window in some layer"


def rounded(model: ModelConfig) -> Iterator[str]:
    """Yield a note, not an error, if llama.cpp computes the activation less precisely than archlab."""
    activation = lookup(layer_configs(model)[0], "mlp.activation")
    if activation in ("gelu", "gelu_tanh"):
        yield (
            f"model.mlp.activation is {activation}; llama.cpp computes the tanh form, and on a CPU reads it from a "
            "float16 table, so logits differ by about 0.1% of their standard deviation"
        )
