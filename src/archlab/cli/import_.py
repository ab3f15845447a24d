"""`archlab import`."""

from pathlib import Path

from archlab.infer.import_export import import_model
from archlab.progress import doing


def run(hf_folder: str, /, *, out: Path) -> None:
    """Make a run folder of a published model: for `archlab train OUT --out OUT`, `archlab eval` and `archlab generate`.

    Parameters
    ----------
    hf_folder
        A folder with config.json and weights, or a hub id.
    out
        The run's folder, new.
    """
    with doing(f"importing {hf_folder}"):
        family = import_model(hf_folder, out)
    print(f"imported as {family}; no training step made yet")
    print(out)
