"""What an outcome of one's own is measured of."""

import math
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.study.outcome_schema import PlugInOutcome


class FinishedRun(NamedTuple):
    """A run that has ended, with its last weights."""

    folder: Path
    config: Config
    model: Decoder
    """Ready for inference, on the run's device."""
    tokens: Tensor
    """[windows, T + 1] int64, of held-out text, on the same device: each is predicted from those before it."""


def own_value(outcome: PlugInOutcome, run: FinishedRun) -> float | None:
    """UserError where the plug-in gives no finite number, and not None either."""
    found = outcome.registered.make(run, outcome.own)
    if found is None or (isinstance(found, int | float) and math.isfinite(found)):
        return None if found is None else float(found)
    raise UserError(f"outcome {outcome.name}: its function gave {found!r}; allowed: a finite number, or None")
