"""`archlab cost`."""

from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.loading import load_with_notes
from archlab.cli.terminal import print_json, print_table
from archlab.cost.memory import Format
from archlab.cost.summary import Cost, cost
from archlab.cost.units import binary, count, si


def run(
    config: str,
    /,
    *overrides: str,
    batch: AtLeastOne = 1,
    context: AtLeastOne | None = None,
    dtype: Format = "bfloat16",
    json: Flag = False,
) -> None:
    """Count parameters, FLOPs and bytes of a config from its resolved layers.

    Serving is counted at --context, training in windows of train.seq_len.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    overrides
        Fields to change, as in model.attention.n_kv_heads=1.
    batch
        Sequences whose KV cache is held.
    context
        Tokens per served sequence, as in 8192 or 32K. Left out: as many as a training window has.
    dtype
        Of the KV cache and of the weights as served. Run folders are float32.
    json
        JSON instead, exact.
    """
    found = cost(load_with_notes(config, overrides), batch, context, dtype)
    if json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found)


def _print(found: Cost) -> None:
    counts, flops, memory = found.parameters, found.forward_flops, found.training_memory
    print_table(
        ("parameters", "count", "share"),
        [(role, f"{n:,}", f"{n / counts.total:.1%}") for role, n in counts.parts.items() if n]
        + [("total", f"{counts.total:,}", count(counts.total))]
        + ([("active per token", f"{counts.active:,}", count(counts.active))] if counts.idle else [])
        + [("non-embedding", f"{counts.non_embedding:,}", count(counts.non_embedding))],
        right=("count", "share"),
    )
    print_table(
        (f"serving, {found.context:,} tokens of context", "FLOPs per token", "share"),
        [(part, si(n), f"{n / flops.total:.1%}") for part, n in flops if n] + [("forward pass", si(flops.total), "")],
        right=("FLOPs per token", "share"),
    )
    print_table(
        ("", "memory"),
        [
            (f"KV cache per token, {found.dtype}", binary(found.kv_bytes_per_token)),
            (f"KV cache of {found.batch} x {found.context:,} tokens, {found.dtype}", binary(found.kv_cache_bytes)),
            *_recurrent(found),
            (f"weights, {found.dtype}", binary(found.weight_bytes)),
            ("read per decoded token, one sequence", _read(found.read_bytes_per_decoded_token)),
        ],
        right=("memory",),
    )
    print_table(
        (f"training, windows of {found.training_window:,} tokens", ""),
        [
            *_training_flops(found),
            ("weights, gradients and AdamW's state in float32", binary(memory.total)),
            ("activations and logits", "not counted"),
        ],
        right=("",),
    )


def _read(n_bytes: int | None) -> str:
    return "nothing is decoded" if n_bytes is None else binary(n_bytes)


def _recurrent(found: Cost) -> list[tuple[str, str]]:
    label = f"recurrent states of {found.batch}, {found.dtype} and float32"
    return [(label, binary(found.recurrent_bytes))] if found.recurrent_bytes else []


def _training_flops(found: Cost) -> list[tuple[str, str]]:
    """What the architecture asks for, and below it what the kernel computes where that is more."""
    seen, spent, tokens = found.training_flops_per_token, found.computed_training_flops_per_token, found.training_tokens
    hidden = "  with the hidden pairs that are computed, too"
    rows = [("FLOPs per token, forward and backward", si(seen))]
    rows += [(hidden, si(spent))] if spent != seen else []
    if tokens is None:
        return [*rows, ("FLOPs of the whole training", "say train.tokens=N")]
    rows += [(f"FLOPs of the whole training, {count(tokens)} tokens", f"{seen * tokens:.3g}")]
    return rows + ([(hidden, f"{spent * tokens:.3g}")] if spent != seen else [])
