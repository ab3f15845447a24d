"""The command `archlab probe`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from archlab.cli.arguments import (
    AtLeastOne,
    ConfigName,
    ConfigOrOverride,
    Flag,
    SeveralAtLeastOne,
    check_one_answer,
    load_several,
    split_overrides,
)
from archlab.cli.terminal import long_output, print_json
from archlab.config.effects import check_effect
from archlab.config.schema import Config
from archlab.console import console
from archlab.errors import UserError


@long_output
def run(
    config: ConfigName,
    /,
    *more: ConfigOrOverride,
    context: AtLeastOne | None = None,
    widths: SeveralAtLeastOne = (),
    steps: AtLeastOne | None = None,
    html: Path | None = None,
    json: Flag = False,
) -> None:
    """Measure gradients, activations and attention of every layer before training, for one or more configs.

    The measurement is one forward and backward pass over 512 random tokens in float32. train.seed determines the tokens
    and the weights. If a run was trained with train.probe_every, its last probe is shown, too. docs/probes.md explains
    each number.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    more
        More configs to compare, and fields to change in all of them, as in model.norm.placement=post.
    widths
        Run the coordinate check at these widths (d_model), as in 64,128,256. The number of heads and the MLP widths are
        scaled in proportion. The check shows how far a few updates move the activations; with muP (model.mup), the
        distance does not depend on the width.
    steps
        Number of updates in the coordinate check, with the learning rate train.lr. Default: 5.
    context
        Number of tokens per sequence. Default: train.seq_len (the shortest of several configs), at most 256.
    html
        Write a page with tables and charts to this file.
    json
        Print JSON with exact numbers: an object, or a list if there are several configs.
    """
    check_one_answer(json, html)
    overrides = split_overrides(config, more)[1]
    check_effect(overrides, "probe --widths" if widths else "probe")
    if widths:
        _over_widths(load_several(config, more), widths, steps, context, html, json=json)
        return
    if steps is not None:
        raise UserError("--steps belongs to the coordinate check; add --widths, or leave out --steps")
    from archlab.measuring.probe import probe
    from archlab.report.probe.tables import print_tables, probe_tables
    from archlab.training.probes import training_probes

    configs = load_several(config, more)
    measured = probe(*configs.values(), context=context, names=[*configs])
    probes = dict(zip(configs, measured, strict=True))
    trained = {name: rows for name in configs if (rows := training_probes(Path(name)))}
    if json:
        answers = [
            {"config": name, **probed.as_json(), **({"training": trained[name]} if name in trained else {})}
            for name, probed in probes.items()
        ]
        print_json(answers if len(answers) > 1 else answers[0])
        return
    tables = probe_tables(probes, trained)
    if html is not None:
        from archlab.report.probe.page import write_probes

        print(write_probes(probes, trained, tables, html))
        return
    print_tables(console(), tables)


def _over_widths(
    configs: Mapping[str, Config],
    widths: Sequence[int],
    steps: int | None,
    context: int | None,
    html: Path | None,
    *,
    json: bool,
) -> None:
    from archlab.measuring.coordinates import STEPS, coordinate_check
    from archlab.measuring.probe import shared_context
    from archlab.report.probe.tables import over_widths, print_tables

    context, steps = context or shared_context(configs.values()), steps or STEPS
    checks = {
        name: coordinate_check(config, widths, steps=steps, context=context, name=name)
        for name, config in configs.items()
    }
    if json:
        answers = [{"config": name, **check.as_json()} for name, check in checks.items()]
        print_json(answers if len(answers) > 1 else answers[0])
        return
    tables = [table for name, check in checks.items() for table in over_widths(name, check)]
    if html is not None:
        from archlab.report.probe.page import write_coordinates

        print(write_coordinates(checks, tables, html))
        return
    print_tables(console(), tables)
