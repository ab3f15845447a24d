"""The command `archlab fill`."""

from typing import Annotated, Literal

from archlab.cli.arguments import AtLeastOne, Flag, FolderName, MayBeginWithDash


def run(
    folder: FolderName,
    /,
    *,
    text: Annotated[str, MayBeginWithDash],
    top: AtLeastOne = 5,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: Flag = False,
) -> None:
    """Predict the masked tokens of a text with an encoder such as BERT.

    Parameters
    ----------
    folder
        A run folder, a Hugging Face folder with a tokenizer.json, or a hub id.
    text
        Text with the tokenizer's mask token, which is `[MASK]` for BERT and `<mask>` for `archlab data --reserve mask`.
    top
        Number of predictions for each mask token.
    device
        Device to compute on. auto is cuda if there is a GPU.
    json
        Print the predictions as JSON.
    """
    from archlab.cli.terminal import print_json, print_table
    from archlab.infer.fill import fill
    from archlab.infer.load import from_pretrained
    from archlab.training.device import resolve_device_type

    model = from_pretrained(folder, device=resolve_device_type(device, "--device"))
    masks = fill(model, text, top)
    if json:
        print_json([[guess._asdict() for guess in guesses] for guesses in masks])
        return
    for n, guesses in enumerate(masks, 1):
        heading = "token" if len(masks) == 1 else f"mask {n}"
        print_table((heading, "probability"), [(_visible(guess.text), f"{guess.probability:.1%}") for guess in guesses])


def _visible(text: str) -> str:
    """Return a text with quotes and escapes if it could not be seen without them, such as a line break."""
    return text if text.strip() and text.isprintable() else repr(text)
