"""Outcomes that compare models trained with different objectives: they mean the same for all of these models."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.core.base import Count, Share
from archlab.study.outcome_schema import Better, Outcome, Source, Unit


class Continuation(Outcome):
    """Bits per byte of the end of each held-out window, given its beginning. The same tokens count for every objective.
    A model that was trained with `span_corruption` restores the end of the window as one hidden span."""

    kind: Literal["continuation"] = "continuation"
    given: Annotated[Share, Field(gt=0)] = 0.5
    """Fraction of the window that the model reads before it predicts the other tokens."""
    any_objective: ClassVar[bool] = True
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "bits per byte"
    heading: ClassVar[str] = "loss of the text after the first {given:.0%} of each window"


class LinearProbe(Outcome):
    """Fraction of correct answers of a linear classifier (multinomial logistic regression) that reads a task's last
    answer from the model's hidden states before the head. A causal model has read the tokens before the answer. A model
    trained with `masked` reads the whole window with a mask token as the answer."""

    kind: Literal["linear_probe"] = "linear_probe"
    windows: Annotated[Count, Field(ge=2)] = 4096
    """Number of held-out windows. The classifier is fitted on the first half of them and scored on the other half."""
    any_objective: ClassVar[bool] = True
    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit] = "share"
    better: ClassVar[Better] = "higher"
    heading: ClassVar[str] = "answers that a linear probe reads"
