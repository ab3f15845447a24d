"""Base class of the outcomes that a study can measure, and by which its arms are compared."""

from collections.abc import Callable
from string import Formatter
from typing import Any, ClassVar, Literal, get_args

from archlab.config.core.base import Kinded, kind_of
from archlab.config.core.old_form import to_old_form
from archlab.config.core.registry import Registered, Section, implements, is_users, source_digest
from archlab.config.core.text import deprecated
from archlab.config.register import Options, as_kind
from archlab.config.sources import sources_inside
from archlab.errors import UserError

Better = Literal["lower", "higher", "neither"]
"""Direction in which an outcome improves. `neither`: a difference is neither good nor bad."""

Unit = Literal["bits per byte", "nats per token", "share", "tokens", "tokens/s", "bytes", "count", "norm", "rate"]
"""Unit of an outcome's values. The unit also decides how values are formatted."""

Source = Literal["log", "weights", "timing", "config", "sweep"]
"""Source of an outcome's values.

`log`: the training log of a run; one value per seed. `weights`: the final weights of a run; one value per seed.
`timing`: timing of all arms in turn, with nothing else running; one value per round. `config`: computed from the config
without a run; one value per arm. `sweep`: the runs of a seed at all values of the swept field; one value per seed.
"""

BY_SEED: tuple[Source, ...] = ("log", "weights", "sweep")
"""Sources with one value per seed. `timing` has one value per round instead, and `config` one per arm."""


class Outcome(Kinded, Registered):
    """Base class of all outcomes. An outcome is a number by which arms are compared."""

    section: ClassVar[Section] = "outcome"

    source: ClassVar[Source] = "weights"
    unit: ClassVar[Unit]
    better: ClassVar[Better] = "lower"
    any_objective: ClassVar[bool] = False
    """Whether the outcome means the same for models that were trained with different objectives. Outcomes that are
    timed or computed from the config always do (`is_shared`)."""
    heading: ClassVar[str] = ""
    """Title of the outcome. Names of fields in braces are replaced by their values. Required unless `title` is
    overridden."""

    @classmethod
    def check_class(cls) -> None:
        """Raise UserError if the class has an unknown source, unit or direction, or no heading."""
        for attribute, allowed in (("source", Source), ("unit", Unit), ("better", Better)):
            if (value := getattr(cls, attribute)) not in get_args(allowed):
                values = ", ".join(get_args(allowed))
                raise UserError(f"outcome {kind_of(cls)}: {attribute} is {value!r}; allowed: {values}")
        if not cls.heading and cls.title is Outcome.title:
            raise UserError(f"outcome {kind_of(cls)}: {cls.__name__} has no heading; define it in the class")
        names = {name.partition("[")[0] for _, name, _, _ in Formatter().parse(cls.heading) if name}
        if unknown := sorted(names - cls.model_fields.keys()):
            raise UserError(f"outcome {kind_of(cls)}: its heading has {unknown[0]} in braces; allowed: its fields")

    @property
    def is_shared(self) -> bool:
        """Whether arms with different objectives can be compared by this outcome."""
        return self.any_objective or self.source in ("timing", "config")

    @property
    def title(self) -> str:
        """Short description of the outcome, without its unit."""
        return self.heading.format(**self.model_dump())

    @property
    def meaning(self) -> dict[str, Any]:
        """Everything that determines the outcome's value for a given run: its fields, and digests of users' code."""
        plain = self.model_dump()
        if is_users(type(self)):
            plain = {**to_old_form(plain), "source": source_digest(type(self))}
        inside = sources_inside(self)
        return {**plain, "plugins": inside} if inside else plain


def register_outcome(
    name: str, options: type[Options], function: Callable[..., Any], *, title: str, unit: Unit, better: Better
) -> None:
    """Register an outcome as a function. `function(run, options)` returns a finite number, or None for a run without a
    value.

    Deprecated: derive a class from `archlab.Outcome` instead.
    """
    deprecated("archlab.register_outcome", "derive a class from archlab.Outcome instead")
    outcome = as_kind(name, options, Outcome, Options, heading=title, unit=unit, better=better)
    implements(outcome)(lambda config, run: function(run, config))
