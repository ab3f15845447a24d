"""`archlab export`."""

from pathlib import Path

from archlab.infer.import_export import export_model


def run(folder: Path, /, *, out: Path, family: str | None = None) -> None:
    """Write a trained model as a Hugging Face folder that transformers loads to the same logits.

    Parameters
    ----------
    folder
        A run folder.
    out
        The Hugging Face folder, new.
    family
        A name of `archlab list families`. Left out: the imported one, or the first that can express the model.
    """
    print(f"written as {export_model(folder, out, family)}")
    print(out)
