"""The commands `archlab bench train`, `archlab bench decode` and `archlab profile`, which measure speed."""

from typing import TYPE_CHECKING

from archlab.cli.arguments import AtLeastOne, ConfigName, Flag, Override, load_with_notes
from archlab.cli.help import verb_with_subcommands
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.config.effects import check_effect
from archlab.pricing.memory import Format
from archlab.pricing.units import seconds, si

if TYPE_CHECKING:
    from archlab.infer.speed import Speed

app = verb_with_subcommands("bench")


@app.command
def train(config: ConfigName, /, *overrides: Override, steps: AtLeastOne = 10, json: Flag = False) -> None:
    """Measure the speed of training on this machine.

    Print the tokens per second of whole training steps, the achieved fraction of peak matrix product speed, and the
    share of time of each kind of operation.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in train.compile=true, train.batch_tokens=8192 or train.dtype=bfloat16.
    steps
        Number of training steps to measure, after two warm-up steps.
    json
        Print JSON.
    """
    from archlab.infer.speed import training_speed

    check_effect(overrides, "bench train")
    _print(
        training_speed(load_with_notes(config, overrides), steps),
        "of the peak speed of matrix products",
        "FLOP/s",
        json,
    )


@app.command
def decode(
    config: ConfigName,
    /,
    *overrides: Override,
    batch: AtLeastOne = 1,
    context: AtLeastOne = 16,
    steps: AtLeastOne = 64,
    dtype: Format = "bfloat16",
    compile: Flag = False,
    json: Flag = False,
) -> None:
    """Measure the speed of greedy decoding on this machine.

    Print the tokens per second, the fraction of the memory bandwidth that is used to read weights and cache, and the
    share of time of each kind of operation.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.attention.n_kv_heads=1.
    batch
        Number of sequences that are decoded in parallel.
    context
        Number of tokens in each sequence before the first generated token.
    steps
        Number of decoding steps to measure, after two warm-up steps.
    dtype
        Dtype of the weights and the cache.
    compile
        Compile a decoding step into one graph. Compiling takes up to a minute.
    json
        Print JSON.
    """
    from archlab.infer.speed import decoding_speed

    check_effect(overrides, "bench decode")
    speed = decoding_speed(load_with_notes(config, overrides), batch, context, steps, dtype, compiled=compile)
    _print(speed, "of the speed of a copy, weights and cache read", "bytes/s", json)


def _print(speed: "Speed", limit: str, unit: str, json: bool) -> None:
    if json:
        print_json(speed.model_dump(mode="json"))
        return
    how = "compiled" if speed.compiled else "not compiled"
    print(f"{speed.tokens_per_second:,.1f} tokens per second ({speed.dtype}, {how})")
    print(f"on {speed.device}, {speed.threads} threads")
    used = "an unknown share" if speed.used is None else f"{speed.used:.0%}"
    print(f"{used} {limit} ({si(speed.limit)} {unit})")
    if not speed.time_by_kind:
        print("torch's profiler recorded no operations")
        return
    print_table(
        ("kind of operation", "share of the time"),
        [(kind, f"{share:.1%}") for kind, share in speed.time_by_kind.items()],
        right=("share of the time",),
    )


@long_output
def profile(config: ConfigName, /, *overrides: Override, steps: AtLeastOne = 5, json: Flag = False) -> None:
    """Show the time, FLOPs and bytes of each kind of operation in a training step on this machine.

    Every operation is timed separately, in the forward and in the backward pass. The model is not compiled. If it has
    an encoder, a second table shows the time of the encoder, of cross-attention and of the decoder.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in train.seq_len=512 or model.norm.kind=layernorm.
    steps
        Number of training steps to measure, after two warm-up steps.
    json
        Print JSON.
    """
    from archlab.infer.speed import profile as training_profile

    check_effect(overrides, "profile")
    step = training_profile(load_with_notes(config, overrides), steps)
    if json:
        print_json(step.model_dump(mode="json"))
        return
    print(f"a training step: {seconds(step.whole_seconds)}; sum of its operations: {seconds(step.seconds)}")
    print(f"on {step.device}, {step.threads} threads, {step.dtype}")
    print_table(
        ("kind of operation", "FLOPs", "bytes", "time"),
        [(part.kind, f"{part.flops:.2%}", f"{part.n_bytes:.1%}", f"{part.time:.1%}") for part in step.shares],
        right=("FLOPs", "bytes", "time"),
    )
    if step.parts:
        print_table(("part", "time"), [(part, f"{time:.1%}") for part, time in step.parts.items()], right=("time",))
