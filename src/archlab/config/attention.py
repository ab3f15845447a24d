"""Attention of any kind, as one section of a config."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from archlab.config.component import Absent
from archlab.config.latent_attention import Latent, ResolvedLatent
from archlab.config.multi_head import MultiHead, ResolvedMultiHead


class NoAttention(Absent):
    """No attention in the layer."""

    kind: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]


def _multi_head_by_default(value: Any) -> Any:
    return {"kind": "multihead", **value} if isinstance(value, dict) else value


Attention = Annotated[
    MultiHead | Latent | NoAttention, Field(discriminator="kind"), BeforeValidator(_multi_head_by_default)
]
ResolvedAttention = ResolvedMultiHead | ResolvedLatent | NoAttention
