"""Known mistakes in hand-written models, each as a change of archlab's reference."""

from collections.abc import Sequence

from archlab.testing.mistakes_in_attention import ATTENTION
from archlab.testing.mistakes_in_layers import LAYERS
from archlab.testing.mistakes_in_mlps import MLPS
from archlab.testing.mistakes_in_models import MODELS
from archlab.testing.mistakes_in_norms import NORMS
from archlab.testing.mistakes_in_rotary import ROTARY
from archlab.testing.planting import Mistake

MISTAKES: Sequence[Mistake] = (*NORMS, *ROTARY, *ATTENTION, *MLPS, *LAYERS, *MODELS)
