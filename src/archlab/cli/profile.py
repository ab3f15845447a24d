"""`archlab profile`."""

from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.loading import load_with_notes
from archlab.cli.terminal import print_json, print_table
from archlab.pricing.units import seconds


def run(config: str, /, *overrides: str, steps: AtLeastOne = 5, json: Flag = False) -> None:
    """Where the time of a training step goes on this machine, against where its FLOPs and bytes are.

    Every operation is timed by itself, forward and backward; nothing is compiled.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in train.seq_len=512 or model.norm.kind=layernorm.
    steps
        Updates to measure, after two that do not count.
    json
        JSON instead.
    """
    from archlab.infer.speed import profile

    found = profile(load_with_notes(config, overrides), steps)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    print(f"a training step: {seconds(found.whole_seconds)}; its operations, each timed: {seconds(found.seconds)}")
    print(f"on {found.device}, {found.threads} threads, {found.dtype}")
    print_table(
        ("kind of operation", "FLOPs", "bytes", "time"),
        [(one.kind, f"{one.flops:.2%}", f"{one.n_bytes:.1%}", f"{one.time:.1%}") for one in found.shares],
        right=("FLOPs", "bytes", "time"),
    )
