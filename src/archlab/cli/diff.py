"""`archlab diff`."""

from archlab.cli.arguments import Flag
from archlab.cli.terminal import print_json, print_table
from archlab.config.identity import diff
from archlab.config.yaml_text import to_yaml_line
from archlab.exchange.configs import load_config


def run(a: str, b: str, /, *, model_only: Flag = False, json: Flag = False) -> None:
    """Show every field in which two configs differ, once defaults and derived values are written out.

    Parameters
    ----------
    a
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    b
        The other one.
    model_only
        Leave out how they are trained and on what.
    json
        JSON instead: field -> [value in A, value in B].
    """
    differences = diff(load_config(a), load_config(b))
    if model_only:
        differences = {field: pair for field, pair in differences.items() if field.startswith("model.")}
    if json:
        print_json(differences)
    elif differences:
        rows = [
            (field, *("-" if value is None else to_yaml_line(value) for value in pair))
            for field, pair in differences.items()
        ]
        print_table(("field", a, b), rows)
    else:
        print("no difference")
