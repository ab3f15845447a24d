"""The llama.cpp architectures in which layers are mixtures of experts.

The weights of the chosen experts are divided by their sum. If the sum is below 2^-14, llama.cpp divides by 2^-14. With
sigmoid scores, this needs logits below -9 for all chosen experts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.exchange.gguf.architecture import GGUFArchitecture, Header, always_idle, has
from archlab.exchange.gguf.limits import (
    ALL_MIXTURES,
    ANY_SCALING,
    NO_OUT_BIAS,
    NORMALIZED,
    NOT_NORMALIZED,
    SILU,
    all_kv_heads,
    dense_first,
    n_dense,
    no_biases,
    no_groups,
    no_window,
    one_number_of_experts,
    only,
    positions_except_every,
    scalings,
    shared_expert,
    square,
    windows_except_every,
)
from archlab.exchange.gguf.settings import add_granite_scales, first_mixture
from archlab.exchange.gguf.tensors import (
    ADJACENT_PAIRS,
    AROUND,
    CORRECTION,
    DENSE_WIDTH,
    EXPERT_WIDTH,
    EXPERTS,
    FUSED,
    LAYER,
    MLP,
    SHARED_WIDTH,
    norms,
    separate,
)
from archlab.hf.weight_map import linear

if TYPE_CHECKING:
    from gguf import GGUFWriter


def _mixture(*, is_normalized: bool) -> Callable[[Header], Raw]:
    """Return the function that reads a model whose layers are all mixtures. The width of a dense MLP has no effect.

    llama.cpp fixes for each architecture whether the weights of the chosen experts are divided by their sum.
    """

    def read_more(header: Header) -> Raw:
        return {"norm_topk_prob": is_normalized, "intermediate_size": header.keys.get(EXPERT_WIDTH)}

    return read_more


def add_router(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Write the number of dense layers, and the settings of the router and the shared expert."""
    from gguf import ExpertGatingFuncType

    mixture = first_mixture(layer_configs(config))
    assert mixture is not None, "an architecture of mixtures"
    assert mixture.d_ff is not None, "resolved"
    shared = mixture.shared.d_ff or 0 if mixture.shared else 0
    writer.add_leading_dense_block_count(n_dense(config))
    writer.add_expert_shared_count(shared // mixture.d_ff)
    writer.add_expert_weights_scale(mixture.router.factor)
    writer.add_expert_weights_norm(mixture.router.normalise)
    writer.add_expert_gating_func(ExpertGatingFuncType[mixture.router.score.upper()])


def add_sigmoid(writer: "GGUFWriter", _config: ModelConfig) -> None:
    from gguf import ExpertGatingFuncType

    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


def _first_dense(dense_key: str, shared_key: str, **more: Any) -> Callable[[Header], Raw]:
    """Return the function that reads the number of dense layers and their width, and the number of shared experts.

    `dense_key` and `shared_key` are the config.json keys of the two numbers. `more` contains other config.json keys.
    """

    def read_more(header: Header) -> Raw:
        keys: Mapping[str, str] = {
            dense_key: "leading_dense_block_count", shared_key: "expert_shared_count",
            "intermediate_size": DENSE_WIDTH,
        }  # fmt: skip
        return {name: header.keys.get(key, 0) for name, key in keys.items()} | more

    return read_more


def _add_steps(writer: "GGUFWriter", config: ModelConfig) -> None:
    """Write the number of dense layers, and 1 as the step. llama.cpp loads experts in all other layers anyway."""
    writer.add_leading_dense_block_count(n_dense(config))
    writer.add_interleave_moe_layer_step(1)


def _ernie(header: Header) -> Raw:
    keys, width = header.keys, header.keys.get(EXPERT_WIDTH)
    return {
        "moe_layer_start_index": keys.get("leading_dense_block_count"),
        "moe_layer_interval": keys.get("interleave_moe_layer_step"),
        "moe_num_shared_experts": keys.get(SHARED_WIDTH, 0) // width if width else 0,
        "intermediate_size": keys[DENSE_WIDTH],
    }


def _dbrx(header: Header) -> Raw:
    keys, theta = header.keys, header.rope["rope_theta"]
    kv_heads = keys.get("attention.head_count_kv", keys["attention.head_count"])
    return {
        "attn_config": {"kv_n_heads": kv_heads, "clip_qkv": keys.get("attention.clamp_kqv"), "rope_theta": theta},
        "ffn_config": {
            "ffn_hidden_size": keys[DENSE_WIDTH], "moe_num_experts": keys.get("expert_count"),
            "moe_top_k": keys.get("expert_used_count"),
        },
    }  # fmt: skip


def _glm4(header: Header) -> Raw:
    return {
        **_first_dense("first_k_dense_replace", "n_shared_experts")(header),
        "use_qk_norm": header.has_qk_norm,
    }


MIXTRAL_ROWS = [*AROUND, *separate(ADJACENT_PAIRS), *EXPERTS, *norms()]
MOE_ROWS = [*AROUND, *separate(), *EXPERTS, *norms()]
ROWS = [*AROUND, *separate(), *MLP, *EXPERTS, CORRECTION]

MIXTURES: Sequence[GGUFArchitecture] = (
    GGUFArchitecture(
        "llama", "mixtral", MIXTRAL_ROWS, [SILU, ANY_SCALING, no_window, NORMALIZED, ALL_MIXTURES],
        belongs=has("expert_count"),
    ),
    GGUFArchitecture(
        "qwen2moe", "qwen2_moe", MOE_ROWS,
        [SILU, ANY_SCALING, no_window, square, ALL_MIXTURES, NOT_NORMALIZED, shared_expert],
        needs_output=True, read_more=_mixture(is_normalized=False), idle=always_idle(DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "qwen3moe", "qwen3_moe", MOE_ROWS, [SILU, ANY_SCALING, no_window, NO_OUT_BIAS, ALL_MIXTURES, NORMALIZED],
        read_more=_mixture(is_normalized=True), idle=always_idle(DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "olmoe", "olmoe", MOE_ROWS,
        [SILU, ANY_SCALING, no_biases, square, NOT_NORMALIZED, all_kv_heads], needs_output=True,
        read_more=lambda _: {"norm_topk_prob": False},
    ),
    GGUFArchitecture(
        "granitemoe", "granitemoe", MIXTRAL_ROWS, [SILU, ANY_SCALING, no_biases, NORMALIZED],
        write_more=add_granite_scales,
    ),
    GGUFArchitecture(
        "granitemoe", "granitemoeshared", MIXTRAL_ROWS, [SILU, ANY_SCALING, no_biases, NORMALIZED, shared_expert],
        write_more=add_granite_scales, belongs=has(SHARED_WIDTH),
    ),
    GGUFArchitecture(
        "dots1", "dots1", [*ROWS, *norms()],
        [SILU, ANY_SCALING, no_window, no_biases, no_groups, dense_first, shared_expert, all_kv_heads],
        needs_output=True, read_more=_first_dense("first_k_dense_replace", "n_shared_experts", sliding_window=None),
        write_more=add_router, idle=always_idle(SHARED_WIDTH, DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "hunyuan-moe", "hunyuan_v1_moe", [*ROWS, *norms()],
        [SILU, ANY_SCALING, no_window, no_biases, NORMALIZED, one_number_of_experts],
        idle=always_idle("expert_shared_count"),
    ),
    GGUFArchitecture(
        "exaone-moe", "exaone_moe", [*ROWS, *norms()],
        [SILU, scalings(), windows_except_every(4), positions_except_every(4), no_groups, dense_first, shared_expert],
        needs_output=True, read_more=_first_dense("first_k_dense_replace", "num_shared_experts"),
        write_more=add_router, idle=always_idle(DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "glm4moe", "glm4_moe", [*ROWS, *norms(before_mlp="post_attention_norm")],
        [SILU, ANY_SCALING, no_window, no_groups, dense_first, shared_expert],
        read_more=_glm4, write_more=add_router, idle=always_idle(SHARED_WIDTH, DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "glm4moe", "solar_open", [*ROWS, *norms(before_mlp="post_attention_norm")],
        [SILU, ANY_SCALING, no_groups, shared_expert], read_more=_glm4, write_more=add_router,
        idle=always_idle(SHARED_WIDTH, DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "minimax-m2", "minimax_m2", [*AROUND, *separate(), *EXPERTS, CORRECTION, *norms()],
        [SILU, ANY_SCALING], needs_output=True, write_more=add_sigmoid,
    ),
    GGUFArchitecture(
        "afmoe", "afmoe", [*ROWS, *linear(f"{LAYER}.attn_gate", "layers.{i}.attention.gate"), *norms()],
        [SILU, scalings(), windows_except_every(4), positions_except_every(4), no_biases, dense_first, shared_expert,
         only("embedding.scale", "sqrt_d_model")],
        read_more=_first_dense("num_dense_layers", "num_shared_experts", mup_enabled=True),
        write_more=add_router, idle=always_idle(SHARED_WIDTH, DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "ernie4_5-moe", "ernie4_5_moe", [*ROWS, *norms()],
        [SILU, scalings(), no_biases, only("head.bias", False), NORMALIZED, dense_first],
        read_more=_ernie, write_more=_add_steps, idle=always_idle("expert_shared_count", DENSE_WIDTH),
    ),
    GGUFArchitecture(
        "dbrx", "dbrx", [*AROUND, *FUSED, *EXPERTS, *norms(before_mlp="attn_output_norm")],
        [SILU, ANY_SCALING, square, NORMALIZED], read_more=_dbrx,
        idle=always_idle(EXPERT_WIDTH),
    ),
)  # fmt: skip
