"""A config.json with any value in any place is a config or a message, never a traceback."""

import json
import math
from typing import Any

import pytest
import transformers

from archlab.errors import UserError
from archlab.families.registry import FAMILIES
from archlab.hf.family import Family
from tests.parity.cases import CASES

MALFORMED = [0, -1, 1.5, 10**30, True, "x", "", [], [1], {}, {"a": 1}, None, math.nan, math.inf, [None], [[]]]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_malformed_values_are_messages(family: Family) -> None:
    """Each key of a good config, made wrong in every way: a config or a UserError, nothing else."""
    good = known_good(family)
    family.model_config(good, "good")
    for key in good:
        for value in MALFORMED:
            try:
                family.model_config({**good, key: value}, "bad.json")
            except UserError as error:
                assert "bad.json" in str(error)  # noqa: PT017 - a good value for one key is no error at all


def known_good(family: Family) -> dict[str, Any]:
    case = next(case for case in CASES if case.model_type == family.model_type)
    return json.loads(transformers.CONFIG_MAPPING[family.model_type](**case.hf).to_json_string(use_diff=False))
