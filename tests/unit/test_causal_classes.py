"""The table of docs/families.md: an answer for each causal language model of transformers.

`python tests/unit/test_causal_classes.py` writes the table again.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from archlab.errors import UserError
from archlab.families.registry import FAMILIES, find_family, refused
from archlab.hf.family import Family
from archlab.hf.fields import Only, all_limits
from archlab.hf.towers import MULTIMODAL

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
TABLE = re.compile(r"^\| model_type \|.*?(?=^$|\Z)", re.MULTILINE | re.DOTALL)
CLASSES: dict[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
"""Name of the class by `model_type`."""
REASONS = {name: reason for reasons in refused().values() for name, reason in reasons.items()}
NOT_WRITTEN = "not written yet; needs only existing parts"


def answer(name: str) -> tuple[str, str]:
    """Return the answer to whether archlab loads a `model_type`, and its reason."""
    for text, reasons in refused().items():
        if name in reasons:
            return text, reasons[name]
    if name in MULTIMODAL:
        types = " or ".join(f"`{text}`" for text in sorted({*MULTIMODAL[name].text_types.values()}))
        return "text part", f"the class {MULTIMODAL[name].architecture}; its text part is {types}"
    family = find_family(name, "config.json")
    is_other_class = CLASSES[name] not in (family.architecture, *family.other_architectures)
    limits = [f"`{key}`: {values}" for key, values in sorted(limits_of(family).items())]
    reasons = [
        *([f"the class {family.architecture}"] if is_other_class else []),
        *([f"only {', '.join(limits)}"] if limits else []),
    ]
    reason = "; ".join(reasons)
    return ("exact", reason) if name in FAMILIES else (f"variant of `{family.model_type}`", reason)


def limits_of(family: Family) -> dict[str, str]:
    """Return the values that archlab supports, by key of the published class."""
    published = CONFIG_MAPPING[family.model_type]
    names = {"per_layer_config", *(field.name for field in dataclasses.fields(published))}
    return {key: values for key, values in all_limits(family.fields).items() if key.partition(".")[0] in names}


def table() -> str:
    head = ["| model_type | class in transformers | answer | reason |", "|---|---|---|---|"]
    rows = [f"| {' | '.join((f'`{name}`', CLASSES[name], *answer(name)))} |" for name in sorted(CLASSES)]
    return "\n".join([*head, *(row.replace("|  |", "| |") for row in rows)]) + "\n"


def test_every_class_has_one_answer():
    """A new class of transformers needs a family or a reason. A class that is gone, or has a family now, needs none."""
    assert {*FAMILIES, *(name for family in FAMILIES.values() for name in family.other_model_types)}.isdisjoint(REASONS)
    assert set(REASONS) - set(CLASSES) == set()
    for name in CLASSES:
        answer(name)
    assert sum(map(len, refused().values())) == len(REASONS)


def test_the_page_shows_the_answers():
    assert TABLE.findall(PAGE.read_text(encoding="utf-8")) == [table()]


def test_reasons_name_families_that_exist():
    named = {other for reason in REASONS.values() for other in re.findall(r"`([^`]+)`", reason)}
    assert named - {*FAMILIES, *CLASSES} == set()
    for name, reason in REASONS.items():
        parts = dict(re.findall(r"`([^`]+)`, which is (exact|refused)", reason))
        assert {other: "exact" if other in FAMILIES else "refused" for other in parts} == parts, name
        if NOT_WRITTEN in reason:
            assert set(re.findall(r"`([^`]+)`", reason)) <= {*FAMILIES}, name


OPTIONS = [
    ("gemma4_text", "num_kv_shared_layers", 2),
    ("gemma4_text", "hidden_size_per_layer_input", 8),
    ("gpt_oss", "swiglu_alpha", 1.5),
    ("laguna", "moe_router_logit_softcapping", 30.0),
    ("dbrx", "ffn_config", {"moe_normalize_expert_weights": 2.0}),
    ("olmoe", "clip_qkv", 8.0),
]


@pytest.mark.parametrize(("name", "key", "value"), OPTIONS)
def test_a_refused_option_of_an_exact_family_is_in_the_table_and_has_a_reason(name: str, key: str, value: Any) -> None:
    from tests.parity.cases import CASES  # not found if this file runs as a script

    case = next(case for case in CASES if case.model_type == name)
    published = CONFIG_MAPPING[name](**case.hf | {key: value}).to_dict()
    last = next(iter(value)) if isinstance(value, dict) else key
    with pytest.raises(UserError, match=rf"{last} is .*, because"):
        FAMILIES[name].model_config(published, "config.json")
    assert f"`{key}" in answer(name)[1]


@pytest.mark.parametrize("name", sorted(CLASSES.keys() & FAMILIES.keys()))
def test_every_limit_of_an_exact_family_has_a_reason(name: str) -> None:
    family = FAMILIES[name]
    for part in family.fields:
        if isinstance(part, Only) and part.limits.keys() & limits_of(family).keys():
            assert re.search(r"because|the only", part.allowed), part


@pytest.mark.parametrize("name", sorted(REASONS))
def test_the_error_gives_the_reason(name):
    with pytest.raises(UserError, match=re.escape(f"config.json: model_type is '{name}'")) as error:
        find_family(name, "config.json: model_type")
    assert REASONS[name] in str(error.value)


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"), count=1), encoding="utf-8")
