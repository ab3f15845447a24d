"""`archlab export`."""

from pathlib import Path

from archlab.cli.arguments import Flag
from archlab.config.core.text import note
from archlab.exchange.gguf.write import Format
from archlab.infer.import_export import export_gguf, export_model
from archlab.progress import doing


def run(
    folder: Path, /, *, out: Path, family: str | None = None, dtype: Format | None = None, gguf: Flag = False
) -> None:
    """Write a trained model as a Hugging Face folder that transformers loads to the same logits.

    With --gguf it is one file that llama.cpp runs. What llama.cpp cannot compute exactly is refused by name.

    Parameters
    ----------
    folder
        A run folder; with --gguf also a Hugging Face folder or a hub id.
    out
        The Hugging Face folder, or the GGUF file, new.
    family
        A name of `archlab list families`. Left out: the imported one, or the first that can express the model.
    dtype
        Of the weights. Left out: as they are, which after training is float32.
    gguf
        A GGUF file for llama.cpp; needs the extra `gguf`.
    """
    if gguf:
        with doing(f"writing {out}"):
            architecture, notes = export_gguf(folder, out, family, dtype)
        for text in notes:
            note(text)
        print(f"written as {architecture}")
    else:
        with doing(f"writing {out}"):
            architecture = export_model(folder, out, family, dtype)
        print(f"written as {architecture}")
    print(out)
