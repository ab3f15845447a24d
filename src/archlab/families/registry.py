"""The families that archlab knows, by the `model_type` of their config.json."""

from archlab.config.problems import nearest
from archlab.errors import UserError
from archlab.families import gpt2, llama
from archlab.families.family import Family

FAMILIES: dict[str, Family] = {family.model_type: family for family in (module.FAMILY for module in (gpt2, llama))}


def find_family(model_type: object, where: str) -> Family:
    """The family of that name; UserError that lists those there are."""
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    found = f"model_type is {model_type!r}" if model_type else "model_type is missing"
    raise UserError(f"{where}: {found}{nearest(str(model_type), FAMILIES)}; known families: {', '.join(FAMILIES)}")
