"""The llama.cpp architectures that archlab can read and write.

An architecture names a model family, maps the tensors of a GGUF file to archlab's parameters, and lists settings that
llama.cpp fixes although the published code lets the user choose them. To add one, write one entry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from archlab.config.core.merge import Raw
from archlab.config.layers import layer_configs, resolve
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.limits import (
    ALL_MIXTURES,
    ANY_SCALING,
    GELU,
    NO_OUT_BIAS,
    NO_QKV_BIAS,
    NORMALIZED,
    NOT_NORMALIZED,
    RELU_SQUARED,
    SILU,
    TIED,
    UNCAPPED,
    Limit,
    all_biases,
    all_kv_heads,
    capped,
    every_other,
    has_attention,
    hybrid,
    local_unscaled,
    no_biases,
    no_window,
    one_theta,
    only,
    positions_except_every,
    qk_norm_if_deep,
    rounded,
    scale,
    scalings,
    shared_expert,
    some_window,
    square,
    windows_except_every,
)
from archlab.exchange.gguf.recurrent import (
    ANY_WIDTH,
    FALCON_H1_NORMS,
    MAMBA2_LIMITS,
    MAMBA2_MIXER,
    MAMBA_LIMITS,
    SHORT_CONV,
    falcon_h1_factors,
    falcon_h1_keys,
    granite_hybrid_keys,
    jamba_keys,
    lfm2_keys,
    mamba2_keys,
)
from archlab.exchange.gguf.tensors import (
    ADJACENT_PAIRS,
    AROUND,
    EXPERTS,
    FALCON_NORMS,
    FUSED,
    FUSED_MLP,
    MAMBA,
    MLP,
    ONE_MORE,
    norms,
    separate,
)
from archlab.hf.layer_types import FULL, SLIDING
from archlab.hf.weight_map import Row, linear

if TYPE_CHECKING:
    from gguf import GGUFWriter


@dataclass(frozen=True)
class Header:
    """Contents of a GGUF file that describe the model."""

    keys: Raw
    """Values by key, without the prefix of the architecture."""
    tensors: Mapping[str, Any]
    """Tensors by name. Their contents are not read yet."""
    rope: Raw
    """Values of `rope_parameters` in a config.json."""

    @property
    def head_dim(self) -> int:
        return self.keys.get("attention.key_length", self.keys["embedding_length"] // self.keys["attention.head_count"])


def _nothing_read(_header: Header) -> Raw:
    return {}


def _nothing_written(_writer: "GGUFWriter", _config: ModelConfig) -> None:
    """Write no more keys."""


def _no_factors(_config: ModelConfig) -> Mapping[str, float]:
    return {}


SCALED = (
    "the GGUF file has no keys for the factors of the embedding, the logits and the branches; the weights were "
    "multiplied by them, in float32, and then rounded to the dtype of the file"
)


@dataclass(frozen=True)
class Architecture:
    """Architecture of llama.cpp, for the models of one family.

    Its forward pass is in llama.cpp's `src/models/`. Its export is in `convert_hf_to_gguf.py`.
    """

    name: str
    """Value of the GGUF key `general.architecture`."""
    family: str
    """Family (`model_type`) of the models."""
    rows: Sequence[Row]
    """Weight mapping between tensors of the GGUF file and archlab's parameters."""
    limits: Sequence[Limit]
    """Checks for features of the family that llama.cpp cannot compute."""
    needs_output: bool = False
    """Whether the file must contain the output head even if the head is tied to the embedding."""
    published: Callable[[Header], Raw] = _nothing_read
    """Function that returns keys of a config.json that do not follow from a single key of the file."""
    add_more: Callable[["GGUFWriter", ModelConfig], None] = _nothing_written
    """Function that writes keys that only this architecture reads from the file."""
    factors: Callable[[ModelConfig], Mapping[str, float]] = _no_factors
    """Function that returns the factors of parameters that the file contains as products, because it has no keys for
    the factors."""
    sign: str = ""
    """Key whose value, if it is not 0 or false, shows that a file belongs to this family and not to another with the
    same architecture. Empty for the usual family."""
    idle: frozenset[str] = field(default_factory=frozenset)
    """Keys that llama.cpp does not read for this architecture. Files may contain any value, or none."""

    def check(self, model: ModelConfig) -> list[str]:
        """Return notes on small differences between the results of archlab and llama.cpp.

        Raise a UserError that lists everything llama.cpp cannot run.
        """
        problems = [line for limit in self.limits for line in limit(model)]
        if problems:
            listed = [f"  {line}" for line in dict.fromkeys(problems)]
            raise UserError("\n".join([f"llama.cpp's {self.name} cannot run this model exactly", *listed]))
        is_scaled = any(factor != 1 for factor in self.factors(model).values())
        return [*rounded(model), *([SCALED] if is_scaled else [])]


def _add_granite_scales(writer: "GGUFWriter", config: ModelConfig) -> None:
    model = resolve(config)
    layer = next(filter(has_attention, layer_configs(config)))
    assert isinstance(model.embedding.scale, float), "resolved"
    writer.add_embedding_scale(model.embedding.scale)
    writer.add_attention_scale(layer.multi_head.scale)
    writer.add_residual_scale(layer.block.mlp_multiplier)
    writer.add_logit_scale(1 / model.readout.scale)


def _add_granite_hybrid(writer: "GGUFWriter", config: ModelConfig) -> None:
    _add_granite_scales(writer, config)
    writer.add_rope_scaling_finetuned(resolve(config).position.kind == "rope")  # llama.cpp's switch for RoPE


def _add_logit_scale(writer: "GGUFWriter", config: ModelConfig) -> None:
    writer.add_logit_scale(resolve(config).readout.scale)


def _mixture(*, is_normalized: bool) -> Callable[[Header], Raw]:
    """Return the function that reads whether the weights of the chosen experts are divided by their sum. llama.cpp has
    a fixed answer for each architecture. All layers are mixtures, so the width of a dense MLP has no effect."""

    def published(header: Header) -> Raw:
        return {"norm_topk_prob": is_normalized, "intermediate_size": header.keys.get("expert_feed_forward_length")}

    return published


def _olmo3(header: Header) -> Raw:
    local = {"rope_type": "default", "rope_theta": header.rope["rope_theta"]}
    full = {key: value for key, value in header.rope.items() if key != "partial_rotary_factor"}
    return {"rope_parameters": {FULL: full, SLIDING: local}, **_windows(header)}


def _windows(header: Header) -> Raw:
    """Return the layer types, if the file contains them. Otherwise llama.cpp assumes the published pattern."""
    slides = header.keys.get("attention.sliding_window_pattern")
    return {"layer_types": [SLIDING if local else FULL for local in slides]} if isinstance(slides, list) else {}


def _gemma(special_depth: int) -> Callable[[Header], Raw]:
    """Return the function that reads the scale of Gemma 2 and 3, and the windows. See `limits.scale`."""

    def published(header: Header) -> Raw:
        keys = header.keys
        is_special = keys["block_count"] == special_depth
        divisor = keys["embedding_length"] // keys["attention.head_count"] if is_special else header.head_dim
        return {"query_pre_attn_scalar": divisor, **_windows(header)}

    return published


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
        "qk_layernorm": "blk.0.attn_q_norm.weight" in header.tensors,
    }


def _falcon(header: Header) -> Raw:
    return {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in header.tensors else 1,
        "num_kv_heads": header.keys.get("attention.head_count_kv"),
    }


LLAMA_ROWS = [*AROUND, *separate(ADJACENT_PAIRS), *MLP, *norms()]
LLAMA_LIMITS = [SILU, scalings("linear", "llama3", "yarn"), no_window]
QWEN_ROWS = [*AROUND, *separate(), *MLP, *norms()]
FUSED_ROWS = [*AROUND, *FUSED, *MLP, *norms()]
MIXTRAL_ROWS = [*AROUND, *separate(ADJACENT_PAIRS), *EXPERTS, *norms()]
MOE_ROWS = [*AROUND, *separate(), *EXPERTS, *norms()]
ONLY_MIXERS = [*AROUND, *linear("output_norm", "norm")]
GEMMA_ROWS = [*AROUND, *separate(), *MLP, *norms(ONE_MORE)]

ALL: Sequence[Architecture] = (
    Architecture("llama", "llama", LLAMA_ROWS, LLAMA_LIMITS),
    Architecture("llama", "mistral", LLAMA_ROWS, LLAMA_LIMITS),
    Architecture("granite", "granite", LLAMA_ROWS, LLAMA_LIMITS, add_more=_add_granite_scales),
    Architecture("qwen2", "qwen2", QWEN_ROWS, [SILU, ANY_SCALING, no_window, square]),
    Architecture("qwen3", "qwen3", QWEN_ROWS, [SILU, ANY_SCALING, no_window, NO_OUT_BIAS]),
    Architecture("olmo2", "olmo2", QWEN_ROWS, [SILU, ANY_SCALING, NO_OUT_BIAS, square], needs_output=True),
    Architecture(
        "olmo2", "olmo3", QWEN_ROWS,
        [SILU, scalings("yarn"), NO_OUT_BIAS, NO_QKV_BIAS, square, some_window, local_unscaled, one_theta,
         windows_except_every(4)],
        needs_output=True, published=_olmo3, sign="attention.sliding_window",
    ),
    Architecture("gemma", "gemma", GEMMA_ROWS, [GELU, ANY_SCALING, NO_OUT_BIAS, TIED]),
    Architecture(
        "gemma2", "gemma2", GEMMA_ROWS,
        [GELU, ANY_SCALING, NO_OUT_BIAS, TIED, capped, some_window, every_other, scale(special_depth=46)],
        published=_gemma(special_depth=46),
    ),
    Architecture(
        "gemma3", "gemma3_text", GEMMA_ROWS,
        [GELU, UNCAPPED, scalings("linear"), local_unscaled, NO_OUT_BIAS, scale(special_depth=62),
         windows_except_every(6, or_none=True)],
        published=_gemma3,
    ),
    Architecture(
        "phi3", "phi3", [*AROUND, *FUSED, *FUSED_MLP, *norms()], [SILU, scalings("linear"), no_window, square],
    ),
    Architecture(
        "phi2", "phi", [*QWEN_ROWS, Row("output.bias", "head.bias")],
        [GELU, ANY_SCALING, square, only("attention.qk_norm.kind", "none")], needs_output=True,
    ),
    Architecture(
        "stablelm", "stablelm", QWEN_ROWS, [SILU, ANY_SCALING, square], needs_output=True, published=_stablelm,
        idle=frozenset({"use_parallel_residual"}),  # published files contain wrong values
    ),
    Architecture("starcoder2", "starcoder2", QWEN_ROWS, [GELU, ANY_SCALING, no_window, square, all_biases]),
    Architecture("gpt2", "gpt2", FUSED_ROWS, [GELU, scale()]),
    Architecture("gptneox", "gpt_neox", FUSED_ROWS, [GELU, ANY_SCALING, all_biases], needs_output=True),
    Architecture(
        "bloom", "bloom", FUSED_ROWS, [GELU, only("norm.placement", "pre")],
        idle=frozenset({"attention.max_alibi_bias"}),
    ),
    Architecture(
        "mpt", "mpt", FUSED_ROWS, [GELU, scale()],
        published=lambda header: {"attn_config": {"clip_qkv": header.keys.get("attention.clamp_kqv")}},
    ),
    Architecture(
        "falcon", "falcon", [*AROUND, *FUSED, *MLP, *FALCON_NORMS],
        [GELU, ANY_SCALING, NO_OUT_BIAS, only("position.kind", "rope"), only("block.parallel", "shared", "separate")],
        published=_falcon,
    ),
    Architecture(
        "llama", "mixtral", MIXTRAL_ROWS, [SILU, ANY_SCALING, no_window, NORMALIZED, ALL_MIXTURES], sign="expert_count",
    ),
    Architecture(
        "qwen2moe", "qwen2_moe", MOE_ROWS,
        [SILU, ANY_SCALING, no_window, square, ALL_MIXTURES, NOT_NORMALIZED, shared_expert],
        needs_output=True, published=_mixture(is_normalized=False), idle=frozenset({"feed_forward_length"}),
    ),
    Architecture(
        "qwen3moe", "qwen3_moe", MOE_ROWS, [SILU, ANY_SCALING, no_window, NO_OUT_BIAS, ALL_MIXTURES, NORMALIZED],
        published=_mixture(is_normalized=True), idle=frozenset({"feed_forward_length"}),
    ),
    Architecture(
        "olmoe", "olmoe", MOE_ROWS,
        [SILU, ANY_SCALING, no_biases, square, NOT_NORMALIZED, all_kv_heads], needs_output=True,
        published=lambda _: {"norm_topk_prob": False},
    ),
    Architecture(
        "granitemoe", "granitemoe", MIXTRAL_ROWS, [SILU, ANY_SCALING, no_biases, NORMALIZED],
        add_more=_add_granite_scales,
    ),
    Architecture(
        "command-r", "cohere", QWEN_ROWS, [SILU, scalings(), no_biases, TIED, square, qk_norm_if_deep],
        published=lambda header: {"use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors},
        add_more=_add_logit_scale,
    ),
    Architecture(
        "cohere2", "cohere2", QWEN_ROWS,
        [SILU, scalings(), no_biases, TIED, square, windows_except_every(4), positions_except_every(4)],
        published=_windows, add_more=_add_logit_scale,
    ),
    Architecture(
        "smollm3", "smollm3", LLAMA_ROWS, [SILU, ANY_SCALING, no_biases, no_window, positions_except_every(4)],
    ),
    Architecture("glm4", "glm4", [*AROUND, *separate(), *FUSED_MLP, *norms()], [SILU, scalings()]),
    Architecture(
        "nemotron", "nemotron", GEMMA_ROWS, [RELU_SQUARED, ANY_SCALING], needs_output=True,
    ),
    Architecture("arcee", "arcee", LLAMA_ROWS, [RELU_SQUARED, scalings("linear", "llama3", "yarn"), no_biases]),
    Architecture("ernie4_5", "ernie4_5", QWEN_ROWS, [SILU, scalings(), no_biases]),
    Architecture(
        "seed_oss", "seed_oss", [*AROUND, *separate(), *MLP, *norms(before_mlp="post_attention_norm")],
        [SILU, ANY_SCALING, NO_OUT_BIAS, only("mlp.bias", False)],
    ),
    Architecture(
        "starcoder", "gpt_bigcode", FUSED_ROWS, [GELU, scale(), only("attention.n_kv_heads", 1)],
        published=lambda _: {"multi_query": True},
    ),
    Architecture("mamba", "mamba", [*ONLY_MIXERS, *MAMBA], MAMBA_LIMITS),
    Architecture("mamba2", "mamba2", [*ONLY_MIXERS, *MAMBA2_MIXER], MAMBA2_LIMITS, published=mamba2_keys),
    Architecture(
        "jamba", "jamba", [*MOE_ROWS, *MLP, *MAMBA],
        [SILU, *MAMBA_LIMITS, hybrid, no_biases, square, NOT_NORMALIZED], published=jamba_keys,
    ),
    Architecture(
        "granitehybrid", "granitemoehybrid", [*MIXTRAL_ROWS, *MLP, *MAMBA2_MIXER],
        [SILU, ANY_SCALING, *MAMBA2_LIMITS, hybrid, no_biases, square, NORMALIZED], published=granite_hybrid_keys,
        add_more=_add_granite_hybrid,
    ),
    Architecture(
        "lfm2", "lfm2", [*AROUND, *separate(), *MLP, *norms(last="token_embd_norm"), *SHORT_CONV],
        [SILU, ANY_SCALING, only("mixer.bias", False), hybrid, square], published=lfm2_keys,
    ),
    Architecture(
        "falcon-h1", "falcon_h1", [*AROUND, *separate(), *MLP, *FALCON_H1_NORMS, *MAMBA2_MIXER],
        [SILU, ANY_SCALING, *ANY_WIDTH, no_biases], published=falcon_h1_keys, factors=falcon_h1_factors,
    ),
)  # fmt: skip
"""All architectures. Of several with the same name, the usual family is the first."""

ARCHITECTURES: Mapping[str, Architecture] = {each.family: each for each in ALL}
"""Architecture by family (`model_type`)."""


def find_architecture(family: str) -> Architecture:
    """Return the llama.cpp architecture that runs the models of a family. Raise UserError if there is none."""
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    raise UserError(f"archlab cannot write the family {family} for llama.cpp; allowed: {', '.join(ARCHITECTURES)}")


def architecture_of(values: Mapping[str, Any], where: str) -> Architecture:
    """Return the architecture of a file with these keys. Raise UserError if archlab cannot read it."""
    name = values.get("general.architecture")
    named = [each for each in ALL if each.name == name]
    if not named:
        names = ", ".join(dict.fromkeys(each.name for each in ALL))
        raise UserError(f"{where}: general.architecture is {name!r}; archlab imports only {names}")
    return next((each for each in named if each.sign and values.get(f"{name}.{each.sign}")), named[0])
