"""Invented but plausible studies in the form in which a runner leaves them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from archlab.study.answer import answer
from archlab.study.comparisons import heading, outcome_statistics
from archlab.study.outcomes.kinds import BestRate, BitsPerByte, LargestGradient, StateBytes, TokensTo, TrainingSpeed
from archlab.study.outcomes.schema import Better, Outcome
from archlab.study.record import (
    ArmSummary,
    Curve,
    DocumentDifference,
    DocumentView,
    OutcomeStatistics,
    OutcomeSummary,
    StudySummary,
    TuningPoint,
)
from archlab.study.stats import compare, pairwise, share

TOKENS = 1_000_000

LADDER = {
    "original": ("Post-norm 2017", 4.61, {}),
    "pre": ("Pre-norm", 3.42, {"model.norm.placement": "pre"}),
    "rmsnorm": ("RMSNorm", 3.42, {"model.norm.kind": "rmsnorm"}),
    "no-bias": ("No biases", 3.39, {"model.attention.bias": False, "model.mlp.bias": False}),
    "rope": ("RoPE", 2.69, {"model.position.kind": "rope"}),
    "swiglu": ("SwiGLU", 2.60, {"model.mlp.kind": "gated", "model.mlp.activation": "silu"}),
    "gqa": ("GQA", 2.61, {"model.attention.n_kv_heads": 2}),
}

LONG_NAMES = {
    "relu": ("ReLU, plain, four times as wide as the model", 2.75, {}),
    "gelu": ("GELU, plain, four times as wide as the model", 2.735, {"model.mlp.activation": "gelu"}),
    "squared-relu": ("Squared ReLU, plain, as in Primer", 2.70, {"model.mlp.activation": "relu2"}),
    "silu": ("SiLU (swish), plain, four times as wide", 2.73, {"model.mlp.activation": "silu"}),
    "glu": ("GLU, gated by a sigmoid, at equal parameters", 2.69, {"model.mlp.activation": "sigmoid"}),
    "reglu": ("ReGLU, gated by ReLU, at equal parameters", 2.68, {"model.mlp.kind": "gated"}),
    "geglu": ("GEGLU, gated by GELU, at equal parameters", 2.665, {"model.mlp.kind": "gated"}),
    "swiglu": ("SwiGLU, gated by SiLU, at equal parameters", 2.66, {"model.mlp.kind": "gated"}),
    "bilinear": ("Bilinear, gated by nothing at all, at equal parameters", 2.70, {"model.mlp.kind": "gated"}),
    "tanh": ("Tanh, plain, a relic of the recurrent years", 2.95, {"model.mlp.activation": "tanh"}),
    "identity": ("Identity: a linear MLP, to show what it is for", 7.9, {"model.mlp.activation": "identity"}),
    "sine": ("Sine, plain, from implicit representations", 2.76, {"model.mlp.activation": "sine"}),
}

Losses = Mapping[str, Mapping[int, float | None]]
Arms = Mapping[str, tuple[str, float, dict[str, Any]]]


def ladder() -> StudySummary:
    """Return a ladder of seven steps from 2017 to today with three seeds, without failures."""
    return study(LADDER, seeds=[0, 1, 2], against="previous")


def diverging_ladder() -> StudySummary:
    """Return a ladder in which one seed of RoPE and all seeds of the original block diverged."""
    return study(
        LADDER,
        seeds=[0, 1, 2],
        against="previous",
        diverged={("rope", 1), ("original", 0), ("original", 1), ("original", 2)},
    )


def pair() -> StudySummary:
    """Return a study of two arms without a significant difference."""
    arms: Arms = {"a": ("SwiGLU", 2.600, {}), "b": ("GEGLU", 2.601, {"model.mlp.activation": "gelu"})}
    return study(arms, seeds=[0, 1, 2, 3, 4], against="base")


def many() -> StudySummary:
    """Return a study of twelve arms with long names; one arm is far from the others."""
    return study(LONG_NAMES, seeds=[0, 1, 2, 3, 4], against="base")


def rich() -> StudySummary:
    """Return a study of three arms and two tuned fields, with further outcomes of every kind. One outcome has no
    values."""
    found = study({name: LONG_NAMES[name] for name in ("relu", "gelu", "identity")}, seeds=[0, 1, 2, 3], against="base")
    noise = np.random.default_rng(3)
    references = {arm.name: "relu" for arm in found.arms[1:]}

    def other(outcome: Outcome, size: float, n: int) -> OutcomeSummary:
        values = {
            arm.name: {i: size * (1 + k + float(noise.normal(0, 0.02)) * (n > 1)) for i in range(n)}
            for k, arm in enumerate(found.arms)
        }
        return OutcomeSummary(
            outcome=heading(outcome.kind, outcome), arms=outcome_statistics(outcome, values, pairwise(references))
        )

    others = [
        other(LargestGradient(), 0.4, 4),
        other(StateBytes(context=1024), 131_072, 1),
        other(TrainingSpeed(), 40_000, 5),
        other(BestRate(), 0.004, 4),
        other(TokensTo(bits_per_byte=2.5), 0, 0),
    ]
    tuning = [
        TuningPoint(
            arm=arm.name,
            values={"train.lr": lr, "train.schedule": schedule},
            results=[None if lr > 0.01 else 3 - 100 * lr + 0.1 * (schedule == "constant"), 2.9],
            chosen=lr == (0.008 if arm.name == "relu" else 0.002) and schedule == "cosine",
        )
        for arm in found.arms
        for lr in (0.002, 0.016, 0.008)
        for schedule in ("cosine", "constant")
    ]
    arms = [*found.arms[:2], found.arms[2].model_copy(update={"documents": documents("A tale of")})]
    return found.model_copy(update={"others": others, "tuning": tuning, "arms": arms})


def documents(begins: str) -> DocumentView:
    """Return two documents where the arm does best and two where it does worst."""

    def one(i: int, difference: float) -> DocumentDifference:
        return DocumentDifference(begins=f"{begins} {i}", difference=difference, bytes=2000)

    return DocumentView(
        documents=1234,
        difference=5.1,
        low=5.05,
        high=5.15,
        lowest=[one(1, 4.111), one(2, 4.222)],
        highest=[one(3, 7.888), one(4, 7.777)],
    )


def hostile() -> StudySummary:
    """Return a study in which every text from the user tries to run a script."""
    bad = "<b>x</b><script>alert(1)</script>"
    found = study({bad: (bad, 2.6, {}), "b": ('"quoted" & co', 2.7, {bad: bad})}, seeds=[0, 1], against="base")
    arms = {
        arm.name: OutcomeStatistics(**{name: getattr(arm, name) for name in OutcomeStatistics.model_fields})
        for arm in found.arms
    }
    return found.model_copy(
        update={
            "name": bad,
            "question": bad,
            "claim": bad,
            "answer": bad,
            "warnings": [bad],
            "corpus": bad,
            "command": bad,
            "arms": [found.arms[0], found.arms[1].model_copy(update={"documents": documents(bad)})],
            "outcome": found.outcome.model_copy(update={"title": bad}),
            "others": [OutcomeSummary(outcome=found.outcome.model_copy(update={"name": bad, "title": bad}), arms=arms)],
            "tuning": [TuningPoint(arm=bad, values={bad: bad}, results=[2.6], chosen=True)],
        }
    )


def study(
    arms: Arms,
    seeds: Sequence[int],
    against: Literal["base", "previous"],
    diverged: frozenset[tuple[str, int]] | set[tuple[str, int]] = frozenset(),
    better: Better = "lower",
    margin: float | None = None,
) -> StudySummary:
    names = list(arms)
    noise = np.random.default_rng(7)
    shared = noise.normal(0, 0.012, len(seeds))
    losses: dict[str, dict[int, float | None]] = {
        name: {
            seed: None if (name, seed) in diverged else arms[name][1] + float(shared[i] + noise.normal(0, 0.008))
            for i, seed in enumerate(seeds)
        }
        for name in names
    }
    before = dict(zip(names[1:], names, strict=False)) if against == "previous" else dict.fromkeys(names[1:], names[0])
    comparisons = compare(losses, pairwise(before), better, margin)
    summaries = []
    for i, (name, (label, _, overrides)) in enumerate(arms.items()):
        finished = [loss for loss in losses[name].values() if loss is not None]
        summaries.append(
            ArmSummary(
                name=name,
                label=label,
                overrides=overrides,
                adjusted={"model.mlp.d_ff": 344} if "gated" in overrides.values() else {},
                tuned={"train.lr": 2e-3},
                parameters=1_213_696 - 1300 * i,
                flops_per_token=7.6e6 - 2e4 * i,
                kv_cache_bytes=524_288 if name == "gqa" else 2_097_152,
                tokens_per_second=21_300.0 - 400 * i if finished else None,
                tokens=TOKENS,
                values=losses[name],
                seeds=list(losses[name]),
                runs={seed: f"runs/{i}{seed}" for seed in losses[name]},
                diverged=(gone := [seed for seed, loss in losses[name].items() if loss is None]),
                divergence=share(len(gone), len(seeds)),
                mean=float(np.mean(finished)) if finished else None,
                deviation=float(np.std(finished, ddof=1)) if len(finished) > 1 else None,
                comparison=comparisons.get(name),
                curves=[_curve(seed, loss, noise) for seed, loss in losses[name].items()],
                config={
                    "model": {
                        "vocab_size": 2048,
                        "d_model": 128,
                        "n_layers": 4,
                        "norm": {"kind": "layernorm"},
                    },
                    "train": {"lr": 2e-3},
                },
            )
        )
    about = heading("bits_per_byte", BitsPerByte()).model_copy(update={"better": better})
    return StudySummary(
        name="modernisation-ladder" if against == "previous" else "activations",
        question="Which steps from the Transformer of 2017 to today's block buy what?"
        if against == "previous"
        else "Which activation for the MLP, at equal parameters?",
        claim="Pre-norm makes training stable (Xiong 2020); gated MLPs lower the loss (Shazeer 2020).",
        answer=answer(summaries, against, about),
        outcome=about,
        evaluated="bits per byte",
        warnings=["3 seeds: intervals are wide; smaller differences may exist."] if len(seeds) < 4 else [],
        against=against,
        equal="parameters within 1%, by model.mlp.d_ff",
        seeds=list(seeds),
        arms=summaries,
        kv_context=1024,
        corpus="python-stdlib: 12.4 MB of Python's own library, 4.1M tokens, 5% of the files held out",
        environment={
            "archlab": "0.1.0",
            "torch": "2.13.0+cpu",
            "python": "3.11.9",
            "processor": "x86_64, 2 cores",
            "dtype": "float32",
            "threads": 1,
        },
        seconds=312.4,
        command="archlab study run modernisation-ladder --out studies/modernisation-ladder",
        study={
            "question": "Which steps?",
            "base": "tiny-transformer",
            "budget": {"tokens": TOKENS},
            "seeds": len(seeds),
        },
    )


def _curve(seed: int, loss: float | None, noise: np.random.Generator) -> Curve:
    tokens = [TOKENS * i // 20 for i in range(21)]
    if loss is None:
        values = [9.1, 4.4, 4.1, 4.3, 5.2, 17.9]
    else:
        values = [loss + 1.3 * ((TOKENS / t) ** 0.35 - 1) + float(noise.normal(0, 0.01)) for t in tokens[1:-1]]
        values = [9.0 + float(noise.normal(0, 0.01)), *values, loss]
    return Curve(
        seed=seed,
        tokens=tokens[: len(values)],
        values=values,
        trained=tokens[: len(values)],
        losses=[2.5 * value for value in values],
        gradients=[0.1 * value for value in values],
    )
