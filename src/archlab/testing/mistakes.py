"""Known mistakes in hand-written models, each as a change of archlab's reference."""

from collections.abc import Sequence

from torch import Tensor

from archlab.model.norms import LayerNorm, RMSNorm
from archlab.testing import planting
from archlab.testing.mistakes_in_attention import ATTENTION, ROTARY
from archlab.testing.planting import (
    Divisor,
    Mistake,
    activated,
    gated,
    in_layers,
    in_mlps,
    in_model,
    in_norms,
    norms_moved,
    with_residuals,
)


def _deviation(x: Tensor, eps: float) -> Tensor:
    """Return the root of the sum of squares over D - 1 plus eps, [..., T, 1], for an input without its mean."""
    return (x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + eps).sqrt()


def _over(*axes: int) -> Divisor:
    return lambda x, eps: (x.square().mean(axes, keepdim=True) + eps).sqrt()


def _with_eps(eps: float) -> Divisor:
    return lambda x, _: planting.root(x, eps)


def _of_norms(kind: type[RMSNorm] | type[LayerNorm], title: str, averaged: str) -> tuple[Mistake, ...]:
    """Return the mistakes that RMSNorm and LayerNorm have in common."""

    def wrong(suffix: str, words: str, *divisors: Divisor) -> Mistake:
        plants = [in_norms(kind, divisor=divisor) for divisor in divisors]
        return Mistake(f"{title.lower()}-{suffix}", f"{title} {words}.", plants)

    return (
        wrong(
            "sum",
            "takes the sum of the squares; it should take their mean",
            lambda x, eps: (x.square().sum(-1, keepdim=True) + eps).sqrt(),
        ),
        wrong(
            "eps-outside",
            f"adds eps to the root; it should add eps to the {averaged}, before the root",
            lambda x, eps: x.square().mean(-1, keepdim=True).sqrt() + eps,
        ),
        wrong("no-eps", "leaves out eps", _with_eps(0.0)),
        wrong("eps-size", "has another eps than the config", *map(_with_eps, (1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12))),
        wrong(
            "axis",
            "averages over another axis; it should average over the features of each token",
            _over(-2),
            _over(-2, -1),
            _over(0),
            _over(0, 1, 2),
        ),
        wrong(
            "no-root",
            f"divides by the {averaged}; it should divide by the square root of it",
            lambda x, eps: x.square().mean(-1, keepdim=True) + eps,
        ),
        Mistake(f"{title.lower()}-no-weight", f"{title} leaves out its weight.", [in_norms(kind, has_weight=False)]),
        Mistake(
            f"{title.lower()}-offset",
            f"{title} multiplies by 1 + weight in place of weight, or the other way round.",
            [in_norms(kind, offset=1.0), in_norms(kind, offset=0.0)],
        ),
    )


_NORMS = (
    *_of_norms(RMSNorm, "RMSNorm", "mean square"),
    Mistake(
        "rmsnorm-mean",
        "RMSNorm subtracts the mean, as LayerNorm does.",
        [in_norms(RMSNorm, is_centered=True, sees_mean=sees_mean) for sees_mean in (False, True)],
    ),
    Mistake(
        "rmsnorm-absolute",
        "RMSNorm divides by the mean of the absolute values; it should divide by the root of the mean square.",
        [in_norms(RMSNorm, divisor=lambda x, eps: x.abs().mean(-1, keepdim=True) + eps)],
    ),
    *_of_norms(LayerNorm, "LayerNorm", "variance"),
    Mistake(
        "layernorm-no-mean",
        "LayerNorm does not subtract the mean; without it, it is RMSNorm.",
        [in_norms(LayerNorm, is_centered=False)],
    ),
    Mistake(
        "layernorm-unbiased",
        "LayerNorm's variance divides by D - 1, as torch.var and torch.std do by default; it should divide by D.",
        [
            in_norms(LayerNorm, divisor=_deviation),
            in_norms(LayerNorm, divisor=lambda x, eps: _deviation(x, 0.0) + eps),
        ],
    ),
    Mistake("layernorm-no-bias", "LayerNorm leaves out its bias.", [in_norms(LayerNorm, has_bias=False)]),
)

_MLP = (
    Mistake(
        "gate-and-up-swapped",
        "The gate and the up projection are swapped: the activation belongs to the gate.",
        [in_mlps(lambda mlp: planting.swap(mlp, "gate", "up") if mlp.gate is not None else None)],
    ),
    *(
        Mistake(f"activation-{name}", f"The activation is {name}; the config has another.", [activated(name)])
        for name in ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "quick_gelu")
    ),
    Mistake(
        "activation-of-product",
        "The activation follows the product of gate and up; it belongs to the gate alone.",
        [gated(lambda activation, gate, up: activation(gate * up))],
    ),
    Mistake(
        "activation-of-both",
        "The activation is applied to gate and up; it belongs to the gate alone.",
        [gated(lambda activation, gate, up: activation(gate) * activation(up))],
    ),
    Mistake(
        "no-up-projection",
        "The MLP leaves out the up projection: its gate should be multiplied by it.",
        [gated(lambda activation, gate, up: activation(gate))],
    ),
    Mistake(
        "gate-added",
        "Gate and up are added; they should be multiplied.",
        [gated(lambda activation, gate, up: activation(gate) + up)],
    ),
    Mistake(
        "mlp-adds-input",
        "The MLP adds its input to its output; the layer adds the stream.",
        [in_mlps(planting.add_input)],
    ),
)

_LAYER = (
    Mistake(
        "post-norm",
        "The norms follow the addition to the stream (post-norm), which the config does not have.",
        [norms_moved(stream=True)],
    ),
    Mistake(
        "pre-norm", "The norms precede the branches (pre-norm), which the config does not have.", [norms_moved(True)]
    ),
    Mistake(
        "output-norm",
        "The norms are on the output of the branches, which the config does not have.",
        [norms_moved(after=True)],
    ),
    Mistake(
        "residual-after-norm",
        "The residual connection begins after the norm; it should begin before it.",
        [norms_moved(True, is_carried=True)],
    ),
    Mistake("no-norms", "The layer does not use its norms.", [norms_moved()]),
    Mistake(
        "branch-without-norm",
        "Attention or the MLP reads the stream without its norm.",
        [in_layers(planting.without_norms(name)) for name in ("attention_norms", "mlp_norms")],
    ),
    Mistake(
        "no-residual",
        "A residual connection is missing: the input of a branch should be added to its output.",
        [with_residuals(*branches, times=0.0) for branches in (("attention", "mlp"), ("attention",), ("mlp",))],
    ),
    Mistake(
        "residual-twice",
        "The stream is added twice; it should be added once to the output of a branch.",
        [with_residuals(*branches, times=2.0) for branches in (("attention", "mlp"), ("attention",), ("mlp",))],
    ),
    Mistake(
        "residual-of-layer-input",
        "The MLP's output is added to the input of the layer; it should be added to the stream after attention.",
        [with_residuals("mlp", of_layer=True)],
    ),
    Mistake(
        "parallel",
        "Attention and MLP read the same stream; the MLP should read the sum.",
        [in_layers(planting.parallel)],
    ),
    Mistake("mlp-first", "The MLP comes before attention; it should come after it.", [in_layers(planting.reverse)]),
    Mistake("norms-swapped", "The norms of attention and MLP are swapped.", [in_layers(planting.swap_norms)]),
    Mistake(
        "one-norm",
        "Attention and MLP share one norm; each should have its own.",
        [in_layers(planting.share_norm("attention_norms")), in_layers(planting.share_norm("mlp_norms"))],
    ),
)

_MODEL = (
    Mistake(
        "tied",
        "The head uses the matrix of the embedding (tied); the config has two matrices.",
        [in_model(planting.tie)],
    ),
    Mistake("no-final-norm", "The norm before the head is missing.", [in_model(planting.drop_final_norm)]),
    Mistake(
        "embedding-scale",
        "The embedding is multiplied by the square root of d_model and should not be, or the other way round.",
        [in_model(planting.scale_embedding)],
    ),
    Mistake("layer-skipped", "The first or the last layer is left out.", [*map(planting.skip_layer, (0, -1))]),
    Mistake(
        "softmax-in-model",
        "The model returns probabilities; it should return logits, because the loss applies the softmax.",
        [planting.apply_to_logits(lambda logits: logits.softmax(-1))],
    ),
    Mistake(
        "log-softmax-in-model",
        "The model returns log probabilities; it should return logits.",
        [planting.apply_to_logits(lambda logits: logits.log_softmax(-1))],
    ),
)

MISTAKES: Sequence[Mistake] = (*_NORMS, *ROTARY, *ATTENTION, *_MLP, *_LAYER, *_MODEL)
