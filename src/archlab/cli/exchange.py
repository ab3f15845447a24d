"""The commands `archlab import`, `export`, `convert` and `inspect`, for published models and folders with weights."""

from pathlib import Path

from archlab.cli.arguments import Flag, FolderName, Override
from archlab.cli.terminal import long_output, print_json
from archlab.config.core.text import note
from archlab.console import console
from archlab.errors import UserError
from archlab.exchange.gguf.write import Format
from archlab.infer.convert import convert as convert_model
from archlab.infer.import_export import export_gguf, export_model, import_model
from archlab.infer.inspect import inspect
from archlab.progress import doing
from archlab.report.folders import print_converted, print_inspection


def import_folder(source: FolderName, /, *, out: Path) -> None:
    """Make a run folder from a published model.

    The run folder can then be trained (`archlab train OUT --out OUT`), evaluated (`archlab eval OUT`) and sampled from
    (`archlab generate OUT`).

    Parameters
    ----------
    source
        A folder with config.json and weights, a hub id, or a GGUF file. A GGUF file needs the extra `gguf`.
    out
        The run folder to write.
    """
    with doing(f"importing {source}"):
        family, notes = import_model(source, out)
    for text in notes:
        note(text)
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
    if out.suffix == ".gguf" and not gguf:
        raise UserError(f"--out {out} is the name of a GGUF file; add --gguf, or name a folder")
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


@long_output
def convert(model: FolderName, /, *overrides: Override, out: Path) -> None:
    """Change the architecture of a trained model, without training. `archlab list transformations` shows what can
    change.

    The command prints the origin of each tensor, and the change of the logits. To train the result as well, give the
    same fields to `archlab train MODEL`.

    Parameters
    ----------
    model
        A run folder, a Hugging Face folder or a hub id.
    overrides
        Fields of the model to change, as in model.attention.n_kv_heads=8. Also train.start_layers and train.seed.
    out
        The folder to write, in the form of MODEL: a run folder, or a Hugging Face folder.
    """
    with doing(f"converting {model}"):
        converted = convert_model(model, *overrides, out=out)
    print_converted(console(), converted)
    print(out)


@long_output
def inspect_folder(folder: FolderName, /, *, json: Flag = False) -> int:
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
    inspection = inspect(folder)
    if json:
        print_json(inspection.model_dump(mode="json") | {"loads": inspection.loads})
    else:
        print_inspection(console(), inspection)
    return 0 if inspection.loads else 2
