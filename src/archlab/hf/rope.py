"""RoPE's keys: `rope_parameters` as transformers 5 writes them, `rope_theta` and `rope_scaling` as files before it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archlab.config.components.position import Longrope, Rope
from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import ConfigReader


@dataclass(frozen=True)
class RopeKeys:
    """theta, fraction and scaling of one RoPE; `field` is where it stands in ours."""

    theta: float = 10000.0
    fraction: float = 1.0
    pairing: str = "half"
    partial: bool = False
    """Whether the published code reads the fraction at all, though it is 1 by default."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of scalings that mean another one in this family's code."""
    original: int | None = None
    """Default of `original_max_position_embeddings` in a family that reads it beside the scaling only (Phi 3)."""
    theta_key: str = "rope_theta"
    fraction_key: str = "partial_rotary_factor"
    field: str = "position"
    longest: int | None = None
    """Default of `max_position_embeddings`."""

    @property
    def spelled(self) -> Mapping[str, str]:
        """As older files have it."""
        return {f"{self.field}.theta": self.theta_key}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Either spelling."""
        given = hf.get("rope_parameters") or {}
        scaling = dict(hf.get("rope_scaling") or given)
        scaling["rope_type"] = self.names.get(kind := kind_of(scaling), kind)
        if self.original:
            scaling["original_max_position_embeddings"] = hf.get("original_max_position_embeddings", self.original)
        theta = scaling.get("rope_theta", hf.get(self.theta_key, self.theta))
        fraction = scaling.get("partial_rotary_factor", hf.get(self.fraction_key, self.fraction))
        if fraction != self.fraction and self.fraction == 1.0 and not self.partial:
            raise hf.refuse(self.fraction_key, fraction, "1.0, for the published code ignores the key")
        ours[self.field] = position(
            hf, theta, fraction, self.pairing, scaling, hf.get("max_position_embeddings", self.longest)
        )

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """As transformers 5 writes it."""
        if isinstance(model.position, Rope):
            hf["rope_parameters"] = parameters(model.position, model.max_seq_len)
            if model.position.fraction != 1.0 or self.fraction != 1.0:
                hf["rope_parameters"]["partial_rotary_factor"] = model.position.fraction
            if self.original and isinstance(model.position.scaling, Longrope):
                hf["original_max_position_embeddings"] = model.position.scaling.original_max_seq_len


@dataclass(frozen=True)
class ScaledRopeKeys(RopeKeys):
    """RoPE that is scaled even where the file says nothing."""

    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """The scaling then."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """A theta alone is not read by the published code."""
        if hf.get("rope_parameters") or hf.get("rope_scaling"):
            super().read(hf, ours)
            return
        if hf.get(self.theta_key, self.theta) != self.theta:
            raise hf.refuse(self.theta_key, hf.get(self.theta_key), f"{self.theta}, or rope_scaling beside it")
        ours[self.field] = position(hf, self.theta, 1.0, self.pairing, self.unsaid, None)


def position(
    hf: ConfigReader, theta: float, fraction: float, pairing: str, scaling: Mapping[str, Any], longest: int | None
) -> Raw:
    """The values of our `position` for one set of theirs."""
    refuse_flags(hf, scaling)
    return {
        "kind": "rope", "theta": float(theta), "fraction": float(fraction), "pairing": pairing,
        "scaling": _scaling(hf, scaling, longest),
    }  # fmt: skip


_BANDS = ("low_freq_factor", "high_freq_factor")
_YARN = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
_LONGROPE = ("short_factor", "long_factor", "attention_factor")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "llama3": ("factor", *_BANDS),
    "yarn": ("factor", *_YARN), "longrope": ("factor", *_LONGROPE),
}  # fmt: skip
"""Each scaling's numbers, named as in theirs."""
_ELSEWHERE = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "finetuned",
}  # fmt: skip


def kind_of(given: Mapping[str, Any]) -> str:
    """The scaling's name, under either key."""
    return given.get("rope_type", given.get("type", "default"))


def refuse_flags(hf: ConfigReader, given: Mapping[str, Any]) -> None:
    """Raise UserError for true or false in place of a number, which Python would take for 1 or 0."""
    for key, value in given.items():
        if isinstance(value, bool) and key not in ("truncate", "finetuned"):
            raise hf.refuse(f"rope_scaling.{key}", value, "a number")


def _scaling(hf: ConfigReader, given: Mapping[str, Any], longest: int | None) -> Raw:
    kind = kind_of(given)
    if kind not in _KEYS:
        raise hf.refuse("rope_scaling.rope_type", kind, ", ".join(_KEYS))
    rest = {k: v for k, v in given.items() if k not in _ELSEWHERE and v is not None}
    unknown = next((key for key in rest if key not in _KEYS[kind]), None)
    if unknown:
        raise hf.refuse(f"rope_scaling.{unknown}", rest[unknown], f"none, for {kind} has no such number")
    # Beside the scaling it has priority.
    original = hf.get("original_max_position_embeddings") or given.get("original_max_position_embeddings") or longest
    if kind in ("yarn", "longrope") and longest and original:
        rest.setdefault("factor", max(longest / original, 1.0))
    stretches = kind in ("dynamic", "longrope") or rest.get("factor") != 1 or rest.get("attention_factor", 1) != 1
    if kind == "default" or not stretches:
        return {"kind": "none"}
    if kind == "linear":
        return {"kind": kind, **rest}
    if kind == "dynamic":  # published code reads no other length here
        return {"kind": kind, "original_max_seq_len": longest, **rest}
    mscale, everywhere = rest.pop("mscale", None), rest.pop("mscale_all_dim", None)
    if mscale and everywhere:
        rest.setdefault("attention_factor", amplitude(rest["factor"], mscale) / amplitude(rest["factor"], everywhere))
    if kind == "longrope" and rest.get("attention_factor") is not None:
        rest["factor"] = 1.0  # which decides nothing else
    return {"kind": kind, "original_max_seq_len": original, **rest}


def amplitude(factor: float, mscale: float) -> float:
    """YaRN's factor on cos and sin, with DeepSeek's multiplier (1 without)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def parameters(rope: Rope, longest: int) -> Raw:
    """Their values for our position."""
    scaling = rope.scaling.model_dump(mode="json", exclude_none=True)
    kind = scaling.pop("kind")
    out: Raw = {"rope_type": "default" if kind == "none" else kind, "rope_theta": rope.theta, **scaling}
    original = out.pop("original_max_seq_len", None)
    if original is not None and kind != "dynamic":
        out["original_max_position_embeddings"] = original
    return out
