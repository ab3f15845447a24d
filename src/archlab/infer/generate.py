"""Text generation: the continuation of token ids, or of a text by a model that was loaded from a folder."""

from collections.abc import Sequence
from typing import TypeVar, cast

import torch.nn.functional as F
from torch import Tensor

from archlab.errors import UserError
from archlab.infer.load import folder_of, load_codec
from archlab.infer.sampling import Sampling
from archlab.infer.session import Session, checked_every, tokens_of
from archlab.infer.text import stream_text
from archlab.model.decoder import Decoder
from archlab.model.inputs import Inputs, check_is_model, check_tensors

Prompt = TypeVar("Prompt", Tensor, str)
"""Type of a prompt: token ids, or a text. Its continuation has the same type."""


def generate(
    model: Decoder,
    prompt: Prompt,
    max_new_tokens: int = 16,
    temperature: float = 0.0,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    padding: Tensor | Sequence[int] | None = None,
    prefix: Tensor | Sequence[int] | None = None,
    source: Tensor | str | None = None,
    source_lengths: Tensor | None = None,
    end_of_text: int | Sequence[int] | None = None,
    forced_first: int | None = None,
    forced_last: int | None = None,
    excluded: Sequence[int] = (),
    prefill_chunk: int | None = None,
    compile: bool = False,
) -> Prompt:
    """Continue sequences of tokens: [B, T] int64 -> [B, T + max_new_tokens], on the model's device. Or continue a text.

    A text needs a model that `from_pretrained` loaded with its tokenizer. The result is the text with its continuation,
    which ends before the next EOS token. The tokenizer decides which tokens begin and end the text. Allowed arguments
    are then `max_new_tokens`, those of sampling, `source` as a text, and `compile`.

    - `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `seed`: see `Sampling`. By default, decoding is
      greedy (temperature 0).
    - `padding`: [B], number of padding tokens before each sequence (see `left_pad`).
    - `prefix`: [B], number of tokens at the start of each sequence that attend to each other in both directions, in
      layers whose `attention.visibility` is prefix. None means the whole prompt, as in training with a visible prefix.
      Zeros mean that the model reads the prompt causally. A model without prefix layers accepts only None.
    - `source`, `source_lengths`: source texts, [B, S], that an encoder reads, and their lengths without the padding
      after them, [B] (see `Decoder.forward`). The sequences then begin with the token that begins a target text.
    - `end_of_text`: one or several EOS tokens. After any of them, the rest of the row is filled with the first one in
      the list.
    - `forced_first`: token to write first. It counts as a new token.
    - `forced_last`: token to write as the last of `max_new_tokens`. BART writes its EOS token there. If there is only
      one new token, it is this one.
    - `excluded`: tokens that are never chosen. Their probability counts as 0.
    - `prefill_chunk`: maximum number of prompt tokens per forward pass. It limits memory and does not change the
      result. None means that one pass reads the whole prompt. The argument is ignored for a model with prefix layers,
      and if RoPE's angles depend on the sequence length.
    - `compile`: see `Session`.

    Raise UserError for an invalid argument, or if the model's output is NaN or infinite.

    >>> model = archlab.from_pretrained("runs/a")
    >>> archlab.generate(model, torch.tensor([[5, 6, 7]]), max_new_tokens=4).shape
    torch.Size([1, 7])
    >>> archlab.generate(model, "the cat", max_new_tokens=4, temperature=0.8, seed=0)
    'the cat...'
    """
    check_is_model(model)
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    fixed = {"forced_first": forced_first, "forced_last": forced_last, "excluded": excluded}
    if isinstance(prompt, str):
        of_tokens = {
            **fixed,
            "excluded": excluded or None,
            "padding": padding,
            "prefix": prefix,
            "source_lengths": source_lengths,
        }
        of_tokens |= {"end_of_text": end_of_text, "prefill_chunk": prefill_chunk}
        if given := [name for name, value in of_tokens.items() if value is not None]:
            raise UserError(f"{given[0]} is for a prompt of token ids, and the prompt is a text; leave it out")
        if isinstance(source, Tensor):
            raise UserError("source: token ids, but the prompt is a text; give both in the same form")
        return cast(Prompt, _continued(model, prompt, max_new_tokens, sampling, source, compile=compile))
    if isinstance(source, str):
        raise UserError("source: a text, but the prompt is token ids; give both in the same form")
    tokens_BT = prompt
    check_tensors(tokens_BT, Inputs(source=source, source_lengths=source_lengths))
    total = tokens_BT.shape[-1] + max(max_new_tokens, 0)
    session = Session(
        model,
        tokens_BT,
        total,
        padding=padding,
        prefix=prefix,
        source=source,
        source_lengths=source_lengths,
        prefill_chunk=prefill_chunk,
        compile=compile,
    )
    session.check_room(max_new_tokens)
    every = checked_every(session.padding_B.device.type)
    for _ in session.write(max_new_tokens, sampling, end_of_text, **fixed, checked_every=every):
        pass
    (end, *_) = (*tokens_of(end_of_text), 0)
    return cast(Prompt, F.pad(session.tokens_BT, (0, total - session.tokens_BT.shape[1]), value=end))


def _continued(
    model: Decoder, prompt: str, max_new_tokens: int, sampling: Sampling, source: str | None, *, compile: bool
) -> str:
    """Return a prompt with its continuation, as `archlab generate` prints it. For the arguments, see `stream_text`."""
    codec = load_codec(folder_of(model))
    return prompt + "".join(stream_text(model, codec, prompt, max_new_tokens, sampling, source=source, compile=compile))
