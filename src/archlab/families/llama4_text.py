"""Configs and weights of the text models of Llama 4 (Llama4ForCausalLM in transformers): RoPE and attention in chunks
in most layers, no position encoding and full attention in the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from archlab.config.components.norm import NoNorm
from archlab.config.components.position import Rope
from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.families.llama import AROUND, ATTENTION, PRE_NORMS, SIZES, attention_biases, kv_heads, rms_norm
from archlab.families.mixtral import MIXTURE, ROUTER, TRAINING_ONLY
from archlab.hf.family import Family
from archlab.hf.fields import Always, ConfigReader, Key
from archlab.hf.layer_types import FULL, layer_types
from archlab.hf.mixture import GATE_BESIDE_UP, DenseLayers, is_mixture
from archlab.hf.rope import RopeKeys, before_bare_qk_norm
from archlab.hf.weight_map import TRANSPOSE, Row, linear

CHUNKED = "chunked_attention"
CHUNK, FLOOR, SCALE = 8192, 8192, 0.1
"""Defaults of `attention_chunk_size`, `floor_scale` and `attn_scale`."""


@dataclass(frozen=True)
class Layers:
    """Up to four kinds of layers: with or without RoPE, and with attention in chunks or full attention.

    In the key `no_rope_layers`, 1 stands for a layer with RoPE and 0 for a layer without RoPE. Layers with RoPE may
    have a norm of queries and keys. In layers without RoPE, queries may grow with their position.
    """

    hf_keys: ClassVar = {
        "attention.blocks.size": "attention_chunk_size", "attention.blocks": "attention_chunk_size",
        "attention.temperature.beta": "attn_scale", "attention.temperature.length": "floor_scale",
        "attention.qk_norm.eps": "rms_norm_eps",
    }  # fmt: skip

    def read(self, hf: ConfigReader, ours: Raw) -> None:
        """Set the layer kinds. RoPE and the norms must already have been read.

        If `no_rope_layers` is absent, every n-th layer has no RoPE; n is `no_rope_layer_interval` (default: 4). If
        `layer_types` is absent, the layers with RoPE have attention in chunks.
        """
        rope = _rope(hf, count := ours["n_layers"])
        types = layer_types(hf, [CHUNKED if has_rope else FULL for has_rope in rope], {CHUNKED, FULL}, count)
        chunk = hf.or_null("attention_chunk_size", CHUNK)
        if CHUNKED in types and not chunk:
            raise hf.refuse("attention_chunk_size", chunk, f"a number, because layer_types has {CHUNKED}")
        with_rope, without = {}, self._without_rope(hf)
        if hf.get("use_qk_norm", True):
            ours["position"] = before_bare_qk_norm(ours["position"])
            with_rope = {"attention.qk_norm": {"kind": "rmsnorm", "weight": False, "eps": ours["norm.eps"]}}
        chunks = {"attention.blocks": {"size": chunk, "summary": 0}}
        kinds = {
            "rope": with_rope, "nope": without, "rope_chunks": with_rope | chunks, "nope_chunks": without | chunks,
        }  # fmt: skip
        pattern = [
            ("rope" if has_rope else "nope") + ("_chunks" if kind == CHUNKED else "")
            for has_rope, kind in zip(rope, types, strict=True)
        ]
        if len(set(pattern)) == 1:
            ours |= kinds[pattern[0]]
        else:
            ours["layers"] = {name: kinds[name] for name in kinds if name in pattern} | {"pattern": pattern}

    def _without_rope(self, hf: ConfigReader) -> Raw:
        tunes = hf.get("attn_temperature_tuning", True, object)
        if not isinstance(tunes, bool) and not (isinstance(tunes, int) and tunes > 0):  # some files have the number 4
            raise hf.refuse("attn_temperature_tuning", tunes, "true or false")
        beta, length = hf.get("attn_scale", SCALE), hf.get("floor_scale", FLOOR)
        temperature = {"attention.temperature": {"beta": beta, "length": length, "offset": 1}}
        return {"position": {"kind": "none"}, **(temperature if tunes else {})}

    def write(self, model: ModelConfig, hf: Raw) -> None:
        """Write the keys. `Family.hf_config` reads them back and refuses a model that they cannot express."""
        layers = layer_configs(model)
        heads = [layer.multi_head for layer in layers]
        chunks = [x.blocks.size for x in heads if x.blocks]
        factors = [x.temperature for x in heads if x.temperature]
        hf["no_rope_layers"] = [int(isinstance(layer.position, Rope)) for layer in layers]
        hf["layer_types"] = [CHUNKED if x.blocks else FULL for x in heads]
        hf["attention_chunk_size"] = chunks[0] if chunks else CHUNK
        hf["use_qk_norm"] = any(not isinstance(x.qk_norm, NoNorm) for x in heads)
        hf["attn_temperature_tuning"] = bool(factors)
        hf["attn_scale"], hf["floor_scale"] = (factors[0].beta, factors[0].length) if factors else (SCALE, FLOOR)


def _rope(hf: ConfigReader, n_layers: int) -> Sequence[Any]:
    """Return, for each layer, whether it has RoPE."""
    interval = hf.get("no_rope_layer_interval", 4)
    rope = hf.get("no_rope_layers", kind=list) or [int((i + 1) % interval != 0) for i in range(n_layers)]
    if len(rope) < n_layers or not {0, 1}.issuperset(rope):
        raise hf.refuse("no_rope_layers", rope, f"0 or 1 for each of the {n_layers} layers")
    return rope[:n_layers]


def listed_or_every(hf: ConfigReader, n_layers: int) -> list[bool]:
    """Return, for each layer, whether its MLP is dense.

    The layers in `moe_layers` are mixtures of experts. If the key is absent, every n-th layer is one; n is
    `interleave_moe_layer_step` (default: 1).
    """
    step, listed = hf.get("interleave_moe_layer_step", 1), hf.get("moe_layers", kind=list)
    sparse = range(step - 1, n_layers, step) if listed is None else listed
    return [i not in sparse for i in range(n_layers)]


def _listed(dense: list[bool]) -> Raw:
    return {"moe_layers": [i for i, is_dense in enumerate(dense) if not is_dense]}


MLP = "model.layers.{i}.feed_forward"

FAMILY = Family(
    model_type="llama4_text",
    architecture="Llama4ForCausalLM",
    default_max_seq_len=131072,
    fields=[
        *SIZES,
        kv_heads(8),
        Key("head_dim", "attention.head_dim", 128, nullable=True),
        *rms_norm(1e-5),
        *attention_biases(),
        *MIXTURE,
        Always("mlp.router.score", "sigmoid"),
        Always("mlp.router.normalise", False),
        Always("mlp.router.applied_to", "input"),
        Key("num_local_experts", "mlp.experts", 16),
        Key("num_experts_per_tok", "mlp.active", 1),
        Key("intermediate_size", "mlp.shared.d_ff"),
        RopeKeys(theta=5e5, pairing="interleaved"),
        Layers(),
        DenseLayers(listed_or_every, _listed, width_key="intermediate_size_mlp", width=16384),
        Key("tie_word_embeddings", "head.tied", False),
    ],
    weights=[
        *ATTENTION,
        *(
            row
            for part in ("gate", "up", "down")
            for row in (
                *linear(f"{MLP}.{part}_proj", f"layers.{{i}}.mlp.{part}"),
                *linear(f"{MLP}.shared_expert.{part}_proj", f"layers.{{i}}.mlp.shared.{part}"),
            )
        ),
        Row(f"{MLP}.router.weight", ROUTER),
        Row(
            f"{MLP}.experts.gate_up_proj",
            ("layers.{i}.mlp.experts.gate", "layers.{i}.mlp.experts.up"),
            GATE_BESIDE_UP,
            when=is_mixture,
        ),
        Row(f"{MLP}.experts.down_proj", "layers.{i}.mlp.experts.down", TRANSPOSE, when=is_mixture),
        *PRE_NORMS,
        *AROUND,
    ],
    prefix="model.",
    no_effect=TRAINING_ONLY,
)
