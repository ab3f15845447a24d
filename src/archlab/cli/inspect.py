"""`archlab inspect`."""

from pathlib import Path

from archlab.atlas.inspect import Inspection, inspect
from archlab.cli.arguments import Flag
from archlab.cli.terminal import print_json, print_table


def run(hf_folder: Path, /, *, json: Flag = False) -> int:
    """Say what a Hugging Face folder holds, and whether archlab would load it: exit code 0, or 2 with every reason.

    Parameters
    ----------
    hf_folder
        A folder with config.json and safetensors.
    json
        JSON instead.
    """
    found = inspect(hf_folder)
    if json:
        print_json(found.model_dump(mode="json") | {"loads": found.loads})
    else:
        _print(found)
    return 0 if found.loads else 2


def _print(found: Inspection) -> None:
    family = f"{found.model_type} ({found.architecture or 'not known to archlab'})"
    print_table(("family", family), found.choices.items())
    if found.choices:
        print(f"unusual: {', '.join(found.unusual) or 'nothing'}")
    print("loads" if found.loads else "\n".join(["does not load:", *found.problems]))
