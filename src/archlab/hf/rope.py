"""Translation of RoPE keys: `rope_parameters` in files from transformers 5, `rope_theta` and `rope_scaling` in older
files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archlab.config.components.position import Position, Rope
from archlab.config.components.rope_scaling import Longrope, NoScaling, Proportional, yarn_amplitude
from archlab.config.core.merge import Raw, expand
from archlab.config.layers import layer_configs, with_overrides
from archlab.config.model_schema import Layers, ModelConfig
from archlab.hf.fields import ConfigReader


@dataclass(frozen=True)
class RopeKeys:
    """Keys for theta of RoPE, for the fraction of the dimensions that it rotates, and for its scaling."""

    theta: float = 10000.0
    fraction: float = 1.0
    pairing: str = "half"
    partial: bool = False
    """Whether the published code reads the key for the rotated fraction although the default of this fraction is 1.

    If the default (`fraction`) is not 1, the code always reads the key, and `partial` has no effect.
    """
    names: Mapping[str, str] = field(default_factory=dict)
    """Mapping from scaling names in the file to the scalings that this family's code computes. Contains only those that
    differ."""
    original: int | None = None
    """Default of `original_max_position_embeddings` in a family (Phi 3) that reads this key only outside
    `rope_scaling`.

    None for other families.
    """
    theta_key: str = "rope_theta"
    fraction_key: str = "partial_rotary_factor"
    field: str = "position"
    """Archlab field that these keys set."""
    idle: frozenset[str] = frozenset()
    """Keys of `rope_parameters` that have no effect on text."""

    @property
    def hf_keys(self) -> Mapping[str, str]:
        return {f"{self.field}.theta": self.theta_key}

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        parameters = hf.get("rope_parameters") or {}
        scaling = {k: v for k, v in (hf.get("rope_scaling") or parameters).items() if k not in self.idle}
        scaling["rope_type"] = self.names.get(kind := scaling_kind(scaling), kind)
        scaling = self.adapt(hf, scaling)
        if self.original:
            scaling["original_max_position_embeddings"] = hf.get("original_max_position_embeddings", self.original)
        theta = scaling.get("rope_theta", hf.get(self.theta_key, self.theta))
        fraction = scaling.get("partial_rotary_factor", hf.get(self.fraction_key, self.fraction))
        if fraction != self.fraction and self.fraction == 1.0 and not self.partial:
            raise hf.refuse(self.fraction_key, fraction, "1.0, because the published code ignores the key")
        ours[self.field] = rope_fields(hf, theta, fraction, self.pairing, scaling, hf.get("max_position_embeddings"))

    def adapt(self, hf: ConfigReader, scaling: Raw) -> Raw:
        """Return the scaling that the published code of this family computes, in the usual keys."""
        return scaling

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.position, Rope):
            hf["rope_parameters"] = rope_parameters(model.position, model.max_seq_len)
            if model.position.fraction != 1.0 or self.fraction != 1.0:
                hf["rope_parameters"]["partial_rotary_factor"] = model.position.fraction
            if self.original and isinstance(model.position.scaling, Longrope):
                hf["original_max_position_embeddings"] = model.position.scaling.original_max_seq_len


@dataclass(frozen=True)
class ScaledRopeKeys(RopeKeys):
    """Keys of a RoPE that has a scaling by default."""

    default_scaling: Mapping[str, Any] = field(default_factory=dict)
    """Scaling of a RoPE whose file contains none."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the RoPE.

        Raise UserError if the file contains `rope_theta` but no scaling, because the published code then ignores
        `rope_theta`.
        """
        if hf.get("rope_parameters") or hf.get("rope_scaling"):
            super().read(hf, ours)
            return
        if hf.get(self.theta_key, self.theta) != self.theta:
            raise hf.refuse(
                self.theta_key, hf.get(self.theta_key), f"{self.theta}, or a different value together with rope_scaling"
            )
        ours[self.field] = rope_fields(hf, self.theta, 1.0, self.pairing, self.default_scaling, None)


def rope_fields(
    hf: ConfigReader, theta: float, fraction: float, pairing: str, scaling: Mapping[str, Any], longest: int | None
) -> Raw:
    """Return the fields of `model.position` for the RoPE values of a file.

    `longest` is the maximum sequence length in the file.
    """
    refuse_flags(hf, scaling)
    return {
        "kind": "rope", "theta": float(theta), "fraction": float(fraction), "pairing": pairing,
        "scaling": _scaling(hf, scaling, longest),
    }  # fmt: skip


def before_bare_qk_norm(rope: Raw) -> Raw:
    """Return the fields of a RoPE that is applied before a norm of queries and keys without a weight.

    The order matters only if cos and sin are multiplied by a factor, as in YaRN and LongRoPE.
    """
    return {**rope, "order": "before_qk_norm"} if rope["scaling"]["kind"] in ("yarn", "longrope") else rope


_BANDS = ("low_freq_factor", "high_freq_factor")
_YARN = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
_LONGROPE = ("short_factor", "long_factor", "attention_factor")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "llama3": ("factor", *_BANDS),
    "yarn": ("factor", *_YARN), "longrope": ("factor", *_LONGROPE),
}  # fmt: skip
_ELSEWHERE = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "finetuned",
}  # fmt: skip


def scaling_kind(scaling: Mapping[str, Any]) -> str:
    """Return the name of a scaling. Older files store it under `type` instead of `rope_type`."""
    return scaling.get("rope_type", scaling.get("type", "default"))


def refuse_flags(hf: ConfigReader, scaling: Mapping[str, Any]) -> None:
    """Raise UserError if a number in `scaling` is true or false. Python would treat these values as 1 or 0."""
    for key, value in scaling.items():
        if isinstance(value, bool) and key not in ("truncate", "finetuned"):
            raise hf.refuse(f"rope_scaling.{key}", value, "a number")


def _scaling(hf: ConfigReader, scaling: Mapping[str, Any], longest: int | None) -> Raw:
    kind = scaling_kind(scaling)
    if kind not in _KEYS:
        raise hf.refuse("rope_scaling.rope_type", kind, ", ".join(_KEYS))
    rest = {k: v for k, v in scaling.items() if k not in _ELSEWHERE and v is not None}
    unknown = next((key for key in rest if key not in _KEYS[kind]), None)
    if unknown:
        raise hf.refuse(f"rope_scaling.{unknown}", rest[unknown], f"no value, because {kind} does not use this key")
    # The key outside rope_scaling has priority.
    original = hf.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings") or longest
    if kind in ("yarn", "longrope") and longest and original:
        rest.setdefault("factor", max(longest / original, 1.0))
    stretches = kind in ("dynamic", "longrope") or rest.get("factor") != 1 or rest.get("attention_factor", 1) != 1
    if kind == "default" or not stretches:
        return {"kind": "none"}
    if kind == "linear":
        return {"kind": kind, **rest}
    if kind == "dynamic":  # the published code always uses this length for dynamic scaling
        return {"kind": kind, "original_max_seq_len": longest, **rest}
    mscale, everywhere = rest.pop("mscale", None), rest.pop("mscale_all_dim", None)
    if mscale and everywhere:
        factor = rest["factor"]
        rest.setdefault("attention_factor", yarn_amplitude(factor, mscale) / yarn_amplitude(factor, everywhere))
    if kind == "longrope" and rest.get("attention_factor") is not None:
        rest["factor"] = 1.0  # the factor would only affect the attention factor, which is known
    return {"kind": kind, "original_max_seq_len": original, **rest}


def rope_parameters(rope: Rope, longest: int) -> Raw:
    """Return the config.json values of a RoPE. `longest` is the model's maximum sequence length."""
    scaling = rope.scaling.model_dump(mode="json", exclude_none=True)
    kind = scaling.pop("kind")
    out: Raw = {"rope_type": "default" if kind == "none" else kind, "rope_theta": rope.theta, **scaling}
    original = out.pop("original_max_seq_len", None)
    if original is not None and kind != "dynamic":
        out["original_max_position_embeddings"] = original
    if isinstance(rope.scaling, Proportional):
        out["partial_rotary_factor"] = out.pop("turning")
    return out


def without_idle_scalings(model: ModelConfig) -> ModelConfig:
    """Return the model without scalings of RoPE that change nothing, such as those by 1. Published formats have several
    forms of no scaling, and archlab writes one of them."""
    if all(layer.position == _without_idle(layer.position) for layer in layer_configs(model)):
        return model
    layers = model.layers
    if layers is not None:
        kinds = {
            name: {**expand(change), "position": _without_idle(with_overrides(model, change).position).model_dump()}
            for name, change in layers.kinds.items()
        }
        layers = Layers.model_validate({**kinds, "pattern": layers.pattern})
    return model.model_copy(update={"position": _without_idle(model.position), "layers": layers})


def _without_idle(position: Position) -> Position:
    if isinstance(position, Rope) and position.scaling.is_idle:
        return position.model_copy(update={"scaling": NoScaling()})
    return position
