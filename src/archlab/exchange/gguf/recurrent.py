"""The llama.cpp architectures with recurrent mixers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from archlab.config.components.mamba2 import Mamba2
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig, layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.exchange.gguf.architecture import GGUFArchitecture, Header, lacks
from archlab.exchange.gguf.limits import (
    ANY_SCALING,
    NORMALIZED,
    NOT_NORMALIZED,
    SILU,
    TIED,
    Limit,
    corrected,
    dense_first,
    inner_width,
    n_dense,
    no_biases,
    only,
    some_attention,
    square,
    state_divides_width,
)
from archlab.exchange.gguf.mixtures import add_sigmoid
from archlab.exchange.gguf.settings import add_granite_scales
from archlab.exchange.gguf.tensors import (
    ADJACENT_PAIRS,
    AROUND,
    CORRECTION,
    DECAY,
    DENSE_WIDTH,
    EXPERTS,
    LAYER,
    MAMBA,
    MLP,
    ONE_CHANNEL,
    SHARED_WIDTH,
    norms,
    separate,
)
from archlab.families.jamba import ATTENTION_LAYERS, EXPERT_LAYERS
from archlab.families.lfm2 import CONV, THIRDS
from archlab.families.lfm2 import IN as CONV_IN
from archlab.families.mamba2 import IN, IN_PARTS
from archlab.hf.layer_types import FULL, LINEAR
from archlab.hf.weight_map import Conversion, Row, linear, then

if TYPE_CHECKING:
    from gguf import GGUFWriter

ONE_COLUMN = Conversion(lambda theirs, _: [theirs.squeeze(1)], lambda ours, _: ours[0].unsqueeze(1))
"""Conversion for a vector that the file stores as a matrix with one column."""


def _n_groups(layer: LayerConfig | None) -> int:
    assert layer is not None, "the number of groups is needed"
    mixer = layer.mixer
    assert isinstance(mixer, Mamba2)
    return mixer.n_groups


GROUPS = Conversion(
    lambda theirs, _: [theirs.flatten()], lambda ours, layer: ours[0].unflatten(0, (_n_groups(layer), -1))
)
"""Conversion for a vector that the file stores as a matrix with one row per group of the mixer."""

MAMBA2_MIXER = [
    *linear(f"{LAYER}.attn_norm", "layers.{i}.mixer_norms.before"),
    *linear(f"{LAYER}.ssm_in", IN, IN_PARTS),
    Row(f"{LAYER}.ssm_conv1d.weight", "layers.{i}.mixer.conv.weight", ONE_CHANNEL),
    Row(f"{LAYER}.ssm_conv1d.bias", "layers.{i}.mixer.conv.bias"),
    Row(f"{LAYER}.ssm_dt.bias", "layers.{i}.mixer.dt_bias"),
    Row(f"{LAYER}.ssm_a", "layers.{i}.mixer.A_log", then(ONE_COLUMN, DECAY)),
    Row(f"{LAYER}.ssm_d", "layers.{i}.mixer.D", ONE_COLUMN),
    Row(f"{LAYER}.ssm_norm.weight", "layers.{i}.mixer.norm.weight", GROUPS),
    Row(f"{LAYER}.ssm_out.weight", "layers.{i}.mixer.out.weight"),
]
"""Weight mapping for the mixer of Mamba 2, and for the norm before it."""

SHORT_CONV = [
    *linear(f"{LAYER}.attn_norm", "layers.{i}.mixer_norms.before"),
    *linear(f"{LAYER}.shortconv.in_proj", CONV_IN, THIRDS, bias=False),
    Row(f"{LAYER}.shortconv.conv.weight", "layers.{i}.mixer.conv.weight", ONE_CHANNEL),
    Row(f"{LAYER}.shortconv.out_proj.weight", "layers.{i}.mixer.out.weight"),
]
"""Weight mapping for the gated short convolution of LFM2, and for the norm before it."""

FALCON_H1_NORMS = [
    *linear(f"{LAYER}.attn_norm", "layers.{i}.attention_norms.before"),
    Row(f"{LAYER}.ffn_norm", "layers.{i}.mlp_norms.before.weight"),
    *linear("output_norm", "norm"),
]
"""Weight mapping for Falcon-H1's norms. The name of the norm before the MLP has no suffix."""

BIASES = [only("mixer.conv_bias", True), only("mixer.in_bias", False), only("mixer.out_bias", False)]
MAMBA_LIMITS: list[Limit] = [inner_width, *BIASES]
MAMBA2_OF_ANY_WIDTH = [
    *BIASES, state_divides_width, only("mixer.dt_min", 0.0), only("mixer.dt_max", None),
    only("mixer.norm.gate", "before"),
]  # fmt: skip
MAMBA2_LIMITS = [inner_width, *MAMBA2_OF_ANY_WIDTH]


def _have_attention(header: Header) -> list[bool]:
    """Return, for each layer, whether it has attention. The others have no key/value heads."""
    return [n > 0 for n in header.per_layer("attention.head_count_kv", header.keys["attention.head_count"])]


def _mamba2_keys(header: Header) -> Raw:
    """Return the values of Mamba 2. llama.cpp stores the number of heads as the rank of dt."""
    keys = header.keys
    width, heads = keys.get("ssm.inner_size", 0), keys.get("ssm.time_step_rank", 1)
    return {"num_heads": heads, "head_dim": width // heads, "expand": width / keys["embedding_length"]}


def _mamba2_keys_of_hybrid(header: Header) -> Raw:
    """Return the values of Mamba 2 by the keys that a model with attention has for them."""
    mixer = _mamba2_keys(header)
    return {"mamba_n_heads": mixer["num_heads"], "mamba_d_head": mixer["head_dim"], "mamba_expand": mixer["expand"]}


def _jamba_keys(header: Header) -> Raw:
    """Return the values of Jamba. The layers with experts are those with a router."""
    keys = header.keys
    have_experts = [f"blk.{i}.ffn_gate_inp.weight" in header.tensors for i in range(keys["block_count"])]
    expand = {"mamba_expand": keys.get("ssm.inner_size", 0) // keys["embedding_length"]}
    return {**ATTENTION_LAYERS.keys(_have_attention(header)), **EXPERT_LAYERS.keys(have_experts), **expand}


def _idle_in_jamba(keys: Raw) -> frozenset[str]:
    """Return the keys for the number of experts if it is 1. Without a router, llama.cpp computes a dense layer."""
    return frozenset({"expert_count", "expert_used_count"} if keys.get("expert_count") == 1 else ())


def _idle_in_granite(keys: Raw) -> frozenset[str]:
    has_rope, has_experts = keys.get("rope.scaling.finetuned", True), keys.get("expert_count")
    rope_keys = {key for key in keys if key.startswith("rope.") and key != "rope.scaling.finetuned"}
    return frozenset((set() if has_rope else rope_keys) | (set() if has_experts else {SHARED_WIDTH}))


def _granite_hybrid_keys(header: Header) -> Raw:
    """Return the values of Granite 4. If `rope.scaling.finetuned` is false, the model has no RoPE."""
    keys = header.keys
    has_experts = bool(keys.get("expert_count"))
    return {
        "layer_types": [FULL if is_full else LINEAR for is_full in _have_attention(header)],
        "position_embedding_type": "rope" if keys.get("rope.scaling.finetuned", True) else "nope",
        "num_local_experts": keys.get("expert_count", 0),
        "shared_intermediate_size": keys.get(SHARED_WIDTH if has_experts else DENSE_WIDTH),
        **_mamba2_keys_of_hybrid(header),
    }


def _bamba_keys(header: Header) -> Raw:
    """Return the values of Bamba."""
    full = [i for i, is_full in enumerate(_have_attention(header)) if is_full]
    return {"attn_layer_indices": full, **_mamba2_keys_of_hybrid(header)}


def _lfm2_keys(header: Header) -> Raw:
    """Return the values of LFM2. The width of the MLP in the file is the final one."""
    types = [FULL if is_full else CONV for is_full in _have_attention(header)]
    return {
        "layer_types": types, "intermediate_size": header.keys[DENSE_WIDTH],
        "block_auto_adjust_ff_dim": False,
    }  # fmt: skip


def _lfm2moe_keys(header: Header) -> Raw:
    """Return the values of LFM2 with experts. llama.cpp always normalizes the experts' weights, without a factor."""
    types = [FULL if is_full else CONV for is_full in _have_attention(header)]
    keys = {"num_dense_layers": "leading_dense_block_count", "intermediate_size": DENSE_WIDTH}
    return {"layer_types": types, **{name: header.keys.get(key, 0) for name, key in keys.items()}}


def _add_lfm2moe(writer: "GGUFWriter", config: ModelConfig) -> None:
    writer.add_leading_dense_block_count(n_dense(config))
    add_sigmoid(writer, config)


def _falcon_h1_keys(header: Header) -> Raw:
    """Return the values of Falcon-H1. Its factors are in the weights, see `_falcon_h1_factors`."""
    return {
        **_mamba2_keys_of_hybrid(header),
        "mamba_d_ssm": header.keys.get("ssm.inner_size"),
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in header.tensors,
        "mamba_norm_before_gate": False,
    }


def _falcon_h1_factors(config: ModelConfig) -> dict[str, float]:
    """Return the factors by the parameter that they multiply in the file, because it has no keys for them."""
    model = resolve(config)
    assert isinstance(model.embedding.scale, float), "resolved"
    assert isinstance(model.head.scale, float), "resolved"
    factors = {"embedding.weight": model.embedding.scale, "head.weight": model.head.scale}
    for i, layer in enumerate(layer_configs(config)):
        factors[f"layers.{i}.attention.out.weight"] = layer.block.attention_multiplier
        factors[f"layers.{i}.mixer.out.weight"] = layer.block.mixer_multiplier
        factors[f"layers.{i}.mlp.down.weight"] = layer.block.mlp_multiplier
    return factors


def _add_granite_hybrid(writer: "GGUFWriter", config: ModelConfig) -> None:
    add_granite_scales(writer, config)
    writer.add_rope_scaling_finetuned(resolve(config).position.kind == "rope")  # llama.cpp's switch for RoPE


def _add_rope(writer: "GGUFWriter", _config: ModelConfig) -> None:
    writer.add_rope_scaling_finetuned(True)  # llama.cpp's switch for RoPE


ONLY_MIXERS = [*AROUND, *linear("output_norm", "norm")]

RECURRENT: Sequence[GGUFArchitecture] = (
    GGUFArchitecture("mamba", "mamba", [*ONLY_MIXERS, *MAMBA], MAMBA_LIMITS),
    GGUFArchitecture("mamba2", "mamba2", [*ONLY_MIXERS, *MAMBA2_MIXER], MAMBA2_LIMITS, read_more=_mamba2_keys),
    GGUFArchitecture(
        "jamba", "jamba", [*AROUND, *separate(), *EXPERTS, *norms(), *MLP, *MAMBA],
        [SILU, *MAMBA_LIMITS, some_attention, no_biases, square, NOT_NORMALIZED], read_more=_jamba_keys,
        idle=_idle_in_jamba,
    ),
    GGUFArchitecture(
        "granitehybrid", "granitemoehybrid",
        [*AROUND, *separate(ADJACENT_PAIRS), *EXPERTS, *norms(), *MLP, *MAMBA2_MIXER],
        [SILU, ANY_SCALING, *MAMBA2_LIMITS, some_attention, no_biases, square, NORMALIZED],
        read_more=_granite_hybrid_keys, write_more=_add_granite_hybrid, idle=_idle_in_granite,
    ),
    GGUFArchitecture(
        "granitehybrid", "bamba", [*AROUND, *separate(ADJACENT_PAIRS), *norms(), *MLP, *MAMBA2_MIXER],
        [SILU, ANY_SCALING, *MAMBA2_LIMITS, some_attention, no_biases, square],
        read_more=_bamba_keys, write_more=_add_rope, belongs=lacks("embedding_scale"),
    ),
    GGUFArchitecture(
        "lfm2", "lfm2", [*AROUND, *separate(), *MLP, *norms(last="token_embd_norm"), *SHORT_CONV],
        [SILU, ANY_SCALING, only("mixer.bias", False), some_attention, square], read_more=_lfm2_keys,
    ),
    GGUFArchitecture(
        "lfm2moe", "lfm2_moe",
        [*AROUND, *separate(), *MLP, *EXPERTS, CORRECTION, *norms(last="token_embd_norm"), *SHORT_CONV],
        [SILU, ANY_SCALING, only("mixer.bias", False), some_attention, square, TIED, dense_first, NORMALIZED,
         only("mlp.router.factor", 1.0), corrected],
        read_more=_lfm2moe_keys, write_more=_add_lfm2moe,
    ),
    GGUFArchitecture(
        "falcon-h1", "falcon_h1", [*AROUND, *separate(), *MLP, *FALCON_H1_NORMS, *MAMBA2_MIXER],
        [SILU, ANY_SCALING, *MAMBA2_OF_ANY_WIDTH, no_biases], read_more=_falcon_h1_keys, factors=_falcon_h1_factors,
    ),
)  # fmt: skip
