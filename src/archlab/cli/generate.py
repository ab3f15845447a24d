"""The command `archlab generate`."""

from typing import Annotated, Literal

from cyclopts import Parameter

from archlab.cli.arguments import AtLeastOne, Flag, FolderName, MayBeginWithDash, WholeNumber
from archlab.console import print_exact


def run(
    folder: FolderName,
    /,
    *,
    prompt: Annotated[str, MayBeginWithDash] = "",
    source: Annotated[str | None, MayBeginWithDash] = None,
    chat: Flag = False,
    max_new_tokens: AtLeastOne = 128,
    beams: AtLeastOne | None = None,
    length_penalty: float | None = None,
    temperature: float | None = None,
    top_k: WholeNumber | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Annotated[tuple[str, ...], MayBeginWithDash, Parameter(show_default=False)] = (),
    seed: WholeNumber | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    int8: Flag = False,
    compile: Flag = False,
) -> None:
    """Continue a text with a trained model.

    Parameters
    ----------
    folder
        A run folder, a Hugging Face folder with a tokenizer.json, or a hub id.
    prompt
        The text to continue. With an encoder, it begins the target text and may be left out.
    source
        The text that the encoder reads, in a model with an encoder such as T5, or the source of a run that was trained
        on pairs. The prompt then begins the target text.
    chat
        Put the prompt into the model's chat template, as the message of a user, and print only the response.
    max_new_tokens
        Maximum number of new tokens.
    beams
        Search for the best text with this number of beams, without sampling.
    length_penalty
        Exponent of the length penalty of `--beams` (Wu 2016). 0 favors short texts. Default: 0.6.
    temperature
        Sampling temperature. 0 always takes the likeliest token. Default: 0.8.
    top_k
        Sample from this number of likeliest tokens.
    top_p
        Sample from the likeliest tokens that together have this probability.
    min_p
        Sample from tokens with at least this fraction of the probability of the likeliest token.
    repetition_penalty
        A value above 1 reduces the probability of tokens that have occurred before.
    stop
        Stop before this text. Can be repeated. A newline is $'\\n' in bash.
    seed
        Seed of the sampling.
    device
        Device to compute on. auto is cuda if there is a GPU.
    dtype
        Dtype of the weights. Default: as stored.
    int8
        Quantize weight matrices to 8 bits, on a CPU. `archlab eval --int8` shows the loss.
    compile
        Compile a decoding step. This takes up to a minute and halves the time per token.
    """
    from archlab.errors import UserError
    from archlab.exchange.configs import find_folder
    from archlab.infer.beams import ALPHA
    from archlab.infer.chat import chat_codec
    from archlab.infer.int8 import to_int8
    from archlab.infer.load import from_pretrained, load_codec
    from archlab.infer.sampling import Sampling
    from archlab.infer.text import best_text, stream_text
    from archlab.training.device import resolve_device_type

    sampled = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p, "--min-p": min_p, "--seed": seed}
    if beams and (given := [name for name, value in sampled.items() if value is not None]):
        raise UserError(f"{given[0]} is for sampling, but --beams searches for the best text; give one of the two")
    if length_penalty is not None and not beams:
        raise UserError("--length-penalty applies only to beam search; give --beams as well")
    if beams and (stop or compile or repetition_penalty != 1):
        raise UserError("--beams cannot be combined with --stop, --compile or --repetition-penalty; leave them out")
    sampling = Sampling(0.8 if temperature is None else temperature, top_k, top_p, min_p, repetition_penalty, seed)
    device_type = resolve_device_type(device, "--device")
    home = find_folder(folder)
    if int8 and (device_type != "cpu" or dtype not in (None, "bfloat16")):
        raise UserError(
            "--int8 works in bfloat16 on a CPU only; allowed with it: --device cpu, and --dtype bfloat16 or no --dtype"
        )
    dtype = "bfloat16" if int8 else dtype
    if chat and source is not None:
        raise UserError(
            "--source cannot be combined with --chat, which puts --prompt into the message of a user; leave it out"
        )
    codec = chat_codec(load_codec(home), home) if chat else load_codec(home)
    model = from_pretrained(home, dtype, device_type)
    model = to_int8(model) if int8 else model
    if beams:
        pieces = [
            best_text(
                model,
                codec,
                prompt,
                max_new_tokens,
                source=source,
                beams=beams,
                alpha=ALPHA if length_penalty is None else length_penalty,
            )
        ]
    else:
        pieces = stream_text(model, codec, prompt, max_new_tokens, sampling, stop, source=source, compile=compile)
    if not chat:
        print_exact(prompt)
    try:
        for piece in pieces:
            print_exact(piece)
    finally:
        print()  # also before the message of an error, which gets its own line
