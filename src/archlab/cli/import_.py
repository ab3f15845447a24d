"""`archlab import`."""

from pathlib import Path

from archlab.infer.exchange import import_model


def run(hf_folder: str, /, *, out: Path) -> None:
    """Make a run folder of a published model, to be trained on (`archlab train OUT --out OUT`), evaluated, generated.

    Parameters
    ----------
    hf_folder
        A folder with config.json and safetensors, or a hub id.
    out
        The run's folder, new.
    """
    print(f"{import_model(hf_folder, out)} model, before its first step here")
    print(out)
