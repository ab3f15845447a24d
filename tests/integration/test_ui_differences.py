"""Studies of the differences of two configs in `archlab ui`, on a small model."""

from itertools import permutations
from pathlib import Path

import pytest

from archlab.config.core.yaml_text import parse_yaml
from archlab.config.identity import flatten, resolved
from archlab.errors import UserError
from archlab.study.arm import Arm
from archlab.study.design import arms
from archlab.study.study_file import study_from_values
from archlab.ui.compare.differences import DifferencesStudy, differences_study
from archlab.ui.configs import ComparedConfigs

KINDS = (
    "llama-3-8b", "deepseek-v3", "mixtral-8x7b", "gpt-2", "mamba-2-2.7b", "t5-small", "modernbert-base", "palm-540b",
    "olmo-2-7b", "gemma-2-9b", "electra-small",
)  # fmt: skip
"""Models whose attention, MLP, mixer, norms or stacks are of different kinds."""


def study_of(first: str, second: str) -> tuple[DifferencesStudy, dict[str, Arm]]:
    study = differences_study(ComparedConfigs.of([first, second], ()), Path())
    return study, {arm.name: arm for arm in arms(study_from_values(parse_yaml(study.text, "the study")))}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [*permutations(KINDS, 2)])
def test_every_pair_of_models_gives_a_study_that_can_run(first: str, second: str):
    study, designed = study_of(first, second)
    assert {"first", "second"} <= designed.keys()
    comments = " ".join(line.removeprefix("# ").strip() for line in study.text.splitlines() if line.startswith("#"))
    assert all(" ".join(note.split()) in comments for note in study.notes)


def test_a_kind_brings_its_sizes_in_the_ratios_of_the_published_model():
    _, designed = study_of("llama-3-8b", "deepseek-v3")
    small = flatten(resolved(designed["second"].config))
    wide = {"kv_rank": 512, "q_rank": 1536}
    assert {name: small[f"model.attention.{name}"] for name in wide} == {
        name: max(8, round(width / 7168 * 128 / 8) * 8) for name, width in wide.items()
    }
    assert small["model.attention.nope_dim"] == round(128 * 128 / 7168 * 128 / 4 / 8) * 8  # 128 heads become 4
    assert (small["model.mlp.experts"], small["model.mlp.active"]) == (16, 2)
    assert small["model.mlp.active"] * small["model.mlp.d_ff"] == pytest.approx(8 * 2048 / 7168 * 128, rel=0.03)
    first = flatten(resolved(designed["first"].config))
    assert (first["model.attention.kind"], first["model.mlp.d_ff"]) == ("multihead", 344)


def test_the_base_of_rope_and_the_scales_are_choices():
    """Theta is taken as it is. A scale that follows from a width follows from that of the small model, and 1 stays 1."""
    _, designed = study_of("llama-3-8b", "gemma-2-27b")
    first, second = (designed[name].config.model for name in ("first", "second"))
    assert [model.position.theta for model in (first, second)] == [500_000, 10_000]
    assert [model.embedding.scale for model in (first, second)] == [1.0, "sqrt_d_model"]
    assert [model.attention.scale for model in (first, second)] == [None, pytest.approx((32 * 144 / 128) ** -0.5)]
    _, designed = study_of("t5-base", "llama-3-8b")
    t5 = designed["first"].config.model
    assert (t5.attention.scale, t5.head.scale) == (1.0, pytest.approx(128**-0.5))


def test_a_choice_that_the_second_model_lacks_is_removed_in_its_arm():
    _, designed = study_of("gemma-2-9b", "llama-3-8b")
    caps = {name: flatten(resolved(designed[name].config))["model.attention.softcap"] for name in ("first", "second")}
    assert caps == {"first": 50.0, "second": None}


def test_a_width_that_only_the_first_model_has_is_removed_in_the_arm_of_the_second():
    _, designed = study_of("electra-small", "bert-large")
    assert [designed[name].config.model.embedding.width for name in ("first", "second")] == [64, None]


def test_two_models_that_see_both_sides_train_with_their_objective():
    study, designed = study_of("modernbert-base", "roberta-base")
    for arm in designed.values():
        assert arm.config.model.attention.visibility == "two_sided"
        assert (arm.config.train.objective.kind, arm.config.train.objective.rate) == ("masked", 0.3)
        assert arm.config.data.reserve == ("mask",)
    assert not any("visibility" in note for note in study.notes)


def test_what_the_small_model_cannot_have_is_listed_with_the_reason():
    study, _ = study_of("llama-3-8b", "t5-small")
    assert study.notes[0] == "model.encoder is left out: the small model has no encoder"
    study, _ = study_of("llama-3-8b", "modernbert-base")
    assert any(note.startswith("model.attention.visibility is left out: two_sided") for note in study.notes)


def test_a_section_that_is_not_possible_alone_is_only_part_of_the_last_arm():
    study, designed = study_of("olmo-2-7b", "palm-540b")
    assert "block" not in designed
    assert designed["second"].config.model.block.parallel == "shared"
    assert any(note.startswith("block has no arm of its own") for note in study.notes)


def test_models_that_differ_only_in_sizes_give_no_study():
    with pytest.raises(UserError, match="differ only in sizes"):
        study_of("llama-3-8b", "llama-3-70b")
