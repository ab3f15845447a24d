"""Studies over several sizes: their arms, and the trend of a difference (grows, shrinks or flips)."""

from math import log

import numpy as np
import pytest
from scipy import stats

from archlab.config.check import validate
from archlab.config.core.yaml_text import to_yaml
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.params import parameters
from archlab.study.comparisons import comparisons, outcome_statistics, planned_trends, size_trends
from archlab.study.design import arms
from archlab.study.outcomes.kinds import BitsPerByte
from archlab.study.schema import StudyConfig
from tiny import MODEL, TRAIN

SIZES = [100_000, 200_000, 400_000]
NORMS = {"rms": {}, "layer": {"model.norm.kind": "layernorm"}}


@pytest.fixture(autouse=True)
def _base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))


def study(**values):
    raw = {"question": "Which?", "base": "base.yaml", "budget": {"tokens": 640}, "seeds": 2, "arms": NORMS}
    return validate(StudyConfig, {"sizes": SIZES, **raw, **values}, "study.yaml")


def test_every_arm_is_there_at_every_size_beside_its_reference():
    found = arms(study(labels={"layer": "LayerNorm"}))
    assert [(arm.name, arm.reference) for arm in found] == [
        ("rms at 100K", None), ("layer at 100K", "rms at 100K"), ("rms at 200K", None),
        ("layer at 200K", "rms at 200K"), ("rms at 400K", None), ("layer at 400K", "rms at 400K"),
    ]  # fmt: skip
    assert found[1].label == "LayerNorm at 100K"
    for arm in found[::2]:
        assert parameters(arm.config.model).total == pytest.approx(arm.size, rel=0.01)
    assert found[1].config.model.norm.kind == "layernorm"


def test_tokens_follow_the_base_at_each_size_for_all_its_arms_alike():
    found = arms(study(budget={"tokens_per_parameter": 2}))
    for reference, arm in zip(found[::2], found[1::2], strict=True):
        assert arm.config.train.tokens == reference.config.train.tokens == 2 * parameters(reference.config.model).total
    (alone, _) = arms(study(sizes=[], budget={"tokens_per_parameter": 0.5}))
    assert alone.config.train.tokens == round(0.5 * parameters(alone.config.model).total)


def test_the_rate_falls_as_the_width_grows_unless_it_stays_or_is_set():
    for arm in arms(study())[::2]:
        assert resolve_train(arm.config).lr == pytest.approx(
            1e-3 * MODEL["d_model"] / arm.config.model.d_model, rel=1e-3
        )
    assert {arm.config.train.lr for arm in arms(study(rate_over_sizes="same"))} == {1e-3}
    mup = {"model.mup.base_width": 32}
    assert {arm.config.train.lr for arm in arms(study(rate_over_sizes="same", set=mup))} == {1e-3}
    with pytest.raises(
        UserError, match=r"base\.yaml: rate_over_sizes is inverse_width, but model\.mup already scales the rate"
    ):
        arms(study(set=mup))
    own = arms(study(arms={"a": {}, "b": {"train.lr": 0.5}}))
    assert [arm.config.train.lr for arm in own[1::2]] == [0.5] * 3


def test_tuned_values_are_those_of_a_size_or_of_all():
    found = arms(study(tuned={"layer": {"train.lr": 0.5}, "layer at 200K": {"train.lr": 0.25}}))
    assert [arm.config.train.lr for arm in found[1::2]] == [0.5, 0.25, 0.5]


def test_an_arm_may_change_further_fields_at_one_size():
    arms_by_name = {"deep": {}, "wide": {"model": {"n_layers": 1, "d_model": 64}}}
    at_size = {"wide at 200K": {"model.d_model": 96, "train.lr": 0.5}, "wide at 400K": {"model.n_layers": 3}}
    found = arms(study(arms=arms_by_name, at_size=at_size))[1::2]
    assert [(arm.config.model.n_layers, arm.config.model.d_model) for arm in found] == [(1, 64), (1, 96), (3, 64)]
    assert [arm.config.train.lr == 0.5 for arm in found] == [False, True, False]


@pytest.mark.parametrize(
    ("at_size", "problem"),
    [
        ({"layer at 300K": {"model.d_model": 64}}, "at_size.layer at 300K unknown arm; did you mean layer at 400K?"),
        ({"layer": {"model.d_model": 64}}, "at_size.layer unknown arm"),
        ({"layer at 200K": {"train.seed": 1}}, "at_size.layer at 200K.train.seed is set by the study's seeds"),
        ({"layer at 200K": {"data.fold": 1}}, "at_size.layer at 200K.data.fold is set by the study's folds"),
        ({"layer at 200K": {"train.eval_every": 1}}, "at_size.layer at 200K.train.eval_every must be the same"),
    ],
)
def test_changes_at_one_size_are_checked_like_arms(at_size, problem):
    with pytest.raises(UserError) as error:
        arms(study(at_size=at_size))
    assert problem in " ".join(str(error.value).split())


@pytest.mark.parametrize(
    "without", [{"sizes": []}, {"arms": {}, "cross": {"model.norm.kind": ["rmsnorm", "layernorm"]}}]
)
def test_changes_at_one_size_need_arms_and_sizes(without):
    name = "layer at 200K" if "sizes" in without else "norm.kind=rmsnorm at 200K"
    with pytest.raises(UserError, match=f"at_size.{name} +has no effect; it needs `arms` and `sizes`"):
        arms(study(at_size={name: {"model.d_model": 64}}, **without))


def test_parameters_are_matched_within_a_size():
    found = arms(study(arms={"gated": {}, "plain": {"model.mlp.kind": "plain"}}, equal={"parameters": "1%"}))
    for reference, arm in zip(found[::2], found[1::2], strict=True):
        assert parameters(arm.config.model).total == pytest.approx(parameters(reference.config.model).total, rel=0.01)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"largest_seeds": 3}, "largest_seeds  3; allowed: up to the number of `seeds`"),
        ({"largest_seeds": 1}, "largest_seeds  1; allowed: at least 2"),
        ({"largest_seeds": 2, "sizes": []}, "largest_seeds  .*needs `sizes`"),
        ({"sizes": ["1M"]}, r"sizes  \[1000000\]; allowed: 2 to 6 parameter counts, each at least 10% larger than"),
        ({"sizes": ["3M", "1M"]}, r"sizes  \[3000000, 1000000\]; allowed: 2 to 6"),
        (
            {"sizes": [1000, 2000]},
            "sizes  no shape with the proportions of .*base.yaml has 1K parameters: its embedding",
        ),
        ({"sizes": ["1M", "2M"], "seeds": 5000}, r"seeds  20,000 runs \(2 arms x 2 sizes x 5,000 seeds\)"),
        (
            {"budget": {"tokens": 1, "tokens_per_parameter": 2}},
            "sets tokens and tokens_per_parameter; allowed: exactly one of tokens, flops, tokens_per_parameter",
        ),
        ({"arms": {"a": {}, "b": {"model.nrm": 1}}}, "1 problem in the study\n  arms.b.model.nrm  unknown"),
        ({"set": {"model.d_mdel": 1}}, "1 problem in the study\n  set.model.d_mdel  unknown"),
        ({"tuned": {"layer at 300K": {"train.lr": 1}}}, "tuned.layer at 300K  unknown arm"),
    ],
)
def test_what_has_no_sizes_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        arms(study(**values))


def trend_of(gain, noise=0.005, seeds=5):
    """Return the trend of `layer`, whose difference at each size is gain(log(size / smallest size))."""
    designed = arms(study())
    random = np.random.default_rng(3)
    values = {
        arm.name: {
            s: 3 + s / 10 + (gain(log(arm.size / SIZES[0])) if arm.reference else 0) + noise * random.normal()
            for s in range(seeds)
        }
        for arm in designed
    }
    planned = planned_trends(designed)
    tested = outcome_statistics(BitsPerByte(), values, comparisons(designed))
    (trend,) = size_trends(planned, tested, None)
    return trend, tested, values


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (lambda x: -0.1 - 0.1 * x, "grows"),
        (lambda x: 0.1 + 0.1 * x, "grows"),
        (lambda x: -0.3 + 0.15 * x, "shrinks"),
        (lambda x: 0.1 - 0.2 * x, "flips"),
        (lambda x: -0.1, "no trend found"),
        (lambda x: 0.0, "no trend found"),
    ],
)
def test_a_planted_trend_is_found(gain, said):
    trend, *_ = trend_of(gain)
    assert trend.trend == said
    change = gain(log(4)) - gain(0)
    assert trend.comparison.difference == pytest.approx(change, abs=0.02)
    assert trend.line == pytest.approx((gain(0), gain(log(4))), abs=0.02)


def test_the_change_is_that_of_a_line_fitted_to_every_seed():
    trend, _, values = trend_of(lambda x: -0.1 * x, noise=0.05)
    x = np.log(trend.sizes)
    differences = np.array([[values[f"layer at {n}"][s] - values[f"rms at {n}"][s] for n in ("100K", "200K", "400K")]
                            for s in range(5)])  # fmt: skip
    by_hand = [np.polyfit(x, row, 1)[0] * (x[-1] - x[0]) for row in differences]
    assert list(trend.values.values()) == pytest.approx(by_hand)
    test = stats.ttest_1samp(by_hand, 0)
    assert trend.comparison.p == pytest.approx(test.pvalue)
    slope, at_zero = np.polyfit(x, differences.mean(axis=0), 1)
    assert trend.line == pytest.approx((at_zero + slope * x[0], at_zero + slope * x[-1]))


def test_no_flip_is_reported_if_an_end_is_not_known():
    """The line crosses zero, but the difference at the smallest size is not significant."""
    trend, tested, _ = trend_of(lambda x: 0.001 - 0.2 * x)
    assert tested["layer at 100K"].comparison.verdict == "not distinguishable"
    assert trend.line[0] * trend.line[1] < 0
    assert trend.trend == "grows"


def test_a_trend_counts_for_holms_correction_and_one_size_has_none():
    assert len(comparisons(arms(study()))) == 3 + 1
    assert len(comparisons(arms(study(sizes=[])))) == 1
