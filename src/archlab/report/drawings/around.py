"""Boxes before and after the layers of a model."""

from collections.abc import Iterator
from typing import NamedTuple

from archlab.config.components.activation import name_of_mlp
from archlab.config.components.norm import NoNorm
from archlab.config.layers import final_norm
from archlab.config.model_schema import ModelConfig
from archlab.report.drawings.stacks import Boxed
from archlab.report.drawings.svg import Words
from archlab.report.drawings.words import norm_words


class Around(NamedTuple):
    """Boxes before and after the layers of one stack, from bottom to top, and the labels at both ends."""

    tokens: str
    """Label below the stack."""
    below: list[Boxed]
    """Boxes between the tokens and the first sum."""
    added: list[Boxed]
    """Vectors that are added to the embedding."""
    summed: list[Boxed]
    """Boxes between the last sum and the layers."""
    above: list[Boxed]
    """Boxes after the layers."""
    output: str | None
    """Label above the stack. None for an encoder, whose output is drawn as a wire to the decoder."""


def around_layers(model: ModelConfig) -> Around:
    """Return the boxes around the layers of a model, or of the decoder of a model with an encoder."""
    tokens = "tokens" if model.encoder is None else "target tokens"
    above = [*_final_norm(model), *_head(model)]
    return Around(tokens, _below(model), [*_added_vectors(model)], _summed(model), above, "logits")


def around_encoder(model: ModelConfig, encoder: ModelConfig) -> Around:
    """Return the boxes around the layers of the encoder of `model`."""
    added, summed = [*_added_vectors(encoder)], _summed(encoder)
    return Around("source tokens", _below(model), added, summed, _final_norm(encoder), None)


def _below(model: ModelConfig) -> list[Boxed]:
    """Return the boxes between the tokens and the first sum. An encoder and a decoder share them."""
    embedding = model.embedding.resolve(model.base_width)
    width = embedding.width or model.d_model
    shared = () if model.encoder is None else ("shared by both stacks",)
    boxes = [Boxed("embedding", "io", Words("Token embedding", (f"{model.vocab_size:,} × {width:,}", *shared)))]
    if embedding.scale != 1:
        boxes.append(Boxed("embedding scale", "io", Words(f"× {embedding.scale:.4g}")))
    if embedding.width and embedding.widened == "tokens":
        boxes.append(Boxed("embedding widening", "io", Words(f"{width:,} → {model.d_model:,}")))
    if embedding.norm is True:
        boxes.append(Boxed("embedding norm", "norm", norm_words(model.norm)))
    return boxes


def _added_vectors(model: ModelConfig) -> Iterator[Boxed]:
    width, position = model.added_width, model.position
    if n := model.embedding.segments:
        yield Boxed("segments", "position", Words("Segments", (f"{n:,} × {width:,}",)))
    if position.acts_on == "embedding":
        line = f"{model.max_seq_len:,} × {width:,}" if position.kind == "learned" else f"theta {position.theta:,g}"  # pyright: ignore[reportAttributeAccessIssue]
        yield Boxed("positions", "position", Words(f"{position.kind.capitalize()} positions", (line,)))


def _summed(model: ModelConfig) -> list[Boxed]:
    """Return the boxes between the last sum with the embedding and the layers."""
    embedding = model.embedding
    boxes = [Boxed("embedding norm", "norm", norm_words(model.norm))] if embedding.norm == "sum" else []
    if model.dropout.embedding:
        boxes.append(Boxed("embedding dropout", "io", Words(f"dropout {model.dropout.embedding:g}")))
    if embedding.width and embedding.widened == "sum":
        boxes.append(Boxed("embedding widening", "io", Words(f"{embedding.width:,} → {model.d_model:,}")))
    return boxes


def _final_norm(model: ModelConfig) -> list[Boxed]:
    norm = final_norm(model)
    return [] if isinstance(norm, NoNorm) else [Boxed("final norm", "norm", norm_words(norm))]


def _head(model: ModelConfig) -> Iterator[Boxed]:
    head, width = model.readout, model.embedding.width or model.d_model
    if transform := head.transform:
        words = Words(
            "Dense layer", (f"{model.d_model:,} → {width:,}", name_of_mlp(transform.activation, is_gated=False))
        )
        yield Boxed("head transform", "mlp", words)
        if transform.norm:
            yield Boxed("head norm", "norm", norm_words(model.norm))
    elif model.embedding.width:
        yield Boxed("head narrowing", "io", Words(f"{model.d_model:,} → {width:,}"))
    lines = ["embedding matrix (tied)" if head.tied else f"{width:,} × {model.vocab_size:,}"]
    yield Boxed("head", "io", Words("Head", (*lines, *(["bias"] if head.bias else []))))
    if head.scale != 1:
        yield Boxed("head scale", "io", Words(f"× {head.scale:.4g}"))
    if head.softcap:
        yield Boxed("head cap", "io", Words(f"capped at {head.softcap:g}"))
