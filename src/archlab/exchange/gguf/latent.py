"""The llama.cpp architectures with latent attention.

A file contains the projection from the narrow vector to keys and values as two tensors, because llama.cpp multiplies
queries by the part for keys, and outputs by the part for values.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archlab.config.components.latent_attention import Latent
from archlab.config.core.merge import Raw
from archlab.config.layers import LayerConfig, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.architecture import GGUFArchitecture, Header, lacks
from archlab.exchange.gguf.limits import (
    SILU,
    YARN_OF_SIZE_1,
    dense_first,
    no_biases,
    no_groups,
    only,
    scalings,
    shared_expert,
)
from archlab.exchange.gguf.mixtures import add_router
from archlab.exchange.gguf.settings import first_mixture
from archlab.exchange.gguf.tensors import AROUND, CORRECTION, DENSE_WIDTH, EXPERTS, LAYER, MLP, SHARED_WIDTH, norms
from archlab.hf.fields import lookup
from archlab.hf.latent import LatentRope, keeps_queries, narrows_queries
from archlab.hf.weight_map import Conversion, Row

if TYPE_CHECKING:
    from gguf import GGUFWriter

SIGMOID = 2
"""Value of `expert_gating_func` for a sigmoid router."""

REQUIRED = (
    "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla", "rope.dimension_count",
)  # fmt: skip
"""Keys that determine the widths of latent attention."""


def latent_of(layer: LayerConfig | None) -> Latent:
    assert layer is not None, "the widths of attention are needed"
    assert isinstance(layer.attention, Latent), "an architecture with latent attention"
    return layer.attention


def _heads(rows: Tensor, layer: LayerConfig | None) -> tuple[Tensor, Tensor]:
    """Return the rows of each head for keys and for values: [heads, nope_dim, kv_rank] and [heads, v_dim, kv_rank]."""
    widths = [latent_of(layer).nope_dim, latent_of(layer).v_dim or 0]
    keys, values = rows.unflatten(0, (latent_of(layer).n_heads, -1)).split(widths, dim=1)
    return keys, values


def _only_keys(theirs: Tensor, layer: LayerConfig | None) -> list[Tensor]:
    """Return the projection with zeros in the rows for values. `read_gguf` adds it to the one of `_only_values`."""
    no_values = theirs.new_zeros(len(theirs), latent_of(layer).v_dim or 0, theirs.shape[1])
    return [torch.cat((theirs.transpose(1, 2), no_values), dim=1).flatten(0, 1)]


def _only_values(theirs: Tensor, layer: LayerConfig | None) -> list[Tensor]:
    """Return the projection with zeros in the rows for keys."""
    no_keys = theirs.new_zeros(len(theirs), latent_of(layer).nope_dim, theirs.shape[2])
    return [torch.cat((no_keys, theirs), dim=1).flatten(0, 1)]


_ATTENTION = "layers.{i}.attention"
ROWS = [
    *AROUND,
    Row(f"{LAYER}.attn_q_a.weight", f"{_ATTENTION}.q_down.weight"),
    Row(f"{LAYER}.attn_q_a_norm.weight", f"{_ATTENTION}.q_norm.weight"),
    Row(f"{LAYER}.attn_q_b.weight", f"{_ATTENTION}.q_up.weight", when=narrows_queries),
    Row(f"{LAYER}.attn_q.weight", f"{_ATTENTION}.q_up.weight", when=keeps_queries),
    Row(f"{LAYER}.attn_kv_a_mqa.weight", f"{_ATTENTION}.kv_down.weight"),
    Row(f"{LAYER}.attn_kv_a_norm.weight", f"{_ATTENTION}.kv_norm.weight"),
    Row(
        f"{LAYER}.attn_k_b.weight", f"{_ATTENTION}.kv_up.weight",
        Conversion(_only_keys, lambda ours, layer: _heads(ours[0], layer)[0].transpose(1, 2)),
    ),
    Row(
        f"{LAYER}.attn_v_b.weight", f"{_ATTENTION}.kv_up.weight",
        Conversion(_only_values, lambda ours, layer: _heads(ours[0], layer)[1]),
    ),
    Row(f"{LAYER}.attn_output.weight", f"{_ATTENTION}.out.weight"),
    *MLP, *EXPERTS, CORRECTION, *norms(),
]  # fmt: skip
"""Weight mapping. Two tensors of the file, `attn_k_b` and `attn_v_b`, contain the two parts of `kv_up`."""


def one_epsilon(model: ModelConfig) -> Iterator[str]:
    """Check that the norms of narrow vectors have the same epsilon as the others, because a file contains only one."""
    own, other = latent_of(layer_configs(model)[0]).norm_eps, layer_configs(model)[0].norm
    if own != (eps := getattr(other, "eps", None)):
        yield f"model.norm.eps is {eps}; allowed: model.attention.norm_eps ({own})"


def wide_queries_if_lite(model: ModelConfig) -> Iterator[str]:
    """Check that models of these depths compute queries directly from the residual stream, as llama.cpp assumes."""
    is_lite = model.n_layers in (26, 27) or (model.n_layers == 48 and model.vocab_size == 128256)
    if is_lite and (rank := latent_of(layer_configs(model)[0]).q_rank) is not None:
        yield f"model.attention.q_rank is {rank} in a model of {model.n_layers} layers; allowed: null"


def scale_of_yarn(model: ModelConfig) -> Iterator[str]:
    """Check that YaRN also changes the scale of scores, as llama.cpp assumes."""
    layer = layer_configs(model)[0]
    if lookup(layer, "position.scaling.kind") == "yarn" and _mscale(model) <= 0:
        latent = latent_of(layer)
        least = latent.query_width**-0.5
        yield f"model.attention.scale is {latent.scale}; with YaRN, it must be larger than {least:.4g} (mscale_all_dim)"


def _mscale(model: ModelConfig) -> float:
    """Return the key `mscale_all_dim` of a config.json, or 0 if it does not have the key."""
    hf: Raw = {}
    LatentRope().write(model, hf)
    return hf.get("rope_parameters", {}).get("mscale_all_dim", 0.0)


def _log_multiplier(model: ModelConfig) -> float:
    """Return a tenth of `mscale_all_dim`, because llama.cpp multiplies the key by 10."""
    return _mscale(model) / 10


def _add_experts(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Write the settings of the mixture, and the groups of experts."""
    add_router(writer, config)
    mixture = first_mixture(layer_configs(config))
    if mixture is not None and mixture.router.groups is not None:
        writer.add_expert_group_count(mixture.router.groups.n)
        writer.add_expert_group_used_count(mixture.router.groups.kept)


def _add_dense(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Write the keys that llama.cpp requires although the model has no experts."""
    writer.add_leading_dense_block_count(config.n_layers)
    writer.add_expert_feed_forward_length(layer_configs(config)[0].dense.d_ff or 0)
    writer.add_expert_shared_count(0)


def _latent(header: Header) -> Raw:
    """Return the values of attention. Raise UserError for an old file, whose projection of keys and values is one
    tensor."""
    keys = header.keys
    if "blk.0.attn_kv_b.weight" in header.tensors:
        raise UserError(
            "the file has tensors attn_kv_b; archlab imports only files that have attn_k_b and attn_v_b instead"
        )
    if missing := [key for key in REQUIRED if key not in keys]:
        raise UserError(f"{', '.join(f'deepseek2.{key}' for key in missing)} missing")
    rope = keys["rope.dimension_count"]
    mscale = round(10 * keys.get("rope.scaling.yarn_log_multiplier", 0.0), 6)
    scaling = {"mscale": mscale, "mscale_all_dim": mscale} if header.rope["rope_type"] == "yarn" else {}
    return {
        "num_key_value_heads": keys["attention.head_count"],
        "q_lora_rank": keys.get("attention.q_lora_rank") or None,
        "kv_lora_rank": keys["attention.kv_lora_rank"],
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": keys["attention.key_length_mla"] - rope,
        "v_head_dim": keys["attention.value_length_mla"],
        "intermediate_size": keys[DENSE_WIDTH],
        "rope_parameters": {**header.whole_rope, **scaling},
    }


def _with_experts(header: Header) -> Raw:
    keys = header.keys
    n, kept = keys.get("expert_group_count", 1), keys.get("expert_group_used_count", 1)
    return {
        **_latent(header),
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "n_shared_experts": keys.get("expert_shared_count", 0),
        "norm_topk_prob": keys.get("expert_weights_norm", False),
        "n_group": n,
        "topk_group": kept,
    }


def _idle_with_experts(keys: Mapping[str, Any]) -> frozenset[str]:
    """Return two widths, and the keys of the router that the file lacks. llama.cpp's defaults for these are right."""
    lacking = {"expert_gating_func", "expert_weights_norm"} - keys.keys()
    return frozenset({SHARED_WIDTH, DENSE_WIDTH} | lacking)


LIMITS = [
    SILU, scalings("yarn"), YARN_OF_SIZE_1, scale_of_yarn, no_biases, only("position.pairing", "interleaved"),
    one_epsilon, wide_queries_if_lite,
]  # fmt: skip

LATENT: Sequence[GGUFArchitecture] = (
    GGUFArchitecture(
        "deepseek2", "deepseek_v2", ROWS, [*LIMITS, dense_first, shared_expert, no_groups],
        read_more=_with_experts, write_more=_add_experts, idle=_idle_with_experts, log_multiplier=_log_multiplier,
    ),
    GGUFArchitecture(
        "deepseek2", "deepseek_v3", ROWS, [*LIMITS, dense_first, shared_expert],
        read_more=_with_experts, write_more=_add_experts, idle=_idle_with_experts, log_multiplier=_log_multiplier,
        belongs=lambda keys: keys.get("expert_gating_func") == SIGMOID,
    ),
    GGUFArchitecture(
        "deepseek2", "youtu", ROWS, LIMITS, read_more=_latent, write_more=_add_dense,
        log_multiplier=_log_multiplier, belongs=lacks("expert_count"),
    ),
)  # fmt: skip
