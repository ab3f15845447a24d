"""The commands `archlab show`, `schema`, `diff` and `flatten`, which print configs as text."""

from pathlib import Path
from typing import Literal

from archlab.cli.arguments import ConfigName, Flag, Override, OverrideOfTwo, check_one_answer, load_with_notes
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.config.core.yaml_text import to_yaml
from archlab.config.describe import layer_table, named_stacks
from archlab.config.effects import check_effect
from archlab.config.identity import differences, resolved
from archlab.config.layers import layer_configs
from archlab.console import console
from archlab.errors import UserError
from archlab.exchange.configs import load_config


@long_output
def show(config: ConfigName, /, *overrides: Override, layers: Flag = False, json: Flag = False) -> None:
    """Show a config as YAML, with every default and derived value.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.norm.kind=layernorm.
    layers
        Print a table of the layers, of an encoder and of the decoder. Adjacent identical layers share a row.
    json
        Print JSON.
    """
    loaded = load_with_notes(config, overrides)
    if layers and json:
        print_json(
            [
                {**({"stack": name} if loaded.model.encoder else {}), **layer.model_dump(mode="json")}
                for name, stack in named_stacks(loaded.model).items()
                for layer in layer_configs(stack)
            ]
        )
    elif layers:
        rows = layer_table(loaded.model)
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    elif json:
        print_json(resolved(loaded))
    else:
        print(to_yaml(resolved(loaded)), end="")


@long_output
def schema(kind: Literal["config", "study"] = "config", /) -> None:
    """Print the JSON schema of configs or studies.

    Save it as archlab.json. An editor then checks and completes each YAML file that begins with
    `# yaml-language-server: $schema=archlab.json`.

    Parameters
    ----------
    kind
        `config` (a model and its training) or `study` (a comparison of models).
    """
    from archlab.study.authoring import json_schema

    print_json(json_schema(kind))


@long_output
def diff(
    a: ConfigName,
    b: ConfigName,
    /,
    *overrides: OverrideOfTwo,
    model_only: Flag = False,
    html: Path | None = None,
    json: Flag = False,
) -> None:
    """Show every field in which two configs differ, including defaults and derived values.

    Parameters
    ----------
    a
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    b
        The config to compare with A.
    overrides
        Fields to change in one of the configs, as in a.model.n_layers=16 b.model.norm.kind=layernorm.
    model_only
        Leave out the training and data fields.
    html
        Write a page to this file: two block diagrams with the differences marked, and a table of the fields.
    json
        Print JSON that maps each field to [value in A, value in B], with all digits.
    """
    check_one_answer(json, html)
    if unknown := next((text for text in overrides if not text.startswith(("a.", "b."))), None):
        raise UserError(
            f"{unknown!r}: allowed after A and B are fields to change in one of them, as in a.model.n_layers=16"
        )
    changes_a, changes_b = ([text[2:] for text in overrides if text.startswith(side)] for side in ("a.", "b."))
    first, second = load_config(a, *changes_a), load_config(b, *changes_b)
    differing = differences(first, second, model_only=model_only)
    if html is not None:
        from archlab.report.drawings.diff_page import write_diff
        from archlab.report.drawings.words import title_with

        named = (title_with(a, changes_a), first), (title_with(b, changes_b), second)
        print(write_diff(*named, differing, html))
    elif json:
        print_json(differing)
    else:
        from archlab.report.lists import print_differences

        print_differences(console(), differing, a, b)


@long_output
def flatten(config: ConfigName, /, *overrides: Override) -> None:
    """Print a model as a single PyTorch file that needs only torch, with at most 350 lines.

    The file contains only the code that this model uses. With an encoder, it has at most 700 lines.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.n_layers=2.
    """
    from archlab.flatten.write import flatten_model, title_of

    check_effect(overrides, "flatten")
    print(flatten_model(load_config(config, *overrides).model, title=title_of(config, overrides)), end="")
