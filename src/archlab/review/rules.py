"""All rules of shape, warnings first."""

from archlab.review.consensus import CONSENSUS
from archlab.review.habits import HABITS
from archlab.review.hardware import HARDWARE
from archlab.review.rule import ShapeRule

RULES: tuple[ShapeRule, ...] = (*HARDWARE, *CONSENSUS, *HABITS)
