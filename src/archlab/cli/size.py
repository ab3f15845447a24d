"""The command `archlab size`."""

import sys
from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Bytes, ConfigName, DeviceName, Many, Override
from archlab.cli.terminal import long_output
from archlab.errors import UserError
from archlab.files import make_folder, write_atomic
from archlab.sizing.proposal_yaml import as_yaml
from archlab.sizing.propose import propose


@long_output
def run(
    *overrides: Override,
    like: ConfigName = "llama-3",
    params: Many | None = None,
    active: Many | None = None,
    flops: Many | None = None,
    memory: Bytes | None = None,
    hardware: DeviceName | None = None,
    context: AtLeastOne | None = None,
    languages: AtLeastOne | None = None,
    out: Path | None = None,
) -> None:
    """Propose a model shape for a budget, with the proportions of a published family, as a YAML config.

    The first of --params (or --active), --flops and --memory that is set determines the size, within 1%. Comments in
    the YAML show its memory and FLOPs.

    Parameters
    ----------
    overrides
        Fields that differ from the family, as in model.vocab_size=32000. The head of a small model may be tied;
        model.head.tied=false unties it.
    like
        A family (llama-3, qwen3, gemma-2, deepseek-v2, ...) or a preset.
    params
        Number of parameters, as in 1B.
    active
        Number of active parameters, alone or with --params.
    flops
        FLOPs of the training run. The size follows the Chinchilla rule: C = 6 N D with D = 20 N. It was measured with
        decoders (Hoffmann 2022).
    memory
        Memory for serving in bfloat16, as in 16GiB or 80GB. The weights and the KV cache of one sequence must fit.
    hardware
        Devices to serve on, as in h100x8. Their memory replaces --memory, unless --memory is smaller.
    context
        Sequence length for serving, as in 8Ki (8,192 tokens). Default: the context length of the family.
    languages
        Number of languages in the text, which determines the vocabulary size. Default: the vocabulary of the family.
    out
        Write the YAML to this file. Default: print it.
    """
    if out is not None and out.is_dir():
        raise UserError(f"--out is {out}, a folder; allowed: a file name")
    proposal = propose(
        like,
        *overrides,
        params=params,
        active=active,
        flops=flops,
        memory=memory,
        hardware=hardware,
        context=context,
        languages=languages,
    )
    text = as_yaml(proposal)
    if out is None:
        sys.stdout.write(text)
    else:
        make_folder(out.parent)
        write_atomic(out, text)
        print(out)
