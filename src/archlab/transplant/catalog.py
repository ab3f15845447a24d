"""All changes of trained weights, those that compute tensors in the order in which they are applied."""

from archlab.displayed import Transformations
from archlab.transplant.constants import CONSTANTS
from archlab.transplant.depth import CHOSEN_LAYERS, MORE_LAYERS
from archlab.transplant.differences import NEW_TENSORS, OTHER_KIND
from archlab.transplant.embedding import LARGER_VOCABULARY, POSITION_TABLE, TIED_HEAD, UNTIED_HEAD
from archlab.transplant.experts import UPCYCLING
from archlab.transplant.gates import NEW_GATE
from archlab.transplant.kv_heads import FEWER_KV_HEADS, MORE_KV_HEADS
from archlab.transplant.mixers import TO_MIXER
from archlab.transplant.norm_folding import FOLDED_BIASES, FOLDED_WEIGHTS, NORM_OFFSET
from archlab.transplant.reconfigurations import OTHER_FIELD, RECONFIGURATIONS
from archlab.transplant.sharing import UNSHARED
from archlab.transplant.to_latent import TO_LATENT
from archlab.transplant.transformation import Entry, Transformation
from archlab.transplant.width import WIDER

DEPTH: tuple[Transformation, ...] = (CHOSEN_LAYERS, MORE_LAYERS)
"""Changes of the number of layers. After them, the weights have a layer for each layer of the target."""
TRANSFORMATIONS: tuple[Transformation, ...] = (
    *DEPTH,
    UNTIED_HEAD,
    TIED_HEAD,
    UNSHARED,
    LARGER_VOCABULARY,
    POSITION_TABLE,
    CONSTANTS,
    NORM_OFFSET,
    FOLDED_BIASES,
    FOLDED_WEIGHTS,
    NEW_GATE,
    WIDER,
    FEWER_KV_HEADS,
    MORE_KV_HEADS,
    TO_LATENT,
    TO_MIXER,
    UPCYCLING,
    OTHER_KIND,
)
ENTRIES: tuple[Entry, ...] = (*TRANSFORMATIONS, *RECONFIGURATIONS, OTHER_FIELD, NEW_TENSORS)
"""All changes that a plan can contain, as `archlab list transformations` shows them."""


def list_transformations() -> Transformations:
    """Return all changes that `archlab.convert` can make to trained weights, by name.

    Each has an `effect` on the logits, the texts that it is `exact_in`, the `fields` of the model that it follows, the
    `rule` that computes the new weights, and the `paper`.

    >>> change = archlab.list_transformations()["untied head"]
    >>> change["effect"], change["fields"]
    ('exact', 'model.head.tied')
    """
    return Transformations(
        {
            entry.name: {
                "effect": entry.effect,
                "exact_in": entry.exact_in,
                "fields": ", ".join(entry.fields),
                "rule": entry.rule,
                "paper": entry.paper,
            }
            for entry in ENTRIES
        }
    )
