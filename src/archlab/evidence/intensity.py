"""Arithmetic intensity of a model with MHA, GQA and MQA, in FLOPs per byte."""

from archlab.config.components.work import OF_MATRICES, Pass
from archlab.config.layers import layer_configs
from archlab.config.schema import Config
from archlab.exchange.configs import load_config
from archlab.pricing.summary import cost
from archlab.pricing.work import PassName, matrix_flops_per_byte

MODEL = "llama-3-8b"
CONTEXT = 8192
"""Number of tokens in each text."""

KV_HEADS = {"MHA": 32, "GQA": 8, "MQA": 1}
"""Number of KV heads of each compared model. All have the 32 query heads of MODEL."""

_PASSES: tuple[tuple[PassName, int], ...] = (("training", 1), ("decoding", 1), ("decoding", 64))
"""Compared passes, each with its number of texts."""


def intensities() -> dict[str, list[float]]:
    """Map each row of the table of intensities to its values for the models in KV_HEADS.

    Rows of attention are those of a formula for one layer. Rows of the whole model are the FLOPs per byte that `archlab
    cost` prints.
    """
    configs = [
        load_config(MODEL, f"model.attention.n_kv_heads={n}", f"train.batch_tokens={CONTEXT}")
        for n in KV_HEADS.values()
    ]
    attention = {
        f"attention, {_in_words(name, texts)}": [attention_intensity(config, name, texts) for config in configs]
        for name, texts in _PASSES
    }
    whole_model = {
        f"whole model, {_in_words(name, texts)}": [
            matrix_flops_per_byte(cost(config, texts, CONTEXT).work[name]) for config in configs
        ]
        for name, texts in _PASSES
    }
    return attention | whole_model


def _in_words(name: PassName, texts: int) -> str:
    return f"{name}, {texts} text{'s' if texts > 1 else ''}"


def attention_intensity(config: Config, name: PassName, texts: int) -> float:
    """Return the FLOPs per byte of the projections and scores in one attention layer, in 16 bits and with a fused
    kernel.

    Training reads the weights, and reads and writes activations. The backward pass has twice the FLOPs and twice the
    bytes of the forward pass. A decoding step reads the weights and the cache; the activations of its single token are
    left out.
    """
    is_decoding = name == "decoding"
    tokens, n_cached = (1, CONTEXT - 1) if is_decoding else (CONTEXT, 0)
    layer = layer_configs(config.model)[0]
    work = layer.attention.work(layer.site_of("attention"), Pass(texts, tokens, n_cached, is_cached=is_decoding))
    counted = [operation for operation in work if operation.kind in OF_MATRICES]
    n_bytes = sum(operation.weights + operation.kept for operation in counted)
    moved = 0.0 if is_decoding else sum(operation.moved for operation in counted)
    return sum(operation.flops for operation in counted) / (n_bytes + moved)


def intensity_table() -> list[tuple[str, ...]]:
    """Return the rows of the table of intensities. The first row is the heading."""
    heading = (f"{MODEL}, {CONTEXT:,} tokens", *KV_HEADS)
    return [
        heading,
        *((row, *(f"{float(f'{value:.3g}'):,g}" for value in values)) for row, values in intensities().items()),
    ]
