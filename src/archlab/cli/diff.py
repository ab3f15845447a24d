"""`archlab diff`."""

from pathlib import Path

from archlab.cli.arguments import Flag, check_one_answer
from archlab.cli.terminal import print_json, print_table
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.identity import diff
from archlab.exchange.configs import load_config


def run(a: str, b: str, /, *, model_only: Flag = False, html: Path | None = None, json: Flag = False) -> None:
    """Show every field in which two configs differ, once defaults and derived values are written out.

    Parameters
    ----------
    a
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    b
        The other one.
    model_only
        Leave out how they are trained and on what.
    html
        Write a page to this file instead: both block diagrams side by side, what differs set off, and the fields.
    json
        JSON instead: field -> [value in A, value in B].
    """
    check_one_answer(json, html)
    first, second = load_config(a), load_config(b)
    differences = diff(first, second)
    if model_only:
        differences = {field: pair for field, pair in differences.items() if field.startswith("model.")}
    if html is not None:
        from archlab.report.drawings.diff_page import write_diff

        print(write_diff((a, first), (b, second), differences, html))
    elif json:
        print_json(differences)
    elif differences:
        rows = [
            (field, *("-" if value is None else to_yaml_line(value) for value in pair))
            for field, pair in differences.items()
        ]
        print_table(("field", a, b), rows)
    else:
        print("no difference")
