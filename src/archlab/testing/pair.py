"""Hand-written code and archlab's reference, with the same weights and inputs.

Shapes: B batch, T tokens, H heads, C head_dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from archlab.errors import UserError
from archlab.model.masks import dense
from archlab.testing.candidate import Candidate
from archlab.testing.closeness import EXACT, FLOAT32, distance
from archlab.testing.matching import Matches
from archlab.testing.reference import Reference

Axes = Callable[[Tensor], Tensor]
"""Function that gives the input the axes that the code expects."""

_HEAD_AXES: Sequence[Axes] = (lambda x: x, lambda x: x[:, None], lambda x: x[:, :, None])
"""Inputs of a rotation: [B, T, C], [B, H, T, C] or [B, T, H, C], with H = 1."""


@dataclass
class Pair:
    """Hand-written code and archlab's reference. The code reads its input with certain axes, and stores its matrices in
    a certain orientation."""

    candidate: Candidate
    reference: Reference
    matches: Matches
    axes: Axes

    @cached_property
    def x(self) -> Tensor:
        """Input: [B, T] or [B, T, width]."""
        return self.reference.inputs()

    @property
    def n_tokens(self) -> int:
        return self.x.shape[1]

    @cached_property
    def output(self) -> Tensor:
        """Output of the code. Raise UserError if the code fails."""
        self.load()
        return self.run(self.x).detach()

    @cached_property
    def right(self) -> Tensor:
        """Output of archlab's reference."""
        return self.reference(self.x).detach()

    @cached_property
    def difference(self) -> float:
        """Distance of the two outputs."""
        return distance(self.output, self.right)

    @property
    def is_equal(self) -> bool:
        """Whether the outputs are equal, perhaps after rounding to float32."""
        return self.difference <= FLOAT32

    @property
    def allowed(self) -> float:
        """Largest distance of results that count as equal. It is small if the outputs are equal in float64."""
        return EXACT if self.difference <= EXACT else FLOAT32

    def load(self) -> None:
        """Set the parameters of the code to those of the reference."""
        weights = {name: weight.detach() for name, weight in self.reference.weights.items()}
        self.candidate.load({name: match.value(weights) for name, match in self.matches.by_name.items()})

    def check_deterministic(self) -> None:
        """Raise UserError if a second call of the code gives another output."""
        self.load()
        if (apart := distance(self.run(self.x), self.output)) > EXACT:
            raise UserError(
                f"{self.candidate.name}: is not deterministic: two calls with the same weights and input differ by "
                f"{apart:.1e} of the largest value; switch off randomness, as in "
                "F.dropout(x, p, training=self.training), because archlab calls eval() of a module"
            )

    def run(
        self, x: Tensor, positions_T: Tensor | None = None, seen_BTS: Tensor | None = None, **special: Any
    ) -> Tensor:
        """Return the output of the code for an input [B, T, ...]. It gets the mask of the config if it takes a mask,
        and a copy of the input, which it may change."""
        seen_BTS = self.seen(x.shape[1]) if seen_BTS is None else seen_BTS
        output = self.candidate.output(self.axes(x.clone()), positions_T, seen_BTS, **special)
        is_same = output.numel() == x.numel() and output.shape == self.axes(x).shape
        return output.reshape(x.shape) if is_same else output

    def seen(self, n_tokens: int) -> Tensor:
        """Return the mask of the config for a whole sequence, true if the query sees the key: [1, T, T]."""
        context = self.reference.context(torch.zeros(1, n_tokens, 1, dtype=torch.float64))
        mask = dense(context.mask_BTS)
        return torch.ones(1, n_tokens, n_tokens, dtype=torch.bool).tril() if mask is None else mask[:1]


def pairs(candidate: Candidate, reference: Reference, matches: Matches) -> list[Pair]:
    """Return a pair for each way in which the code may read its input and store its square matrices. Leave out those
    with which the code fails. Raise UserError if it fails with all of them, or if it is not deterministic."""
    made, failures = list[Pair](), list[UserError]()
    for axes in _HEAD_AXES if reference.part == "rotary" else _HEAD_AXES[:1]:
        for oriented in (matches, *([matches.transposed()] if matches.unsure else ())):
            pair = Pair(candidate, reference, oriented, axes)
            try:
                assert pair.output is not None
                made.append(pair)
            except UserError as error:
                failures.append(error)
    if not made:
        raise failures[0]
    made[0].check_deterministic()
    return [pair for pair in made if _reads_tokens(pair)] or made


def _reads_tokens(pair: Pair) -> bool:
    """Return whether code that rotates finds the tokens on the axis on which this pair has them. Otherwise, it takes
    all of them for the first token, and rotates nothing."""
    if pair.reference.part != "rotary":
        return True
    pair.load()
    same = pair.x[:, :1].expand_as(pair.x)
    output = pair.run(same).detach()
    return distance(output, output[:, :1].expand_as(output)) > EXACT
