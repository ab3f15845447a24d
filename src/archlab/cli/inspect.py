"""`archlab inspect`."""

from archlab.atlas.inspect import Inspection, inspect
from archlab.cli.arguments import Flag
from archlab.cli.terminal import print_json, print_table


def run(folder: str, /, *, json: Flag = False) -> int:
    """Say what a model's folder holds, and whether archlab would load it: exit code 0, or 2 with every reason.

    Parameters
    ----------
    folder
        A run folder, a Hugging Face folder with config.json and weights, or a hub id, which is downloaded.
    json
        JSON instead.
    """
    from archlab.infer.load import find_folder, inspect_run, is_run_folder

    home = find_folder(folder)
    found = inspect_run(home) if is_run_folder(home) else inspect(home)
    if json:
        print_json(found.model_dump(mode="json") | {"loads": found.loads})
    else:
        _print(found)
    return 0 if found.loads else 2


def _print(found: Inspection) -> None:
    made_here = found.trained is not None and found.model_type is None
    family = "made here" if made_here else f"{found.model_type} ({found.architecture or 'not known to archlab'})"
    trained = [] if found.trained is None else [("trained", found.trained)]
    print_table(("family", family), [*trained, *found.choices.items()])
    if found.choices:
        print(f"unusual: {', '.join(found.unusual) or 'nothing'}")
    print("loads" if found.loads else "\n".join(["does not load:", *found.problems]))
