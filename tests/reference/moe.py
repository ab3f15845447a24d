"""A mixture of experts in float64 NumPy: token by token and expert by expert, without batches.

The formulas are those of the papers and of the published code. Scores are a softmax over all experts or a sigmoid of
each (Shazeer 2017, DeepSeek-V3 2024). SparseMixer weighs each
choice against its near competitors (Liu 2024). A correction only affects which experts are chosen. Experts may be in groups.
Weights are normalized and multiplied by a factor. They multiply the experts' outputs, or their inputs. There may be shared experts, and gpt-oss's clamp and offset.
The routed experts may work in a latent space (LatentMoE, Elango 2026), which the router and the shared expert do not read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from scipy.special import erf

ACTIVATIONS: dict[str, Callable[[ndarray], ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


@dataclass(frozen=True)
class Choices:
    """The settings of the mixture."""

    active: int
    score: str = "softmax"
    normalise: bool = True
    applied_to: str = "output"
    factor: float = 1.0
    sparsemixer: float | None = None
    groups: tuple[int, int, str] | None = None
    """(number of groups, number of groups kept, score of a group: max or top2)."""
    activation: str = "silu"
    clamp: float | None = None
    up_offset: float = 0.0


def scores(z: ndarray, how: str) -> ndarray:
    """Return the scores from the logits of one token."""
    if how == "sigmoid":
        return 1 / (1 + np.exp(-z))
    p = np.exp(z - z.max())
    return p / p.sum()


def chosen_experts(s: ndarray, correction: ndarray | None, choices: Choices) -> list[int]:
    """Return the experts with the highest corrected scores, the best first."""
    corrected = [float(value) for value in (s if correction is None else s + correction)]
    allowed = set(range(len(s)))
    if choices.groups is not None:
        n, kept, by = choices.groups
        size = len(s) // n
        members = [list(range(g * size, (g + 1) * size)) for g in range(n)]
        best = 1 if by == "max" else 2
        of_group = [sum(sorted((corrected[e] for e in group), reverse=True)[:best]) for group in members]
        winners = sorted(range(n), key=lambda g: -of_group[g])[:kept]
        allowed = {e for g in winners for e in members[g]}
    return sorted(allowed, key=lambda e: -corrected[e])[: choices.active]


def normed(x: ndarray, weights: Mapping[str, ndarray], name: str) -> ndarray:
    """Return the RMS norm of one token [D], or the token if there is no such norm."""
    weight = weights.get(f"{name}.weight")
    return x if weight is None else x / np.sqrt((x * x).mean() + 1e-5) * weight


def logits(x: ndarray, weights: Mapping[str, ndarray]) -> ndarray:
    """Return the logits of the router for one token [D]. Gemma 4 divides the normalized token by sqrt(D)."""
    read = normed(x, weights, "router.norm") / np.sqrt(len(x)) if "router.norm.weight" in weights else x
    return weights["router.weight"] @ read + weights.get("router.bias", 0.0)


def route(x: ndarray, weights: Mapping[str, ndarray], choices: Choices) -> dict[int, float]:
    """Return expert -> weight for one token [D]."""
    z = logits(x, weights)
    s = scores(z, choices.score)
    chosen = chosen_experts(s, weights.get("router.correction"), choices)
    weight_of = {e: s[e] for e in chosen}
    if choices.sparsemixer is not None:
        for n, e in enumerate(chosen):
            left = [
                f for f in range(len(z))
                if f not in chosen[:n] and z[e] - z[f] <= 2 * choices.sparsemixer * max(abs(z[f]), z[e])
            ]  # fmt: skip
            weight_of[e] = np.exp(z[e]) / np.exp(z[left]).sum()
    total = sum(weight_of.values()) if choices.normalise else 1.0
    scale_of = weights.get("router.expert_scale", np.ones(len(z)))
    return {e: choices.factor * weight / total * scale_of[e] for e, weight in weight_of.items()}


def expert(x: ndarray, weights: Mapping[str, ndarray], choices: Choices) -> ndarray:
    """Apply one MLP to one token [D]. Its weights are `up`, `down`, optionally `gate`, and their biases."""
    act, limit = ACTIVATIONS[choices.activation], choices.clamp
    up = weights["up"] @ x + weights.get("up_bias", 0.0)
    if "gate" in weights:
        gate = weights["gate"] @ x + weights.get("gate_bias", 0.0)
        if limit is not None:
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        inner = act(gate) * (up + choices.up_offset)
    else:
        inner = act(up)
    return weights["down"] @ inner + weights.get("down_bias", 0.0)


def projected(x: ndarray, weights: Mapping[str, ndarray], name: str) -> ndarray:
    """Return the projection of a token. Without a projection, return the token itself."""
    weight = weights.get(f"{name}.weight")
    return x if weight is None else weight @ x + weights.get(f"{name}.bias", 0.0)


def mixture(x_TD: ndarray, weights: Mapping[str, ndarray], choices: Choices) -> ndarray:
    """Map [T, D] -> [T, D]. `weights`: router.*, experts.* stacked by expert, shared.*, shared_gate, norms of each, and
    latent_down.* and latent_up.*."""
    parts = ("up", "gate", "down", "up_bias", "gate_bias", "down_bias")
    y_TD = np.zeros_like(x_TD)
    for t, x in enumerate(x_TD):
        read = projected(normed(x, weights, "experts_before"), weights, "latent_down")
        outputs = []
        for e, weight in route(x, weights, choices).items():
            own = {p: weights[f"experts.{p}"][e] for p in parts if f"experts.{p}" in weights}
            outputs.append(
                expert(weight * read, own, choices)
                if choices.applied_to == "input"
                else weight * expert(read, own, choices)
            )
        y_TD[t] = normed(projected(sum(outputs), weights, "latent_up"), weights, "experts_after")
        if "shared.up" in weights:
            x = normed(x, weights, "shared_before")
            shared = expert(x, {p: weights[f"shared.{p}"] for p in parts if f"shared.{p}" in weights}, choices)
            gate = 1 / (1 + np.exp(-(weights["shared_gate"] @ x))) if "shared_gate" in weights else 1.0
            y_TD[t] += normed(gate * shared, weights, "shared_after")
    return y_TD


def balance_loss(layers: list[tuple[ndarray, Mapping[str, ndarray]]], choices: Choices, *, pooled: bool) -> float:
    """Return E * sum over experts of (share of tokens that chose e) * (mean score of e).

    The scores of a token sum to 1. `layers`: (tokens [T, D] without padding, weights). With `pooled`, the tokens of all
    layers are counted together; otherwise the result is the mean over layers. With equal loads it equals `active`.
    """
    counts, means = [], []
    for x_TD, weights in layers:
        n_experts = len(weights["router.weight"])
        count, mean = np.zeros(n_experts), np.zeros(n_experts)
        for x in x_TD:
            s = scores(logits(x, weights), choices.score)
            mean += s / s.sum() / len(x_TD)
            for e in route(x, weights, choices):
                count[e] += 1 / len(x_TD)
        counts.append(count)
        means.append(mean)
    if pooled:
        counts, means = [sum(counts) / len(layers)], [sum(means) / len(layers)]
    return float(np.mean([len(c) * (c * m).sum() for c, m in zip(counts, means, strict=True)]))


def router_z_loss(layers: list[tuple[ndarray, Mapping[str, ndarray]]]) -> float:
    """Mean over tokens and layers of the squared logarithm of the softmax denominator (Zoph 2022)."""
    squares = [np.log(np.exp(logits(x, weights)).sum()) ** 2 for x_TD, weights in layers for x in x_TD]
    return float(np.mean(squares))
