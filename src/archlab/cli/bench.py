"""`archlab bench train|decode` and `archlab profile`: measured speed."""

from typing import TYPE_CHECKING

from archlab.cli.arguments import AtLeastOne, Flag, load_with_notes
from archlab.cli.help import verb_with_subcommands
from archlab.cli.terminal import print_json, print_table
from archlab.pricing.memory import Format
from archlab.pricing.units import seconds, si

if TYPE_CHECKING:
    from archlab.infer.speed import Speed

app = verb_with_subcommands("bench")


@app.command
def train(config: str, /, *overrides: str, steps: AtLeastOne = 10, json: Flag = False) -> None:
    """Tokens per second of whole updates, the share of the matrix products' peak, and where the time goes.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in train.compile=true, train.batch_tokens=8192 or train.dtype=bfloat16.
    steps
        Updates to measure, after two that do not count.
    json
        JSON instead.
    """
    from archlab.infer.speed import training_speed

    _print(training_speed(load_with_notes(config, overrides), steps), "of the peak of matrix products", "FLOP/s", json)


@app.command
def decode(
    config: str,
    /,
    *overrides: str,
    batch: AtLeastOne = 1,
    context: AtLeastOne = 16,
    steps: AtLeastOne = 64,
    dtype: Format = "bfloat16",
    compile: Flag = False,
    json: Flag = False,
) -> None:
    """Tokens per second of greedy decoding, the share of the memory's speed, and where the time goes.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.attention.n_kv_heads=1.
    batch
        Texts side by side.
    context
        Tokens before the first that is written.
    steps
        Steps to measure, after two that do not count.
    dtype
        Of weights and cache.
    compile
        Make a step one compiled graph, which takes up to a minute first.
    json
        JSON instead.
    """
    from archlab.infer.speed import decoding_speed

    found = decoding_speed(load_with_notes(config, overrides), batch, context, steps, dtype, compiled=compile)
    _print(found, "of the speed of a copy, weights and cache read", "bytes/s", json)


def _print(found: "Speed", limit: str, unit: str, json: bool) -> None:
    if json:
        print_json(found.model_dump(mode="json"))
        return
    how = "compiled" if found.compiled else "not compiled"
    print(f"{found.tokens_per_second:,.1f} tokens per second ({found.dtype}, {how})")
    print(f"on {found.device}, {found.threads} threads")
    print(f"{found.used:.0%} {limit} ({si(found.limit)} {unit})")
    print_table(
        ("a step's time", "share"),
        [(kind, f"{share:.1%}") for kind, share in found.time_by_kind.items()],
        right=("share",),
    )


def profile(config: str, /, *overrides: str, steps: AtLeastOne = 5, json: Flag = False) -> None:
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
    from archlab.infer.speed import profile as training_profile

    found = training_profile(load_with_notes(config, overrides), steps)
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
