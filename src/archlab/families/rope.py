"""RoPE's keys: `rope_parameters` as transformers 5 writes them, `rope_theta` and `rope_scaling` as published files do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archlab.config.merge import Raw
from archlab.config.model_schema import ModelConfig, Rope
from archlab.families.fields import Source


@dataclass(frozen=True)
class RopeKeys:
    """theta, fraction and scaling of one RoPE; `field` is where it stands in ours."""

    theta: float = 10000.0
    fraction: float = 1.0
    pairing: str = "half"
    theta_key: str = "rope_theta"
    fraction_key: str = "partial_rotary_factor"
    field: str = "position"

    def read(self, hf: Source, ours: Raw) -> None:
        """Either spelling."""
        given = hf.get("rope_parameters") or {}
        scaling = dict(hf.get("rope_scaling") or given)
        theta = given.get("rope_theta", hf.get(self.theta_key, self.theta))
        fraction = given.get("partial_rotary_factor", hf.get(self.fraction_key, self.fraction))
        ours[self.field] = position(hf, theta, fraction, self.pairing, scaling, hf.get("max_position_embeddings"))

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """As transformers 5 writes it."""
        if isinstance(model.position, Rope):
            hf["rope_parameters"] = parameters(model.position, model.max_seq_len)
            if model.position.fraction != 1.0:
                hf["rope_parameters"]["partial_rotary_factor"] = model.position.fraction


def position(
    hf: Source, theta: float, fraction: float, pairing: str, scaling: Mapping[str, Any], longest: int | None
) -> Raw:
    """The values of our `position` for one set of theirs."""
    return {
        "kind": "rope", "theta": float(theta), "fraction": float(fraction), "pairing": pairing,
        "scaling": _scaling(hf, scaling, longest),
    }  # fmt: skip


_IGNORED = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def _scaling(hf: Source, given: Mapping[str, Any], longest: int | None) -> Raw:
    kind = given.get("rope_type", given.get("type", "default"))
    rest = {k: v for k, v in given.items() if k not in _IGNORED and v is not None}
    original = rest.pop("original_max_position_embeddings", None) or longest
    known: dict[str, Raw] = {
        "default": {"kind": "none"},
        "linear": {"kind": "linear"},
        "dynamic": {"kind": "dynamic", "original_max_seq_len": original},
        "llama3": {"kind": "llama3", "original_max_seq_len": original},
        "yarn": {"kind": "yarn", "original_max_seq_len": original},
        "longrope": {"kind": "longrope", "original_max_seq_len": original},
    }
    if kind not in known:
        raise hf.refuse("rope_scaling.rope_type", kind, ", ".join(known))
    return known[kind] | rest


def parameters(rope: Rope, longest: int) -> Raw:
    """Their values for our position."""
    scaling = rope.scaling.model_dump(mode="json", exclude_none=True)
    kind = scaling.pop("kind")
    out: Raw = {"rope_type": "default" if kind == "none" else kind, "rope_theta": rope.theta, **scaling}
    if "original_max_seq_len" in out:
        out["original_max_position_embeddings"] = out.pop("original_max_seq_len")
    return out
