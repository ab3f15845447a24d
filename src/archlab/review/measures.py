"""Quantities that the rules check: values of a layer, and values of a whole config."""

from collections.abc import Callable, Iterator

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.dense import Dense
from archlab.config.components.latent_attention import Latent
from archlab.config.components.moe import MoE
from archlab.config.components.multi_head import MultiHead
from archlab.config.components.norm import NoNorm
from archlab.config.layers import LayerConfig, encoder_of
from archlab.config.model_schema import ModelConfig
from archlab.config.training import resolve_train
from archlab.review.shape_rule import ENCODER, Case, Reading


def head_widths(layer: LayerConfig) -> Iterator[Reading]:
    """Yield the width of queries and keys, and the width of values if it differs."""
    match layer.attention:
        case MultiHead(head_dim=width, v_dim=v_dim):
            yield Reading("head_dim", width, "models with multi-head attention")
        case Latent(query_width=width, v_dim=v_dim):
            yield Reading("nope_dim + rope_dim", width, "models with latent attention")
        case _:
            return
    if v_dim != width:
        yield Reading("v_dim", v_dim, "models whose values have a different width")


def query_heads(layer: LayerConfig) -> Iterator[Reading]:
    if isinstance(layer.attention, AnyAttention):
        yield Reading("n_heads", layer.attention.n_heads)


def kv_heads(layer: LayerConfig) -> Iterator[Reading]:
    """Yield the number of KV heads if it is smaller than the number of query heads.

    Latent attention yields nothing, because all its heads share one vector.
    """
    if isinstance(layer.attention, MultiHead) and layer.attention.n_kv_heads != layer.attention.n_heads:
        yield Reading("n_kv_heads", layer.attention.n_kv_heads)


def cached_kv_heads(layer: LayerConfig) -> Iterator[Reading]:
    """Yield the number of KV heads, whose keys and values decoding must cache. A layer that sees later tokens has no
    cache, but cross-attention caches the keys and values of the source."""
    attention = layer.attention
    if isinstance(attention, MultiHead) and (attention.visibility != "two_sided" or attention == layer.cross):
        yield Reading("n_kv_heads", attention.n_kv_heads, "models with multi-head attention")


def attention_width(layer: LayerConfig) -> Iterator[Reading]:
    """Yield n_heads * head_dim / d_model of multi-head attention.

    Latent attention is left out, because its projections have a narrow bottleneck and the ratio means little.
    """
    if isinstance(layer.attention, MultiHead):
        heads = layer.attention.n_heads * layer.attention.head_dim
        yield Reading("n_heads * head_dim / d_model", heads / layer.d_model)


def mlp_widths(layer: LayerConfig) -> Iterator[Reading]:
    """Yield the width of each kind of MLP: a dense MLP, an expert or a shared expert."""
    match layer.mlp:
        case Dense(d_ff=width):
            yield Reading("d_ff", width)
        case MoE(d_ff=width, shared=shared):
            yield Reading("d_ff of an expert", width)
            if shared:
                yield Reading("d_ff of the shared expert", shared.d_ff)
        case _:
            return


def mlp_ratio(layer: LayerConfig) -> Iterator[Reading]:
    if isinstance(layer.mlp, Dense):
        yield Reading("d_ff / d_model", layer.mlp.d_ff / layer.d_model, f"{layer.mlp.kind} MLPs")


def mixture_ratio(layer: LayerConfig) -> Iterator[Reading]:
    """Yield the total hidden width of all experts that a token uses, divided by d_model.

    Experts in a latent space are left out, because their input is narrower than d_model.
    """
    if isinstance(layer.mlp, MoE) and layer.mlp.latent is None:
        width = layer.mlp.active * layer.mlp.d_ff + (layer.mlp.shared.d_ff if layer.mlp.shared else 0)
        yield Reading("active experts' d_ff / d_model", width / layer.d_model, "mixtures")


def norms(layer: LayerConfig) -> Iterator[Reading]:
    yield Reading("layers with a norm", int(not isinstance(layer.norm, NoNorm)))


def stream_width(case: Case) -> Iterator[Reading]:
    yield Reading("d_model", case.config.model.d_model)


def vocabulary(case: Case) -> Iterator[Reading]:
    yield Reading("vocab_size", case.config.model.vocab_size)


def depth(case: Case) -> Iterator[Reading]:
    yield from _of_stacks("n_layers", case, lambda stack: stack.n_layers)


def _of_stacks(field: str, case: Case, read: Callable[[ModelConfig], float]) -> Iterator[Reading]:
    """Yield the value of the decoder, and that of an encoder if it differs."""
    model, encoder = case.config.model, encoder_of(case.config.model)
    yield Reading(field, read(model))
    if encoder and read(encoder) != read(model):
        yield Reading(field, read(encoder), place=ENCODER)


def aspect(case: Case) -> Iterator[Reading]:
    """Yield d_model / n_layers of models with attention.

    Purely recurrent models are left out, because their layers are about half as large as those of models with
    attention.
    """
    if any(isinstance(layer.attention, AnyAttention) for layer, _ in case.layers.values()):
        yield from _of_stacks("d_model / n_layers", case, lambda stack: stack.d_model / stack.n_layers)


def vocabulary_share(case: Case) -> Iterator[Reading]:
    """Yield the fraction of all parameters that are in the embedding and in an untied head."""
    counted = case.counted
    yield Reading("embedding and head / all parameters", (counted.embedding + counted.head) / counted.total)


def head_share(case: Case) -> Iterator[Reading]:
    """Yield the fraction of all parameters that are in an untied head. It is 0 if the head is tied to the embedding."""
    own = 0 if case.config.model.head.tied else case.counted.head
    yield Reading("untied head / all parameters", own / case.counted.total)


def stages(case: Case) -> Iterator[Reading]:
    """Yield (work of the slowest pipeline stage) / (mean work of all stages), for the best partition of the layers."""
    if division := case.pipeline_stages:
        field = f"slowest of {case.pipeline} stages / mean"
        yield Reading(field, division.unevenness, layers=tuple(division.layers[division.slowest]))


def dropout(case: Case) -> Iterator[Reading]:
    rates = [rate for layer in _all_layers(case) for rate in (layer.dropout.attention, layer.dropout.branch)]
    yield Reading("dropout", max(case.config.model.dropout.embedding, *rates))


def _all_layers(case: Case) -> list[LayerConfig]:
    return [*(layer for layer, _ in case.layers.values()), *case.elsewhere.get(ENCODER, ())]


def weight_decay(case: Case) -> Iterator[Reading]:
    yield Reading("train.weight_decay", case.config.train.weight_decay)


def post_norm_warmup(case: Case) -> Iterator[Reading]:
    """Yield the length of the learning-rate warm-up if some layer is post-norm."""
    norms = [layer.norm for layer in _all_layers(case)]
    if any("stream" in norm.slots for norm in norms):
        yield Reading("train.warmup of a post-norm model", resolve_train(case.config).warmup)
