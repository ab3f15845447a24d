"""What is known of a published model beside its config: the `about` of an atlas file."""

import re
from typing import Annotated, Literal

from pydantic import Field

from archlab.config.core.base import Base, Count, NonNegative, Probability

Certainty = Literal["verified", "secondary", "from memory"]


class About(Base):
    """Where a published architecture comes from, and how sure it is."""

    name: str
    """As its makers write it."""
    year: Annotated[int, Field(ge=2017)]
    """Of publication."""
    source: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """Papers, config files, repositories."""
    certainty: Certainty
    """verified: read in a config or the paper's own text; secondary: from transcriptions; from memory: unchecked."""
    cannot_build: str | None = None
    """Why archlab cannot build it; `model` is then its decoder block as far as the schema goes. null: it can."""
    shown: str | None = None
    """Part of such a model that `model` has, in a few words, as in `decoder half only`. null: archlab can build it."""
    published_parameters: Count | None = None
    """As published: exact, or rounded as there. null: not published for this part of the model."""
    published_active: Count | None = None
    """Of these, how many one token makes use of, as published. null: not published."""
    active_without: Literal["nothing", "embedding", "embedding and head"] = "nothing"
    """What is left out of `published_active`."""
    elsewhere: Count | None = None
    """Of these, how many are in parts that the schema has no field for; notes say which. null: none."""
    dropout: Probability | None = None
    """In pre-training. null: unknown."""
    weight_decay: NonNegative | None = None
    """In pre-training. null: unknown."""
    languages: Count | None = None
    """Natural languages of the training text, as many as its makers count: 1 is English alone, or nearly. null:
    unknown, or not counted."""
    unverified: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Fields, of the config or of `about`, that are less certain than `certainty`: from memory, or standing in for
    what was never published."""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """What the config cannot say, and which figure in circulation is wrong."""

    @property
    def part(self) -> str:
        """Shown part of a model that cannot be built, and why: `decoder half only: encoder-decoder, 24 + 24 layers`.

        Empty if it can be built.
        """
        return f"{self.shown}: {self.cannot_build}" if self.cannot_build else ""

    @property
    def buildable(self) -> bool:
        """Whether archlab can build it."""
        return self.cannot_build is None

    def doubts(self, *fields: str) -> bool:
        """Whether one of these fields (`norm.kind`, `train.z_loss`) is unverified, for all layers or for some."""
        known = {re.sub(r"^model\.(layers\.[^.]+\.)?", "", field) for field in self.unverified}
        return any(f"{field}.".startswith(f"{doubted}.") for doubted in known for field in fields)
