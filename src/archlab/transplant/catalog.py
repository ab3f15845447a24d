"""All transformations of trained weights, in the order in which they are applied."""

from archlab.transplant.kv_heads import FEWER_KV_HEADS, MORE_KV_HEADS
from archlab.transplant.latent import TO_LATENT
from archlab.transplant.mixers import TO_MIXER
from archlab.transplant.transformation import Transformation

TRANSFORMATIONS: tuple[Transformation, ...] = (FEWER_KV_HEADS, MORE_KV_HEADS, TO_LATENT, TO_MIXER)
