"""Measurements of this machine as text."""

from rich.console import Console

from archlab.measuring.speed import Profile, Speed
from archlab.pricing.units import seconds, si
from archlab.report.text_table import print_columns


def print_speed(out: Console, speed: Speed) -> None:
    how = "compiled" if speed.compiled else "not compiled"
    used = "an unknown share" if speed.used is None else f"{speed.used:.0%}"
    lines = [
        f"{speed.tokens_per_second:,.1f} tokens per second ({speed.dtype}, {how})",
        f"on {speed.device}, {speed.threads} threads",
        f"{used} of the {speed.limit_is} ({si(speed.limit)} {speed.limit_unit})",
    ]
    if not speed.time_by_kind:
        lines.append("torch's profiler recorded no operations")
    out.print("\n".join(lines), soft_wrap=True)
    if speed.time_by_kind:
        columns = ("kind of operation", "share of the time")
        print_columns(
            out, columns, [(kind, f"{share:.1%}") for kind, share in speed.time_by_kind.items()], right=columns[1:]
        )


def print_profile(out: Console, step: Profile) -> None:
    lines = [
        f"a training step: {seconds(step.whole_seconds)}; sum of its operations: {seconds(step.seconds)}",
        f"on {step.device}, {step.threads} threads, {step.dtype}",
    ]
    out.print("\n".join(lines), soft_wrap=True)
    columns = ("kind of operation", "FLOPs", "bytes", "time")
    rows = [(part.kind, f"{part.flops:.2%}", f"{part.n_bytes:.1%}", f"{part.time:.1%}") for part in step.shares]
    print_columns(out, columns, rows, right=columns[1:])
    if step.parts:
        print_columns(
            out, ("part", "time"), [(part, f"{time:.1%}") for part, time in step.parts.items()], right=("time",)
        )
