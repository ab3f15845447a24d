"""Text in, text out, as it comes."""

from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from archlab.data import tokenizer as bpe
from archlab.infer.generate import stream
from archlab.model.decoder import Decoder


def stream_text(model: Decoder, tokenizer: Tokenizer, prompt: str, **sampling: Any) -> Iterator[str]:
    """The continuation of a prompt in pieces that never split a character; ends at the end-of-text token.

    `sampling` goes to `archlab.infer.generate.stream`.
    """
    end = bpe.end_of_text(tokenizer)
    prompt_ids = [end, *bpe.encode(tokenizer, [prompt])[0].tolist()]
    pieces = DecodeStream(skip_special_tokens=True)
    for token_B in stream(model, torch.tensor([prompt_ids]), **sampling):
        if int(token_B) == end:
            return
        if piece := pieces.step(tokenizer, int(token_B)):
            yield piece
