"""Translation of latent attention: keys for its widths and its RoPE, and rows for its weights."""

import math
from dataclasses import dataclass

from archlab.config.components.latent_attention import Latent
from archlab.config.components.position import Rope
from archlab.config.components.rope_scaling import Yarn, yarn_amplitude
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig
from archlab.config.model_schema import ModelConfig
from archlab.hf.fields import Always, ConfigReader, Field, Key
from archlab.hf.rope import RopeKeys, scaling_kind
from archlab.hf.weight_map import Row, linear

LATENT: tuple[Field, ...] = (
    Always("attention.kind", "latent"),
    Key("q_lora_rank", "attention.q_rank", 1536, nullable=True),
    Key("kv_lora_rank", "attention.kv_rank", 512),
    Key("qk_nope_head_dim", "attention.nope_dim", 128),
    Key("qk_rope_head_dim", "attention.rope_dim", 64),
    Key("v_head_dim", "attention.v_dim", 128),
    Key("attention_bias", "attention.qkv_bias", False),
    Key("attention_bias", "attention.out_bias", False),
)


def narrows_queries(layer: LayerConfig) -> bool:
    return isinstance(layer.attention, Latent) and layer.attention.q_rank is not None


def keeps_queries(layer: LayerConfig) -> bool:
    return not narrows_queries(layer)


LATENT_WEIGHTS: list[Row] = [
    *linear("model.layers.{i}.self_attn.q_a_proj", "layers.{i}.attention.q_down"),
    *linear("model.layers.{i}.self_attn.q_a_layernorm", "layers.{i}.attention.q_norm"),
    *linear("model.layers.{i}.self_attn.q_b_proj", "layers.{i}.attention.q_up", when=narrows_queries),
    *linear("model.layers.{i}.self_attn.q_proj", "layers.{i}.attention.q_up", when=keeps_queries),
    *linear("model.layers.{i}.self_attn.kv_a_proj_with_mqa", "layers.{i}.attention.kv_down"),
    *linear("model.layers.{i}.self_attn.kv_a_layernorm", "layers.{i}.attention.kv_norm"),
    *linear("model.layers.{i}.self_attn.kv_b_proj", "layers.{i}.attention.kv_up"),
    *linear("model.layers.{i}.self_attn.o_proj", "layers.{i}.attention.out"),
]


@dataclass(frozen=True)
class LatentHeads:
    """The keys `num_key_value_heads` and `head_dim`.

    In latent attention, other keys already determine both values.
    """

    kv_heads: int | None = None
    """Default of `num_key_value_heads`. None means the number of query heads."""
    reads_head_dim: bool = True
    """Whether the published code reads `head_dim`. Otherwise any value is allowed."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Raise UserError if `num_key_value_heads` is not the number of query heads, or if `head_dim` is not the number
        of rotated dimensions.

        The number of heads and the widths must already have been read.
        """
        only = {"num_key_value_heads": ours["attention.n_heads"]}
        found = {
            "num_key_value_heads": hf.or_null("num_key_value_heads", self.kv_heads),
            "head_dim": hf.get("head_dim"),
        }
        if self.reads_head_dim:
            only["head_dim"] = ours["attention.rope_dim"]  # in these files, the width that RoPE rotates
        for key, allowed in only.items():
            if found[key] not in (None, allowed):
                raise hf.refuse(key, found[key], f"{allowed}, because other keys of latent attention determine it")

    def write(self, model: ModelConfig, hf: Raw) -> None:
        if isinstance(model.attention, Latent):
            hf["num_key_value_heads"] = model.attention.n_heads


@dataclass(frozen=True)
class LatentRope(RopeKeys):
    """RoPE of latent attention. With YaRN, the key `mscale_all_dim` also changes the scale of the attention scores."""

    pairing: str = "interleaved"
    interleave_key: str | None = None
    """Key that says whether RoPE rotates pairs of adjacent dimensions. None if the family has no such key."""

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set RoPE and the scale of attention scores. The widths of latent attention must already have been read."""
        super().read(hf, ours)
        if self.interleave_key and not hf.or_null(self.interleave_key, True):
            ours[self.field]["pairing"] = "half"
        scaling = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
        if scaling_kind(scaling) != "default" and (mscale := scaling.get("mscale_all_dim")):
            width = ours["attention.nope_dim"] + ours["attention.rope_dim"]
            ours["attention.scale"] = _scale(width, scaling["factor"], mscale)

    def write(self, model: ModelConfig, hf: Raw) -> None:
        super().write(model, hf)
        if self.interleave_key and isinstance(model.position, Rope):
            hf[self.interleave_key] = model.position.pairing == "interleaved"
        match model.position, model.attention:
            case Rope(scaling=Yarn(factor=factor)), Latent(scale=float(scale)) as latent if factor > 1:
                width = latent.nope_dim + latent.rope_dim
                exact = (math.sqrt(scale * math.sqrt(width)) - 1) / (0.1 * math.log(factor))
                # Use the fewest digits that give exactly the same scale. If the multiplier is 0, leave out the key.
                rounded = (round(exact, digits) for digits in range(3, 17))
                mscale = next((a for a in rounded if _scale(width, factor, a) == scale), exact)
                hf["rope_parameters"] |= {"mscale_all_dim": mscale} if mscale else {}
            case _:
                pass


def _scale(width: int, factor: float, mscale: float) -> float:
    return 1 / math.sqrt(width) * yarn_amplitude(factor, mscale) ** 2
