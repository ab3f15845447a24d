"""Parts that every registered kind must have. Tables with a row per kind are checked next to the tables."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from archlab.config.components.component import MLP, Attention, Component, Mixer
from archlab.config.core.base import kind_of
from archlab.config.core.registry import Registered, Section, implementation_of, import_all, is_users, kinds
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.config.objective import Objective
from archlab.config.optimizer import Optimizer, Schedule
from archlab.config.schema import Config
from archlab.config.tasks import TaskOrText
from archlab.errors import UserError
from archlab.model.layer import make_component
from archlab.model.roles import roles_of
from archlab.study import outcomes
from archlab.study.outcomes.schema import Outcome
from schema_classes import COMPONENTS

import_all(outcomes.__name__, outcomes.__path__)

ROOTS: dict[str, type[Registered]] = {
    **COMPONENTS, "optimizer": Optimizer, "schedule": Schedule, "objective": Objective, "outcome": Outcome, "task": TaskOrText,
}  # fmt: skip
KINDS = [kind for root in ROOTS.values() for kind in kinds(root).values() if not is_users(kind)]
DONE_ELSEWHERE = {
    "task none": "stands for text",
    "attention none": "the layer lacks the branch", "mixer none": "the same", "mlp none": "the same",
    "position none": "has no effect",
}  # fmt: skip


def test_every_section_is_looked_at() -> None:
    assert ROOTS.keys() == set(get_args(Section))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.section} {kind_of(kind)}")
def test_a_kind_has_a_name_a_sentence_and_an_implementation(kind: type[Registered]) -> None:
    assert kind.display_name
    assert kind.__doc__ and kind.__doc__.strip().endswith((".", ")"))  # noqa: PT018
    if f"{kind.section} {kind_of(kind)}" in DONE_ELSEWHERE:
        with pytest.raises(UserError, match="nothing implements"):
            implementation_of(kind)
    else:
        assert callable(implementation_of(kind))


NEEDED: dict[str, dict[str, Any]] = {
    "multihead": {"n_heads": 4},
    "latent": {"n_heads": 4, "kv_rank": 8, "q_rank": 8, "nope_dim": 4, "rope_dim": 4},
}
"""Required fields of each kind."""
WHOLE: dict[str, list[dict[str, Any]]] = {
    "multihead": [{"qkv_bias": True, "out_bias": True, "sinks": True, "sub_norm": True, "qk_norm": {"kind": "rmsnorm"}, "gate": {}}],
    "moe": [{"shared": {"gate": True}, "bias": True, "router": {"bias": True}}],
    "short_conv": [{"bias": True}],
    "latent": [{"q_rank": None}],
}  # fmt: skip
"""Further forms of a kind with other parameters."""
FORMS = [
    (config, {**NEEDED.get(kind, {}), **more})
    for root in (Attention, Mixer, MLP)
    for kind, config in kinds(root).items()
    if kind != "none"
    for more in [{}, *WHOLE.get(kind, [])]
]


@pytest.mark.parametrize(("kind", "fields"), FORMS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_component_says_the_roles_of_its_parameters(kind: type[Component], fields: dict[str, Any]) -> None:
    """Constants are left out; positions and inner norms have no other parameters."""
    config = kind.model_validate({"kind": kind_of(kind), **fields}).resolve(32)
    (layer,) = layer_configs(build_config({"model": SMALL}).model)
    site = replace(layer.site_of("attention"), position=layer.position)
    made = {found.role.name for found in roles_of(make_component(config, site))} - {"constant"}
    assert set(config.roles()) == made


SMALL: dict[str, Any] = {"vocab_size": 40, "d_model": 32, "n_layers": 1, "max_seq_len": 16, "attention": {"n_heads": 4}}


def test_a_multiplier_for_a_role_that_no_parameter_has_is_refused() -> None:
    def build(mixer: str) -> Config:
        return build_config({"model": {**SMALL, "mixer": {"kind": mixer}}}, ["train.lr_multipliers.convolution=2"])

    assert build("short_conv")
    with pytest.raises(UserError, match="no parameter of this model has the role convolution"):
        build("none")
