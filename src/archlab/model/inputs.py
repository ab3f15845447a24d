"""Checks of a forward pass's inputs. Shapes: B batch, T tokens."""

from torch import Tensor

from archlab.config.components.position import Learned
from archlab.config.layers import sees_as
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.arithmetic import WHOLE
from archlab.model.state import Cache


def check_inputs(
    config: ModelConfig,
    encoder: ModelConfig | None,
    tokens_BT: Tensor,
    *,
    documents: Tensor | None = None,
    lengths: Tensor | None = None,
    segments: Tensor | None = None,
    prefix: Tensor | None = None,
    source: Tensor | None = None,
    source_lengths: Tensor | None = None,
    cache: Cache | None = None,
) -> None:
    """Raise UserError if the arguments of a forward pass do not fit the model or each other."""
    if tokens_BT.ndim != 2 or tokens_BT.dtype not in WHOLE:
        value = f"{list(tokens_BT.shape)} of {tokens_BT.dtype}"
        raise UserError(f"tokens: {value}; allowed: a tensor [batch, seq] of int64 or int32")
    if documents is not None and documents.shape != tokens_BT.shape:
        raise UserError(f"documents: {list(documents.shape)}; allowed: the tokens' shape, {list(tokens_BT.shape)}")
    if documents is not None and cache is not None:
        raise UserError("documents and cache were both passed; allowed: one of them (a cache holds one text per row)")
    if cache is not None and cache.batch != len(tokens_BT):
        raise UserError(f"cache: made for a batch of {cache.batch}; the tokens are a batch of {len(tokens_BT)}")
    if cache is not None and cache.model is not config and cache.model != config:
        raise UserError("cache: made for a model with another config; make one with Cache(model.config, ...)")
    # Use lengths, which the host knows. Reading positions would wait for the device, and break a compiled graph.
    longest = tokens_BT.shape[1] + (cache.length - cache.least_padding if cache else 0)
    if isinstance(config.position, Learned) and longest > config.max_seq_len:
        raise UserError(f"{longest} tokens, but learned positions end at max_seq_len = {config.max_seq_len}")
    _check_source(encoder, tokens_BT, documents, source, cache)
    if source_lengths is not None:
        if source is None:
            raise UserError("source_lengths: passed without source; allowed: both or neither")
        _check_row_lengths("source_lengths", source, source_lengths)
    if lengths is not None:
        _check_lengths(tokens_BT, documents, lengths, cache)
    if segments is not None:
        _check_segments(config, tokens_BT, segments)
    if prefix is not None:
        _check_prefix(config, tokens_BT, documents, lengths, prefix, cache)


def _check_lengths(tokens_BT: Tensor, documents: Tensor | None, lengths_B: Tensor, cache: Cache | None) -> None:
    if cache is not None:
        raise UserError(
            "lengths and cache were both passed; allowed: one of them (a cache has its padding before the tokens: "
            "Cache(..., padding=...))"
        )
    if documents is not None:
        raise UserError("lengths and documents were both passed; allowed: one of them (packed rows have no padding)")
    _check_row_lengths("lengths", tokens_BT, lengths_B)


def _check_row_lengths(name: str, tokens_BT: Tensor, lengths_B: Tensor) -> None:
    B, T = tokens_BT.shape
    if lengths_B.shape != (B,) or lengths_B.dtype not in WHOLE:
        raise UserError(f"{name}: {list(lengths_B.shape)} of {lengths_B.dtype}; allowed: [{B}] of int64 or int32")
    if ((lengths_B < 1) | (lengths_B > T)).any():
        raise UserError(f"{name}: {lengths_B.tolist()}; allowed: 1 to {T}, the number of tokens in a row")


def _check_source(
    encoder: ModelConfig | None,
    tokens_BT: Tensor,
    documents: Tensor | None,
    source_BS: Tensor | None,
    cache: Cache | None,
) -> None:
    if encoder is None:
        if source_BS is not None:
            raise UserError("source: the model has no encoder; it is allowed only if model.encoder is set")
        return
    if documents is not None:
        raise UserError("documents: packed documents are not supported in a model with an encoder; allowed: None")
    if cache is not None and cache.source is not None:
        if source_BS is not None:
            raise UserError("source: the cache already contains a source text; it is allowed only in the first pass")
        return
    if source_BS is None:
        raise UserError("source: missing; a model with an encoder reads a source text: model(tokens, source=...)")
    if source_BS.ndim != 2 or len(source_BS) != len(tokens_BT) or source_BS.dtype not in WHOLE or not source_BS.numel():
        found = f"{list(source_BS.shape)} of {source_BS.dtype}"
        raise UserError(f"source: {found}; allowed: a tensor [{len(tokens_BT)}, 1 or more] of int64 or int32")
    S = source_BS.shape[1]
    if isinstance(encoder.position, Learned) and encoder.max_seq_len < S:
        raise UserError(f"source: {S} tokens, but learned positions end at max_seq_len = {encoder.max_seq_len}")
    if cache is not None and cache.source_capacity != S:
        raise UserError(f"source: {S} tokens; allowed: {cache.source_capacity}, for which the cache was made")


def _check_segments(config: ModelConfig, tokens_BT: Tensor, segments_BT: Tensor) -> None:
    if not config.embedding.segments:
        raise UserError("segments: the model has no segments; they are allowed only if model.embedding.segments is set")
    if segments_BT.shape != tokens_BT.shape or segments_BT.dtype not in WHOLE:
        found = f"{list(segments_BT.shape)} of {segments_BT.dtype}"
        raise UserError(f"segments: {found}; allowed: {list(tokens_BT.shape)} of int64 or int32")


def _check_prefix(
    config: ModelConfig,
    tokens_BT: Tensor,
    documents: Tensor | None,
    lengths_B: Tensor | None,
    prefix_B: Tensor,
    cache: Cache | None,
) -> None:
    if not sees_as(config, "prefix"):
        raise UserError("prefix: no layer reads it; it is allowed only if model.attention.visibility is prefix")
    if documents is not None:
        raise UserError(
            "prefix and documents were both passed; allowed: one of them (a prefix belongs to one text per row)"
        )
    if cache is not None and cache.length:
        raise UserError(
            f"prefix: the cache already holds {cache.length} tokens; a prefix is allowed only in the first pass"
        )
    B, T = tokens_BT.shape
    if prefix_B.shape != (B,) or prefix_B.dtype not in WHOLE:
        raise UserError(f"prefix: {list(prefix_B.shape)} of {prefix_B.dtype}; allowed: [{B}] of int64 or int32")
    padding_B1 = cache.padding_B1 if cache else prefix_B.new_zeros(1, 1)
    longest_B1 = (T - padding_B1).clamp(min=0) if lengths_B is None else lengths_B[:, None]
    if ((prefix_B[:, None] < 0) | (prefix_B[:, None] > longest_B1)).any():
        value = f"{prefix_B.tolist()} tokens in texts of {longest_B1.expand(B, 1).flatten().tolist()} tokens"
        raise UserError(f"prefix: {value}; allowed: 0 to the text's length in this pass")
