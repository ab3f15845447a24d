"""Match of the parameters of hand-written code with those of archlab's reference, by name and shape."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from archlab.config.problems import choose
from archlab.errors import UserError
from archlab.testing import Part
from archlab.testing.names import FUSED, Role, role_of

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape | None]
"""Shape of each parameter. None if it is unknown, as for an argument of a function."""

Mapped = Mapping[str, str | Sequence[str]]
"""Names of archlab's parameters by the name of the hand-written parameter. Several names mean a fused matrix."""


class Match(NamedTuple):
    """Parameters of archlab that one hand-written parameter holds."""

    names: tuple[str, ...]
    """Several names if the hand-written parameter is a fused matrix."""
    shape: Shape | None
    is_transposed: bool
    """Whether the matrix has the shape [inputs, outputs]. archlab's matrices have the shape [outputs, inputs]."""

    def value(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the value for the hand-written parameter, given archlab's weights or their gradients."""
        joined = torch.cat([weights[name] for name in self.names])
        joined = joined.T if self.is_transposed else joined
        return joined if self.shape is None else joined.reshape(self.shape)


class Matches(NamedTuple):
    """Match of all parameters."""

    by_name: dict[str, Match]
    """Matches by the name of the hand-written parameter."""
    unsure: tuple[str, ...]
    """Square matrices whose orientation neither their shape nor their module shows."""

    def transposed(self) -> "Matches":
        """Return the matches with the opposite orientation of the matrices in `unsure`."""
        turned = {name: self.by_name[name]._replace(is_transposed=True) for name in self.unsure}
        return self._replace(by_name={**self.by_name, **turned}, unsure=())


def match(
    theirs: Shapes, ours: Mapping[str, Shape], part: Part, mapping: Mapped, in_torch_modules: Collection[str]
) -> Matches:
    """Match hand-written parameters with archlab's.

    `in_torch_modules` holds the hand-written parameters in modules of torch, whose orientation is known. Raise
    UserError that shows both lists if a parameter has no match or several.
    """
    is_gated = any("gate." in name for name in ours)
    found = _mapped(theirs, ours, mapping)
    by_role, roles = _by_role(ours, part, is_gated=is_gated), _by_role(theirs, part, is_gated=is_gated)
    for role, rivals in roles.items():
        candidates = [[other for other in by_role.get(one, ()) if other not in _used(found)] for one in role.parts]
        unmatched = [name for name in rivals if name not in found]
        if len(unmatched) == 1 and all(len(names) == 1 for names in candidates):
            names = tuple(names[0] for names in candidates)
            if _fits(theirs[unmatched[0]], _shape(names, ours)):
                found[unmatched[0]] = names
    for name, shape in theirs.items():
        same = [other for other in ours if other not in _used(found) and _fits(shape, ours[other])]
        rivals = [other for other, its in theirs.items() if other not in found and its == shape]
        if name not in found and len(same) == 1 and len(rivals) == 1:
            found[name] = (same[0],)
    missing = [name for name in ours if name not in _used(found)]
    if missing not in ([], ["head.weight"]) or len(found) < len(theirs):  # a tied head has no weight of its own
        raise UserError(_unmatched(theirs, ours, found))
    return _oriented(found, theirs, ours, in_torch_modules)


def _mapped(theirs: Shapes, ours: Mapping[str, Shape], mapping: Mapped) -> dict[str, tuple[str, ...]]:
    found = dict[str, tuple[str, ...]]()
    for name, names in mapping.items():
        names = (names,) if isinstance(names, str) else tuple(names)
        if name not in theirs:
            raise UserError(f"mapping: your code has no parameter {name!r}{choose(name, list(theirs))}")
        if unknown := next((other for other in names if other not in ours), None):
            raise UserError(f"mapping.{name}: archlab has no parameter {unknown!r}{choose(unknown, list(ours))}")
        if not _fits(theirs[name], _shape(names, ours)):
            shape, needed = theirs[name], _shape(names, ours)
            raise UserError(f"mapping.{name}: has the shape {_text(shape)}; {', '.join(names)} needs {_text(needed)}")
        found[name] = names
    return found


def _by_role(names: Iterable[str], part: Part, *, is_gated: bool) -> dict[Role, list[str]]:
    by_role = dict[Role, list[str]]()
    for name in names:
        by_role.setdefault(role_of(name, part, is_gated=is_gated), []).append(name)
    return by_role


def _used(found: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {name for names in found.values() for name in names}


def _shape(names: Sequence[str], ours: Mapping[str, Shape]) -> Shape:
    """Return the shape of archlab's parameters, one below the other."""
    return (sum(ours[name][0] for name in names), *ours[names[0]][1:])


def _fits(shape: Shape | None, right: Shape) -> bool:
    if shape is None:
        return True
    return shape in (right, right[::-1]) or (len(right) == 1 and tuple(n for n in shape if n > 1) == right)


def _oriented(
    found: Mapping[str, tuple[str, ...]], theirs: Shapes, ours: Mapping[str, Shape], in_torch_modules: Collection[str]
) -> Matches:
    by_name, unsure = dict[str, Match](), list[str]()
    for name, names in found.items():
        shape, right = theirs[name], _shape(names, ours)
        is_matrix = len(right) == 2
        if is_matrix and name not in in_torch_modules and (shape is None or right[0] == right[1]):
            unsure.append(name)
        by_name[name] = Match(names, shape, is_matrix and shape not in (None, right))
    matches = Matches(by_name, tuple(unsure))
    return matches.transposed() if any(m.is_transposed for m in by_name.values()) and unsure else matches


def _unmatched(theirs: Shapes, ours: Mapping[str, Shape], found: Mapping[str, tuple[str, ...]]) -> str:
    used = _used(found)
    own = [f"  {name} {_text(shape)}" for name, shape in theirs.items() if name not in found]
    right = [f"  {name} {_text(shape)}" for name, shape in ours.items() if name not in used]
    fused = ", ".join(FUSED["qkv"])
    return "\n".join(
        [
            f"parameters: {len(found)} of yours match archlab's; these do not:",
            "yours:",
            *(own or ["  none"]),
            "archlab's:",
            *(right or ["  none"]),
            "Pass a mapping from your name to archlab's; a fused matrix has several names, "
            f"such as {fused}. If the shapes differ, change the config.",
        ]
    )


def _text(shape: Shape | None) -> str:
    return "[?]" if shape is None else f"[{', '.join(map(str, shape))}]"
