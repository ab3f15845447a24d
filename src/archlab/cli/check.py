"""`archlab check`."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Flag, check_one_answer, load_shape
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.config.core.text import note
from archlab.console import console
from archlab.report.check import as_json, lines, stages, write_check
from archlab.review.findings import findings, summary
from archlab.review.shape_rule import Case


@long_output
def run(
    config: str,
    /,
    *overrides: str,
    tensor: AtLeastOne | None = None,
    pipeline: AtLeastOne | None = None,
    languages: AtLeastOne | None = None,
    strict: Flag = False,
    html: Path | None = None,
    json: Flag = False,
) -> int:
    """Whether the shape of a config is sound, before anything runs.

    Errors cannot work: exit code 2. Warnings work badly on hardware. Notes are outside what is usually published. Each
    names its sources, and the claims of the ledger about it.

    Rules of hardware and of vocabulary are for d_model from 512 on: a narrower model fills no machine in any shape.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id; also a model of the atlas that
        cannot be built.
    overrides
        Fields to change, as in model.mlp.d_ff=11008.
    tensor
        Devices that each matrix is to be cut over. Left out: 2 from 1B parameters on, 8 from 10B.
    pipeline
        Stages that the layers are to be cut into: how even the best cut is, and what each stage has.
    languages
        How many the text is in; decides which vocabularies are usual.
    strict
        Exit code 1 where there is a warning.
    html
        Write it as a page to this file instead.
    json
        JSON instead.
    """
    check_one_answer(json, html)
    shape, part = load_shape(config, overrides)
    case = Case(shape, tensor, languages, pipeline)
    found = findings(case)
    if part and json:
        note(f"{config}: {part}")
    if html is not None:
        print(write_check(f"{config} ({part})" if part else config, found, html))
    elif json:
        print_json([as_json(finding) for finding in found])
    else:
        out = console()
        if part:
            out.print(f"{config}: {part}\n", soft_wrap=True)
        for line in lines(found, out.width):
            out.print(line, soft_wrap=True)
        if case.cut:
            columns, *rows = stages(case, case.cut)
            print_table(columns, rows, right=columns[1:])
        out.print(f"{config}: {summary(found)}", soft_wrap=True)
    return int(strict and any(finding.level == "warning" for finding in found))
