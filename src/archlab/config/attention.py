"""Attention of any kind, as one section of a config."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from archlab.config.component import Absent, Component
from archlab.config.latent_attention import Latent, ResolvedLatent
from archlab.config.multi_head import MultiHead, ResolvedMultiHead
from archlab.errors import UserError


class NoAttention(Absent):
    """No attention in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]


def _multi_head_by_default(value: Any) -> Any:
    return {"kind": "multihead", **value} if isinstance(value, dict) else value


Attention = Annotated[
    MultiHead | Latent | NoAttention, Field(discriminator="kind"), BeforeValidator(_multi_head_by_default)
]
ResolvedAttention = Annotated[ResolvedMultiHead | ResolvedLatent | NoAttention, Field(discriminator="kind")]

_C = TypeVar("_C", bound=MultiHead)


def as_multi_head(config: Component, where: str, schema: type[_C] = MultiHead) -> _C:
    """The config as what it is, for code that knows no other kind; UserError where it is another."""
    if isinstance(config, schema):
        return config
    raise UserError(f"model.attention.kind: {config.kind} in {where}; allowed here: multihead")
