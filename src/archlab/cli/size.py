"""`archlab size`."""

import sys
from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Bytes, Many
from archlab.errors import UserError
from archlab.files import make_folder, write_atomic
from archlab.pricing.hardware import load_hardware
from archlab.sizing.proposal_yaml import as_yaml
from archlab.sizing.propose import SizeRequest, propose


def run(
    *overrides: str,
    like: str = "llama-3",
    params: Many | None = None,
    active: Many | None = None,
    flops: Many | None = None,
    memory: Bytes | None = None,
    hardware: str | None = None,
    context: AtLeastOne | None = None,
    languages: AtLeastOne | None = None,
    out: Path | None = None,
) -> None:
    """Propose a shape for a budget, in the proportions of a published family, as YAML to go on with.

    The first of --params (or --active), --flops and --memory that is given decides the size, within 1%; of the others
    a comment says how much the proposal takes.

    Parameters
    ----------
    overrides
        Fields that are to be otherwise than in the family, as in model.vocab_size=32000. The proposal ties the head if
        it would be larger than in published models of this size; model.head.tied=false unties it.
    like
        A family (llama-3, qwen3, gemma-2, deepseek-v2, ...) or a preset.
    params
        Parameters, as in 1B.
    active
        Of a mixture: parameters that a token makes use of, alone or beside --params.
    flops
        For the training: Chinchilla's size, C = 6 N D with D = 20 N.
    memory
        For serving in bfloat16, weights and the cache of one text: 16GiB or 80GB.
    hardware
        The same for the memory of such devices together, as in h100x8.
    context
        Tokens of that text, as in 8Ki (8,192). Left out: as many as the family's models are built for.
    languages
        How many the text is in. Left out: the family's vocabulary.
    out
        A file for the YAML. Left out: it is printed.
    """
    if out is not None and out.is_dir():
        raise UserError(f"{out}: is a folder; --out names a file")
    if hardware is not None:
        devices = load_hardware(hardware)
        memory = min(memory or sys.maxsize, devices.memory * devices.count)
    asked = SizeRequest(like, params, active, flops, memory, context, languages, overrides)
    text = as_yaml(asked, propose(asked))
    if out is None:
        sys.stdout.write(text)
    else:
        make_folder(out.parent)
        write_atomic(out, text)
        print(out)
