"""Facts about a published model besides its config: the section `about` of an atlas file."""

import re
from typing import Annotated, Literal

from pydantic import Field

from archlab.config.core.base import Base, Count, NonNegative, Probability

Certainty = Literal["verified", "secondary", "from memory"]


class About(Base):
    """Source of a published architecture, and how certain it is."""

    name: str
    """Name as its makers write it."""
    year: Annotated[int, Field(ge=2017)]
    """Year of publication."""
    source: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """Papers, config files and repositories that it was read from."""
    certainty: Certainty
    """Certainty of the config. `verified`: read in a published config or the text of the paper. `secondary`: read in
    transcriptions. `from memory`: unchecked."""
    cannot_build: str | None = None
    """Reason why archlab cannot build the model. `model` is then its decoder block, as far as the schema allows. null:
    archlab can build it."""
    shown: str | None = None
    """Part of a model that `model` describes if archlab cannot build all of it, as in `decoder half only`. null:
    archlab can build it."""
    published_parameters: Count | None = None
    """Number of parameters as published, exact or rounded. null: not published for this part of the model."""
    published_active: Count | None = None
    """Number of those parameters that one token uses, as published. null: not published."""
    active_without: Literal["nothing", "embedding", "embedding and head"] = "nothing"
    """Parts left out of `published_active`."""
    elsewhere: Count | None = None
    """Number of published parameters in parts that the schema has no field for; the notes name them. null: none."""
    dropout: Probability | None = None
    """Probability of dropout in pre-training. null: unknown."""
    weight_decay: NonNegative | None = None
    """Weight decay in pre-training. null: unknown."""
    languages: Count | None = None
    """Number of natural languages in the training text, as counted by its makers. 1: English only, or almost. null:
    unknown, or not counted."""
    unverified: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Fields of the config or of `about` that are less certain than `certainty`: from memory, or standing in for
    unpublished values."""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Facts that the config cannot express, and wrong figures in circulation."""

    @property
    def part(self) -> str:
        """Text with the shown part of a model that cannot be built, and the reason: `decoder half only:
        encoder-decoder, 24 + 24 layers`. Empty if archlab can build it."""
        return f"{self.shown}: {self.cannot_build}" if self.cannot_build else ""

    @property
    def buildable(self) -> bool:
        """Whether archlab can build it."""
        return self.cannot_build is None

    def doubts(self, *fields: str) -> bool:
        """Return whether one of these fields (`norm.kind`, `train.z_loss`) is unverified, for all layers or for
        some."""
        known = {re.sub(r"^model\.(layers\.[^.]+\.)?", "", field) for field in self.unverified}
        return any(f"{field}.".startswith(f"{doubted}.") for doubted in known for field in fields)
