"""Which optimiser makes an update of a gradient."""

from typing import Annotated, Literal

from pydantic import Field

from archlab.config.base import Base
from archlab.config.plug_in import PlugInOptimizer


class AdamW(Base):
    """AdamW (Loshchilov 2019). Its settings are train.betas, train.eps and train.weight_decay."""

    kind: Literal["adamw"] = "adamw"


Optimizer = Annotated[AdamW | PlugInOptimizer, Field(discriminator="kind")]
