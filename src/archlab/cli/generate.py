"""`archlab generate`."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from archlab.cli.arguments import AtLeastOne
from archlab.errors import UserError
from archlab.infer.load import from_pretrained, load_tokenizer
from archlab.infer.text import stream_text


def run(
    folder: str,
    /,
    *,
    prompt: str,
    max_new_tokens: AtLeastOne = 128,
    temperature: Annotated[float, Parameter(validator=Number(gte=0))] = 0.8,
    top_k: AtLeastOne | None = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 63))] | None = None,
) -> None:
    """Continue a text, token by token.

    Parameters
    ----------
    folder
        A run folder.
    prompt
        The text to go on from.
    max_new_tokens
        Stop after so many, or at the end of the text.
    temperature
        0 takes the likeliest token each time.
    top_k
        Draw from so many of the likeliest tokens. Left out: from all.
    seed
        Makes the draw repeatable.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("--prompt: not valid UTF-8") from None
    model, tokenizer = from_pretrained(folder), load_tokenizer(folder)
    print(prompt, end="", flush=True)
    for piece in stream_text(
        model,
        tokenizer,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
    ):
        print(piece, end="", flush=True)
    print()
