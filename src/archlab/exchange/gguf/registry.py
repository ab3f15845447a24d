"""The llama.cpp architectures that archlab can read and write.

An architecture names a model family, maps the tensors of a GGUF file to archlab's parameters, and lists settings that
llama.cpp fixes although the published code lets the user choose them. To add one, write one entry.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from archlab.config.core.merge import Raw
from archlab.config.core.yaml_text import read_yaml, to_yaml_line
from archlab.config.layers import layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.architecture import GGUFArchitecture, Header, always_idle, has
from archlab.exchange.gguf.gemma4 import GEMMA4
from archlab.exchange.gguf.latent import LATENT
from archlab.exchange.gguf.limits import (
    ANY_SCALING,
    GELU,
    NO_OUT_BIAS,
    NO_QKV_BIAS,
    RELU_SQUARED,
    SILU,
    TIED,
    UNCAPPED,
    YARN_OF_SIZE_1,
    all_biases,
    all_kv_heads,
    capped,
    every_other,
    local_unscaled,
    no_biases,
    no_window,
    one_theta,
    only,
    positions_except_every,
    qk_norm_if_deep,
    scale,
    scalings,
    some_window,
    square,
    windows_except_every,
    windows_if_deep,
)
from archlab.exchange.gguf.llama4 import LLAMA4
from archlab.exchange.gguf.mixtures import MIXTURES
from archlab.exchange.gguf.numbers import XIELU
from archlab.exchange.gguf.recurrent import RECURRENT
from archlab.exchange.gguf.settings import add_granite_scales
from archlab.exchange.gguf.tensors import (
    ADJACENT_PAIRS,
    AROUND,
    FALCON_NORMS,
    FUSED,
    FUSED_MLP,
    MLP,
    ONE_MORE,
    norms,
    separate,
)
from archlab.families.ministral3 import BETA
from archlab.hf.layer_types import FULL, SLIDING
from archlab.hf.weight_map import Row

if TYPE_CHECKING:
    from gguf import GGUFWriter


def _add_logit_scale(writer: "GGUFWriter", config: ModelConfig) -> None:
    writer.add_logit_scale(resolve(config).readout.scale)


def _olmo3(header: Header) -> Raw:
    local = {"rope_type": "default", "rope_theta": header.rope["rope_theta"]}
    return {"rope_parameters": {FULL: header.whole_rope, SLIDING: local}, **_windows(header)}


def _windows(header: Header) -> Raw:
    """Return the layer types, if the file contains them. Otherwise llama.cpp assumes the published pattern."""
    slides = header.keys.get("attention.sliding_window_pattern")
    return {"layer_types": [SLIDING if local else FULL for local in slides]} if isinstance(slides, list) else {}


def _gemma(special_depth: int) -> Callable[[Header], Raw]:
    """Return the function that reads the scale of Gemma 2 and 3, and the windows. See `limits.scale`."""

    def read_more(header: Header) -> Raw:
        keys = header.keys
        is_special = keys["block_count"] == special_depth
        divisor = keys["embedding_length"] // keys["attention.head_count"] if is_special else header.head_dim
        return {"query_pre_attn_scalar": divisor, **_windows(header)}

    return read_more


def _gemma3(header: Header) -> Raw:
    """Return the values of Gemma 3. A file without a window belongs to a model whose layers are all full."""
    keys = header.keys
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
    full = {} if keys.get("attention.sliding_window") else {"layer_types": [FULL] * keys["block_count"]}
    ropes = {"rope_parameters": {FULL: header.rope, SLIDING: local}}
    return {**_gemma(special_depth=62)(header), **full, **ropes}


def _stablelm(header: Header) -> Raw:
    return {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in header.tensors,
        "qk_layernorm": header.has_qk_norm,
    }


def _falcon(header: Header) -> Raw:
    return {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in header.tensors else 1,
        "num_kv_heads": header.keys.get("attention.head_count_kv"),
    }


def _mistral3(header: Header) -> Raw:
    """Return the values of RoPE, and the coefficient by which queries grow with their position. 0 means no growth."""
    growth = header.keys.get("attention.temperature_scale", 0.0)
    mscale = {"mscale": 1.0, "mscale_all_dim": header.keys.get("rope.scaling.yarn_log_multiplier", 0.0)}
    return {"rope_parameters": {**header.whole_rope, **mscale, BETA: growth}}


def _add_growth(writer: "GGUFWriter", config: ModelConfig) -> None:
    growth = layer_configs(config)[0].multi_head.temperature
    writer.add_attn_temperature_scale(growth.beta if growth else 0.0)


LLAMA_ROWS = [*AROUND, *separate(ADJACENT_PAIRS), *MLP, *norms()]
LLAMA_LIMITS = [SILU, scalings("linear", "llama3", "yarn"), no_window]
QWEN_ROWS = [*AROUND, *separate(), *MLP, *norms()]
FUSED_ROWS = [*AROUND, *FUSED, *MLP, *norms()]
GEMMA_ROWS = [*AROUND, *separate(), *MLP, *norms(ONE_MORE)]

ALL: Sequence[GGUFArchitecture] = (
    GGUFArchitecture("llama", "llama", LLAMA_ROWS, LLAMA_LIMITS),
    GGUFArchitecture("llama", "mistral", LLAMA_ROWS, LLAMA_LIMITS),
    GGUFArchitecture("llama", "internlm3", LLAMA_ROWS, LLAMA_LIMITS),
    GGUFArchitecture(
        "mistral3", "ministral3", LLAMA_ROWS,
        [SILU, scalings("yarn", required=True), YARN_OF_SIZE_1, no_window],
        read_more=_mistral3, write_more=_add_growth, log_multiplier=lambda _: 1.0,
    ),
    GGUFArchitecture("granite", "granite", LLAMA_ROWS, LLAMA_LIMITS, write_more=add_granite_scales),
    GGUFArchitecture("qwen2", "qwen2", QWEN_ROWS, [SILU, ANY_SCALING, no_window, square]),
    GGUFArchitecture("qwen3", "qwen3", QWEN_ROWS, [SILU, ANY_SCALING, no_window, NO_OUT_BIAS]),
    GGUFArchitecture("olmo2", "olmo2", QWEN_ROWS, [SILU, ANY_SCALING, NO_OUT_BIAS, square], needs_output=True),
    GGUFArchitecture(
        "olmo2", "olmo3", QWEN_ROWS,
        [SILU, scalings("yarn"), NO_OUT_BIAS, NO_QKV_BIAS, square, some_window, local_unscaled, one_theta,
         windows_except_every(4)],
        needs_output=True, read_more=_olmo3, belongs=has("attention.sliding_window"),
    ),
    GGUFArchitecture("gemma", "gemma", GEMMA_ROWS, [GELU, ANY_SCALING, NO_OUT_BIAS, TIED]),
    GGUFArchitecture(
        "gemma2", "gemma2", GEMMA_ROWS,
        [GELU, ANY_SCALING, NO_OUT_BIAS, TIED, capped, some_window, every_other, scale(special_depth=46)],
        read_more=_gemma(special_depth=46),
    ),
    GGUFArchitecture(
        "gemma3", "gemma3_text", GEMMA_ROWS,
        [GELU, UNCAPPED, scalings("linear"), local_unscaled, NO_OUT_BIAS, scale(special_depth=62),
         windows_except_every(6, or_none=True)],
        read_more=_gemma3,
    ),
    GGUFArchitecture(
        "phi3", "phi3", [*AROUND, *FUSED, *FUSED_MLP, *norms()], [SILU, scalings("linear"), no_window, square],
    ),
    GGUFArchitecture(
        "phi2", "phi", [*QWEN_ROWS, Row("output.bias", "head.bias")],
        [GELU, ANY_SCALING, square, only("attention.qk_norm.kind", "none")], needs_output=True,
    ),
    GGUFArchitecture(
        "stablelm", "stablelm", QWEN_ROWS, [SILU, ANY_SCALING, square], needs_output=True, read_more=_stablelm,
        idle=always_idle("use_parallel_residual"),  # published files contain wrong values
    ),
    GGUFArchitecture("starcoder2", "starcoder2", QWEN_ROWS, [GELU, ANY_SCALING, no_window, square, all_biases]),
    GGUFArchitecture("gpt2", "gpt2", FUSED_ROWS, [GELU, scale()]),
    GGUFArchitecture("gptneox", "gpt_neox", FUSED_ROWS, [GELU, ANY_SCALING, all_biases], needs_output=True),
    GGUFArchitecture(
        "bloom", "bloom", FUSED_ROWS, [GELU, only("norm.placement", "pre")],
        idle=always_idle("attention.max_alibi_bias"),
    ),
    GGUFArchitecture(
        "mpt", "mpt", FUSED_ROWS, [GELU, scale()],
        read_more=lambda header: {"attn_config": {"clip_qkv": header.keys.get("attention.clamp_kqv")}},
    ),
    GGUFArchitecture(
        "falcon", "falcon", [*AROUND, *FUSED, *MLP, *FALCON_NORMS],
        [GELU, ANY_SCALING, NO_OUT_BIAS, only("position.kind", "rope"), only("block.parallel", "shared", "separate")],
        read_more=_falcon,
    ),
    GGUFArchitecture(
        "command-r", "cohere", QWEN_ROWS, [SILU, scalings(), no_biases, TIED, square, qk_norm_if_deep],
        read_more=lambda header: {"use_qk_norm": header.has_qk_norm},
        write_more=_add_logit_scale,
    ),
    GGUFArchitecture(
        "cohere2", "cohere2", QWEN_ROWS,
        [SILU, scalings(), no_biases, TIED, square, windows_except_every(4), positions_except_every(4)],
        read_more=_windows, write_more=_add_logit_scale,
    ),
    GGUFArchitecture(
        "smollm3", "smollm3", LLAMA_ROWS, [SILU, ANY_SCALING, no_biases, no_window, positions_except_every(4)],
    ),
    GGUFArchitecture("glm4", "glm4", [*AROUND, *separate(), *FUSED_MLP, *norms()], [SILU, scalings()]),
    GGUFArchitecture(
        "nemotron", "nemotron", GEMMA_ROWS, [RELU_SQUARED, ANY_SCALING, square], needs_output=True,
    ),
    GGUFArchitecture("arcee", "arcee", LLAMA_ROWS, [RELU_SQUARED, scalings("linear", "llama3", "yarn"), no_biases]),
    GGUFArchitecture("ernie4_5", "ernie4_5", QWEN_ROWS, [SILU, scalings(), no_biases]),
    GGUFArchitecture(
        "apertus", "apertus", QWEN_ROWS,
        [only("mlp.activation", "xielu"), scalings("linear", "llama3", "yarn"), no_biases],
        numbers=XIELU, needs_output=True,
    ),
    GGUFArchitecture(
        "seed_oss", "seed_oss", [*AROUND, *separate(), *MLP, *norms(before_mlp="post_attention_norm")],
        [SILU, ANY_SCALING, NO_OUT_BIAS, only("mlp.bias", False)],
    ),
    GGUFArchitecture(
        "starcoder", "gpt_bigcode", FUSED_ROWS, [GELU, scale(), only("attention.n_kv_heads", 1)],
        read_more=lambda _: {"multi_query": True},
    ),
    GGUFArchitecture(
        "olmo", "olmo", LLAMA_ROWS, [SILU, ANY_SCALING, square, no_biases],
        read_more=lambda header: {"clip_qkv": header.keys.get("attention.clamp_kqv")},
    ),
    GGUFArchitecture("jais2", "jais2", QWEN_ROWS, [RELU_SQUARED, ANY_SCALING, square, all_biases, all_kv_heads]),
    GGUFArchitecture(
        "exaone4", "exaone4", QWEN_ROWS, [SILU, scalings("llama3"), no_biases, square, windows_if_deep],
        read_more=lambda header: {} if header.keys.get("attention.sliding_window") else {"sliding_window": None},
    ),
    GGUFArchitecture(
        "hunyuan-dense", "hunyuan_v1_dense", QWEN_ROWS, [SILU, ANY_SCALING, no_window, no_biases],
    ),
    *GEMMA4,
    *LATENT,
    LLAMA4,
    *MIXTURES,
    *RECURRENT,
)  # fmt: skip
"""All architectures. Several may have the same name. The first of them reads the files that no `belongs` recognizes."""

ARCHITECTURES: Mapping[str, GGUFArchitecture] = {each.family: each for each in ALL}
"""Architecture by family (`model_type`)."""


@cache
def refused() -> Mapping[str, str]:
    """Return the reasons, by `model_type`, why archlab does not write some families that llama.cpp knows."""
    return read_yaml(resources.files("archlab.exchange.gguf") / "refused.yaml")["refused"]


def find_architecture(family: str) -> GGUFArchitecture:
    """Return the llama.cpp architecture that runs the models of a family. Raise UserError if there is none."""
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    if family in refused():
        raise UserError(f"archlab cannot write the family {family} for llama.cpp, because {refused()[family]}")
    raise UserError(f"archlab cannot write the family {family} for llama.cpp; allowed: {', '.join(ARCHITECTURES)}")


def architecture_of(values: Mapping[str, Any], where: str) -> GGUFArchitecture:
    """Return the architecture of a file with these keys. Raise UserError if archlab cannot read it."""
    name = values.get("general.architecture")
    named = [each for each in ALL if each.name == name]
    if not named:
        names = ", ".join(dict.fromkeys(each.name for each in ALL))
        problem = "missing" if name is None else f"is {to_yaml_line(name)}"
        raise UserError(f"{where}: general.architecture {problem}; archlab imports only {names}")
    keys = {key.removeprefix(f"{name}."): value for key, value in values.items()}
    return next((each for each in named if each.belongs and each.belongs(keys)), named[0])
