"""Evaluation of one or several models on the same held-out text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archlab.config.effects import check_effect
from archlab.config.io import override_texts
from archlab.displayed import Evaluations
from archlab.errors import UserError, check_at_least
from archlab.infer.paired import interval
from archlab.infer.score import HeldOutScore, score_all


@dataclass(frozen=True)
class Evaluation:
    """Score of a model, and its difference from the score of the first model on the same text."""

    source: str
    score: HeldOutScore
    difference: float
    """Score minus that of the first model, in the unit of `score.measure`."""
    interval: tuple[float, float] | None
    """95% confidence interval of the difference. It covers the choice of the windows, but not the seeds of training.
    None with fewer than two windows, or if the models read different numbers of windows."""
    windows: int
    """Number of windows of held-out text."""

    @property
    def data(self) -> dict[str, Any]:
        """The evaluation as an entry of the list that `archlab eval --json` prints for several models."""
        result = {"config": self.source, **self.score.model_dump()}
        return {**result, "difference": self.difference, "interval": self.interval}


def evaluate(
    *sources: str | Path,
    overrides: Sequence[str | Mapping[str, Any]] = (),
    tokens: int | None = None,
    int8: bool = False,
) -> Evaluations[Evaluation]:
    """Score models on the same held-out text, in bits per byte or in the measure of their objective or task.

    - `sources`: run folders, Hugging Face folders, hub ids, or untrained presets or YAML files. The score of a run
      folder is that of its last checkpoint. The text, the objective and the length of the windows are those of the
      first run folder. If there is none, they are those of the first source.
    - `overrides`: fields to change for all models, as in `archlab.load_config`.
    - `tokens`: number of held-out tokens to read. None means all.
    - `int8`: whether to quantize the weight matrices of the layers and of the head to 8 bits.

    Raise UserError if it is not clear which text to read, or if a run was trained on this text. Raise it also if a text
    was encoded with another tokenizer than the model's, or if the output of a model is NaN or infinite.

    >>> [evaluation] = archlab.evaluate("runs/a", tokens=256)
    >>> evaluation.score.measure, evaluation.score.tokens
    ('bits_per_byte', 256)
    """
    if not sources:
        raise UserError("no models to evaluate; pass at least one")
    check_at_least(1, tokens=tokens)
    names, texts = [str(source) for source in sources], override_texts(*overrides)
    check_effect(texts, "eval")
    models = score_all(names, texts, tokens, int8=int8)
    first = models[0]
    return Evaluations(
        Evaluation(
            name,
            model.score,
            model.score.value - first.score.value,
            interval(first.windows, model.windows),
            len(model.windows.weights),
        )
        for name, model in zip(names, models, strict=True)
    )
