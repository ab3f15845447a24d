"""Scores of models on held-out text, as `archlab eval` prints them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from archlab.displayed import Evaluations
from archlab.report.text_table import Table, print_columns

if TYPE_CHECKING:  # these modules load torch
    from archlab.data.batch import ScoreName
    from archlab.infer.evaluate import Evaluation
    from archlab.infer.score import HeldOutScore

_COLUMNS: Mapping["ScoreName", tuple[str, str]] = {
    "bits_per_byte": ("bits per byte", ".4f"),
    "accuracy": ("accuracy", ".2%"),
    "denoising_loss": ("nats per hidden token", ".4f"),
}
"""Heading and number format of the column with the scores, by measure."""


def print_evaluations(out: Console, evaluations: "Evaluations[Evaluation]") -> None:
    """Print the score of one model as text, or those of several models as a table."""
    for table in tables(evaluations):
        print_columns(out, table.columns, table.rows, right=table.columns[2:])
    for line in lines(evaluations):
        out.print(line, soft_wrap=True)


def tables(evaluations: "Evaluations[Evaluation]") -> Iterator[Table]:
    """Yield the table of several models. One model has none."""
    if len(evaluations) == 1:
        return
    heading, form = _COLUMNS[evaluations[0].score.measure]
    rows = [
        (
            each.source,
            _state(each.score),
            format(each.score.value, form),
            format(each.difference, f"+{form}") if number else "",
            f"[{', '.join(format(end, form) for end in each.interval)}]" if number and each.interval else "",
        )
        for number, each in enumerate(evaluations)
    ]
    yield Table(("model", "weights", heading, "difference", "95% interval"), rows)


def lines(evaluations: "Evaluations[Evaluation]") -> Iterator[str]:
    """Yield the score of one model, or what belongs to the table of several models."""
    first = evaluations[0].score
    if len(evaluations) == 1:
        loss = f" ({first.loss:.4f} nats per token)" if first.denoising_loss is None else ""
        state = f"after {first.trained_steps:,} steps" if first.trained_steps else "with the folder's weights"
        yield f"{first.result}{loss}"
        yield f"{state if first.trained else 'untrained'}, on {_amount(first)}"
        yield f"data: {first.corpus}"
        return
    yield f"data: {first.corpus}"
    if len({_amount(each.score) for each in evaluations}) == 1:
        yield _amount(first)
    else:
        for each in evaluations:
            yield f"{each.source}: {_amount(each.score)}"
    n_windows = evaluations[0].windows
    yield f"95% interval: covers the choice of the {n_windows:,} windows, not the seeds of training"


def _amount(scored: "HeldOutScore") -> str:
    return f"{scored.tokens:,} predicted tokens in windows of {scored.context:,}, in {scored.dtype}"


def _state(scored: "HeldOutScore") -> str:
    if not scored.trained:
        return "untrained"
    return f"{scored.trained_steps:,} steps" if scored.trained_steps else "as stored"
