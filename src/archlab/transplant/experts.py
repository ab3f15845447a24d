"""Experts from a dense MLP: each is a copy of it, and the router is new (sparse upcycling, Komatsuzaki 2022)."""

from collections.abc import Mapping

from torch import Tensor

from archlab.config.components.dense import Dense, GatedMLP
from archlab.config.components.moe import LatentSpace, MoE
from archlab.errors import UserError
from archlab.model.arithmetic import at_least_float32
from archlab.transplant.reconfigurations import text_of
from archlab.transplant.transformation import Transformation
from archlab.transplant.weights import Architecture, LazyTensor, Weights, constant, numbered


def _upcycled(weights: Weights, target: Architecture) -> Weights:
    by_mlp: dict[MoE, list[str]] = {}
    layers = {name: own for name, own, _ in weights.pairs(target)}
    for name, own, wanted in weights.pairs(target):
        if isinstance(own.mlp, MoE) and isinstance(wanted.mlp, MoE):
            _check_same("experts", own.mlp.experts, wanted.mlp.experts)
            if own.mlp.latent and wanted.mlp.latent:
                _check_same("latent.width", own.mlp.latent.width, wanted.mlp.latent.width)
            else:
                _check_same("latent", own.mlp.latent, wanted.mlp.latent)
        if isinstance(own.mlp, Dense) and isinstance(wanted.mlp, MoE):
            by_mlp.setdefault(_mixture(own.mlp, wanted.mlp), []).append(name)
    for mixture, names in by_mlp.items():
        tensors, dropped, inert = dict[str, LazyTensor](), list[str](), [f"{name}.mlp.shared" for name in names]
        for name in names:
            dense = weights.under(f"{name}.mlp")
            tensors |= {f"{name}.mlp.{part}": x for part, x in _experts(dense, mixture, layers[name].d_model).items()}
            dropped += [f"{name}.mlp.{part}" for part in dense]
        changes = _what_changes(mixture)
        inert += [] if changes else [f"{name}.mlp.router." for name in names]
        detail = f"{numbered(names)}: {mixture.experts} experts, {mixture.active} active{changes}"
        weights = weights.changed(
            UPCYCLING.change(detail, "approximate" if changes else "exact"),
            tensors=tensors,
            dropped=dropped,
            layers={name: layers[name].model_copy(update={"mlp": mixture}) for name in names},
            inert=inert,
        )
    return weights


def _check_same(field: str, before: object, after: object) -> None:
    if before != after:
        before, after = (text_of(x.model_dump() if isinstance(x, LatentSpace) else x) for x in (before, after))
        found = f"{after}, and the trained weights have {before}"
        raise UserError(f"model.mlp.{field}: {found}; no transformation changes it; allowed: {before}")


def _mixture(own: Dense, wanted: MoE) -> MoE:
    """Return the mixture whose experts are the dense MLP. Raise UserError if the wanted experts have another shape."""
    is_gated = isinstance(own, GatedMLP)
    if own.sub_norm:
        raise UserError(
            f"model.mlp.kind: moe, but the trained MLP has mlp.sub_norm=true, which experts lack; allowed: {own.kind}"
        )
    if wanted.own_norms:
        raise UserError(
            "model.mlp.own_norms: true, but the output of the trained MLP has no norm of its own; allowed: false"
        )
    if wanted.latent:
        raise UserError(
            f"model.mlp.latent: {text_of(wanted.latent.model_dump())}; experts are copies of the trained MLP, which "
            "reads the stream; allowed: null"
        )
    if wanted.gated != is_gated:
        raise UserError(
            f"model.mlp.gated: {str(wanted.gated).lower()}; experts are copies of the trained MLP, whose kind is "
            f"{own.kind}; allowed: {str(is_gated).lower()}"
        )
    if wanted.router.sparsemixer is not None and not wanted.router.normalise:
        raise UserError(
            f"model.mlp.router.sparsemixer: {wanted.router.sparsemixer}; at equal scores, the weights of the chosen "
            "experts have another sum than 1; allowed: null, or router.normalise=true"
        )
    if wanted.d_ff != own.d_ff:
        raise UserError(
            f"model.mlp.d_ff: {wanted.d_ff}; experts are copies of the trained MLP; allowed: its width, {own.d_ff}"
        )
    same = {"activation": own.activation, "bias": own.bias}
    if isinstance(own, GatedMLP):
        same |= {"clamp": own.clamp, "up_offset": own.up_offset}
    return wanted.model_copy(update=same)


def _what_changes(mixture: MoE) -> str:
    """Return why the logits depend on the router. Return an empty text if they do not."""
    router = mixture.router
    if not router.normalise and (router.score == "sigmoid" or mixture.active < mixture.experts):
        return "; equal to the dense MLP only at equal scores, because of router.normalise=false"
    if router.applied_to == "input" and mixture.active > 1:
        return "; equal to the dense MLP only at equal scores, because of router.applied_to=input"
    return ""


def _experts(dense: Mapping[str, LazyTensor], mixture: MoE, d_model: int) -> dict[str, LazyTensor]:
    router, shared = mixture.router, mixture.shared
    n_scores = mixture.active if router.normalise else mixture.experts if router.score == "softmax" else 2
    weight = router.factor / n_scores  # of each chosen expert, at equal scores
    is_before = router.applied_to == "input"
    read = 1 / weight if is_before else 1.0
    written = 1 / mixture.active if is_before else 1 / (mixture.active * weight)
    factors = {"up.weight": read, "gate.weight": read, "down.weight": written, "down.bias": written}
    tensors = dict[str, LazyTensor]()
    for part, tensor in dense.items():
        if part.startswith("activation."):
            tensors[f"experts.{part}"] = tensor
        else:
            name = part.removesuffix(".weight").replace(".bias", "_bias")
            tensors[f"experts.{name}"] = _stacked(tensor, mixture.experts, factors.get(part, 1.0))
    if shared is not None:
        tensors["shared.down.weight"] = constant(UPCYCLING.name, (d_model, shared.d_ff), 0.0)
        if shared.bias:
            tensors["shared.down.bias"] = constant(UPCYCLING.name, (d_model,), 0.0)
    return tensors


def _stacked(tensor: LazyTensor, n: int, factor: float) -> LazyTensor:
    def stack(x: Tensor) -> Tensor:
        scaled = x if factor == 1 else at_least_float32(x) * factor
        return scaled.expand(n, *x.shape)

    return tensor.then(UPCYCLING.name, stack, (n, *tensor.shape))


UPCYCLING = Transformation(
    name="sparse upcycling",
    effect="exact",
    fields=("model.mlp.kind",),
    rule="Each expert is a copy of the dense MLP, the router is new, and a shared expert begins with output 0. The "
    "logits stay the same if the weights of a token's experts have a fixed sum (router.normalise=true) and multiply "
    "outputs. Otherwise they stay the same only at equal scores.",
    paper="Komatsuzaki 2022, arXiv 2212.05055",
    apply=_upcycled,
)
