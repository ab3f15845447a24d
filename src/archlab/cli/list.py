"""The command `archlab list`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from archlab.atlas.list_presets import Presets, list_presets
from archlab.atlas.models import AtlasRow
from archlab.atlas.select import fields_of
from archlab.atlas.table import evolution, without_architecture
from archlab.cli import hardware
from archlab.cli.arguments import Flag, MayBeginWithDash, check_one_answer
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.config.core.yaml_text import read_yaml
from archlab.config.io import studies
from archlab.console import console
from archlab.errors import UserError
from archlab.pricing.hardware import list_hardware


@long_output
def run(
    what: Literal["presets", "hardware", "families", "studies", "transformations"] | None = None,
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
    presets = list_presets(*filter, sort=sort) if what in (None, "presets") else Presets([], {}, {})
    models, without, own = presets.published, presets.unpublished, presets.own
    check_one_answer(json, html)
    if html is not None:
        from archlab.report.atlas import write_atlas

        print(write_atlas(models, html))
        return
    questions = {
        name: read_yaml(file).get("question", "") for name, file in studies().items() if what in (None, "studies")
    }
    classes, changes = dict[str, str](), dict[str, dict[str, str]]()
    if what == "families":
        from archlab.families.registry import list_families  # loads all families

        classes = list_families()
    if what == "transformations":
        from archlab.transplant.catalog import list_transformations  # loads torch

        changes = list_transformations()
    machines = list_hardware() if what in (None, "hardware") else {}
    if json:
        published_rows = [row.model_dump(mode="json") for row in models]
        facts = {name: device.model_dump(mode="json") for name, device in machines.items()}
        closed = {name: about.model_dump(mode="json") for name, about in without.items()}
        lists = {
            "published": published_rows, "architecture_not_published": closed, "own": own, "hardware": facts,
            "families": classes, "studies": questions, "transformations": changes,
        }  # fmt: skip
        print_json({name: values for name, values in lists.items() if values})
        return
    if models:
        _print_evolution(models, fields_of(filter, sort), by_year=sort is None)
    if without:
        console().print(Text(without_architecture(without), style="dim"))
    if own:
        print_table(("preset", "what it is"), own.items())
    if machines:
        hardware.print_list(machines)
    if classes:
        print_table(("family", "transformers class"), classes.items())
    if changes:
        rules = ((name, one["effect"], one["fields"], _in_words(one)) for name, one in changes.items())
        print_table(("transformation", "effect", "fields", "what it does"), rules)
    if questions:
        print_table(("study", "what it asks"), questions.items())


def _in_words(change: Mapping[str, str]) -> str:
    """Return the rule of a change, the texts in which it is exact, and its source as sentences."""
    limit = f"Exact in {change['exact_in']}" if change["exact_in"] else ""
    parts = (change["rule"].removesuffix("."), limit, change["paper"])
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts if part)


def _print_evolution(models: Sequence[AtlasRow], fields: Sequence[str], *, by_year: bool) -> None:
    """Print the table of the atlas. The console must not wrap the lines, because the table is already wrapped."""
    out = console()
    for text, style in evolution(models, out.width, fields, by_year=by_year):
        out.print(Text(text, style=style), soft_wrap=True)
