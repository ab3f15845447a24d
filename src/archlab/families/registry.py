"""All families of published models that archlab can read and write."""

from collections.abc import Mapping
from functools import cache
from importlib import resources

import archlab.families as families
from archlab.config.core.registry import import_all
from archlab.config.core.yaml_text import read_yaml
from archlab.config.problems import choose
from archlab.displayed import Families
from archlab.errors import UserError
from archlab.hf.family import Family

FAMILIES: Mapping[str, Family] = {
    module.FAMILY.model_type: module.FAMILY
    for module in import_all("archlab.families", families.__path__)
    if module.__name__ != __name__
}
"""Mapping from `model_type`, the key of config.json that names the family, to the family. Sorted by the names of the
family modules."""

_BY_NAME = {name: family for family in FAMILIES.values() for name in (family.model_type, *family.other_model_types)}


@cache
def refused() -> Mapping[str, Mapping[str, str]]:
    """Return why archlab does not load some causal language models of transformers: reasons by answer and `model_type`.

    The answers are `refused` and `not a language model`.
    """
    return read_yaml(resources.files("archlab.families") / "refused.yaml")


def find_family(model_type: object, where: str) -> Family:
    """Return the family with this `model_type`. `where` names its field in messages, with its file.

    If archlab refuses the family, raise a UserError that gives the reason. If it does not know the `model_type`, raise
    a UserError that lists all families.
    """
    name = str(model_type)
    if name in _BY_NAME:
        return _BY_NAME[name]
    for answer, reasons in refused().items():
        if name in reasons:
            hint = "`archlab list families` shows the families that archlab loads"
            raise UserError(f"{where} is {name!r}; {answer}: {reasons[name]}; {hint}")
    problem = f"is {model_type!r}" if model_type else "is missing"
    raise UserError(f"{where} {problem}{choose(name, list(FAMILIES))}")


def list_families() -> Families:
    """Return the model families whose checkpoints archlab loads and saves, each with its class in transformers.

    >>> archlab.list_families()["llama"]
    'LlamaForCausalLM'
    """
    return Families({name: family.architecture for name, family in FAMILIES.items()})
