"""Known mistakes in hand-written models, outside their layers."""

from collections.abc import Callable

from torch import Tensor

from archlab.model.arithmetic import Same
from archlab.model.decoder import Decoder
from archlab.testing.planting import Mistake, Plant
from archlab.testing.reference import Reference


def in_model(change: Callable[[Decoder], None]) -> Plant:
    """Return a plant that calls `change` for a whole model."""

    def plant(reference: Reference) -> None:
        if isinstance(reference.body, Decoder):
            change(reference.body)

    return plant


def tie(model: Decoder) -> None:
    """Make the head use the matrix of the embedding."""
    model.head.weight = None


def drop_final_norm(model: Decoder) -> None:
    """Leave out the norm before the head."""
    model.norm = Same()


def apply_to_logits(function: Callable[[Tensor], Tensor]) -> Plant:
    """Return a plant that applies a function to the logits."""

    def change(model: Decoder) -> None:
        forward = model.head.forward
        model.head.__dict__["forward"] = lambda *inputs: function(forward(*inputs))

    return in_model(change)


def skip_layer(index: int) -> Plant:
    """Return a plant that leaves out a layer."""

    def change(model: Decoder) -> None:
        model.layers[index].__dict__["forward"] = lambda x, *others: x

    return in_model(change)


def scale_embedding(model: Decoder) -> None:
    """Multiply the embedding by the square root of its width, or leave out the factor that the config sets."""
    width = model.embedding.weight.shape[-1]
    model.embedding.scale = float(width) ** 0.5 if model.embedding.scale == 1 else 1.0


MODELS = (
    Mistake(
        "tied",
        "The head uses the matrix of the embedding (tied); the config has two matrices.",
        [in_model(tie)],
    ),
    Mistake("no-final-norm", "The norm before the head is missing.", [in_model(drop_final_norm)]),
    Mistake(
        "embedding-scale",
        "The embedding is multiplied by the square root of d_model and should not be, or the other way round.",
        [in_model(scale_embedding)],
    ),
    Mistake("layer-skipped", "The first or the last layer is left out.", [*map(skip_layer, (0, -1))]),
    Mistake(
        "softmax-in-model",
        "The model returns probabilities; it should return logits, because the loss applies the softmax.",
        [apply_to_logits(lambda logits: logits.softmax(-1))],
    ),
    Mistake(
        "log-softmax-in-model",
        "The model returns log probabilities; it should return logits.",
        [apply_to_logits(lambda logits: logits.log_softmax(-1))],
    ),
)
