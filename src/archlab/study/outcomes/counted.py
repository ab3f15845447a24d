"""Outcomes that follow from an arm's config, without any run."""

from archlab.config.outcomes import Intensity, Outcome, StateBytes
from archlab.config.schema import Config
from archlab.cost.memory import kv_cache_bytes, recurrent_bytes
from archlab.cost.summary import cost
from archlab.cost.work import matrix_flops_per_byte


def counted(outcome: Outcome, config: Config) -> float:
    """Its value."""
    match outcome:
        case StateBytes():
            return float(kv_cache_bytes(config.model, outcome.context or 1) + recurrent_bytes(config.model))
        case Intensity():
            return matrix_flops_per_byte(cost(config, outcome.batch, outcome.context).work["decoding"])
        case _:
            raise TypeError(f"nothing counts a {type(outcome).__name__}")
