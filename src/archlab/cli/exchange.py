"""The commands `archlab import`, `export`, `convert` and `inspect`, for published models and folders with weights."""

from pathlib import Path

from archlab.atlas.inspect import Inspection, inspect
from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.config.core.text import note
from archlab.exchange.gguf.write import Format
from archlab.exchange.load import load_hf
from archlab.exchange.save import save_pretrained
from archlab.exchange.surgery import pool_kv_heads
from archlab.infer.import_export import export_gguf, export_model, import_model
from archlab.infer.load import find_folder, inspect_run, is_run_folder
from archlab.progress import doing


def import_folder(hf_folder: str, /, *, out: Path) -> None:
    """Make a run folder from a published model.

    The run folder can then be trained (`archlab train OUT --out OUT`), evaluated (`archlab eval OUT`) and sampled from
    (`archlab generate OUT`).

    Parameters
    ----------
    hf_folder
        A folder with config.json and weights, or a hub id.
    out
        The run folder to write.
    """
    with doing(f"importing {hf_folder}"):
        family = import_model(hf_folder, out)
    print(f"imported as {family}; archlab has not trained it further yet")
    print(out)


def export_run(
    folder: Path, /, *, out: Path, family: str | None = None, dtype: Format | None = None, gguf: Flag = False
) -> None:
    """Write a trained model as a Hugging Face folder, from which transformers computes the same logits.

    With --gguf, write one file for llama.cpp. If llama.cpp cannot compute the model exactly, the command writes nothing
    and prints the reason.

    Parameters
    ----------
    folder
        A run folder. With --gguf also a Hugging Face folder or a hub id.
    out
        The Hugging Face folder to write, which must be new or empty. With --gguf, the new file to write.
    family
        A name of `archlab list families`. Default: the family that the model was imported from, or the first one that
        can express the model.
    dtype
        Dtype of the weights. Default: as stored, which is float32 after training.
    gguf
        Write a GGUF file for llama.cpp. This needs the extra `gguf`.
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


def convert_heads(hf_folder: Path, /, *, n_kv_heads: AtLeastOne, out: Path) -> None:
    """Turn multi-head into grouped-query attention. Each new key/value head is the mean of neighboring heads.

    The method is that of Ainslie et al. (2023). The new model needs some training to reach the quality of the old one.

    Parameters
    ----------
    hf_folder
        A folder with config.json and weights.
    n_kv_heads
        Number of key/value heads in the new model. It must divide the current number.
    out
        The Hugging Face folder to write.
    """
    family = save_pretrained(pool_kv_heads(load_hf(hf_folder), n_kv_heads), out)
    print(f"written as {family} with {n_kv_heads} key/value heads")
    print(out)


@long_output
def inspect_folder(folder: str, /, *, json: Flag = False) -> int:
    """Show what a model folder contains, and whether archlab can load it.

    Exit code 0: archlab can load the folder. Exit code 2: archlab cannot load it; all reasons are printed.

    Parameters
    ----------
    folder
        A run folder, a Hugging Face folder with config.json and weights, or a hub id. The model of a hub id is
        downloaded.
    json
        Print JSON.
    """
    home = find_folder(folder)
    inspection = inspect_run(home) if is_run_folder(home) else inspect(home)
    if json:
        print_json(inspection.model_dump(mode="json") | {"loads": inspection.loads})
    else:
        _print_inspection(inspection)
    return 0 if inspection.loads else 2


def _print_inspection(inspection: Inspection) -> None:
    made_here = inspection.trained is not None and inspection.model_type is None
    architecture = inspection.architecture or "not known to archlab"
    family = "made here" if made_here else f"{inspection.model_type} ({architecture})"
    trained = [] if inspection.trained is None else [("trained", inspection.trained)]
    print_table(("family", family), [*trained, *inspection.choices.items()])
    if inspection.choices:
        print(f"unusual: {', '.join(inspection.unusual) or 'nothing'}")
    print("loads" if inspection.loads else "\n".join(["does not load:", *inspection.problems]))
