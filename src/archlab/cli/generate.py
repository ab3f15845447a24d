"""`archlab generate`."""

from typing import Annotated, Literal

from archlab.cli.arguments import AtLeastOne, Flag, MayBeginWithDash, WholeNumber
from archlab.console import print_exact


def run(
    folder: str,
    /,
    *,
    prompt: Annotated[str, MayBeginWithDash] = "",
    max_new_tokens: AtLeastOne = 128,
    temperature: float = 0.8,
    top_k: WholeNumber | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Annotated[tuple[str, ...], MayBeginWithDash] = (),
    seed: WholeNumber | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    int8: Flag = False,
    compile: Flag = False,
) -> None:
    """Continue a text, token by token.

    Parameters
    ----------
    folder
        A run folder, a Hugging Face folder with a tokenizer.json, or a hub id.
    prompt
        The text to go on from; left out, it begins a new one.
    max_new_tokens
        Stop after so many, or at the end of the text.
    temperature
        0 takes the likeliest token each time.
    top_k
        Draw from so many of the likeliest tokens. Left out: from all.
    top_p
        Draw from the likeliest tokens that together have this probability.
    min_p
        Draw from tokens at least this times as likely as the likeliest.
    repetition_penalty
        Above 1: tokens that occurred become less likely.
    stop
        End before this text; can be given several times. A line's end is $'\\n' in bash.
    seed
        Makes the draw repeatable.
    device
        Where it is computed; auto is cuda where there is one.
    dtype
        Number format of the weights. Left out: as they are stored.
    int8
        The matrices of layers and head as 8-bit numbers, with a scale per row, the rest in bfloat16: less to read per
        token on a CPU. `archlab eval --int8` says what that costs.
    compile
        Make a decoding step one compiled graph: up to a minute first, then about half the time per token.
    """
    import torch

    from archlab.errors import UserError
    from archlab.infer.int8 import to_int8
    from archlab.infer.load import find_folder, from_pretrained, load_codec
    from archlab.infer.sampling import Sampling
    from archlab.infer.text import stream_text
    from archlab.training.device import resolve_device_type

    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    device_type = resolve_device_type(device, "--device")
    home = find_folder(folder)
    if int8 and (device_type != "cpu" or dtype not in (None, "bfloat16")):
        raise UserError("--int8: is for bfloat16 on a CPU; allowed: --device cpu, --dtype bfloat16 or none")
    dtype = "bfloat16" if int8 else dtype
    codec, wanted = load_codec(home), getattr(torch, dtype) if dtype else None
    model = from_pretrained(home, wanted, device_type)
    model = to_int8(model) if int8 else model
    pieces = stream_text(model, codec, prompt, max_new_tokens, sampling, stop, compile=compile)
    print_exact(prompt)
    for piece in pieces:
        print_exact(piece)
    print()
