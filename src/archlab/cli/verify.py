"""The command `archlab verify`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from archlab.cli.arguments import CodeName, ConfigName, Flag, Override, WholeNumber, load_with_notes
from archlab.cli.terminal import long_output, print_json
from archlab.config.core.yaml_text import parse_yaml
from archlab.errors import UserError
from archlab.testing import Part

_Several = Annotated[tuple[str, ...], Parameter(show_default=False)]


@long_output
def run(
    target: CodeName,
    config: ConfigName,
    /,
    *overrides: Override,
    part: Part,
    layer: WholeNumber = 0,
    argument: _Several = (),
    map: _Several = (),
    mask: Literal["visible", "hidden", "added", "none"] = "visible",
    json: Flag = False,
) -> int:
    """Compare code that you wrote by hand with archlab's.

    TARGET is FILE.py:NAME, where NAME is a module, a class of modules, or a function of the input and its weights. The
    command runs the file with all your rights: read a file from somebody else first.

    The code gets archlab's weights. Then outputs, gradients, causality, padding, positions, the cache and the error in
    bfloat16 are compared. If a known mistake gives exactly your output, the report names it. Exit code 1: a check found
    a difference.

    Parameters
    ----------
    target
        Your code, as in model.py:MultiHeadAttention.
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id. `cs336` is the model of Stanford's
        CS336.
    overrides
        Fields to change, as in model.d_model=64. A small model is compared faster.
    part
        Part of the model that your code computes.
    layer
        Index of the layer.
    argument
        Value of an argument of your code whose name archlab does not know, as in --argument width=64. Can be repeated.
    map
        Your name of a parameter and archlab's, as in --map wq.weight=q.weight. For a fused matrix, several names,
        separated by commas. Can be repeated.
    mask
        Meaning of the mask that your code takes. visible: true if the query sees the key. hidden: true if not. added: 0
        or -inf, to add to the scores. none: your code gets no mask.
    json
        Print JSON.
    """
    arguments = {name: parse_yaml(value, f"--argument {name}") for name, value in _pairs("--argument", argument)}
    mapping = {name: names.split(",") for name, names in _pairs("--map", map)}
    loaded = load_with_notes(config, overrides)
    from archlab.testing.comparison import compare
    from archlab.testing.file import load_target

    result = compare(load_target(target), part, loaded, layer=layer, mapping=mapping, arguments=arguments, mask=mask)
    if json:
        print_json(result.as_json())
    else:
        print(result.text())
    return int(not result.equal)


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Return (name, value) of each text such as `name=value`."""
    if wrong := next((text for text in texts if "=" not in text), None):
        raise UserError(f"{option} {wrong}: has no equals sign; allowed: NAME=VALUE")
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]
