"""What a config says of a plug-in that it uses: its name and its options."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ValidationError, field_validator
from pydantic_core.core_schema import ValidationInfo

from archlab.config.components.component import Component, Site, StateTensor
from archlab.config.components.plugins import Registered, Section, find, names
from archlab.config.components.work import Operation, Pass
from archlab.config.core.base import Base, Float32
from archlab.config.core.text import Line
from archlab.errors import UserError


class PlugIn(Base):
    """Something that a module of `plugins` has registered."""

    kind: Literal["plugin"] = "plugin"
    name: Line
    """Under which it is registered."""
    options: dict[str, Annotated[Any, Float32]] = {}  # noqa: RUF012 - pydantic copies it
    """Its own fields; those left out have their defaults."""

    section: ClassVar[Section]

    @field_validator("name")
    @classmethod
    def _is_registered(cls, name: str) -> str:
        if find(cls.section, name) is None:
            known = ", ".join(names(cls.section)) or "none, for `plugins` names no module that registers one"
            raise ValueError(f"{name!r}; no such plug-in for {cls.section}; allowed: {known}")
        return name

    @field_validator("options")
    @classmethod
    def _are_its_own(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """With defaults written out, so that a run's config says all."""
        if "name" not in info.data:
            return options
        found = find(cls.section, info.data["name"])
        assert found
        try:
            return _made(found, options).model_dump(mode="json", exclude={"kind"})
        except ValidationError as error:
            raise ValueError("; ".join(_in_words(error, found))) from None

    @property
    def registered(self) -> Registered:
        """UserError where its module is not imported in this process."""
        if found := find(self.section, self.name):
            return found
        raise UserError(f"{self.section} {self.name}: no plug-in of that name; `plugins` names the modules")

    @property
    def own(self) -> Any:
        """Its options, as an instance of its own class."""
        return _made(self.registered, self.options)

    def __hash__(self) -> int:
        return hash((self.section, self.name, json.dumps(self.options, sort_keys=True)))


def _made(found: Registered, options: dict[str, Any]) -> Base:
    kind = {"kind": found.name} if issubclass(found.options, Component) else {}
    return found.options.model_validate({**kind, **options})


def _in_words(error: ValidationError, found: Registered) -> Iterator[str]:
    allowed = ", ".join(name for name in found.options.model_fields if name != "kind") or "none"
    for detail in error.errors(include_url=False):
        field = ".".join(map(str, detail["loc"])) or "all"
        said = f"{detail['input']!r}; {detail['msg'].removeprefix('Input ')}"
        if detail["type"] == "extra_forbidden":
            said = f"no such option of {found.name}; allowed: {allowed}"
        yield f"{field}: {said}"


class PlugInComponent(PlugIn, Component):
    """A component of a layer. What it costs its own class says."""

    kind: Literal["plugin"] = "plugin"  # pyright: ignore[reportIncompatibleVariableOverride]

    def describe(self) -> dict[str, str]:
        """Its name and its options."""
        return {self.section: " ".join([self.name, *(f"{key} {value}" for key, value in self.options.items())])}

    def parameters(self, site: Site) -> dict[str, int]:
        """As its own class says."""
        return self.own.parameters(site)

    def vectors(self, site: Site) -> int:
        """As its own class says; by default none."""
        return self.own.vectors(site)

    def active_parameters(self, site: Site) -> int:
        """As its own class says; by default all."""
        return self.own.active_parameters(site)

    def work(self, site: Site, this: Pass) -> Iterator[Operation]:
        """As its own class says."""
        return self.own.work(site, this)

    def state(self, site: Site, capacity: int) -> tuple[StateTensor, ...]:
        """As its own class says."""
        return self.own.state(site, capacity)

    def share(self, tensor: int) -> Self:
        """UserError: nobody knows how its matrices could be cut."""
        if tensor == 1:
            return self
        found = f"tensor={tensor}: model.{self.section} is the plug-in {self.name}, which cannot be cut"
        raise UserError(f"{found}; allowed: tensor=1")


class PlugInMLP(PlugInComponent):
    """An MLP of your own (docs/plugins.md)."""

    section: ClassVar[Section] = "mlp"


class PlugInMixer(PlugInComponent):
    """A mixer of your own (docs/plugins.md)."""

    section: ClassVar[Section] = "mixer"


class PlugInOptimizer(PlugIn):
    """An optimiser of your own (docs/plugins.md)."""

    section: ClassVar[Section] = "optimizer"
