"""The commands `archlab bench train`, `archlab bench decode` and `archlab profile`, which measure speed."""

from typing import TYPE_CHECKING

from archlab.cli.arguments import AtLeastOne, ConfigName, Flag, Override, load_with_notes
from archlab.cli.help import verb_with_subcommands
from archlab.cli.terminal import long_output, print_json
from archlab.config.effects import check_effect
from archlab.console import console
from archlab.pricing.memory import Format

if TYPE_CHECKING:
    from archlab.measuring.speed import Profile, Speed

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
    from archlab.measuring.speed import training_speed

    check_effect(overrides, "bench train")
    speed = training_speed(load_with_notes(config, overrides), steps)
    _print(speed, json=json)


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
    from archlab.measuring.speed import decoding_speed

    check_effect(overrides, "bench decode")
    speed = decoding_speed(load_with_notes(config, overrides), batch, context, steps, dtype, compiled=compile)
    _print(speed, json=json)


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
    from archlab.measuring.speed import profile as training_profile

    check_effect(overrides, "profile")
    step = training_profile(load_with_notes(config, overrides), steps)
    _print(step, json=json)


def _print(measured: "Speed | Profile", *, json: bool) -> None:
    if json:
        print_json(measured.model_dump(mode="json"))
    else:
        measured.print_to(console())
