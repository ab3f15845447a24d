"""`archlab show`."""

from archlab.cli.arguments import Flag
from archlab.cli.loading import load_with_notes
from archlab.cli.terminal import print_json, print_table
from archlab.config.core.yaml_text import to_yaml
from archlab.config.describe import layer_table
from archlab.config.identity import resolved
from archlab.config.layers import layer_configs


def run(config: str, /, *overrides: str, layers: Flag = False, json: Flag = False) -> None:
    """Show a config with every default and derived value written out, as YAML.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.norm.kind=layernorm.
    layers
        A table of the layers instead, identical neighbours on one line.
    json
        JSON instead.
    """
    loaded = load_with_notes(config, overrides)
    if layers and json:
        print_json([layer.model_dump(mode="json") for layer in layer_configs(loaded.model)])
    elif layers:
        rows = layer_table(loaded.model)
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    elif json:
        print_json(resolved(loaded))
    else:
        print(to_yaml(resolved(loaded)), end="")
