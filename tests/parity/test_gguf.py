"""GGUF files against two readers that are not ours: transformers 5.23.0, and the name map of the `gguf` package.

`test_gguf_llama_cpp.py` runs the same cases in llama.cpp itself, if it is installed.
"""

import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGUFReader
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import archlab
from archlab.cli import app
from archlab.data import tokenizer as bpe
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.exchange.gguf.registry import ARCHITECTURES, refused
from archlab.exchange.gguf.write import save_gguf
from archlab.exchange.load import load_hf
from archlab.families.registry import FAMILIES
from archlab.infer.import_export import export_gguf
from archlab.model.decoder import Decoder
from tests.parity.gguf_latent import EXPERTS, LATENT, LATENT_NUMBERS, LATENT_REFUSED, parts_of_kv_b
from tests.parity.gguf_mixtures import MIXTURES, MIXTURES_NUMBERS, MIXTURES_REFUSED
from tests.parity.gguf_recurrent import RECURRENT, RECURRENT_NUMBERS, RECURRENT_REFUSED, converted_recurrent
from tests.parity.test_exchange import SHAPES, TRAIN
from tests.parity.tiny import SMALL, Case, tiny_model
from tiny import write_text

torch.set_num_threads(1)

OLDER = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
BLOOM = {"vocab_size": 61, "hidden_size": 32, "n_layer": 3, "n_head": 4, "layer_norm_epsilon": 1e-3}
MPT = {"vocab_size": 61, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64}
GEMMA = {**SMALL, "head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 7, "rms_norm_eps": 1e-3}
GEMMA4 = {
    **SMALL, "head_dim": 8, "global_head_dim": 12, "sliding_window": 7, "rms_norm_eps": 1e-2,
    "hidden_size_per_layer_input": 0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
    },
}  # fmt: skip
NEOX = {**OLDER, "intermediate_size": 48, "max_position_embeddings": 64, "layer_norm_eps": 1e-3}
FALCON = {**OLDER, "max_position_embeddings": 64}
MOE = {**SMALL, "num_experts": 5, "num_experts_per_tok": 2}
MAMBA = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 6, "time_step_rank": 5}
GRANITE = {
    **SMALL, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4,
    "logits_scaling": 2.5,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
YARN_OF_SIZE_1 = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
NO_WINDOW = {**SMALL, "sliding_window": None, "layer_types": ["full_attention"] * 3}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip

READ = [
    Case("llama", "gqa", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3}),
    Case("llama", "biases-llama3", {
        **SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_parameters": LLAMA3,
    }),
    Case("qwen2", "yarn", {**SMALL, "rope_parameters": YARN}),
    Case("qwen3", "wide-heads", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-2}),
    Case("gemma2", "alternating", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0}),
    Case("gemma3_text", "pattern", {
        **GEMMA, "num_hidden_layers": 7, "tie_word_embeddings": False,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
        },
    }),
    Case("gpt2", "tied", GPT2),
    Case("gpt2", "untied", {**GPT2, "n_inner": 40, "tie_word_embeddings": False}),
    Case("phi3", "partial", {**SMALL, "rope_parameters": {
        "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5,
    }}),
    Case("stablelm", "serial", {**SMALL, "use_qkv_bias": True}),
    Case("starcoder2", "untied", {**SMALL, "tie_word_embeddings": False, "sliding_window": None}),
    Case("falcon", "7b", FALCON),
    Case("qwen2_moe", "shared", {**MOE, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}),
    Case("qwen3_moe", "wide-heads-tied", {
        **MOE, "moe_intermediate_size": 24, "head_dim": 12, "norm_topk_prob": True, "tie_word_embeddings": True,
    }),
    Case("mamba", "tied", MAMBA),
    Case("mamba", "untied", {**MAMBA, "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False}),
    Case("nemotron", "biases", {**SMALL, "attention_bias": True, "mlp_bias": True, "norm_eps": 1e-3}),
    Case("bloom", "uneven-heads-untied", {**BLOOM, "hidden_size": 36, "n_head": 6, "tie_word_embeddings": False}),
]  # fmt: skip
"""Cases of architectures that transformers can read from GGUF as well."""

NAMED = [
    *READ,
    *RECURRENT,
    *LATENT,
    Case("mistral", "no-window", {**SMALL, "sliding_window": None}),
    Case("granite", "scales", GRANITE),
    Case("gemma", "mqa", {**SMALL, "num_key_value_heads": 1, "head_dim": 12}),
    Case("olmo2", "gqa-tied", {**SMALL, "tie_word_embeddings": True}),
    Case("stablelm", "parallel-qk-norm", {**SMALL, "qk_layernorm": True, "use_parallel_residual": True}),
    Case("gpt_neox", "parallel", NEOX),
    Case("gpt_neox", "serial-tied", {**NEOX, "use_parallel_residual": False, "tie_word_embeddings": True}),
    Case("falcon", "40b", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 48}),
    Case("mpt", "clipped", {**MPT, "attn_config": {"clip_qkv": 0.5}}),
    Case("mixtral", "gqa", {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2}),
    Case("olmoe", "top-3", {**MOE, "num_key_value_heads": 4, "num_experts_per_tok": 3}),
    Case("granitemoe", "scales", {**GRANITE, "num_local_experts": 5, "num_experts_per_tok": 2}),
    Case("cohere", "scaled", {**SMALL, "logit_scale": 0.25, "layer_norm_eps": 1e-3}),
    Case("cohere", "deep-qk-norm", {
        **SMALL, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 64, "use_qk_norm": True,
    }),
    Case("cohere2", "windows", {**SMALL, "num_hidden_layers": 5, "sliding_window": 7, "head_dim": 8}),
    Case("smollm3", "no-rope", {**SMALL, "num_hidden_layers": 5}),
    Case("glm4", "partial", {**SMALL, "head_dim": 12, "partial_rotary_factor": 0.5}),
    Case("ernie4_5", "tied", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3}),
    Case("phi", "parallel", {**SMALL, "layer_norm_eps": 1e-3}),
    Case("seed_oss", "wide-heads", {**SMALL, "head_dim": 12}),
    Case("gpt_bigcode", "mqa", {**GPT2, "n_inner": 40}),
    Case("arcee", "llama3", {**SMALL, "rope_parameters": LLAMA3}),
    Case("arcee", "gqa", SMALL),
    Case("olmo3", "windows-yarn", {
        **SMALL, "num_hidden_layers": 5, "sliding_window": 7, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": YARN,
        },
    }),
    Case("jais2", "biases", {**SMALL, "num_key_value_heads": 4, "layer_norm_eps": 1e-2}),
    Case("jais2", "linear-tied", {
        **SMALL, "num_key_value_heads": 4, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }),
    Case("olmo", "clipped", {**SMALL, "clip_qkv": 0.7}),
    Case("olmo", "yarn-tied", {**SMALL, "tie_word_embeddings": True, "rope_parameters": YARN}),
    Case("exaone4", "no-window-tied", {**NO_WINDOW, "tie_word_embeddings": True}),
    Case("exaone4", "llama3", {**NO_WINDOW, "rope_parameters": LLAMA3}),
    Case("exaone4", "deep-windows", {
        **SMALL, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 64, "sliding_window": 7,
        "rms_norm_eps": 1.0,  # so that rounding does not grow from layer to layer
    }),
    Case("hunyuan_v1_dense", "wide-heads", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-3}),
    Case("hunyuan_v1_dense", "yarn-tied", {
        **SMALL, "head_dim": 8, "tie_word_embeddings": True, "rope_parameters": YARN,
    }),
    Case("internlm3", "biases", {
        **SMALL, "head_dim": 12, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2,
    }),
    Case("internlm3", "linear-tied", {
        **SMALL, "head_dim": 8, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0},
    }),
    Case("ministral3", "grows-tied", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-3, "tie_word_embeddings": True,
        "rope_parameters": {**YARN_OF_SIZE_1, "llama_4_scaling_beta": 0.7},
    }),
    Case("ministral3", "constant", {
        **SMALL, "rope_parameters": {**YARN_OF_SIZE_1, "llama_4_scaling_beta": 0.0},
    }),
    Case("apertus", "wide-heads", {
        **SMALL, "head_dim": 12, "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    }),
    Case("apertus", "llama3-tied", {**SMALL, "tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    Case("gemma4_text", "keys-as-values", {
        **GEMMA4, "num_hidden_layers": 4, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "final_logit_softcapping": 2.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    }),
    Case("gemma4_text", "experts", {
        **GEMMA4, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 3, "moe_intermediate_size": 24,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    }),
    Case("gemma4_text", "values-untied", {**GEMMA4, "tie_word_embeddings": False}),
    Case("gemma4_unified_text", "keys-as-values", {
        **{key: value for key, value in GEMMA4.items() if key != "hidden_size_per_layer_input"},
        "attention_k_eq_v": True,
    }),
    *MIXTURES,
]  # fmt: skip


def named(case: Case) -> str:
    return f"{case.model_type}-{case.name}"


def case_of(model_type: str, name: str = "") -> Case:
    return next(case for case in NAMED if case.model_type == model_type and name in case.name)


def ours(case: Case, folder: Path) -> archlab.Decoder:
    tiny_model(case).save_pretrained(folder)
    return load_hf(folder)


def exported(case: Case, folder: Path) -> GGUFReader:
    save_gguf(ours(case, folder), folder / "model.gguf", case.model_type)
    return GGUFReader(folder / "model.gguf")


def numbers(reader: GGUFReader) -> dict[str, Any]:
    """Return the values of all keys, whose names are without the architecture's prefix."""
    prefix = f"{reader.fields['general.architecture'].contents()}."
    return {name.removeprefix(prefix): field.contents() for name, field in reader.fields.items()}


def shapes(reader: GGUFReader) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tuple(map(int, reversed(tensor.shape))) for tensor in reader.tensors}


def test_every_architecture_has_a_case() -> None:
    assert {case.model_type for case in NAMED} == set(ARCHITECTURES)


@pytest.mark.parametrize("case", [*READ, *(case for case in RECURRENT if case.model_type == "lfm2")], ids=named)
def test_transformers_reads_the_same_model(case: Case, tmp_path: Path) -> None:
    """It fills a model whose parameters were all NaN before."""
    exported(case, tmp_path)
    theirs, blank = tiny_model(case), tiny_model(case)
    with torch.no_grad():
        for parameter in blank.parameters():
            parameter.fill_(torch.nan)
    found = load_gguf_checkpoint(str(tmp_path / "model.gguf"), return_tensors=True, model_to_load=blank)
    lacking = blank.load_state_dict(found["tensors"], strict=False)
    assert lacking.unexpected_keys == []
    assert set(lacking.missing_keys) <= {"lm_head.weight"}
    blank.tie_weights()
    tokens = torch.randint(3, 61, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = theirs(tokens).logits
        assert (blank(tokens).logits - logits).abs().max() <= 1e-5 * logits.std()


PAIRS = (
    "llama", "mistral", "mixtral", "granite", "granitemoe", "granitemoeshared", "smollm3", "arcee", "olmo", "internlm3",
    "ministral3",
)  # fmt: skip
"""Families whose rotated rows llama.cpp's converter permutes (`undo_permute` in conversion/llama.py)."""


@pytest.mark.parametrize("case", NAMED, ids=named)
def test_every_tensor_is_where_the_name_map_says(case: Case, tmp_path: Path) -> None:
    reader = exported(case, tmp_path)
    architecture = gguf.MODEL_ARCH(
        next(
            number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == numbers(reader)["general.architecture"]
        )
    )
    where = gguf.get_tensor_name_map(architecture, 64)
    expected = dict[str, Tensor]()
    for name, tensor in published(case).items():
        place = where.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
        assert place is not None, name
        expected[place] = tensor
    found = {tensor.name: torch.from_numpy(np.array(tensor.data)) for tensor in reader.tensors}
    made = {"output.weight", "rope_freqs.weight"} - expected.keys()
    assert found.keys() - made == expected.keys()
    for name, tensor in expected.items():
        if tensor.is_meta:  # the next test compares the numbers
            assert found[name].shape == tensor.shape, name
        else:
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=0, msg=name)


def published(case: Case) -> dict[str, Tensor]:
    """Return the published tensors as llama.cpp's converter changes them.

    Experts and the norms of heads are stacked, and a tied head is left out. See also `converted`.
    """
    theirs, tensors = tiny_model(case), dict[str, Tensor]()
    tied = theirs.config.tie_word_embeddings
    for name, tensor in theirs.state_dict().items():
        if case.model_type.startswith("gemma4"):
            tensors |= {} if tied and name == "lm_head.weight" else {gemma4_name(name): tensor}
            continue
        if ".act_fn." in name:  # modify_tensors in conversion/apertus.py makes keys of them
            continue
        before_norms, is_head_norm, _ = name.partition(".norms.")
        name = name.removeprefix("transformer.") if case.model_type == "bloom" else name  # conversion/bloom.py
        name = name.replace("gate.moe_statics", "moe_statics")  # its name in files of ERNIE
        name = name.replace("moe.router.weight", "moe.router.layer.weight")  # its name in files of Granite
        if is_head_norm:
            rows = tensors.get(f"{before_norms}.weight", tensor[:0].view(0, len(tensor)))
            tensors[f"{before_norms}.weight"] = torch.cat((rows, tensor[None]))
        elif name.endswith(
            ("correction_bias", "expert_bias")
        ):  # filter_tensors in conversion/base.py, lfm2.py and afmoe.py
            name = name if name.endswith("score_correction_bias") else f"{name}_bias"
            tensors[f"{name.removesuffix('_bias')}.bias"] = tensor.flatten()
        elif name.endswith("shared_mlp.input_linear.weight") and case.model_type == "granitemoeshared":
            # modify_tensors in conversion/granite.py
            layer = name.removesuffix("shared_mlp.input_linear.weight")
            gate, up = tensor.split(len(tensor) // 2)
            tensors |= {
                f"{layer}mlp.shared_expert.gate_proj.weight": gate,
                f"{layer}mlp.shared_expert.up_proj.weight": up,
            }
        elif name.endswith("kv_b_proj.weight"):
            tensors |= parts_of_kv_b(case, name, tensor)
        elif ".experts.mlp." in name:  # modify_tensors in conversion/dbrx.py
            stacked = tensor.view(5, 16, 32)
            tensors[f"{name}.weight"] = stacked.permute(0, 2, 1) if name.endswith("w2") else stacked
        elif ".experts." in name and case.model_type == "llama4_text":  # conversion/llama4.py
            parts = tensor.mT.chunk(2, dim=1) if "gate_up" in name else (tensor.mT,)
            kinds = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
            layer = name.rpartition(".")[0]
            tensors |= {f"{layer}.{k}.weight": part for k, part in zip(kinds, parts, strict=True)}
        elif ".experts." in name:
            parts = tensor.chunk(2, dim=1) if "gate_up" in name else (tensor,)
            kinds = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
            layer = ".".join(name.split(".")[:3])
            tensors |= {f"{layer}.mlp.experts.{k}.weight": part for k, part in zip(kinds, parts, strict=True)}
        elif not (tied and name in ("lm_head.weight", "embed_out.weight")):
            tensors |= (
                converted_recurrent(case, name, tensor) if case in RECURRENT else {name: converted(case, name, tensor)}
            )
    return tensors


def gemma4_name(name: str) -> str:
    """Return the name that llama.cpp's name map gets (`filter_tensors` and `modify_tensors` of Gemma4Model in
    conversion/gemma.py)."""
    name = name.replace("router.scale", "router.proj.scale").replace(
        "router.per_expert_scale", "experts.down_proj.scale"
    )
    return name if name.endswith((".weight", ".scale")) else f"{name}.weight"


def converted(case: Case, name: str, tensor: Tensor) -> Tensor:
    """Return a published tensor as llama.cpp's converter changes it, or its shape if the query, key and value rows are
    fused."""
    heads = {"q_proj": 4, "k_proj": case.hf.get("num_key_value_heads", 4)}
    if case.model_type in PAIRS and (n := heads.get(name.split(".")[-2])):
        return tensor.unflatten(0, (n, 2, -1)).swapaxes(1, 2).reshape(tensor.shape)
    if case.model_type.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
        return tensor + 1
    if name.endswith(".A_log"):
        return -tensor.exp()
    if name.endswith(("conv1d.weight", "shared_expert_gate.weight")):
        return tensor.squeeze()
    if name.endswith(("query_key_value.weight", "query_key_value.bias")):
        return tensor.to("meta")
    return tensor.T if case.model_type == "gpt2" and ".h." in name and tensor.dim() == 2 else tensor


@pytest.mark.parametrize(("case", "kv_heads"), [("gpt_neox", 4), ("falcon-40b", 2)])
def test_fused_projections_are_sorted_as_llama_cpps_converter_does(case: str, kv_heads: int, tmp_path: Path) -> None:
    model_type, _, name = case.partition("-")
    reader = exported(case_of(model_type, name), tmp_path)
    theirs = tiny_model(case_of(model_type, name)).state_dict()
    weight = next(w for name, w in theirs.items() if "0" in name and name.endswith("query_key_value.weight"))
    groups = weight.view(kv_heads, 4 // kv_heads + 2, 8, 32)  # conversion/falcon.py
    q, k, v = groups[:, :-2].reshape(32, 32), groups[:, -2].reshape(-1, 32), groups[:, -1].reshape(-1, 32)
    found = next(tensor.data for tensor in reader.tensors if tensor.name == "blk.0.attn_qkv.weight")
    assert np.array_equal(found, torch.cat((q, k, v)).numpy())


EXPECTED: dict[str, dict[str, Any]] = {
    "llama-gqa": {
        "context_length": 64, "embedding_length": 32, "block_count": 3, "feed_forward_length": 48, "vocab_size": 61,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 12,
        "attention.value_length": 12, "attention.layer_norm_rms_epsilon": 1e-3, "rope.dimension_count": 12,
        "rope.freq_base": 1e4, "tokenizer.ggml.model": "none", "general.file_type": 0,
    },
    "qwen2-yarn": {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16,
        "rope.freq_base": 100.0,
    },
    "gemma2-alternating": {
        "attention.sliding_window": 7, "attention.sliding_window_pattern": [True, False, True],
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0,
    },
    "gemma3_text-pattern": {
        "attention.sliding_window_pattern": [True] * 5 + [False, True], "rope.freq_base": 300.0,
        "rope.freq_base_swa": 20.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
    },
    "granite-scales": {
        "embedding_scale": 3.0, "attention.scale": 0.2, "residual_scale": 0.4, "logit_scale": 2.5,
    },
    "ministral3-grows-tied": {
        "attention.temperature_scale": 0.7, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16, "rope.scaling.yarn_log_multiplier": 1.0,
        "rope.scaling.attn_factor": None,
    },
    "ministral3-constant": {"attention.temperature_scale": 0.0, "rope.scaling.type": "yarn"},
    "gemma4_text-keys-as-values": {
        "attention.head_count": 4, "attention.head_count_kv": [2, 1, 2, 1], "attention.key_length": 12,
        "attention.value_length": 12, "attention.key_length_swa": 8, "attention.value_length_swa": 8,
        "rope.dimension_count": 12, "rope.dimension_count_swa": 8, "rope.freq_base": 300.0, "rope.freq_base_swa": 20.0,
        "attention.sliding_window": 7, "attention.sliding_window_pattern": [True, False, True, False],
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0, "final_logit_softcapping": 2.0,
    },
    "gemma4_text-experts": {
        "feed_forward_length": 48, "expert_feed_forward_length": 24, "expert_count": 5, "expert_used_count": 3,
        "final_logit_softcapping": 0.0,
    },
    "stablelm-serial": {"rope.dimension_count": 2, "use_parallel_residual": False},
    "gpt_neox-parallel": {"rope.dimension_count": 2, "use_parallel_residual": True},
    "olmo-clipped": {"attention.clamp_kqv": 0.7, "attention.layer_norm_epsilon": 1e-5},
    "mpt-clipped": {"attention.clamp_kqv": 0.5, "attention.max_alibi_bias": 8.0},
    "qwen2_moe-shared": {
        "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 24,
        "expert_shared_feed_forward_length": 40,
    },
    "cohere-scaled": {"logit_scale": 0.25, "attention.layer_norm_epsilon": 1e-3},
    "cohere2-windows": {"attention.sliding_window": 7, "rope.freq_base": 1e4, "rope.dimension_count": 8},
    "glm4-partial": {"rope.dimension_count": 6},
    **RECURRENT_NUMBERS,
    **LATENT_NUMBERS,
    **MIXTURES_NUMBERS,
    "mamba-tied": {
        "ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 6, "ssm.time_step_rank": 5,
        "attention.head_count": 0, "feed_forward_length": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_the_numbers_that_llama_cpp_reads(name: str, tmp_path: Path) -> None:
    found = numbers(exported(next(case for case in NAMED if named(case) == name), tmp_path))
    assert {key: pytest.approx(value) for key, value in EXPECTED[name].items()} == {
        key: found.get(key) for key in EXPECTED[name]
    }
    assert ("rope.scaling.type" in found) == ("rope.scaling.type" in EXPECTED[name])


def test_yarns_attention_factor_is_relative_to_the_usual_one(tmp_path: Path) -> None:
    scaled = Case("llama", "factor", {**SMALL, "rope_parameters": {**YARN, "attention_factor": 1.5}})
    found = numbers(exported(scaled, tmp_path))["rope.scaling.attn_factor"]
    assert found * (1 + 0.1 * np.log(4)) == pytest.approx(1.5)  # rope_yarn in ggml-cpu/ops.cpp


def test_llama_3s_factors_are_those_of_transformers(tmp_path: Path) -> None:
    case = case_of("llama", "llama3")
    found = next(tensor.data for tensor in exported(case, tmp_path).tensors if tensor.name == "rope_freqs.weight")
    theirs = tiny_model(case).get_submodule("model.rotary_emb").get_buffer("inv_freq")
    plain = 100.0 ** -(torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(torch.from_numpy(found.copy()), plain / theirs)
    assert found.max() == pytest.approx(4.0)


def test_the_divisors_of_p_rope_are_those_of_the_converter(tmp_path: Path) -> None:
    """`generate_extra_tensors` of Gemma4Model in conversion/gemma.py."""
    reader = exported(case_of("gemma4_text", "keys"), tmp_path)
    found = next(tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight")
    assert np.array_equal(found, np.array([1.0] * 3 + [1e30] * 3, np.float32))


def test_the_numbers_of_xielu_are_keys(tmp_path: Path) -> None:
    """`modify_tensors` in conversion/apertus.py: a list with the number of each layer, without a prefix."""
    case = case_of("apertus", "wide")
    found, theirs = exported(case, tmp_path).fields, tiny_model(case).state_dict()
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        expected = [theirs[f"model.layers.{i}.mlp.act_fn.{name}"].float().item() for i in range(3)]
        assert found[f"xielu.{name}"].contents() == pytest.approx(expected, rel=1e-2 if name == "eps" else 1e-6)


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", 32), ("float16", 1), ("float32", 0), (None, 32)])
def test_matrices_are_narrowed_and_vectors_are_not(dtype: Any, kind: int, tmp_path: Path) -> None:
    model = ours(case_of("qwen3"), tmp_path).to(torch.bfloat16)
    save_gguf(model, tmp_path / "model.gguf", dtype=dtype)
    reader = GGUFReader(tmp_path / "model.gguf")
    assert numbers(reader)["general.file_type"] == kind
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    narrow = dtype or "bfloat16"
    stored = gguf.dequantize(tensors["blk.0.attn_v.weight"].data, tensors["blk.0.attn_v.weight"].tensor_type)
    wanted = model.state_dict()["layers.0.attention.v.weight"].to(getattr(torch, narrow)).float()
    assert np.array_equal(stored, wanted.numpy())
    types = {name: tensor.tensor_type.name for name, tensor in tensors.items()}
    assert types["blk.0.attn_v.weight"] == {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[narrow]
    assert {types["blk.0.attn_q_norm.weight"], types["output_norm.weight"]} == {"F32"}


def test_what_float16_cannot_hold_leaves_no_file(tmp_path: Path) -> None:
    model = ours(case_of("llama"), tmp_path / "hf")
    with torch.no_grad():
        model.get_parameter("layers.1.mlp.up.weight")[0, 0] = 1e6
    with pytest.raises(UserError, match=r"blk\.1\.ffn_up\.weight: contains 1e\+06; allowed in float16: up to 65504"):
        save_gguf(model, tmp_path / "out" / "model.gguf", dtype="float16")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    model = ours(case_of("llama"), tmp_path / "hf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"model\.gguf: cannot write: the disk is full"):
            save_gguf(model, tmp_path / "out" / "model.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "model.mlp.activation is gelu; allowed: silu"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
         "model.position.scaling.kind is dynamic; allowed: none, linear, llama3, yarn"),
        ("llama", {"rope_parameters": {**YARN, "beta_fast": 8.0}}, "scaling.beta_fast is 8.0; allowed: 32.0"),
        ("mistral", {"sliding_window": 8}, "model.attention.window is 8; allowed: null, or at least max_seq_len (64)"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "model.attention.window is 8"),
        ("qwen2", {"rope_parameters": LLAMA3}, "scaling.kind is llama3; allowed: none, linear, yarn"),
        ("qwen3", {"attention_bias": True}, "model.attention.out_bias is true; allowed: false"),
        ("qwen2", {"head_dim": 16}, "model.attention: n_heads * head_dim is 64; allowed: d_model (32)"),
        ("gemma", {"tie_word_embeddings": False}, "model.head.tied is false; allowed: true"),
        ("gemma2", {"attention_bias": True}, "model.attention.out_bias is true; allowed: false"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "model.attention.scale is 0.25; allowed: 0.2886751345948129"),
        ("gemma2", {"attn_logit_softcapping": None}, "model.attention.softcap is null; allowed: a number"),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "model.attention.window is null in every layer"),
        ("gemma2", {"layer_types": ["sliding_attention"] * 3}, "layers has the pattern window, window, window; allowed: window and full"),
        ("gemma3_text", {"final_logit_softcapping": 5.0}, "model.head.softcap is 5.0; allowed: null"),
        ("gemma3_text", {"sliding_window_pattern": 3}, "model.attention.window is null in layer 2; allowed: a window"),
        ("gemma3_text", {"layer_types": ["sliding_attention"] * 7}, "model.attention.window is 7 in layer 5; allowed: null"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "model.attention.scale is 0.17677669529663687; allowed: 0.35355339059327373"),
        ("starcoder2", {"use_bias": False}, "model.mlp.bias is false; allowed: true"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "model.norm.placement is carried; allowed: pre"),
        ("falcon", {"alibi": True}, "model.position.kind is alibi; allowed: rope"),
        ("qwen2_moe", {"norm_topk_prob": True}, "model.mlp.router.normalise is true; allowed: false"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "model.mlp.shared is null; allowed: a shared expert"),
        ("qwen3_moe", {"norm_topk_prob": False}, "model.mlp.router.normalise is false; allowed: true"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "model.mlp.kind is gated; allowed: moe"),
        ("olmoe", {"num_key_value_heads": 2}, "model.attention.n_kv_heads is 2; allowed: n_heads (4)"),
        ("cohere", {"use_qk_norm": True}, "qk_norm.kind is layernorm in a model of 3 layers; allowed: none"),
        ("cohere", {"num_hidden_layers": 64}, "qk_norm.kind is none in a model of 64 layers; allowed: layernorm"),
        ("cohere", {"tie_word_embeddings": False}, "model.head.tied is false; allowed: true"),
        ("cohere2", {"layer_types": ["sliding_attention"] * 5}, "model.attention.window is 7 in layer 3; allowed: null"),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 0, 1]}, "model.position.kind is none in layer 1; allowed: rope"),
        ("olmo3", {"rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}, "full_attention": YARN,
        }}, "model.position.theta is 20.0, 100.0; allowed: one number for all layers"),
        ("mamba", {"intermediate_size": 32}, "model.mixer.inner_width is 32; allowed: 2 * d_model (64)"),
        ("mamba", {"use_conv_bias": False}, "model.mixer.conv_bias is false; allowed: true"),
        ("nemotron", {"hidden_act": "silu"}, "model.mlp.activation is silu; allowed: relu_squared"),
        ("arcee", {"mlp_bias": True}, "model.mlp.bias is true; allowed: false"),
        ("ernie4_5", {"use_bias": True}, "model.attention.out_bias is true; allowed: false"),
        ("seed_oss", {"attention_out_bias": True}, "model.attention.out_bias is true; allowed: false"),
        ("phi", {"qk_layernorm": True}, "model.attention.qk_norm.kind is layernorm; allowed: none"),
        ("olmo", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
        ("olmo", {"head_dim": 12}, "model.attention: n_heads * head_dim is 48; allowed: d_model (32)"),
        ("nemotron", {"head_dim": 16}, "model.attention: n_heads * head_dim is 64; allowed: d_model (32)"),
        ("gemma2", {"num_hidden_layers": 1}, "model.attention.window is set in every layer; allowed: a layer without a window"),
        ("cohere2", {"num_hidden_layers": 3}, "model.attention.window is set in every layer; allowed: a layer without a window"),
        ("jais2", {"mlp_bias": False}, "model.mlp.bias is false; allowed: true"),
        ("jais2", {"hidden_act": "gelu"}, "model.mlp.activation is gelu; allowed: relu_squared"),
        ("jais2", {"num_key_value_heads": 2}, "model.attention.n_kv_heads is 2; allowed: n_heads (4)"),
        ("exaone4", {"sliding_window": 7, "layer_types": ["sliding_attention"] * 3}, "model.attention.window is 7; allowed: null"),
        ("exaone4", {"sliding_window": 7}, "model.position.kind is none; allowed: rope"),
        ("exaone4", {"num_hidden_layers": 64, "layer_types": ["full_attention"] * 64}, "model.attention.window is null in layer 0; allowed: a window"),
        ("hunyuan_v1_dense", {"attention_bias": True}, "model.attention.out_bias is true; allowed: false"),
        ("internlm3", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 6.0}},
         "model.position.scaling.kind is dynamic; allowed: none, linear, llama3, yarn"),
        ("ministral3", {"sliding_window": 7}, "model.attention.window is 7; allowed: null"),
        ("ministral3", {"rope_parameters": {
            "rope_type": "default", "rope_theta": 50.0, "original_max_position_embeddings": 9,
            "llama_4_scaling_beta": 0.5,
        }}, "model.position.scaling.kind is none; allowed: yarn"),
        ("ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5}},
         "model.position.scaling.attention_factor is null; allowed: 1.0"),
        ("apertus", {"hidden_act": "silu"}, "model.mlp.activation is silu; allowed: xielu"),
        ("apertus", {"attention_bias": True}, "model.attention.out_bias is true; allowed: false"),
        ("gemma4_text", {"attention_bias": True}, "model.attention.qkv_bias is true; allowed: false"),
        ("gemma4_text", {"hidden_activation": "silu"}, "model.mlp.activation is silu; allowed: gelu_tanh, gelu"),
        ("gemma4_text", {"layer_types": ["full_attention"] * 4}, "model.attention.window is null in every layer"),
        ("gemma4_text", {"rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0},
        }}, "model.position.scaling.kind is linear in layer 1; allowed: proportional"),
        ("gpt_bigcode", {"multi_query": False}, "model.attention.n_kv_heads is 4; allowed: 1"),
        *RECURRENT_REFUSED,
        *LATENT_REFUSED,
        *MIXTURES_REFUSED,
    ],
)  # fmt: skip
def test_what_llama_cpp_cannot_run_is_refused_by_name(
    case: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    attention = "sdpa" if "alibi" in change else "eager"  # falcon supports alibi with sdpa only
    model = ours(Case(case, "changed", {**case_of(case).hf, **change}, attention=attention), tmp_path)
    with pytest.raises(UserError) as refused:
        save_gguf(model, tmp_path / "model.gguf", case)
    assert message in str(refused.value)
    assert "llama.cpp's" in str(refused.value)
    assert not (tmp_path / "model.gguf").exists()


def test_a_family_that_llama_cpp_is_not_written_for(tmp_path: Path) -> None:
    model = ours(case_of("llama"), tmp_path)
    with pytest.raises(
        UserError, match=r"archlab cannot write the family helium for llama\.cpp; allowed: llama, mistral, "
    ):
        save_gguf(ours(Case("helium", "tiny", {**SMALL, "head_dim": 8}), tmp_path / "other"), tmp_path / "model.gguf")
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UserError, match="already exists; name a new file"):
        save_gguf(model, tmp_path / "model.gguf")


def test_a_family_that_llama_cpp_computes_differently_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = ours(Case("glm4_moe_lite", "tiny", {**EXPERTS, "q_lora_rank": 14}), tmp_path)
    reason = "llama.cpp uses one epsilon for all norms, and the published models have two"
    with pytest.raises(UserError, match=re.escape(f"the family glm4_moe_lite for llama.cpp, because {reason}")):
        save_gguf(model, tmp_path / "model.gguf")
    assert refused().keys() <= FAMILIES.keys() - ARCHITECTURES.keys()


@pytest.mark.parametrize("family", [None, "llama"])
def test_an_encoder_is_refused_by_name(family: str | None, tmp_path: Path) -> None:
    model = Decoder(load_config("tiny-llama", "model.encoder.n_layers=3").model)
    with pytest.raises(UserError, match=r"model\.encoder: 3 layers; archlab can write only models without an encoder"):
        save_gguf(model, tmp_path / "model.gguf", family)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_becomes_a_file_with_its_tokenizer(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    run, out = tmp_path / "run", tmp_path / "new" / "model.gguf"
    data = f"data.path={write_text(tmp_path)}"
    usual_scale = ["model.attention.scale=null"] if shape == "gemma2" else []
    assert app.main(["train", *SHAPES[shape], *usual_scale, *TRAIN, data, "--out", str(run)]) == 0
    capsys.readouterr()
    assert app.main(["export", str(run), "--gguf", "--dtype", "bfloat16", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"written as {shape}", str(out)]
    assert "numbers of three or more digits" in printed.err
    assert ("gelu_tanh" in printed.err) == (shape != "llama")
    found, tokenizer = numbers(GGUFReader(out)), Tokenizer.from_file(str(run / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    assert found["tokenizer.ggml.tokens"][:size] == [tokenizer.id_to_token(i) for i in range(size)]
    assert found["tokenizer.ggml.merges"][0] == " ".join(json.loads(tokenizer.to_str())["model"]["merges"][0])
    assert found["tokenizer.ggml.token_type"] == [3] + [1] * (size - 1) + [5] * (300 - size)
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.pre"]) == ("gpt2", "dbrx")
    assert found["tokenizer.ggml.bos_token_id"] == found["tokenizer.ggml.eos_token_id"] == 0
    assert (found["tokenizer.ggml.add_bos_token"], found["tokenizer.ggml.add_eos_token"]) == (True, False)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])


WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize(
    ("pre_tokenizer", "whole_words", "name"),
    [
        (GPT2_WORDS, False, "gpt-2"),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(True), GPT2_WORDS]), False, "starcoder"),
        (split(WORDS % ""), False, "qwen2"),
        (split(WORDS % "{1,3}"), True, "llama-bpe"),
        (split(WORDS % "{1,3}"), False, "dbrx"),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), False, None),
        (split("[a-z]+"), False, None),
    ],
)
def test_a_published_tokenizer_is_written_if_llama_cpp_splits_words_in_the_same_way(
    pre_tokenizer: pre_tokenizers.PreTokenizer, whole_words: bool, name: str | None, tmp_path: Path
) -> None:
    """Each of these was compared once with the tokens of llama.cpp itself for eleven texts."""
    folder = tmp_path / "hf"
    case = Case("llama", "text", {**SMALL, "vocab_size": 300, "bos_token_id": 0, "eos_token_id": [0, 1]})
    tiny_model(case).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<s>", "<end>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat"] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    _, notes = save_gguf(load_hf(folder), tmp_path / "model.gguf")
    found = numbers(GGUFReader(tmp_path / "model.gguf"))
    assert found.get("tokenizer.ggml.pre") == name
    assert found["tokenizer.ggml.model"] == ("none" if name is None else "gpt2")
    if name is None:
        assert notes == [
            "tokenizer.json: not a byte-level BPE that llama.cpp can reproduce; the GGUF file has no tokenizer, so "
            "llama.cpp reads and writes token ids"
        ]
    else:
        assert notes == []
        assert found["tokenizer.chat_template"] == "{{ messages }}"
        assert found["tokenizer.ggml.token_type"][:3] == [3, 3, 1]
        assert found["tokenizer.ggml.add_bos_token"] is False


def test_a_model_like_llama_is_not_written_as_a_rare_family(tmp_path: Path) -> None:
    """Other families can express the same model. Those that llama.cpp runs are tried first."""
    sizes = ["model.vocab_size=61", "model.d_model=32", "model.n_layers=2", "model.max_seq_len=64", "model.mlp.d_ff=48"]
    heads = "model.attention={n_heads: 4, n_kv_heads: 2, head_dim: 8}"
    for preset, name in (("qwen3-8b", "qwen3"), ("tiny-llama", "granite"), ("qwen2.5-7b", "qwen2")):
        model = archlab.Decoder(archlab.load_config(preset, *sizes, heads).model)
        assert save_gguf(model, tmp_path / f"{name}.gguf")[0] == name


def odd(**changed: Any) -> Callable[[Path], None]:
    """Return a function that changes a folder's config.json."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "tokenizer_config.json").write_text("{}x"),
            r"tokenizer_config\.json: not valid JSON",
        ),
        (lambda folder: (folder / "tokenizer_config.json").write_text('{"chat_template": 3}'), "chat_template is 3"),
        (
            lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff"),
            r"chat_template\.jinja: not valid UTF-8",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("[1]"), r"tokenizer\.json: not a tokenizer\.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), r"tokenizer\.json: not a tokenizer\.json"),
        (odd(eos_token_id=10**30), r"config\.json: eos_token_id is 10+; allowed: 0 to 299"),
        (odd(eos_token_id=-1), r"config\.json: eos_token_id is -1; allowed: 0 to 299"),
        (odd(bos_token_id=300), r"config\.json: bos_token_id is 300"),
        (odd(rope_scaling={"rope_type": "linear", "factor": 1e308}), r"1e\+308 does not fit into float32"),
        (odd(pad_token_id=-1), None),
    ],
)
def test_an_invalid_folder_is_refused_and_leaves_no_file(
    change: Callable[[Path], object], message: str | None, tmp_path: Path
) -> None:
    folder, out = tmp_path / "hf", tmp_path / "model.gguf"
    tiny_model(Case("llama", "text", {**SMALL, "vocab_size": 300})).save_pretrained(folder)
    (folder / "generation_config.json").unlink()  # its token ids have priority over those of config.json
    bpe.train(["the cat sat on the mat"] * 3, 280).save(str(folder / "tokenizer.json"))
    change(folder)
    if message is None:
        export_gguf(folder, out)
        assert "tokenizer.ggml.padding_token_id" not in numbers(GGUFReader(out))
        return
    with pytest.raises(UserError, match=message):
        export_gguf(folder, out)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hf"]
