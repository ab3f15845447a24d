"""The command `archlab check`."""

from dataclasses import replace
from pathlib import Path

from archlab.cli.arguments import AtLeastOne, ConfigName, Flag, Override, check_one_answer, load_shape
from archlab.cli.terminal import long_output, print_json
from archlab.config.core.text import note
from archlab.console import console
from archlab.report.check import check as checked
from archlab.report.check import print_review, write_check


@long_output
def run(
    config: ConfigName,
    /,
    *overrides: Override,
    tensor: AtLeastOne | None = None,
    pipeline: AtLeastOne | None = None,
    languages: AtLeastOne | None = None,
    strict: Flag = False,
    html: Path | None = None,
    json: Flag = False,
) -> int:
    """Review the shape of a config before anything runs.

    An error means that the model cannot work (exit code 2). A warning means that the model uses hardware poorly. A note
    means that a value is outside the range of published models. An encoder is compared only with encoders, and a
    decoder only with decoders. Each finding names its sources and related claims (`archlab ledger`).

    Rules about hardware and vocabulary apply if d_model is at least 512. A narrower model cannot use the hardware
    fully, whatever its shape.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id. A published model that archlab cannot
        build works, too.
    overrides
        Fields to change, as in model.mlp.d_ff=11008.
    tensor
        Number of devices among which each matrix is divided. Default: 2 from 1B parameters on, 8 from 10B on; smaller
        models are not divided.
    pipeline
        Number of pipeline stages. The report then shows how evenly the layers can be divided, and which layers each
        stage holds.
    languages
        Number of languages in the text. The usual vocabulary sizes depend on it.
    strict
        End with exit code 1 if there is a warning.
    html
        Write a page to this file.
    json
        Print JSON.
    """
    check_one_answer(json, html)
    shape, part = load_shape(config, overrides)
    review = replace(checked(shape, tensor=tensor, pipeline=pipeline, languages=languages), part=part)
    if part and json:
        note(f"{config}: {part}")
    if html is not None:
        from archlab.report.drawings.words import title_with

        print(write_check(title_with(config, overrides), review, html))
    elif json:
        print_json(review.data)
    else:
        print_review(console(), review, config)
    return int(strict and any(finding.level == "warning" for finding in review.findings))
