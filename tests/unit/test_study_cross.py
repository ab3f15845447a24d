"""Crossed factors and named references: arms, comparisons and sentences of the answer."""

import re

import numpy as np
import pytest
from scipy import stats

from archlab.config.check import validate
from archlab.config.core.yaml_text import to_yaml
from archlab.errors import UserError
from archlab.study.arm import overrides_of_arms
from archlab.study.comparisons import comparisons, contrast_summaries, factor_contrasts, heading, outcome_statistics
from archlab.study.contrast_answer import contrast_answer
from archlab.study.design import arms
from archlab.study.outcomes.kinds import BitsPerByte
from archlab.study.schema import StudyConfig
from archlab.study.study_file import read_study
from tiny import MODEL, TRAIN

HEADING = heading("bits_per_byte", BitsPerByte())
PLACED = {"model.norm.placement": ["pre", "post"], "train.warmup": [0, 0.1]}


@pytest.fixture(autouse=True)
def _base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))


def study(**values):
    raw = {"question": "Which?", "base": "base.yaml", "budget": {"tokens": 640}, "seeds": 2}
    return validate(StudyConfig, {**raw, **values}, "study.yaml")


def crossed(scores, factors=PLACED, seeds=6, noise=0.0, margin=None):
    """Return contrasts of arms with the scores `scores(levels)`, plus noise."""
    designed = arms(study(cross=factors))
    random = np.random.default_rng(1)
    values = {
        arm.name: {
            s: None if (score := scores(arm.factors)) is None else score + s / 10 + noise * random.normal()
            for s in range(seeds)
        }
        for arm in designed
    }
    planned = factor_contrasts(designed)
    tested = outcome_statistics(BitsPerByte(), values, comparisons(designed), margin)
    return contrast_summaries(planned, values, tested, None), tested, values


# --- named references --------------------------------------------------------------------

NAMED = {"a": {}, "b": {"model.norm.kind": "layernorm"}, "c": {"model.mlp.kind": "plain"}, "d": {"train.lr": 0.1}}


def test_an_arm_is_compared_with_the_one_that_is_named_for_it():
    found = arms(study(arms=NAMED, against={"b": "d", "c": "b"}))
    assert [arm.reference for arm in found] == [None, "d", "b", "a"]
    assert found[2].config.model.norm.kind == "rmsnorm", "no ladder: it starts from the base"


def test_derived_values_are_listed_if_they_differ_from_the_reference():
    heads = {"model.attention.n_heads": 8, "model.attention.n_kv_heads": 4}
    named = {"a": {}, "b": {"model.norm.kind": "layernorm"}, "heads": heads}
    in_base = {"model.attention.head_dim": None}
    _, b, _ = arms(study(arms=named, set=in_base))
    assert b.follows == {}
    _, b, _ = arms(study(arms=named, set=in_base, against={"b": "heads"}))
    assert (b.follows["model.attention.head_dim"], b.follows["model.attention.v_dim"]) == (8, 8)


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ({"bb": "a"}, r"against.bb  unknown arm; did you mean b\? allowed: a, b, c, d"),
        ({"b": "aa"}, r"against.b  unknown arm 'aa'; did you mean a\? allowed: a, b, c, d"),
        ({"a": "b"}, "against.a  the first arm has no reference"),
        ({"b": "b"}, "against.b  the references form a cycle: b -> b"),
        (
            {"c": "d", "d": "b", "b": "c"},
            "1 problem in the study\n  against.b  the references form a cycle: b -> c -> d -> b",
        ),
        ({"b": "b", "c": "x", "a": "d"}, "3 problems"),
    ],
)
def test_wrong_references_are_refused(against, message):
    with pytest.raises(UserError, match=message):
        arms(study(arms=NAMED, against=against))


def test_an_arm_that_leads_to_a_circle_is_not_in_it():
    with pytest.raises(
        UserError, match=r"1 problem in the study\n  against.c  the references form a cycle: c -> d -> c"
    ):
        arms(study(arms=NAMED, against={"b": "c", "c": "d", "d": "c"}))


# --- arms of crossed factors ----------------------------------------------------------------------


def test_every_combination_is_an_arm_with_its_levels():
    found = arms(study(cross=PLACED))
    assert [arm.name for arm in found] == [
        "norm.placement=pre warmup=0",
        "norm.placement=pre warmup=0.1",
        "norm.placement=post warmup=0",
        "norm.placement=post warmup=0.1",
    ]
    assert [(arm.config.model.norm.placement, arm.config.train.warmup) for arm in found] == [
        ("pre", 0), ("pre", 0.1), ("post", 0), ("post", 0.1),
    ]  # fmt: skip
    assert [arm.reference for arm in found] == [None, *[found[0].name] * 3]
    assert found[2].factors == {"model.norm.placement": "post", "train.warmup": 0}


def test_factors_of_one_name_are_distinguished():
    (arm, *_) = arms(study(cross={"model.dropout": [0, 0.1], "train.grad_clip": [1, 2]}))
    assert arm.name == "dropout=0 grad_clip=1"
    named = study(cross={"model.x": [0, 1], "train.x": [0, 1]})
    assert next(iter(overrides_of_arms(named))) == "model.x=0 train.x=0"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "arms  give exactly one of arms \\(name -> its changes\\) and cross"),
        ({"arms": {"a": {}}, "cross": PLACED}, "arms  give exactly one of arms"),
        ({"cross": {"train.warmup": [0]}}, "cross.train.warmup  .*allowed: 2 or more items"),
        (
            {"cross": {f"train.x{i}": list(range(100)) for i in range(5)}},
            r"seeds  20,000,000,000 runs \(10,000,000,000 a",
        ),
        ({"cross": {"train.warmup": [0, 0.1, 0]}}, r"cross.train.warmup  \[0, 0.1, 0\] contains 0 twice"),
        ({"cross": {"train.wrmup": [0, 0.1]}}, r"1 problem in the study\n  cross.train.wrmup  unknown; did you mean"),
        (
            {"cross": {"train.warmup": [0, -1]}},
            r"1 problem in the study\n  cross.train.warmup  -1; allowed: at least 0",
        ),
        ({"cross": {"train.seed": [0, 1]}}, "cross.train.seed  is set by the study's seeds"),
        ({"cross": {"data.path": ["a", "b"]}}, "1 problem in the study\n  cross.data.path  must be the same"),
        ({"cross": PLACED, "tune": {"train.warmup": [0, 1]}}, "cross.train.warmup  is also in `tune`"),
        ({"cross": {"model.max_seq_len": [16, 32]}}, "cross  max_seq_len=32: differs from max_seq_len=16 in fields"),
        (
            {"cross": {"model.norm": ["none", "rmsnorm"], "model.norm.kind": ["rmsnorm", "layernorm"]}},
            "cross.model.norm +overlaps with ",
        ),
        (
            {
                "cross": PLACED,
                "checks": [
                    {
                        "arm": "norm.placement=post warmup=0",
                        "at_most": 2.0,
                        "because": "It must learn.",
                        "arms": ["warmup=0.1 where norm.placement=post", "warmup=0.1 where norm.placement=pots"],
                    }
                ],
            },
            "1 problem in the study\n  checks.0.arms  unknown comparison 'warmup=0.1 where norm.placement=pots'; did",
        ),
        (
            {"cross": PLACED, "labels": {"pre": "Pre"}},
            "labels.pre  unknown arm; .*allowed: norm.placement=pre warmup=0",
        ),
    ],
)
def test_wrong_factors_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        arms(study(**values))


def test_who_extends_a_study_replaces_its_arms_by_factors_and_factors_by_arms(tmp_path):
    said = {"question": "Which?", "base": "base.yaml", "budget": {"tokens": 640}, "arms": {"a": {}}}
    (tmp_path / "one.yaml").write_text(to_yaml(said))
    (tmp_path / "two.yaml").write_text(to_yaml({"extends": "one.yaml", "cross": PLACED}))
    (tmp_path / "three.yaml").write_text(to_yaml({"extends": "two.yaml", "arms": {"b": {}}}))
    assert [len(arms(read_study(f"{name}.yaml")[1])) for name in ("one", "two", "three")] == [1, 4, 1]


# --- contrasts ------------------------------------------------------------------------------------


def effect(placement=0.3, warmup=-0.1, both=0.0):
    """Return a score function with these effects of post-norm, of warm-up, and of both together."""
    return lambda levels: (
        2
        + placement * (post := levels["model.norm.placement"] == "post")
        + warmup * (warm := levels["train.warmup"] > 0)
        + both * (post and warm)
    )


@pytest.mark.parametrize(("both", "verdict"), [(-0.12, "better"), (0.12, "worse"), (0.0, "not distinguishable")])
def test_a_planted_interaction_is_found_with_its_sign_and_size(both, verdict):
    (interaction, placement, warmup), *_ = crossed(effect(both=both), noise=0.005)
    assert interaction.comparison.verdict == verdict
    assert interaction.comparison.difference == pytest.approx(both, abs=0.012)
    assert interaction.comparison.low < both < interaction.comparison.high
    assert interaction.effects == pytest.approx((-0.1, -0.1 + both), abs=0.01)
    assert placement.comparison.difference == pytest.approx(0.3 + both / 2, abs=0.006)
    assert warmup.comparison.difference == pytest.approx(-0.1 + both / 2, abs=0.006)
    assert (placement.comparison.verdict, warmup.comparison.verdict) == ("worse", "better")


def test_contrasts_are_what_a_hand_computes():
    (interaction, placement, warmup), tested, values = crossed(effect(both=0.02), noise=0.02)
    pre, pre_warm, post, post_warm = (np.array(list(by_seed.values())) for by_seed in values.values())
    expected = [
        (interaction, (post_warm - post) - (pre_warm - pre)),
        (placement, (post + post_warm) / 2 - (pre + pre_warm) / 2),
        (warmup, (pre_warm + post_warm) / 2 - (pre + post) / 2),
    ]
    for contrast, by_hand in expected:
        assert list(contrast.values.values()) == pytest.approx(list(by_hand))
        test = stats.ttest_1samp(by_hand, 0)
        assert (contrast.comparison.difference, contrast.comparison.p) == pytest.approx((by_hand.mean(), test.pvalue))
        ends = test.confidence_interval(contrast.comparison.confidence)
        assert (contrast.comparison.low, contrast.comparison.high) == pytest.approx((ends.low, ends.high))
    every = [found.comparison for found in tested.values() if found.comparison]
    assert len(every) == 6, "three arms, one interaction, two averages"
    smallest = min(every, key=lambda found: found.p)
    assert smallest.p_holm == pytest.approx(6 * smallest.p), "one family"


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1, 0.3])
def test_an_interval_excludes_zero_exactly_if_the_verdict_finds_a_difference(noise):
    _, tested, _ = crossed(effect(both=-0.12), noise=noise)
    for found in (one.comparison for one in tested.values() if one.comparison):
        assert (found.low <= 0 <= found.high) == (found.verdict == "not distinguishable")


def test_rounding_is_not_called_an_interaction_if_effects_add_up_without_noise():
    (interaction, *_), *_ = crossed(effect(placement=0.1, warmup=0.7))
    assert (interaction.comparison.difference, interaction.comparison.p) == (0, 1)


def test_additive_effects_are_called_an_interaction_in_few_studies():
    random, wrong = np.random.default_rng(0), 0
    designed = arms(study(cross=PLACED))
    planned = factor_contrasts(designed)
    name, contrast = next(iter(planned.items()))
    for _ in range(400):
        values = {arm.name: dict(enumerate(effect()(arm.factors) + random.normal(0, 0.02, 4))) for arm in designed}
        tested = outcome_statistics(BitsPerByte(), values, {name: contrast.sum})
        wrong += tested[name].comparison.verdict != "not distinguishable"
    assert 0.02 < wrong / 400 < 0.08


def test_an_interaction_of_two_factors_is_the_average_over_the_third():
    factors = {**PLACED, "model.mlp.kind": ["gated", "plain"]}

    def scores(levels):
        plain = levels["model.mlp.kind"] == "plain"
        return effect(both=-0.4 * plain)(levels)

    found, tested, _ = crossed(scores, factors)
    assert [contrast.name for contrast in found] == [
        "warmup=0.1 where norm.placement=post",
        "mlp.kind=plain where norm.placement=post",
        "mlp.kind=plain where warmup=0.1",
        "norm.placement=post on average",
        "warmup=0.1 on average",
        "mlp.kind=plain on average",
    ]
    assert [contrast.comparison.difference for contrast in found] == pytest.approx([-0.2, -0.2, -0.2, 0.2, -0.2, -0.1])
    assert len([one for one in tested.values() if one.comparison]) == 7 + 6


def test_every_level_is_compared_with_the_first():
    factors = {"model.norm.placement": ["pre", "post"], "train.warmup": [0, 0.1, 0.2]}

    def scores(levels):
        return levels["train.warmup"] * (1 + (levels["model.norm.placement"] == "post"))

    found, *_ = crossed(scores, factors)
    interactions = {c.factors["train.warmup"]: c.comparison.difference for c in found if len(c.factors) == 2}
    assert interactions == pytest.approx({(0, 0.1): 0.1, (0, 0.2): 0.2})


def test_one_factor_has_no_contrasts():
    assert crossed(lambda levels: levels["train.warmup"], {"train.warmup": [0, 0.1, 0.2]})[0] == []


def test_the_contrasts_of_a_diverged_arm_are_unknown():
    def scores(levels):
        return None if levels == {"model.norm.placement": "post", "train.warmup": 0} else effect()(levels)

    found, *_ = crossed(scores, noise=0.01)
    assert {contrast.comparison.verdict for contrast in found} == {"diverged"}
    assert contrast_answer(found, HEADING) == [
        "The effect of warmup=0.1 with norm.placement=post cannot be compared with that with norm.placement=pre "
        "(runs diverged or are missing)."
    ]


# --- sentences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"warmup": -0.1, "both": -0.12},
            "helps by 0.12. bits per byte more with norm.placement=post than with norm.pl",
        ),
        ({"warmup": -0.2, "both": 0.12}, "helps by 0.1.. bits per byte less with norm.placement=post than with"),
        ({"warmup": 0.1, "both": 0.12}, "hurts by 0.12. bits per byte more with norm.placement=post than with"),
        ({"warmup": 0.2, "both": -0.12}, "hurts by 0.12. bits per byte less with norm.placement=post than with"),
        (
            {"warmup": 0.05, "both": -0.12},
            "helps by 0.07. bits per byte with norm.placement=post and hurts by 0.05. bits per byte with "
            "norm.placement=pre, a difference of 0.12",
        ),
    ],
)
def test_an_interaction_is_described_in_a_sentence(given, said):
    found, *_ = crossed(effect(**given), noise=0.001)
    (sentence,) = contrast_answer(found, HEADING)
    assert re.match(f"warmup=0.1 {said}", sentence), sentence
    low, high = map(float, re.search(r"\[(\S+), (\S+)\] \(6 paired seeds, Holm p < 0.001\)\.", sentence).groups())
    assert 0 < low < 0.12 < high


def test_no_interaction_is_said_with_what_would_have_been_found():
    found, *_ = crossed(effect(), noise=0.01)
    (sentence,) = contrast_answer(found, HEADING)
    assert "is not distinguishable from that with norm.placement=pre (smallest detectable difference 0.0" in sentence
    found, *_ = crossed(effect(), noise=0.001, margin=0.05)
    (sentence,) = contrast_answer(found, HEADING)
    assert sentence.endswith("is equivalent to that with norm.placement=pre (within 0.05 bits per byte).")
