"""From a study file to its arms: refused files, matched quantities, ladders."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from archlab.config.check import validate
from archlab.config.components.work import KINDS, OF_MATRICES
from archlab.config.core.yaml_text import to_yaml
from archlab.config.identity import differences
from archlab.config.io import studies
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.pricing.hardware import Measurements, Rate, Rates, load_hardware
from archlab.pricing.summary import cost
from archlab.pricing.work import computed_training_flops, training_flops
from archlab.study.checks import overridden_fields
from archlab.study.design import arms, grid, single_arm_note
from archlab.study.fit import describe_equal, quantity_function
from archlab.study.forecast import forecast, ideal_clock, measured_clock
from archlab.study.outcomes.chosen import outcomes_of
from archlab.study.schema import StudyConfig
from archlab.study.study_file import default_folder, library_study, read_study, scales_of, study_path
from tiny import MODEL, TRAIN


@pytest.fixture(autouse=True)
def _base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))


def study(**values):
    raw = {"question": "Which?", "base": "base.yaml", "budget": {"tokens": 640}, "seeds": 2}
    return validate(StudyConfig, {**raw, **values}, "study.yaml")


def two(overrides, **values):
    """Return a study with an unchanged reference and one arm."""
    return study(arms={"base": {}, "other": overrides}, **values)


def parameters_of(arm):
    return sum(p.numel() for p in Decoder(arm.config.model).parameters())


# --- fields of arms -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.norm.kind": "layernorm"},
        {"model": {"norm": {"kind": "layernorm", "bias": False}}},
        {"model.norm": {"kind": "none"}},
        {"model.mlp.kind": "plain"},
        {"model.position.kind": "learned"},
        {"model.dropout": 0.1},
        {"model.layers": {"a": {"attention.window": 4}, "b": {}, "pattern": ["a", "b"]}},
        {"model.attention.head_dim": 16, "model.attention.v_dim": 16, "model.attention.scale": 0.25},
        {"train.lr": 1e-2},
    ],
)
def test_an_arm_that_says_all_it_changes_is_taken(overrides):
    base, other = arms(two(overrides))
    assert (base.reference, other.reference) == (None, "base")
    assert differences(base.config, other.config)


@pytest.mark.parametrize(
    ("in_base", "overrides", "follows"),
    [
        (
            {"model.attention.head_dim": None},
            {"model.attention.n_heads": 8, "model.attention.n_kv_heads": 4},
            {"model.attention.head_dim": 4, "model.attention.v_dim": 4, "model.attention.scale": 0.5},
        ),
        ({}, {"model.attention.head_dim": 16}, {"model.attention.v_dim": 16, "model.attention.scale": 0.25}),
        ({"model.mlp.d_ff": None}, {"model.mlp.kind": "plain"}, {"model.mlp.d_ff": 128}),
        ({"model.mlp.d_ff": None}, {"model": {"mlp": {"kind": "plain"}}}, {"model.mlp.d_ff": 128}),
        ({"model.attention.n_kv_heads": None}, {"model.attention.n_heads": 2}, {"model.attention.n_kv_heads": 2}),
        ({}, {"train.schedule": "constant"}, {"train.final_lr": 1.0}),
        ({}, {"train.schedule": "wsd"}, {"train.decay": 0.2}),
        ({}, {"train.batch_tokens": 32}, {"train.micro_batch_tokens": 32}),
        ({}, {"model.mlp.kind": "plain"}, {}),  # d_ff is set in the base, and stays
        ({}, {"model.max_seq_len": 32, "train.seq_len": 16}, {}),
    ],
)
def test_what_follows_from_what_an_arm_says_is_said(in_base, overrides, follows):
    base, other = arms(two(overrides, set=in_base))
    assert (base.follows, other.follows) == ({}, follows)
    assert set(differences(base.config, other.config)) - {"train.eval_every", "train.checkpoint_every"} == {
        *overridden_fields(overrides),
        *follows,
    } - {"train.seq_len"}


def test_arms_that_would_be_judged_in_other_windows_are_refused():
    with pytest.raises(
        UserError,
        match=r"arms\.other +is evaluated in windows of 8 tokens, base in windows of 16; add train.eval_seq_len",
    ):
        arms(two({"train.seq_len": 8}))
    with pytest.raises(UserError, match=r"arms\.other\.train\.document_mask +changes the evaluation"):
        arms(two({"train.document_mask": True}))
    alike = arms(two({"train.seq_len": 8}, set={"train.eval_seq_len": 16}))
    assert [resolve_train(arm.config).eval_seq_len for arm in alike] == [16, 16]
    assert [resolve_train(arm.config).seq_len for arm in alike] == [16, 8]


def test_values_derived_from_the_knob_are_also_listed():
    in_base = {"model.d_model": 128, "model.n_layers": 12, "model.mlp.d_ff": None}
    _, other = arms(two({"model.n_layers": 16}, set=in_base, equal={"parameters": "4%", "by": "model.d_model"}))
    assert set(other.adjusted) == {"model.d_model"}
    assert set(other.follows) == {"model.mlp.d_ff"}


@pytest.mark.parametrize(
    ("in_base", "overrides", "silent"),
    [
        ({}, {"model.max_seq_len": 32}, "train.seq_len: 16 in base, 32 in other"),
        (
            {"model.position.kind": "shaw"},
            {"model.position.kind": "t5"},
            "model.position.max_distance: 16 in base, 128 in other",
        ),
    ],
)
def test_an_arm_that_changes_more_than_it_says_is_refused(in_base, overrides, silent):
    with pytest.raises(UserError) as refused:
        arms(two(overrides, set=in_base))
    message = str(refused.value)
    assert "arms.other  differs from base in fields that it does not set; add these fields to the arm" in message
    assert silent in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.nrm.kind": "x"}, r"arms.other.model.nrm  unknown; did you mean norm\?"),
        ({"model.norm.knd": "x"}, r"model.norm.knd  unknown; did you mean kind\?"),
        ({"model.norm.kind": "layrnorm"}, r"model.norm.kind  'layrnorm'; did you mean layernorm\?"),
        ({"model.attention.n_kv_heads": 3}, "3 does not divide n_heads = 4; allowed: 1, 2, 4"),
        (
            {"model.attention.visibility": "two_sided"},
            r"arms.other.model.attention.visibility  two_sided; training and",
        ),
        ({"model.norm.kind": "x", "model.mlp.kid": "y"}, "2 problems in the study"),
        ({"model.d_model": 64, "model": {"d_model": 32}}, "model.d_model is given twice"),
    ],
)
def test_a_wrong_arm_is_named_with_its_field(overrides, message):
    with pytest.raises(UserError, match=message):
        arms(two(overrides))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"base": "tiny-lama"},
            r"unknown config 'tiny-lama': neither a preset, a file nor a hub id \(owner/name\); did you mean tiny-llama\?",
        ),
        ({"set": {"train.lrr": 1}}, r"set.train.lrr  unknown; did you mean lr\?"),
        ({"set": {"train.seed": 3}}, "set.train.seed  is set by the study's seeds"),
        ({"set": {"train": {"tokens": 64}}}, "set.train.tokens  is set by the study's budget"),
        (
            {"arms": {"a": {}, "b": {"train.tokens": 64}}},
            "arms.b.train.tokens  is set by the study's budget",
        ),
        ({"arms": {"a": {"train.seed": 1}}}, "arms.a.train.seed  is set by the study's seeds"),
        (
            {"arms": {"a": {}, "b": {"data.path": "x"}}},
            "arms.b.data.path  must be the same for all arms",
        ),
        ({"labels": {"othr": "x"}}, r"labels.othr  unknown arm; did you mean other\? allowed: base, other"),
        ({"tuned": {"othr": {"train.lr": 1}}}, r"tuned.othr  unknown arm; did you mean other\? allowed: base, other"),
        (
            {"tuned": {"other": {"model.d_model": 64}}},
            "tuned.other.model.d_model  cannot be tuned; allowed: fields of train",
        ),
        ({"tuned": {"other": {"train.lr": -1}}}, "train.lr  -1; allowed: more than 0"),
        ({"tune": {"model.mlp.d_ff": [64, 72]}}, "tune.model.mlp.d_ff  cannot be tuned; allowed: fields of train"),
        ({"tune": {"train.seed": [0, 1]}}, "tune.train.seed  cannot be tuned"),
        ({"tune": {"train.tokens": [64, 128]}}, "tune.train.tokens  cannot be tuned"),
        ({"tune": {"train.eval_tokens": [64, 128]}}, "tune.train.eval_tokens  cannot be tuned"),
        ({"arms": {"a": {}, "b": {"train.eval_tokens": 64}}}, "arms.b.train.eval_tokens  must be the same"),
        ({"tune": {"train.lrr": [0.1]}}, r"train.lrr  unknown; did you mean lr\?"),
        ({"tune": {"train.lr": [0.1, 0]}}, "train.lr  0; allowed: more than 0"),
        ({"seeds": [3, 1, 3]}, r"seeds  \[3, 1, 3\] contains a seed twice"),
        ({"budget": {"tokens": 10}}, "budget  10 is less than one batch of 64 tokens"),
        (
            {"budget": {"flops": 10}},
            "budget  10 FLOPs are enough for only 0 tokens, but a run needs at least one batch of 64",
        ),
    ],
)
def test_a_study_that_cannot_be_fair_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        arms(study(**{"arms": {"base": {}, "other": {"model.norm.kind": "layernorm"}}, **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"budget": {"tokens": 1, "flops": 1}}, "budget  sets tokens and flops; allowed: exactly one of"),
        ({"budget": {}}, "budget  sets nothing; allowed: exactly one of tokens, flops, tokens_per_parameter, bytes"),
        (
            {"equal": {"parameters": 0.01, "flops": 0.01}},
            "equal  sets parameters and flops; allowed: exactly one of parameters, flops",
        ),
        (
            {"equal": {"parameters": 0.01, "by": "model.mlp.dff"}},
            r"equal.by  .*did you mean model.mlp.d_ff\?",
        ),
        ({"equal": {"parameters": "200%"}}, "equal.parameters  2.0; allowed: less than 1"),
        ({"arms": {}}, "arms  "),
        ({"seeds": 1}, "seeds  1; allowed: at least 2"),
        ({"agains": "previous"}, r"agains  unknown; did you mean against\?"),
        ({"tune": {"train.lr": []}}, "tune.train.lr  "),
        (
            {"seeds": 10**9},
            r"seeds  1,000,000,000 runs \(1 arms x 1,000,000,000 seeds\); allowed: up to 10,000, because",
        ),
        ({"seeds": [1, 10**30]}, "seeds  "),
        ({"seeds": {"at_most": 12}}, "seeds.until  missing"),
        ({"seeds": {"until": 0, "at_most": 12}}, "seeds.until  0; allowed: more than 0"),
        ({"seeds": {"until": 0.1, "at_most": 4}}, r"seeds  at_most is 4; allowed: 5 \(the value of `first`\) or more"),
        ({"seeds": {"until": 0.1, "at_most": 9, "first": 2}}, "seeds.first  2; allowed: at least 3"),
        ({"seeds": {"until": 0.1, "atmost": 9}}, r"seeds.atmost +unknown; did you mean at_most\?"),
        ({"seeds": "three"}, r"'three'; allowed: a whole number or a list or keys and values, as in 'seeds=\{until: "),
        ({"margin": 0}, "margin  0; allowed: more than 0"),
        ({"checks": [{"arm": "a", "because": "b"}]}, "checks.*sets nothing; allowed: exactly one of at_least, at_most"),
        ({"checks": [{"arm": "a", "at_least": 1, "at_most": 2, "because": "b"}]}, "checks.*sets at_least and at_most"),
        ({"checks": [{"arm": "a", "at_least": 1}]}, "because  missing"),
        ({"tune": {"train.lr": [0.1]}, "tune_seeds": 10**9}, "tune_seeds  1,000,000,000 runs"),
        (
            {"tune": {f"train.{name}": [0.1] * 1000 for name in ("lr", "weight_decay", "eps")}},
            "tune  .*1,000,000,000 points of the grid",
        ),
    ],
)
def test_a_study_file_with_a_mistake_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        study(**{"arms": {"a": {}}, **values})


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ({"arm": "bse"}, r"checks.0.arm  unknown arm 'bse'; did you mean base\?"),
        ({"arm": "base", "outcome": "bits"}, r"checks.0 +unknown outcome 'bits'; .*bits_per_byte"),
        ({"arm": "base", "decides": ["accurcy"]}, r"checks.0 +unknown outcome 'accurcy'; did you mean accuracy\?"),
    ],
)
def test_a_check_names_an_arm_and_outcomes_of_the_study(check, message):
    with pytest.raises(UserError, match=message):
        arms(
            study(
                arms={"base": {}, "other": {"model.norm.kind": "layernorm"}},
                checks=[{**check, "at_most": 2, "because": "it has learned"}],
            )
        )


def test_every_problem_of_a_study_is_reported_at_once(tmp_path):
    said = {"question": "", "base": "base.yaml", "budget": {"tokens": 640}, "sets": {}, "labels": {"thrd": "x"}}
    wrong = {"arms": {"first": {}, "second": {"model.nrm": 1}, "third": {"model.max_seq_len": 32}}}
    with pytest.raises(UserError, match="5 problems in") as refused:
        read_study(str(write(tmp_path / "wrong.yaml", **said, **wrong)))
    for field in ("question", "sets", "labels.thrd", "arms.second.model.nrm", "arms.third "):
        assert f"\n  {field}" in str(refused.value)


def test_text_that_no_picture_can_hold_is_refused(tmp_path):
    said = {"base": "base.yaml", "budget": {"tokens": 640}, "question": "Which\f?\nSecond line", "claim": "so\u202e"}
    arms = {"first": {}, "b\0": {}, "c\n": {}}
    labels = {"first": "\x1b[31mred", "b\0": "\ud800", "c\n": "x\ty"}
    with pytest.raises(UserError, match="7 problems in") as refused:
        read_study(str(write(tmp_path / "wrong.yaml", **said, arms=arms, labels=labels)))
    named = re.findall(r"the character (U\+[0-9A-F]{4})", str(refused.value))
    assert named == ["U+000C", "U+202E", "U+0000", "U+000A", "U+001B", "U+0009"]
    assert "allowed: valid Unicode text" in str(refused.value)
    assert "U+000C (form feed), which cannot be shown; leave it out" in str(refused.value)


def test_text_of_many_languages_is_welcome():
    labels = {"first": "Größe · 漢字 · עברית · 👩\u200d🔬 · می\u200cخواهم · a\u00a0b"}
    assert study(arms={"first": {}}, labels=labels, question="One?\nTwo?\n").labels == labels


WRONG = {
    "a": {"model.mlp.kind": "plan"},
    "b": {"model.mpl.kind": "plain"},
    "c": {"model.attention.n_kv_heads": 3},
    "d": {"train.lr": -1},
    "e": {"model.norm.knd": "x"},
}


@pytest.mark.parametrize("against", ["base", "previous"])
@pytest.mark.parametrize(
    "also", [{}, {"equal": {"parameters": "1%"}}, {"set": {"train.lrr": 1}}, {"base": "tiny-lama"}]
)
def test_no_wrong_arm_hides_another(also, against):
    with pytest.raises(UserError) as refused:
        arms(study(arms=WRONG, against=against, **also))
    problems = str(refused.value).splitlines()[1:]
    fields = ["arms.a.model.mlp.kind", "arms.b.model.mpl", "arms.d.train.lr", "arms.e.model.norm.knd"]
    fields += [key for key in also if key != "equal"]
    fields += [] if "base" in also else ["arms.c.model.attention.n_kv_heads"]  # the number of heads is unknown
    for field in fields:
        assert sum(line.strip().startswith(field) for line in problems) == 1, problems
    assert len(problems) == len(fields)


def test_wrong_fields_of_the_study_hide_no_arm(tmp_path):
    said = {"question": "Which?", "base": "base.yaml", "budgt": 1, "tune": {"train.lr": []}, "arms": WRONG}
    with pytest.raises(UserError, match="8 problems"):
        read_study(str(write(tmp_path / "wrong.yaml", **said)))


def test_an_arm_cannot_set_what_is_tuned():
    with pytest.raises(UserError, match=r"arms.other.train.lr  is also in `tune`"):
        arms(two({"train": {"lr": 0.1}}, tune={"train.lr": [0.1, 0.2]}))


def test_a_problem_of_the_base_is_reported_once():
    with pytest.raises(UserError, match=r"1 problem in the study\n  set.model.n_layers  0;"):
        arms(study(arms=STEPS, against="previous", set={"model.n_layers": 0}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arms": {"a": {}, "b": {}}}, r"arms\.b +arms a and b are identical: neither changes a field;"),
        (
            {"arms": {"a": {}, "b": {"model.mlp.activation": "silu"}}},
            r"arms\.b\.model\.mlp\.activation +arms a and b are identical: model\.mlp\.activation: silu makes no difference;",
        ),
        (
            {"arms": {"a": {"model.mlp.activation": "silu"}, "b": {}}},
            r"identical: model\.mlp\.activation: silu makes no",
        ),
        (
            {"arms": {"a": {}, "b": {"model.norm.kind": "layernorm"}, "c": {"model.norm": {"kind": "layernorm"}}}},
            r"arms b and c are identical: model\.norm\.kind: layernorm makes no difference",
        ),
        (
            {"arms": {"a": {}, "b": {"model.norm.kind": "rmsnorm", "model.attention.head_dim": 8}}},
            r"arms\.b +arms a and b .*: model\.norm\.kind: rmsnorm and model\.attention\.head_dim: 8 make no",
        ),
        (
            {"arms": {"a": {}, "b": {"model.norm.kind": "rmsnorm"}, "c": {"model.n_layers": 3}}, "against": "previous"},
            r"arms a and b are identical: model\.norm\.kind: rmsnorm makes no difference",
        ),
        (
            {"arms": {"a": {}, "b": {"model.n_layers": 3}, "c": {"model.n_layers": 2}}, "against": "previous"},
            r"arms a and c are identical: c undoes all changes that were made after a",
        ),
        (
            {"cross": {"model.attention.head_dim": [8, None], "train.lr": [1e-3, 2e-3]}},
            r"cross\.model\.attention\.head_dim +arms attention\.head_dim=8 lr=0\.001 and attention\.head_dim=null lr=0",
        ),
        (
            {"arms": {"a": {}, "b": {"model.mlp.d_ff": 90}}, "equal": {"parameters": 0.001}},
            r"model\.mlp\.d_ff: 90 makes no difference \(`equal` adjusts model\.mlp\.d_ff\)",
        ),
        ({"arms": {"a": {}, "b": {}}, "tune": {"train.lr": [1e-3, 2e-3]}}, "arms a and b are identical"),
        ({"arms": {"a": {}, "b": {}}, "tuned": {"b": {"train.lr": 0.5, "train.schedule": "wsd"}}}, "b are identical"),
        (
            {"arms": {"a": {}, "b": {}}, "base": "tiny-llama", "sizes": [10**6, 3 * 10**6], "budget": {"tokens": 8192}},
            r"1 problem in the study\n  arms\.b +arms a and b",
        ),
        (
            {
                "arms": {
                    "a": {},
                    "b": {"model.layers": {"x": {"mlp.activation": "silu"}, "y": {}, "pattern": ["x", "y"]}},
                }
            },
            r"arms a and b are identical: model\.layers\.x\.mlp\.activation: silu",
        ),
        (
            {"cross": {"model.norm.kind": ["rmsnorm", "layernorm"], "model.position.theta": [10000, 10000.0]}},
            r"are identical: model\.position\.theta: 10000.0 makes no difference",
        ),
        ({"arms": {"a": {}, "b": {"train.recompute": True}}}, r"train\.recompute: true makes no difference"),
        ({"arms": {"a": {}, "b": {"train.compile": False}}}, r"train\.compile: false makes no difference"),
    ],
)
def test_arms_that_would_share_all_their_runs_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        arms(study(**values))


@pytest.mark.parametrize(
    "values",
    [
        {"arms": {"only": {}}, "seeds": 40},  # many runs of one config show how much they scatter
        {"arms": {"a": {"model.norm.kind": "layernorm"}, "b": {"model.norm.kind": "rmsnorm"}}},
        {"arms": {"a": {}, "b": {"train.lr": 2e-3}}, "tuned": {"a": {"train.lr": 3e-3}}},
        {"arms": {"a": {}, "b": {"train.weight_decay": 0}}},
        {"arms": {"a": {}, "b": {"train.recompute": True}}, "measure": {"memory": {"kind": "peak_memory"}}},
        {"arms": {"a": {}, "b": {"train.compile": True}}, "measure": {"training_speed": {}}},
        {"arms": {"a": {"train.dtype": "float32"}, "b": {"train.dtype": "bfloat16"}}},
    ],
)
def test_arms_that_differ_in_what_is_trained_or_timed_are_taken(values):
    assert len(arms(study(**values))) == len(values["arms"])


def test_text_beside_a_task_is_refused(tmp_path):
    (tmp_path / "task.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN, "data": {"task": {"kind": "recall"}}}))
    for values in (
        {"set": {"data.path": "x", "data.task": "recall"}},
        {"set": {"data.path": "x"}, "base": "task.yaml"},
    ):
        with pytest.raises(
            UserError, match=r"set\.data\.path +is not used, because data\.task is recall; .*data\.task: none"
        ):
            arms(two({"model.norm.kind": "layernorm"}, **values))
    assert arms(study(arms={"a": {}}, set={"data.path": "x", "data.task": "none"}, base="task.yaml"))


# --- equal quantities ---------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["rope", "none"])
@pytest.mark.parametrize("head_dim", [8, None])
@pytest.mark.parametrize("by", ["model.mlp.d_ff", "model.d_model", "model.n_layers"])
@pytest.mark.slow
def test_parameters_are_matched_by_each_knob(by, head_dim, position):
    """Count the parameters again, from the tensors of the model."""
    in_base = {
        "model.d_model": 128,
        "model.n_layers": 24,
        "model.mlp.d_ff": 320,
        "model.attention.head_dim": head_dim,
        "model.position.kind": position,
    }
    overrides = {"model.mlp.kind": "plain", "model.attention.n_kv_heads": 4}
    reference, other = arms(two(overrides, set=in_base, equal={"parameters": "4%", "by": by}))
    assert list(other.adjusted) == [by]
    assert reference.adjusted == {}
    assert parameters_of(other) == pytest.approx(parameters_of(reference), rel=0.04)
    derived = (
        {"model.attention.head_dim", "model.attention.v_dim", "model.attention.scale"}
        if by == "model.d_model"
        else set()
    )
    assert set(differences(reference.config, other.config)) <= {by, *overrides, *derived}


@pytest.mark.parametrize("by", ["model.mlp.d_ff", "model.n_layers"])
def test_flops_are_matched(by):
    overrides = {"model.attention.n_kv_heads": 4}
    values = {"set": {"model.n_layers": 40}, "equal": {"flops": "1.5%", "by": by}}
    reference, other = arms(two(overrides, **values))
    spent = [training_flops(arm.config.model, 16) for arm in (reference, other)]
    assert list(other.adjusted) == [by]
    assert spent[1] == pytest.approx(spent[0], rel=0.015)


def test_the_nearest_value_is_found():
    """Search every width by brute force."""
    values = {"equal": {"parameters": 0.0004, "by": "model.mlp.d_ff"}, "set": {"model.mlp.d_ff": 1500}}
    reference, other = arms(two({"model.mlp.kind": "plain", "model.attention.n_kv_heads": 1}, **values))
    target = parameters_of(reference)
    per_width = 2 * 2 * 32
    rest = parameters_of(other) - per_width * other.adjusted["model.mlp.d_ff"]
    nearest = min(range(1, 4000), key=lambda width: abs(rest + per_width * width - target))
    assert abs(other.adjusted["model.mlp.d_ff"] - nearest) < 8
    assert abs(parameters_of(other) / target - 1) <= 0.0004


def test_round_widths_come_first():
    for by in ("model.mlp.d_ff", "model.d_model"):
        equal = {"parameters": "2%", "by": by}
        _, other = arms(two({"model.mlp.kind": "plain"}, set={"model.d_model": 512}, equal=equal))
        assert other.adjusted[by] % 8 == 0


def test_an_arm_within_the_tolerance_is_left_alone():
    reference, other = arms(two({"model.norm.kind": "layernorm"}, equal={"parameters": "1%"}))
    assert other.adjusted == {}
    assert parameters_of(other) != parameters_of(reference)


@pytest.mark.parametrize(
    ("overrides", "equal", "message"),
    [
        (
            {"model.mlp.kind": "plain"},
            {"parameters": "1%", "by": "model.n_layers"},
            "33,696 parameters instead of 37,792, and no value of model.n_layers brings it within 1%; it is 2 now, and 3 comes",
        ),
        (
            {"model.vocab_size": 600},
            {"parameters": "1%"},
            r"56,992 parameters instead of 37,792.* 1 comes nearest",
        ),
        ({"model.mlp.bias": True}, {"parameters": "0.04%"}, r"no value of model.mlp.d_ff brings it within 0.04%"),
        ({"model.n_layers": 4}, {"flops": "1%", "by": "model.d_model"}, "training FLOPs per token instead of"),
    ],
)
def test_what_no_knob_can_match_is_refused(overrides, equal, message):
    with pytest.raises(UserError, match=message):
        arms(two(overrides, equal=equal))


def test_what_is_equal_is_said_in_words():
    for given, said in (("1%", "1%"), ("1.2%", "1.2%"), ("0.05%", "0.05%"), ("10%", "10%")):
        equal = study(arms={"a": {}}, equal={"parameters": given}).equal
        assert describe_equal(equal) == f"parameters within {said}, by model.mlp.d_ff"
    equal = study(arms={"a": {}}, equal={"flops": 0.02, "by": "model.n_layers"}).equal
    assert describe_equal(equal) == "training FLOPs per token within 2%, by model.n_layers"


def test_quantities_are_those_of_the_model():
    arm, *_ = arms(study(arms={"a": {}}))
    equal = study(arms={"a": {}}, equal={"parameters": 0.1}).equal
    assert quantity_function(equal)(arm.config) == parameters_of(arm)


# --- ladders, budgets, tuning ---------------------------------------------------------------------

STEPS = {
    "first": {"model.norm.kind": "layernorm"},
    "second": {"model.mlp.kind": "plain"},
    "third": {"model.attention.n_kv_heads": 1},
}


def test_a_ladder_adds_up():
    first, second, third = arms(study(arms=STEPS, against="previous", equal={"parameters": "3%"}))
    assert [arm.reference for arm in (first, second, third)] == [None, "first", "second"]
    model = third.config.model
    assert (model.norm.kind, model.mlp.kind, model.attention.n_kv_heads) == ("layernorm", "plain", 1)
    assert second.config.model.attention.n_kv_heads == 2
    for arm in (second, third):
        assert parameters_of(arm) == pytest.approx(parameters_of(first), rel=0.03)


def test_every_arm_is_the_base_with_its_own_changes():
    first, second, third = arms(study(arms=STEPS))
    assert [arm.reference for arm in (first, second, third)] == [None, "first", "first"]
    assert [arm.config.model.norm.kind for arm in (first, second, third)] == ["layernorm", "rmsnorm", "rmsnorm"]
    assert [arm.config.model.mlp.kind for arm in (first, second, third)] == ["gated", "plain", "gated"]


def test_a_budget_of_flops_is_spent_by_every_arm():
    overrides = {"model.n_layers": 3, "model.mlp.d_ff": 200}
    for arm in arms(two(overrides, budget={"flops": "3G"})):
        per_token = training_flops(arm.config.model, 16)
        assert 3e9 - 64 * per_token < arm.config.train.tokens * per_token <= 3e9
        assert arm.config.train.tokens % 64 == 0
    small, large = arms(two(overrides, budget={"flops": "3G"}))
    assert small.config.train.tokens > 1.5 * large.config.train.tokens


def test_a_window_buys_no_tokens_while_its_hidden_pairs_are_computed():
    windowed, whole = arms(
        two({"model.attention.window": None}, set={"model.attention.window": 4}, budget={"flops": "3G"})
    )
    assert windowed.config.train.tokens <= whole.config.train.tokens
    assert windowed.config.train.tokens == 3e9 // computed_training_flops(windowed.config) // 64 * 64


def test_a_budget_of_tokens_is_the_same_for_every_arm():
    designed = arms(two({"model.n_layers": 3}, budget={"tokens": "1K"}))
    assert [arm.config.train.tokens for arm in designed] == [1000, 1000]


def test_the_grid_is_every_combination():
    tuned = study(arms={"a": {}}, tune={"train.lr": [0.1, 0.2], "train.weight_decay": [0.0, 0.3, 0.5]})
    points = grid(tuned)
    assert len(points) == 6
    assert {"train.lr": 0.2, "train.weight_decay": 0.3} in points
    assert grid(study(arms={"a": {}})) == []


def test_tuned_values_reach_their_arm_and_seeds_their_run():
    base, other = arms(two({"model.norm.kind": "layernorm"}, tuned={"other": {"train.lr": 0.5}}))
    assert (base.config.train.lr, other.config.train.lr) == (1e-3, 0.5)
    again = other.with_values({"train.lr": 0.25})
    assert (again.config.train.lr, again.tuned) == (0.25, {"train.lr": 0.25})
    assert (other.seeded(7, 3).train.seed, other.seeded(7, 3).data.fold) == (7, 3)
    assert differences(other.seeded(7, 0), other.config) == {"train.seed": (7, 0)}


# --- files ----------------------------------------------------------------------------------------


def write(path, **values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(to_yaml(values))
    return path


def test_extends_takes_what_is_not_said_from_another(tmp_path):
    said = {"question": "Which?", "base": "small.yaml", "budget": {"tokens": 640}, "arms": {"a": {}}}
    write(tmp_path / "deep" / "short.yaml", seeds=2, **said)
    write(tmp_path / "deep" / "small.yaml", model=MODEL, train=TRAIN)
    long = write(tmp_path / "deep" / "long.yaml", extends="short.yaml", seeds=5)
    name, found = read_study(str(long))
    assert (name, found.seeds, found.question) == ("long", 5, "Which?")
    assert arms(found)[0].config.model.d_model == 32


def test_extending_one_of_ours(tmp_path):
    _, ours = read_study("ladder")
    _, found = read_study(str(write(tmp_path / "mine.yaml", extends="ladder", seeds=4)))
    assert found == ours.model_copy(update={"seeds": 4})
    assert len(arms(found)) == 7


@pytest.mark.parametrize("said", [{"data.path": "*.txt"}, {"data": {"path": "text.txt"}}])
@pytest.mark.parametrize(("there", "found"), [(["deep", "."], "deep"), (["."], "."), ([], "deep")])
def test_text_is_looked_for_beside_the_study_and_then_here(tmp_path, said, there, found):
    file = write(
        tmp_path / "deep" / "mine.yaml", **{**study(arms={"a": {}}).model_dump(exclude_none=True), "set": said}
    )
    for folder in there:
        (tmp_path / folder / "text.txt").write_text("words")
    given = said.get("data.path") or said["data"]["path"]
    (arm,) = arms(read_study(str(file))[1])
    assert arm.config.data.path == str(tmp_path / found / given)
    write(tmp_path / "deep" / "mine.yaml", **{**study(arms={"a": {}}).model_dump(exclude_none=True), "set": {}})
    (tmp_path / "deep" / "python-stdlib").mkdir()
    assert arms(read_study(str(file))[1])[0].config.data.path == "python-stdlib"


@pytest.mark.parametrize(
    ("below", "over", "merged"),
    [
        ({"model.mlp.kind": "plain", "model.mlp.d_ff": 264}, {"data.path": "x"},
         {"model.mlp.kind": "plain", "model.mlp.d_ff": 264, "data.path": "x"}),
        ({"train": {"lr": 1, "warmup": 2}}, {"train.lr": 3}, {"train.lr": 3, "train.warmup": 2}),
        ({"train.lr": 1, "train.warmup": 2}, {"train": {"lr": None}}, {"train.warmup": 2}),
        ({"model.mup.base_width": 64}, {"model.mup.base_width": None}, {}),
        ({"model.mlp": {"kind": "plain", "d_ff": 8}, "train.lr": 1}, {"model.mlp": None}, {"train.lr": 1}),
        ({"train.lr": 1}, {"model.attention.window": None}, {"train.lr": 1, "model.attention.window": None}),
        ({"train.log": ["wandb", "mlflow"]}, {"train.log": ["wandb"]}, {"train.log": ["wandb"]}),
        ({"data.task": {"kind": "recall", "pairs": 4}}, {"data.task": "none"}, {"data.task.kind": "none"}),
        ({"model.mlp": {"kind": "moe", "experts": 8, "d_ff": 8, "balance.loss": 0}}, {"model.mlp.kind": "gated"},
         {"model.mlp.kind": "gated", "model.mlp.d_ff": 8}),
        ({"model.norm.bias": False, "model.norm.eps": 1}, {"model.norm.kind": "rmsnorm"},
         {"model.norm.eps": 1, "model.norm.kind": "rmsnorm"}),
        ({"model.position": {"kind": "rope", "theta": 7}}, {"model.position": "alibi"}, {"model.position.kind": "alibi"}),
        ({"model.position": "rope"}, {"model.position.theta": 7}, {"model.position.kind": "rope", "model.position.theta": 7}),
        ({"model.norm": {"kind": "rmsnorm", "esp": 1}}, {"model.norm.kind": "layernorm"},
         {"model.norm.kind": "layernorm", "model.norm.esp": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["extends", "scales"])
def test_set_is_merged_key_by_key(tmp_path, by, below, over, merged):
    """Fields that only the old kind has are removed. A typo stays, and is refused."""
    whole = {"question": "Which?", "base": "base.yaml", "budget": {"tokens": 640}, "arms": {"a": {}}, "set": below}
    over = copy.deepcopy(over)
    if by == "extends":
        write(tmp_path / "whole.yaml", **whole)
        found = read_study(str(write(tmp_path / "mine.yaml", extends="whole.yaml", set=over)))[1]
    else:
        found = read_study(str(write(tmp_path / "mine.yaml", **whole, scales={"other": {"set": over}})), "other")[1]
    if "data.path" in merged:
        merged = {**merged, "data.path": str(tmp_path / "x")}
    assert found.set == merged


def test_a_part_of_a_single_value_cannot_be_merged(tmp_path):
    write(tmp_path / "mine.yaml", **study(arms={"a": {}}).model_dump(exclude_unset=True))
    raw = {
        "extends": "mine.yaml",
        "set": {"model.d_model": 64},
        "scales": {"other": {"set": {"model.d_model.wide": 0}}},
    }
    with pytest.raises(
        UserError,
        match=r"set\.model\.d_model is a single value \(64\) without fields; write set\.model\.d_model=VALUE",
    ):
        read_study(str(write(tmp_path / "more.yaml", **raw)), "other")


def test_text_of_ones_own_changes_nothing_else_of_a_study_at_any_scale(tmp_path):
    """The `set` of `gates` replaces gated MLPs by plain ones, and its scale `smoke` has a second `set`."""
    mine = str(write(tmp_path / "mine.yaml", extends="gates", set={"data.path": "text.txt"}))
    for scale in (None, "smoke", "gpu"):
        ours, theirs = (arms(read_study(name, scale)[1]) for name in (mine, "gates"))
        assert {arm.config.data.path for arm in ours} == {str(tmp_path / "text.txt")}
        changed = [differences(*(arm.config for arm in pair)) for pair in zip(ours, theirs, strict=True)]
        assert all(list(fields) == ["data.path"] for fields in changed)


def test_a_circle_of_extends_is_refused(tmp_path):
    write(tmp_path / "a.yaml", extends="b.yaml")
    write(tmp_path / "b.yaml", extends="a.yaml")
    for i in range(1500):
        (tmp_path / f"{i}.yaml").write_text(f"extends: {i + 1}.yaml\n")
    with pytest.raises(UserError, match=r"100\.yaml: the chain of `extends` is too long; allowed: fewer than 100"):
        read_study(str(tmp_path / "0.yaml"))
    with pytest.raises(UserError, match="extends itself"):
        read_study("a.yaml")


@pytest.mark.parametrize("name", ["laddr", "no/such/ladder.yaml"])
def test_an_unknown_study_is_a_message(name):
    with pytest.raises(UserError, match=f"unknown study '{name}'; it is not a file, a study folder or a study that"):
        read_study(name)
    with pytest.raises(UserError, match=r"did you mean ladder\?"):
        read_study("laddr")


def test_a_study_of_archlab_is_not_hidden_by_a_path_with_its_name(tmp_path, capsys):
    ours, theirs = library_study("ladder", "cpu"), two({"model.norm.kind": "layernorm"}).model_dump(exclude_unset=True)
    for folder in ("ladder", "tiny-llama"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "study.yaml", **theirs)
    (tmp_path / "gates").write_text("not a study")
    assert library_study("ladder", "cpu") == ours
    assert read_study("ladder")[1] == read_study(str(write(tmp_path / "mine.yaml", extends="ladder")))[1] == ours
    assert read_study("gates")[1].arms
    assert (
        "note: ladder is the study that comes with archlab; for the folder, write ./ladder" in capsys.readouterr().err
    )
    assert default_folder("ladder", "ladder") == Path("studies/ladder")
    for own in ("./ladder", "ladder/", Path("ladder")):
        assert list(read_study(own)[1].arms) == list(theirs["arms"]), own
        assert default_folder(own, "ladder") == Path("ladder")
    assert arms(ours)[0].config.model == arms(library_study("ladder", "cpu"))[0].config.model


def test_an_unknown_study_to_extend_is_a_message(tmp_path):
    with pytest.raises(UserError, match=r"mine.yaml: extends: unknown study 'laddr'.*did you mean ladder\?"):
        read_study(str(write(tmp_path / "mine.yaml", extends="laddr")))


def test_only_a_study_can_be_extended(tmp_path):
    write(tmp_path / "small.yaml", model=MODEL, train=TRAIN)
    for extended, kind in (("tiny-llama", "preset"), ("small.yaml", "config")):
        message = f"mine.yaml: extends is the {kind} .*{extended}; it must be a study; to start .*`base: .*{extended}`"
        with pytest.raises(UserError, match=message):
            read_study(str(write(tmp_path / "mine.yaml", extends=extended)))
    with pytest.raises(UserError, match="'tiny-llama' is a preset, not a study; to start"):
        read_study("tiny-llama")


def test_a_problem_of_an_arm_is_in_the_file(tmp_path):
    file = str(write(tmp_path / "mine.yaml", **two({"model.nrm.kind": "x"}).model_dump(exclude_unset=True)))
    with pytest.raises(UserError, match=r"1 problem in \S+mine.yaml\n  arms.other.model.nrm  unknown"):
        arms(read_study(file)[1], study_path(file))


def test_a_single_arm_is_noted():
    assert single_arm_note(arms(study(arms={"a": {}}))) == [
        "the study has only one arm, so nothing is compared; add another arm"
    ]
    assert single_arm_note(arms(two({"model.norm.kind": "layernorm"}))) == []


OURS = [(name, scale) for name in studies() for scale in (None, *read_study(name)[1].scales)]


@pytest.mark.parametrize(("name", "scale"), OURS)
def test_our_own_studies_are_fair(name, scale, monkeypatch):
    """Every arm at every scale, without opening the text."""
    monkeypatch.setattr("archlab.study.design.tokens_per_byte", lambda data, vocab_size: 0.4)
    _, found = read_study(name, scale)
    designed = arms(found)
    assert len(designed) >= 2
    assert outcomes_of(found, designed)
    if "scales" in found.model_fields_set:
        assert {"smoke"} <= found.scales.keys()


@pytest.mark.parametrize("name", studies())
def test_a_smoke_run_takes_seconds(name, monkeypatch):
    """There are few runs on few tokens. Two cores train and judge about 20,000 tokens per second."""
    monkeypatch.setattr("archlab.study.design.tokens_per_byte", lambda data, vocab_size: 0.5)
    _, found = read_study(name, "smoke")
    designed = arms(found)
    runs = forecast(found, designed, None).runs
    trains = [resolve_train(arm.config) for arm in designed]
    evaluated = [train.eval_tokens * (1 + train.steps // train.eval_every) for train in trains]
    assert runs <= 20
    assert runs * max(train.trained + n for train, n in zip(trains, evaluated, strict=True)) <= 400_000


def test_a_scale_has_other_values_for_some_fields(tmp_path):
    values = {"question": "Which?", "base": "base.yaml", "budget": {"tokens": 640}, "seeds": 3, "set": {"train.lr": 0.5},
              "arms": {"a": {}, "b": {"model.norm.kind": "layernorm"}},
              "scales": {"small": {"seeds": 2, "set": {"train.warmup": 0.5}}}}  # fmt: skip
    (tmp_path / "mine.yaml").write_text(to_yaml(values))
    name, whole = read_study("mine.yaml")
    scaled, small = read_study("mine.yaml", "small")
    assert (name, scaled) == ("mine", "mine-small")
    assert (whole.seeds, whole.set) == (3, {"train.lr": 0.5})
    assert (small.seeds, small.set) == (2, {"train.lr": 0.5, "train.warmup": 0.5})
    assert small.model_copy(update={"seeds": 3, "set": whole.set, "scales": whole.scales}) == whole
    with pytest.raises(UserError, match=r"mine\.yaml: unknown scale 'smal'; did you mean small"):
        read_study("mine.yaml", "smal")
    (tmp_path / "none.yaml").write_text(to_yaml({key: value for key, value in values.items() if key != "scales"}))
    wrong = {**values, "scales": {"small": {"sedes": 2}}}
    (tmp_path / "wrong.yaml").write_text(to_yaml(wrong))
    with pytest.raises(UserError, match=r"scales  small: a scale cannot change 'sedes'; allowed: base, "):
        read_study("wrong.yaml")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "own.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
    apart = {**values, "base": "own.yaml", "scales": {"small": {"base": "own.yaml", "seeds": 2}}}
    (tmp_path / "none" / "apart.yaml").write_text(to_yaml(apart))
    assert read_study("none/apart.yaml", "small")[1].base == read_study("none/apart.yaml")[1].base
    with pytest.raises(UserError, match=r"none\.yaml: unknown scale 'small'; the study has no scales"):
        read_study("none.yaml", "small")


def test_a_budget_in_bytes_gives_every_vocabulary_the_same_text(monkeypatch):
    monkeypatch.setattr("archlab.study.design.tokens_per_byte", lambda data, vocab_size: 64 / vocab_size)
    found = arms(study(arms={"a": {"model.vocab_size": 128}, "b": {"model.vocab_size": 256}}, budget={"bytes": 6400}))
    assert [arm.config.train.tokens for arm in found] == [3200, 1600]


def test_a_section_that_the_reference_leaves_out_may_be_given_by_one_of_its_fields():
    (_, gated) = arms(two({"model.attention.gate.per": "head"}))
    assert gated.config.model.attention.gate.per == "head"


def test_a_forecast_counts_every_run():
    """Two arms train on ten batches of 64 tokens with two seeds, and are tuned over three rates with one seed. On the
    machine each operation takes a microsecond, and nothing else takes time. Each run is evaluated before training and
    after each of its ten updates, with forward passes that take a third of the time of an update."""
    asked = two({"model.norm.kind": "layernorm"}, tune={"train.lr": [1e-3, 2e-3, 4e-3]})
    found = forecast(asked, arms(asked), None)
    assert (found.runs, found.seconds) == (2 * (2 + 3), None)
    flops = [computed_training_flops(arm.config) for arm in arms(asked)]
    assert found.flops == pytest.approx((2 + 3) * 640 * sum(flops))
    rate = Rate(per_flop=0, per_byte=0, per_large_byte=0, per_operation=1e-6)
    rates = {"training": dict.fromkeys(("float32", "bfloat16"), Rates(by_kind=dict.fromkeys(KINDS, rate)))}
    swept = two(
        {"model.norm.kind": "layernorm"},
        tune={"train.lr": [1e-3, 2e-3, 4e-3]},
        sweep={"train.lr": [1e-3, 2e-3, 4e-3]},
        measure=["best_loss"],
    )
    assert forecast(swept, arms(swept), None).runs == 2 * (2 * 3 + 3), (
        "of a seed at three rates, one run is compared too"
    )
    beside = two({"model.norm.kind": "layernorm"}, sweep={"train.lr": [2e-3, 4e-3]}, measure=["best_loss"])
    assert forecast(beside, arms(beside), None).runs == 2 * 2 * 3, "the rate that is compared is none of the two"
    h100 = load_hardware("h100")
    timed = dict.fromkeys(("copy_bandwidth", "read_bandwidth", "cached_read_bandwidth", "dispatch", "threads"), 1)
    this = h100.model_copy(update={"measured": Measurements(products={}, passes=rates, **timed)})
    operations = sum(work.count for arm in arms(asked) for work in cost(arm.config).computed_work["training"])
    evaluated = 11 * arms(asked)[0].config.train.eval_tokens / 3
    expected = 5 * 10 * operations * 1e-6 * (640 + evaluated) / 640
    assert forecast(asked, arms(asked), measured_clock(this)).seconds == pytest.approx(expected)


def test_a_forecast_from_a_data_sheet_is_a_limit():
    """No training is faster than its products at peak FLOPs, or its bytes at peak bandwidth."""
    h100 = load_hardware("h100")
    (arm, _) = arms(two({"model.norm.kind": "layernorm"}))
    step = cost(arm.config, dtype="bfloat16").computed_work["training"]
    found = ideal_clock(h100)(arm.config)
    assert found
    assert found >= 10 * sum(w.flops for w in step if w.kind in OF_MATRICES) / h100.peak["bfloat16"]
    assert found >= 10 * sum(w.n_bytes for w in step) / h100.bandwidth
    twice = {"peak": {name: 2 * peak for name, peak in h100.peak.items()}, "bandwidth": 2 * h100.bandwidth}
    assert ideal_clock(h100.model_copy(update=twice))(arm.config) == pytest.approx(found / 2)


@pytest.mark.slow
def test_a_study_is_read_as_it_was_written_without_its_defaults():
    """Check the form in a study folder. The kind of a task or outcome is a default, but must be written."""
    far = {"kind": "answers", "task": {"kind": "recall", "pairs": 4, "distance": 16}}
    asks = study(
        arms={"a": {}}, set={"data.task": {"kind": "recall"}}, measure={"far": far, "cache": {"kind": "state_bytes"}}
    )
    every = [asks, *(library_study(name, scale) for name in studies() for scale in scales_of(name))]
    for one in every:
        written = one.model_dump(mode="json", exclude_defaults=True)
        assert validate(StudyConfig, yaml.safe_load(to_yaml(written)), "written") == one


MASKED = {"model.attention.visibility": "two_sided", "train.objective.kind": "masked", "data.reserve": ["mask"]}
PREFIX = {"model.attention.visibility": "prefix", "train.objective.kind": "prefix"}


def test_arms_whose_scores_mean_different_things_are_refused():
    with pytest.raises(UserError, match=r"measure  other predicts other tokens than base, so their"):
        arms(two({"train.objective.rate": 0.4}, set=MASKED))
    norms = two({"model.norm.kind": "layernorm"}, set=MASKED)
    assert list(outcomes_of(norms, arms(norms))) == ["denoising_loss"]


@pytest.mark.parametrize(
    ("setting", "measure", "message"),
    [
        (MASKED, "tokens_per_byte", "needs bits per byte, but train.objective hides tokens; allowed: denoising_loss"),
        ({}, "denoising_accuracy", "needs an objective that hides tokens; allowed: masked"),
        (MASKED, "repetition", "predicts every token of a text; allowed: train.objective.kind=next_token"),
        (
            PREFIX,
            {"kind": "window_part", "first": 0.5},
            "predicts every token of a text; allowed: train.objective.kind=next_token",
        ),
        (
            PREFIX,
            {"kind": "beyond", "times": 2},
            "predicts every token of a text; allowed: train.objective.kind=next_token",
        ),
    ],
)
def test_an_outcome_of_another_kind_of_score_is_refused(setting, measure, message):
    with pytest.raises(UserError, match=message):
        arms(
            two(
                {"model.norm.kind": "layernorm"},
                set=setting,
                measure=[measure] if isinstance(measure, str) else {"named": measure},
            )
        )
