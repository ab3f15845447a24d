"""Facts about a published model besides its config: the section `about` of an atlas file."""

import re
from typing import Annotated, Literal

from pydantic import Field

from archlab.config.core.base import Base, Count, NonNegative, Probability

Certainty = Literal["verified", "secondary", "from memory"]


class About(Base):
    """Source of a published architecture, the certainty of its config, and the published figures."""

    name: str
    """Name of the model as its developers write it."""
    year: Annotated[int, Field(ge=2017)]
    """Year in which the model was published."""
    source: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """Papers, config files and repositories from which the config was taken."""
    certainty: Certainty
    """Certainty of the config. `verified`: taken from a published config or the text of the paper. `secondary`:
    taken from transcriptions by others. `from memory`: not checked against a source."""
    cannot_build: str | None = None
    """Reason why archlab cannot build the model. The section `model` then describes the decoder block of the published
    model, as far as the schema allows. It is missing if the architecture is not published. null: archlab can build the
    model."""
    shown: str | None = None
    """Part of the published model that the section `model` describes, as in `decoder half only`, if archlab cannot
    build the whole model. null: archlab can build the model, or nothing of it is published."""
    published_parameters: Count | None = None
    """Published parameter count, exact or rounded. null: no count is published for the part that the config
    describes."""
    published_active: Count | None = None
    """Published number of active parameters, the parameters that one token uses. null: not published."""
    active_without: Literal["nothing", "embedding", "embedding and head"] = "nothing"
    """Parameters that `published_active` does not count."""
    elsewhere: Count | None = None
    """Published number of parameters in parts of the model that no config field can describe. `notes` names these
    parts. null: the model has no such parts."""
    dropout: Probability | None = None
    """Dropout probability in pre-training. null: unknown."""
    weight_decay: NonNegative | None = None
    """Weight decay in pre-training. null: unknown."""
    languages: Count | None = None
    """Number of natural languages in the training data, as counted by the model's developers. 1: English only, or
    almost only. null: unknown, or not counted."""
    unverified: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Fields of the config or of `about` whose values are less certain than `certainty` says: values from memory, or
    stand-ins for unpublished values."""
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Facts about the model that the config cannot express, and wrong figures that other sources repeat."""

    @property
    def part(self) -> str:
        """Part of the model that the config describes, and the reason why archlab cannot build the whole model, as in
        `decoder half only: encoder-decoder, 24 + 24 layers`. Empty if archlab can build the model."""
        return ": ".join(filter(None, (self.shown, self.cannot_build)))

    @property
    def buildable(self) -> bool:
        return self.cannot_build is None

    def doubts(self, *fields: str) -> bool:
        """Return whether `unverified` lists any of `fields`, such as `norm.kind` or `train.z_loss`, for the model or
        for one of its layer kinds."""
        known = {re.sub(r"^model\.(layers\.[^.]+\.)?", "", field) for field in self.unverified}
        return any(f"{field}.".startswith(f"{doubted}.") for doubted in known for field in fields)
