"""Continuation of a text by a model that was loaded from a folder."""

from archlab.infer.load import folder_of, load_codec, load_tokenizer
from archlab.infer.sampling import Sampling
from archlab.infer.text import stream_text
from archlab.model.decoder import Decoder


def continued(
    model: Decoder, prompt: str, max_new_tokens: int, sampling: Sampling, source: str | None, *, compile: bool
) -> str:
    """Return a prompt with its continuation, as `archlab generate` prints it. For the arguments, see `stream_text`."""
    load_tokenizer(model)  # refuses a model whose tokens do not represent text
    codec = load_codec(folder_of(model))
    return prompt + "".join(stream_text(model, codec, prompt, max_new_tokens, sampling, source=source, compile=compile))
