"""All transformations of trained weights, in the order in which they are applied."""

from archlab.transplant.depth import CHOSEN_LAYERS, MORE_LAYERS
from archlab.transplant.experts import UPCYCLING
from archlab.transplant.kv_heads import FEWER_KV_HEADS
from archlab.transplant.transformation import Transformation
from archlab.transplant.width import WIDER

TRANSFORMATIONS: tuple[Transformation, ...] = (
    MORE_LAYERS,
    CHOSEN_LAYERS,
    WIDER,
    FEWER_KV_HEADS,
    UPCYCLING,
)
