"""`archlab import`, `export`, `convert` and `inspect`: published models and folders with weights."""

from pathlib import Path

from archlab.atlas.inspect import Inspection, inspect
from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.terminal import print_json, print_table
from archlab.config.core.text import note
from archlab.exchange.gguf.write import Format
from archlab.exchange.load import load_hf
from archlab.exchange.save import save_pretrained
from archlab.exchange.surgery import pool_kv_heads
from archlab.infer.import_export import export_gguf, export_model, import_model
from archlab.infer.load import find_folder, inspect_run, is_run_folder
from archlab.progress import doing


def import_folder(hf_folder: str, /, *, out: Path) -> None:
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


def export_run(
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


def convert_heads(hf_folder: Path, /, *, n_kv_heads: AtLeastOne, out: Path) -> None:
    """Turn multi-head into grouped-query attention: key/value heads become the means of neighbours (Ainslie 2023).

    The result needs some more training to be as good as before.

    Parameters
    ----------
    hf_folder
        A folder with config.json and weights.
    n_kv_heads
        Key/value heads to be left; must divide those there are.
    out
        The new Hugging Face folder.
    """
    family = save_pretrained(pool_kv_heads(load_hf(hf_folder), n_kv_heads), out)
    print(f"written as {family} with {n_kv_heads} key/value heads")
    print(out)


def inspect_folder(folder: str, /, *, json: Flag = False) -> int:
    """Say what a model's folder holds, and whether archlab would load it: exit code 0, or 2 with every reason.

    Parameters
    ----------
    folder
        A run folder, a Hugging Face folder with config.json and weights, or a hub id, which is downloaded.
    json
        JSON instead.
    """
    home = find_folder(folder)
    found = inspect_run(home) if is_run_folder(home) else inspect(home)
    if json:
        print_json(found.model_dump(mode="json") | {"loads": found.loads})
    else:
        _print_inspection(found)
    return 0 if found.loads else 2


def _print_inspection(found: Inspection) -> None:
    made_here = found.trained is not None and found.model_type is None
    family = "made here" if made_here else f"{found.model_type} ({found.architecture or 'not known to archlab'})"
    trained = [] if found.trained is None else [("trained", found.trained)]
    print_table(("family", family), [*trained, *found.choices.items()])
    if found.choices:
        print(f"unusual: {', '.join(found.unusual) or 'nothing'}")
    print("loads" if found.loads else "\n".join(["does not load:", *found.problems]))
