"""`archlab probe`."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Flag, check_one_answer
from archlab.cli.loading import load_several
from archlab.cli.terminal import print_json, print_table


def run(
    config: str,
    /,
    *more: str,
    context: AtLeastOne | None = None,
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
    context
        Tokens of each window. Left out: as many as training windows have (the shortest of several), at most 256.
    html
        Write a page with tables and pictures to this file instead.
    json
        JSON instead, exact: an object, or a list of them where several are asked for.
    """
    check_one_answer(json, html)
    from archlab.infer.probe import probe_starts, shared_context
    from archlab.report.probe_tables import of_models, over_depth, ropes
    from archlab.train.probing import training_probes

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
        from archlab.report.probe_page import write_probes

        print(write_probes(starts, trained, tables, html))
        return
    for table in tables:
        print_table(table.columns, table.rows, right=[c for c in table.columns[1:] if c != "over depth"])
