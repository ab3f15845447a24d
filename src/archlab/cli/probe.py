"""`archlab probe`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Flag, SeveralAtLeastOne, check_one_answer, load_several
from archlab.cli.terminal import print_json, print_table
from archlab.config.schema import Config
from archlab.errors import UserError

STEPS = 5
"""Updates of the coordinate check where nobody says how many."""


def run(
    config: str,
    /,
    *more: str,
    context: AtLeastOne | None = None,
    widths: SeveralAtLeastOne = (),
    steps: AtLeastOne | None = None,
    html: Path | None = None,
    json: Flag = False,
) -> None:
    """Measure what goes on in a config's layers before any training, or in those of several side by side.

    One pass over 512 random tokens and its gradient, in float32; train.seed draws the tokens and the weights. Of a run
    that was trained with train.probe_every, its last probe is shown beside them. docs/probes.md explains each number.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    more
        Further configs to compare with it, and fields to change in all of them, as in model.norm.placement=post.
    widths
        The coordinate check instead: each config at these widths (d_model), as in 64,128,256, with heads and MLPs as
        many times wider, a few updates, and how far they move activations. Flat over the width is muP (model.mup).
    steps
        Updates of the coordinate check, at train.lr. Left out: 5.
    context
        Tokens of each window. Left out: as many as training windows have (the shortest of several), at most 256.
    html
        Write a page with tables and pictures to this file instead.
    json
        JSON instead, exact: an object, or a list of them where several are asked for.
    """
    check_one_answer(json, html)
    if widths:
        _over_widths(load_several(config, more), widths, steps or STEPS, context, html, json=json)
        return
    if steps is not None:
        raise UserError("--steps: is of the coordinate check; allowed with --widths")
    from archlab.infer.probe import probe_starts, shared_context
    from archlab.report.probe.tables import of_models, over_depth, ropes
    from archlab.training.probes import training_probes

    configs = load_several(config, more)
    starts = probe_starts(configs, context or shared_context(configs))
    trained = {name: rows for name in configs if (rows := training_probes(Path(name)))}
    if json:
        found = [
            {"config": name, **start.as_json(), **({"training": trained[name]} if name in trained else {})}
            for name, start in starts.items()
        ]
        print_json(found if len(found) > 1 else found[0])
        return
    rows = {name: start.as_json() for name, start in starts.items()}
    rows |= {f"{name}, step {of_run[-1]['step']:,}": of_run[-1] for name, of_run in trained.items()}
    turned = {name: [(rope.distances, rope.products) for rope in start.ropes] for name, start in starts.items()}
    tables = [over_depth(rows), of_models(rows), *ropes(turned)]
    if html is not None:
        from archlab.report.probe.page import write_probes

        print(write_probes(starts, trained, tables, html))
        return
    for table in tables:
        print_table(table.columns, table.rows, right=[c for c in table.columns[1:] if c != "over depth"])


def _over_widths(
    configs: Mapping[str, Config],
    widths: Sequence[int],
    steps: int,
    context: int | None,
    html: Path | None,
    *,
    json: bool,
) -> None:
    from archlab.infer.coordinates import coordinates
    from archlab.infer.probe import shared_context
    from archlab.report.probe.tables import over_widths

    window = context or shared_context(configs)
    found = {name: coordinates(one, name, widths, steps, window) for name, one in configs.items()}
    if json:
        plain = [{"config": name, **one.as_json()} for name, one in found.items()]
        print_json(plain if len(plain) > 1 else plain[0])
        return
    tables = [table for name, one in found.items() for table in over_widths(name, one)]
    if html is not None:
        from archlab.report.probe.page import write_coordinates

        print(write_coordinates(found, tables, html))
        return
    for table in tables:
        print_table(table.columns, table.rows, right=table.columns[1:])
