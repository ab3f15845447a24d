"""Inputs of a forward pass besides the tokens, and their checks. Shapes: B batch, T tokens, S tokens of a source."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from archlab.config.components.position import Learned
from archlab.config.layers import sees_as
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.model.arithmetic import WHOLE
from archlab.model.state import Cache


@dataclass(frozen=True)
class Inputs:
    """Inputs of a forward pass besides the tokens. `Decoder.forward` explains each field."""

    documents: Tensor | None = None
    lengths: Tensor | None = None
    segments: Tensor | None = None
    prefix: Tensor | None = None
    source: Tensor | None = None
    source_lengths: Tensor | None = None
    source_documents: Tensor | None = None
    cache: Cache | None = None


NO_INPUTS = Inputs()
"""Inputs of a pass that reads only tokens."""


_TENSORS = tuple(field.name for field in fields(Inputs) if field.name != "cache")


def check_is_model(model: object) -> None:
    """Raise UserError if a value is not a model."""
    if not isinstance(model, nn.Module):  # not Decoder, because the model may be compiled
        raise UserError(f"{model!r} is not a model; allowed: what archlab.from_pretrained returns")


def check_tensors(tokens_BT: Tensor, inputs: Inputs) -> None:
    """Raise UserError if an argument of a forward pass is, for example, a list instead of a tensor."""
    for name, value in (("tokens", tokens_BT), *((name, getattr(inputs, name)) for name in _TENSORS)):
        if value is not None and not isinstance(value, Tensor):
            raise UserError(f"{name}: {type(value).__name__}; allowed: a tensor of int64 or int32")


def check_ids(config: ModelConfig, *tokens: Tensor | None) -> None:
    """Raise UserError if a token is not in the vocabulary. On a GPU, the check waits for the device."""
    for ids in tokens:
        if ids is not None and (wrong := ids[(ids < 0) | (ids >= config.vocab_size)]).numel():
            allowed = f"0 to {config.vocab_size - 1}"
            raise UserError(f"token {wrong[0].item()}: not in the model's vocabulary; allowed: {allowed}")


def is_real(tokens_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Return whether each token is not padding: boolean, [B, T]. Padding comes after the first `lengths_B` tokens."""
    if lengths_B is None:
        return torch.ones_like(tokens_BT, dtype=torch.bool)
    return torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]


def sees_source(inputs: Inputs) -> Tensor:
    """Return whether each token sees each source token in packed documents: boolean, [B, T, S]. A token sees all source
    tokens of its document, but no padding."""
    assert inputs.documents is not None
    assert inputs.source is not None
    assert inputs.source_documents is not None
    is_same_BTS = inputs.documents[:, :, None] == inputs.source_documents[:, None]
    return is_same_BTS & is_real(inputs.source, inputs.source_lengths)[:, None]


def check_inputs(config: ModelConfig, encoder: ModelConfig | None, tokens_BT: Tensor, inputs: Inputs) -> None:
    """Raise UserError if the arguments of a forward pass do not fit the model or each other."""
    check_tensors(tokens_BT, inputs)
    if tokens_BT.ndim != 2 or tokens_BT.dtype not in WHOLE:
        value = f"{list(tokens_BT.shape)} of {tokens_BT.dtype}"
        raise UserError(f"tokens: {value}; allowed: a tensor [batch, seq] of int64 or int32")
    _check_documents("documents", inputs.documents, "tokens", tokens_BT, inputs.cache)
    cache = inputs.cache
    if cache is not None and cache.batch != len(tokens_BT):
        raise UserError(f"cache: made for a batch of {cache.batch}; the tokens are a batch of {len(tokens_BT)}")
    if cache is not None and cache.model is not config and cache.model != config:
        raise UserError("cache: made for a model with another config; make one with Cache(model.config, ...)")
    # Use lengths, which the host knows. Reading positions would wait for the device, and break a compiled graph.
    longest = tokens_BT.shape[1] + (cache.length - cache.least_padding if cache else 0)
    if isinstance(config.position, Learned) and longest > config.max_seq_len:
        raise UserError(f"{longest} tokens, but learned positions end at max_seq_len = {config.max_seq_len}")
    if inputs.lengths is not None:
        if cache is not None:
            raise UserError(
                "lengths and cache were both passed; allowed: one of them (a cache has its padding before the tokens: "
                "Cache(..., padding=...))"
            )
        _check_row_lengths("lengths", tokens_BT, inputs.lengths)
    if encoder is None:
        _check_no_source(inputs)
    else:
        _check_source(encoder, tokens_BT, inputs)
    if inputs.segments is not None:
        _check_segments(config, tokens_BT, inputs.segments)
    if inputs.prefix is not None:
        _check_prefix(config, tokens_BT, inputs.documents, inputs.lengths, inputs.prefix, cache)


def _check_documents(
    name: str, documents: Tensor | None, tokens_name: str, tokens_BT: Tensor, cache: Cache | None
) -> None:
    if documents is None:
        return
    if documents.shape != tokens_BT.shape or documents.dtype not in WHOLE:
        found, shape = f"{list(documents.shape)} of {documents.dtype}", list(tokens_BT.shape)
        raise UserError(f"{name}: {found}; allowed: the shape of {tokens_name}, {shape}, of int64 or int32")
    if cache is not None:
        raise UserError(f"{name} and cache were both passed; allowed: one of them (a cache holds one text per row)")


def _check_row_lengths(name: str, tokens_BT: Tensor, lengths_B: Tensor) -> None:
    B, T = tokens_BT.shape
    if lengths_B.shape != (B,) or lengths_B.dtype not in WHOLE:
        raise UserError(f"{name}: {list(lengths_B.shape)} of {lengths_B.dtype}; allowed: [{B}] of int64 or int32")
    if ((lengths_B < 1) | (lengths_B > T)).any():
        raise UserError(f"{name}: {lengths_B.tolist()}; allowed: 1 to {T}, the number of tokens in a row")


def _check_no_source(inputs: Inputs) -> None:
    for name in ("source", "source_lengths", "source_documents"):
        if getattr(inputs, name) is not None:
            raise UserError(f"{name}: the model has no encoder; it is allowed only if model.encoder is set")


def _check_source(encoder: ModelConfig, tokens_BT: Tensor, inputs: Inputs) -> None:
    source_BS, cache = inputs.source, inputs.cache
    if source_BS is None:
        for name in ("source_lengths", "source_documents"):
            if getattr(inputs, name) is not None:
                raise UserError(f"{name}: passed without source; allowed: both or neither")
        if cache is None or cache.source is None:
            raise UserError("source: missing; a model with an encoder reads a source text: model(tokens, source=...)")
        return
    if cache is not None and cache.source is not None:
        raise UserError("source: the cache already contains a source text; it is allowed only in the first pass")
    if source_BS.ndim != 2 or len(source_BS) != len(tokens_BT) or source_BS.dtype not in WHOLE or not source_BS.numel():
        found = f"{list(source_BS.shape)} of {source_BS.dtype}"
        raise UserError(f"source: {found}; allowed: an int64 or int32 tensor of shape [{len(tokens_BT)}, 1 or more]")
    S = source_BS.shape[1]
    if isinstance(encoder.position, Learned) and encoder.max_seq_len < S:
        raise UserError(f"source: {S} tokens, but learned positions end at max_seq_len = {encoder.max_seq_len}")
    if cache is not None and cache.source_capacity != S:
        raise UserError(f"source: {S} tokens; allowed: {cache.source_capacity}, for which the cache was made")
    if inputs.source_lengths is not None:
        _check_row_lengths("source_lengths", source_BS, inputs.source_lengths)
    _check_documents("source_documents", inputs.source_documents, "source", source_BS, cache)
    if (inputs.documents is None) != (inputs.source_documents is None):
        raise UserError(
            "documents and source_documents: only one of them was passed; allowed: both or neither, because each "
            "document has a source of its own"
        )
    if inputs.documents is not None:
        _check_sources_of_documents(tokens_BT, inputs.documents, inputs)


def _check_sources_of_documents(tokens_BT: Tensor, documents_BT: Tensor, inputs: Inputs) -> None:
    lacks_source_BT = is_real(tokens_BT, inputs.lengths) & ~sees_source(inputs).any(-1)
    if lacks_source_BT.any():
        row, column = lacks_source_BT.nonzero()[0].tolist()
        number = documents_BT[row, column].item()
        raise UserError(
            f"documents: row {row} has document {number}, but no source token has this number in source_documents; "
            "every document needs a source"
        )


def _check_segments(config: ModelConfig, tokens_BT: Tensor, segments_BT: Tensor) -> None:
    if not config.embedding.segments:
        raise UserError("segments: the model has no segments; they are allowed only if model.embedding.segments is set")
    if segments_BT.shape != tokens_BT.shape or segments_BT.dtype not in WHOLE:
        found = f"{list(segments_BT.shape)} of {segments_BT.dtype}"
        raise UserError(f"segments: {found}; allowed: {list(tokens_BT.shape)} of int64 or int32")
    if (wrong := segments_BT[(segments_BT < 0) | (segments_BT >= config.embedding.segments)]).numel():
        allowed = f"0 to {config.embedding.segments - 1}"
        raise UserError(f"segments: {wrong[0].item()}; allowed: {allowed} (model.embedding.segments)")


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
