"""A config of one's own at other sizes."""

from archlab.config.core.merge import Raw
from archlab.config.io import build_config
from archlab.errors import UserError
from archlab.sizing.family import CAN_BE_SCALED, Family, Member, can_be_scaled
from archlab.sizing.propose import refusal
from archlab.sizing.scale import Template
from archlab.sizing.search import Search, Wanted


def resized(raw: Raw, name: str, size: int) -> Raw:
    """Dotted field -> value: what makes a config one of `size` parameters, within 1%, in its own proportions.

    UserError where it has layers that cannot be scaled, or where no shape in its proportions has that size.
    """
    member, wanted = Member(name, build_config(raw, (), name)), Wanted(size)
    if not can_be_scaled(member):
        raise UserError(f"{name} cannot be scaled; {CAN_BE_SCALED}")
    family, template = Family([member], "total"), Template(member, raw)
    if found := Search(family, template, wanted).best():
        return template.change(found[0])
    raise UserError(refusal(family, template, wanted))
