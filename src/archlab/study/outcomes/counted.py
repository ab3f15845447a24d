"""Outcomes that follow from an arm's config, without any run."""

from archlab.config.schema import Config
from archlab.pricing.memory import kv_cache_bytes, recurrent_bytes
from archlab.pricing.summary import cost
from archlab.pricing.work import matrix_flops_per_byte
from archlab.study.outcome_schema import Intensity, Outcome, StateBytes


def counted(outcome: Outcome, config: Config) -> float:
    """Its value."""
    match outcome:
        case StateBytes():
            return float(kv_cache_bytes(config.model, outcome.context or 1) + recurrent_bytes(config.model))
        case Intensity():
            return matrix_flops_per_byte(cost(config, outcome.batch, outcome.context).work["decoding"])
        case _:
            raise TypeError(f"nothing counts a {type(outcome).__name__}")
