"""The command `archlab list`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from archlab.atlas.list_presets import list_presets
from archlab.cli.arguments import Flag, MayBeginWithDash, check_one_answer
from archlab.cli.terminal import long_output, print_json
from archlab.config.core.yaml_text import read_yaml
from archlab.config.io import studies
from archlab.console import console
from archlab.errors import UserError
from archlab.pricing.hardware import list_hardware
from archlab.report.lists import print_families, print_hardware, print_presets, print_transformations
from archlab.report.text_table import print_columns

Kind = Literal["presets", "hardware", "families", "studies", "transformations"]


@long_output
def run(
    what: Kind | None = None,
    /,
    *,
    filter: Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True)] = None,
    sort: Annotated[str | None, MayBeginWithDash] = None,
    html: Path | None = None,
    json: Flag = False,
) -> None:
    """List published architectures year by year, archlab's own presets, hardware, model families, studies, and the
    transformations of trained weights.

    Parameters
    ----------
    what
        What to list. Default: presets, hardware and studies.
    filter
        List only published architectures that meet all of these conditions, as in family=llama 'year>=2024'
        'd_ff_over_d>4' 'model.attention.n_kv_heads<8'. The value null means unknown.
    sort
        Sort published architectures by this field, as in d_ff_over_d. With -size, the largest come first.
    html
        Write the published architectures as a page with charts to this file.
    json
        Print JSON.
    """
    if filter == ():
        raise UserError("--filter has no value; allowed: conditions, as in 'year>=2024'")
    filter = filter or ()
    if option := next(
        (name for name, value in (("--html", html), ("--filter", filter), ("--sort", sort)) if value), ""
    ):
        if what not in (None, "presets"):
            raise UserError(f"{option} works for presets only; type: archlab list presets {option} …")
        what = "presets"
    check_one_answer(json, html)
    if html is not None:
        from archlab.report.atlas import write_atlas

        print(write_atlas(list_presets(*filter, sort=sort).published, html))
        return
    kinds: Sequence[Kind] = (what,) if what else ("presets", "hardware", "studies")
    lists: dict[Kind, Any] = {kind: _list(kind, filter, sort) for kind in kinds}
    if json:
        parts = {name: values for kind, listed in lists.items() for name, values in _as_json(kind, listed).items()}
        print_json({name: values for name, values in parts.items() if values})
        return
    for kind, listed in lists.items():
        _PRINT[kind](console(), listed)


def _list(kind: Kind, conditions: Sequence[str], sort: str | None) -> Any:
    match kind:
        case "presets":
            return list_presets(*conditions, sort=sort)
        case "hardware":
            return list_hardware()
        case "families":
            from archlab.families.registry import list_families  # loads all families

            return list_families()
        case "studies":
            return {name: read_yaml(file).get("question", "") for name, file in studies().items()}
        case "transformations":
            from archlab.transplant.catalog import list_transformations  # loads torch

            return list_transformations()


def _as_json(kind: Kind, listed: Any) -> dict[str, Any]:
    match kind:
        case "presets":
            return {
                "published": [row.model_dump(mode="json") for row in listed.published],
                "architecture_not_published": {
                    name: about.model_dump(mode="json") for name, about in listed.unpublished.items()
                },
                "own": listed.own,
            }
        case "hardware":
            return {kind: {name: device.model_dump(mode="json") for name, device in listed.items()}}
        case _:
            return {kind: listed}


def _print_questions(out: Console, questions: Mapping[str, str]) -> None:
    print_columns(out, ("study", "what it asks"), questions.items())


_PRINT: Mapping[Kind, Callable[[Console, Any], None]] = {
    "presets": print_presets,
    "hardware": print_hardware,
    "families": print_families,
    "studies": _print_questions,
    "transformations": print_transformations,
}
