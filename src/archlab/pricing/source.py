"""Source texts of a model with an encoder: their length, and the passes of the encoder and of the decoder.

A sequence of such a model consists of a source text and a target text. `context` and all numbers of tokens in serving
count target tokens. FLOPs per token are the FLOPs of source and target, divided by the number of target tokens. In
training, they are divided by `train.seq_len`, whatever part of a window the encoder and the decoder read. FLOPs per
token times tokens is therefore the cost of all windows. A budget in FLOPs uses this product, too.
"""

from archlab.config.components.work import Pass
from archlab.config.layers import encoder_of
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError


def source_tokens(model: ModelConfig, tokens: int, source: int | None = None) -> int:
    """Return the number of source tokens of each sequence of `tokens` target tokens. It is `source`, and by default as
    many as there are target tokens. Without an encoder, it is 0.

    Raise UserError if the model has no encoder but `source` is given, or if `source` is 0 for an encoder.
    """
    if model.encoder is None:
        if source:
            raise UserError(f"source is {source}, but the model has no encoder; leave it out")
        return 0
    if source is not None and source < 1:
        raise UserError(f"source is {source}; allowed: at least 1, because the model has an encoder")
    return tokens if source is None else source


def stack_passes(model: ModelConfig, model_pass: Pass) -> list[tuple[ModelConfig, Pass]]:
    """Return the passes of the encoder, if it reads source texts in this pass, and of the decoder.

    Raise UserError if a model with an encoder has no source text, or if another model has one.
    """
    encoder = encoder_of(model)
    if (encoder is None) != (model_pass.source == 0):
        allowed = "0, because the model has no encoder" if encoder is None else "1 or more for a model with an encoder"
        raise UserError(f"{model_pass.source} source tokens; allowed: {allowed}")
    if encoder is None or not model_pass.reads_source:
        return [(model, model_pass)]
    return [(encoder, model_pass.of_source), (model, model_pass)]
