"""Parameter counts: equal to what the decoder allocates, and to the published numbers."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from archlab.config.components.short_conv import ShortConv
from archlab.config.components.work import Operation
from archlab.config.io import build_config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.families.registry import FAMILIES
from archlab.pricing.params import parameters
from archlab.pricing.work import forward_flops
from tests.parity.cases import CASES
from tests.parity.tiny import auto_class

PUBLISHED = {
    "gpt-2": 124_439_808,
    "gpt-2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "mistral-7b-v0.1": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "mamba-2.8b": 2_768_345_600,
    "falcon-mamba-7b": 7_272_665_088,
    "jamba-v0.1": 51_570_323_328,
    "nemotron-h-8b": 8_100_852_736,
    "seed-oss-36b": 36_151_104_512,
    "apertus-8b": 8_053_338_176,
    "granite-4.0-h-small": 32_207_337_984,
    "flexolmo-7x7b": 33_270_665_216,
    "youtu-llm-2b": 1_961_560_064,
    "hyperclovax-14b": 14_748_112_896,
    "vaultgemma-1b": 1_038_741_120,
}
"""Results of `sum(p.numel())` for the checkpoints on the Hugging Face hub."""

BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
"""Keys of config.json that differ from the defaults of the classes in transformers."""


def encoder(n_layers, d, d_ff, vocab, segments, positions=512):
    """Return the parameters of a model like BERT: tables, layers, and a dense layer with a norm before the head."""
    norm = 2 * d
    layer = 4 * (d * d + d) + (d * d_ff + d_ff) + (d_ff * d + d) + 2 * norm
    tables = (vocab + positions + segments) * d + norm
    return tables + n_layers * layer + (d * d + d) + norm + vocab


def modernbert(n_layers, d, d_ff, vocab=50368):
    """Return the parameters of ModernBERT, whose only bias is that of the head. Layer 1 has one norm, others two."""
    layers = n_layers * (4 * d * d + 3 * d * d_ff) + (2 * n_layers - 1) * d
    return vocab * d + d + layers + d + d * d + d + vocab


def encoder_decoder(n_layers, d, d_ff, vocab, positions=0, *, embedding_norms=0):
    """Return the parameters of the first Transformer, or of BART, without the bias of its head. A layer of the decoder
    has twice the attention of an encoder layer."""
    norm, attention, mlp = 2 * d, 4 * (d * d + d), (d * d_ff + d_ff) + (d_ff * d + d)
    layers = n_layers * ((attention + mlp + 2 * norm) + (2 * attention + mlp + 3 * norm))
    return vocab * d + layers + 2 * positions * d + embedding_norms * norm


def t5(n_layers, d, d_ff, heads, head_dim=64, vocab=32128, *, tied=True, gated=False):
    """Return the parameters of T5: no biases, a norm before each branch, and tables of 32 buckets in both stacks."""
    attention, mlp = 4 * d * heads * head_dim, (3 if gated else 2) * d * d_ff
    layers = n_layers * ((attention + mlp + 2 * d) + (2 * attention + mlp + 3 * d))
    return (1 if tied else 2) * vocab * d + layers + 2 * d + 2 * 32 * heads


BY_HAND = {
    "transformer-base": encoder_decoder(6, 512, 2048, 37000),
    "transformer-big": encoder_decoder(6, 1024, 4096, 37000),
    "t5-small": t5(6, 512, 2048, 8),
    "t5-base": t5(12, 768, 3072, 12),
    "t5-large": t5(24, 1024, 4096, 16),
    "t5-3b": t5(24, 1024, 16384, 32, 128),
    "t5-11b": t5(24, 1024, 65536, 128, 128),
    "t5-v1.1-xxl": t5(24, 4096, 10240, 64, tied=False, gated=True),
    "mt5-xxl": t5(24, 4096, 10240, 64, vocab=250112, tied=False, gated=True),
    "bart-base": encoder_decoder(6, 768, 3072, 50265, 1026, embedding_norms=2) + 50265,
    "bart-large": encoder_decoder(12, 1024, 4096, 50265, 1026, embedding_norms=2) + 50265,
    "bert-base": encoder(12, 768, 3072, 30522, 2),
    "bert-large": encoder(24, 1024, 4096, 30522, 2),
    "roberta-base": encoder(12, 768, 3072, 50265, 1, 514),
    "roberta-large": encoder(24, 1024, 4096, 50265, 1, 514),
    "distilbert-base": encoder(6, 768, 3072, 30522, 0),
    # Tables of 128, a dense layer of 128 to 256, 12 layers of 256, and a dense layer of 256 to 128.
    "electra-small": (30522 + 512 + 2 + 2) * 128
    + (128 * 256 + 256)
    + 12 * (4 * (256 * 256 + 256) + (2 * 256 * 1024 + 1024 + 256) + 4 * 256)
    + (256 * 128 + 128) + 2 * 128 + 30522,
    "modernbert-base": modernbert(22, 768, 1152),
    "modernbert-large": modernbert(28, 1024, 2624),
    "mpt-7b": 50432 * 4096 + 32 * (12 * 4096**2 + 2 * 4096) + 4096,
    # One norm per layer; an untied head with a bias.
    "phi-2-2.7b": (2 * 51200 + 2) * 2560 + 51200 + 32 * (12 * 2560**2 + (4 + 4 + 1 + 2) * 2560),
    # 48 query and 8 KV heads of 128; 16 gated experts of 10752 and a router.
    "dbrx-132b": 2 * 100352 * 6144 + 6144
    + 40 * (2 * 6144 * 48 * 128 + 2 * 6144 * 8 * 128 + 16 * 3 * 6144 * 10752 + 16 * 6144 + 2 * 6144),
    # 32 query heads and 2 KV heads of 128; gated MLPs of 10240.
    "internlm3-8b": 2 * 128512 * 4096 + 4096 + 48 * (4096 * (2 * 32 + 2 * 2) * 128 + 3 * 4096 * 10240 + 2 * 4096),
}  # fmt: skip
"""Counts from the published shapes."""

XXL = {"d_model": 4096, "num_layers": 24, "num_heads": 64, "d_ff": 10240, "tie_word_embeddings": False}
T5_3B = {"d_model": 1024, "num_layers": 24, "num_heads": 32, "d_kv": 128, "d_ff": 16384}
MARIAN = {"vocab_size": 37000, "pad_token_id": 36999, "max_position_embeddings": 512}
BIG = {"encoder_layers": 6, "decoder_layers": 6}
BASE = BIG | {
    "d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
    "encoder_attention_heads": 8, "decoder_attention_heads": 8,
}  # fmt: skip
BART_BASE = BASE | {
    "d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    "encoder_attention_heads": 12, "decoder_attention_heads": 12,
}  # fmt: skip
"""Keys of models with an encoder and a decoder."""

NEMOTRON_H = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
"""Branch of each layer, as config.json gives it: M is Mamba-2, * is attention, and - is an MLP."""

TRANSFORMERS = {
    "transformer-base": ("MarianMTModel", BASE | MARIAN),
    "transformer-big": ("MarianMTModel", BIG | MARIAN),
    "t5-small": ("T5ForConditionalGeneration", {}),
    "t5-base": ("T5ForConditionalGeneration", {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}),
    "t5-large": ("T5ForConditionalGeneration", {"d_model": 1024, "num_layers": 24, "num_heads": 16, "d_ff": 4096}),
    "t5-3b": ("T5ForConditionalGeneration", T5_3B),
    "t5-11b": ("T5ForConditionalGeneration", T5_3B | {"num_heads": 128, "d_ff": 65536}),
    "t5-v1.1-xxl": ("T5ForConditionalGeneration", XXL | {"feed_forward_proj": "gated-gelu"}),
    "mt5-xxl": ("MT5ForConditionalGeneration", XXL | {"vocab_size": 250112}),
    "bart-base": ("BartForConditionalGeneration", BART_BASE),
    "bart-large": ("BartForConditionalGeneration", {}),
    "bert-base": ("BertForMaskedLM", {}),
    "bert-large": ("BertForMaskedLM", BERT_LARGE),
    "roberta-base": ("RobertaForMaskedLM", ROBERTA),
    "roberta-large": ("RobertaForMaskedLM", ROBERTA | BERT_LARGE),
    "distilbert-base": ("DistilBertForMaskedLM", {}),
    "electra-small": ("ElectraForMaskedLM", {}),
    "modernbert-base": ("ModernBertForMaskedLM", {}),
    "modernbert-large": (
        "ModernBertForMaskedLM",
        {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 2624},
    ),
    "mpt-7b": (
        "MptForCausalLM",
        {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432, "no_bias": True},
    ),
    "phi-2-2.7b": (
        "PhiForCausalLM",
        {
            "vocab_size": 51200, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32,
            "num_attention_heads": 32, "partial_rotary_factor": 0.4,
        },
    ),
    "dbrx-132b": (
        "DbrxForCausalLM",
        {
            "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 5e5},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
    ),
    "mamba-2.8b": ("MambaForCausalLM", {"hidden_size": 2560, "num_hidden_layers": 64}),
    "falcon-mamba-7b": (
        "FalconMambaForCausalLM",
        {"vocab_size": 65024, "hidden_size": 4096, "num_hidden_layers": 64, "tie_word_embeddings": False},
    ),
    "jamba-v0.1": ("JambaForCausalLM", {"tie_word_embeddings": False}),
    "bamba-9b": (
        "BambaForCausalLM",
        {"vocab_size": 128256, "attn_layer_indices": [9, 18, 27], "mamba_d_state": 128, "tie_word_embeddings": False},
    ),
    "nemotron-h-8b": (
        "NemotronHForCausalLM",
        {
            "hidden_size": 4096, "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
            "hybrid_override_pattern": NEMOTRON_H,
        },
    ),
    "lfm2-8b-a1b": (
        "Lfm2MoeForCausalLM",
        {
            "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_hidden_layers": 24,
            "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
        },
    ),
    "recurrentgemma-2b": ("RecurrentGemmaForCausalLM", {"intermediate_size": 15360, "num_key_value_heads": 1}),
    "minicpm3-4b": (
        "MiniCPM3ForCausalLM",
        {
            "vocab_size": 73448, "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
            "num_attention_heads": 40, "num_key_value_heads": 40, "q_lora_rank": 768, "kv_lora_rank": 256,
            "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
        },
    ),
    "hunyuan-a13b": (
        "HunYuanMoEV1ForCausalLM",
        {
            "vocab_size": 128167, "hidden_size": 4096, "intermediate_size": 3072, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 64, "moe_topk": 8,
            "tie_word_embeddings": True,
        },
    ),
    "seed-oss-36b": (
        "SeedOssForCausalLM",
        {
            "vocab_size": 155136, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
        },
    ),
    "apertus-8b": (
        "ApertusForCausalLM",
        {
            "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "tie_word_embeddings": False,
        },
    ),
    "exaone-4.0-32b": (
        "Exaone4ForCausalLM",
        {
            "hidden_size": 5120, "intermediate_size": 27392, "num_hidden_layers": 64, "num_attention_heads": 40,
            "num_key_value_heads": 8, "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip
"""Class in transformers, and the keys of its config that differ from the defaults of the class."""

CHOICES = {
    "norm": [
        {"kind": "none"},
        *({"kind": "layernorm", "bias": b, "placement": p} for b in (True, False) for p in ("pre", "post")),
        *({"kind": "rmsnorm", "placement": p} for p in ("pre", "post", "double", "output", "carried")),
    ],
    "block.parallel": ["none", "shared", "separate"],
    "attention.n_kv_heads": [1, 2, 4],
    "attention.head_dim": [None, 4, 10],
    "attention.qkv_bias": [False, True],
    "attention.out_bias": [False, True],
    "position.kind": ["none", "sinusoidal", "learned", "rope"],
    "embedding.width": [None, 10],
    "mlp.kind": ["plain", "gated"],
    "mlp.bias": [False, True],
    "mlp.d_ff": [None, 20],
    "head": [{"tied": t, "bias": b} for t in (True, False) for b in (True, False)],
    "layers": [
        None,
        {
            "a": {"norm.kind": "none"},
            "b": {"mlp.d_ff": 12, "attention.n_kv_heads": 1},
            "pattern": ["a", "b", "b"],
        },
    ],
}


def config_of(choices):
    raw = {"vocab_size": 11, "d_model": 24, "n_layers": 3, "max_seq_len": 16, "attention.n_heads": 4}
    return build_config({}, [f"model.{key}={yaml(value)}" for key, value in (raw | choices).items()])


def yaml(value):
    return "null" if value is None else str(value).replace("True", "true").replace("False", "false")


def assert_equal_to_the_decoder(choices):
    import archlab

    try:
        config = config_of(choices)
    except UserError:  # two choices that exclude each other
        return False
    allocated = sum(p.numel() for p in archlab.Decoder(config.model).parameters())
    assert parameters(config.model).total == allocated, choices
    return True


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({key: st.sampled_from(values) for key, values in CHOICES.items()}))
def test_any_combination_counts_what_the_decoder_allocates(choices):
    assert_equal_to_the_decoder(choices)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    assert parameters(load_config(name).model).total == PUBLISHED[name]


@pytest.mark.parametrize("name", BY_HAND)
def test_counts_by_hand(name):
    assert parameters(load_config(name).model).total == BY_HAND[name]


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.slow
def test_counts_are_those_of_transformers(name):
    import transformers

    architecture, keys = TRANSFORMERS[name]
    model_class = getattr(transformers, architecture)
    with torch.device("meta"):
        model = model_class(model_class.config_class(**keys))
    counted = sum(p.numel() for p in model.parameters() if p.requires_grad)  # Marian's sinusoids are not trained
    if name in (
        "t5-v1.1-xxl",
        "mt5-xxl",
    ):  # the class ties the head until it loads a checkpoint in which it is not tied
        counted += model.lm_head.weight.numel()
    if architecture.startswith("Bart"):
        counted += model.final_logits_bias.numel()  # a buffer in transformers
    assert counted == parameters(load_config(name).model).total


def test_counts_of_nemotron_3_super():
    """The report gives 120.6B and 12.7B. The order of the 88 layers does not matter."""
    keys = {
        "vocab_size": 131072, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "n_routed_experts": 512,
        "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376,
        "moe_latent_size": 1024, "hybrid_override_pattern": 40 * "ME" + 8 * "*", "num_hidden_layers": 88,
    }  # fmt: skip
    found = parameters(FAMILIES["nemotron_h"].model_config(keys, "config.json"))
    assert (found.total // 10**8, found.active // 10**8) == (1206, 127)
    d, experts, latent, d_ff = 4096, 512, 1024, 2688
    assert found.mlp == 40 * (experts * d + 2 * d * latent + experts * 2 * latent * d_ff + 2 * d * 5376)


COUNTED = {"afmoe", "laguna", "ernie4_5_moe"}
"""Families whose class in transformers stores the correction biases as parameters without a gradient. In the others,
they are buffers."""
CORRECTED = {case.model_type: case for case in reversed(CASES) if "model.mlp.router.correction=null" in case.breaks}


@pytest.mark.parametrize("name", sorted({*CORRECTED, *COUNTED}))
def test_corrections_are_counted_beside_the_total_as_transformers_stores_them(name):
    case = CORRECTED.get(name) or next(case for case in CASES if case.model_type == name)
    with torch.device("meta"):
        model = auto_class(name).from_config(transformers.CONFIG_MAPPING[name](**case.hf))
    stored = [*model.named_parameters(), *model.named_buffers()]
    biases = [x for key, x in stored if key.endswith(("expert_bias", "e_score_correction_bias"))]
    found = parameters(FAMILIES[name].model_config(model.config.to_dict(), "config.json"))
    assert found.corrections == sum(x.numel() for x in biases) > 0
    assert found.total == sum(x.numel() for x in model.parameters() if x.requires_grad)
    whole = sum(x.numel() for x in model.parameters())
    assert whole == found.total + (found.corrections if name in COUNTED else 0)


def test_roles_of_gpt_2_by_hand():
    found = parameters(load_config("gpt-2").model)
    d, layers = 768, 12
    assert found.embedding == 50257 * d
    assert found.positions == 1024 * d
    assert found.attention == layers * (4 * d * d + 4 * d)
    assert found.mlp == layers * (8 * d * d + 5 * d)
    assert found.norms == (2 * layers + 1) * 2 * d
    assert found.head == 0
    assert found.non_embedding == found.total - found.embedding - found.positions


@pytest.mark.parametrize(
    ("placement", "parallel", "norms"),
    [
        ("pre", "none", 2 * 6 + 1),
        ("post", "none", 2 * 6),
        ("double", "none", 4 * 6 + 1),
        ("output", "none", 2 * 6 + 1),
        ("pre", "shared", 6 + 1),
        ("pre", "separate", 2 * 6 + 1),
        ("double", "shared", 3 * 6 + 1),
        ("double", "separate", 4 * 6 + 1),
    ],
)
def test_how_many_norms_a_placement_has(placement, parallel, norms):
    model = load_config("tiny-llama", f"model.norm.placement={placement}", f"model.block.parallel={parallel}").model
    assert parameters(model).norms == norms * 128


def test_a_component_names_its_parts_and_none_is_left_out(monkeypatch):
    model = load_config("tiny-llama", "model.mixer=short_conv").model
    counted, flops = parameters(model), forward_flops(model, 8)
    monkeypatch.setattr(ShortConv, "parameters", lambda self, site: {"gates": 7, "mixer": 5, "norms": 3})
    monkeypatch.setattr(ShortConv, "work", lambda self, site, this: [Operation("scans", "scan", 80.0)])
    n, found = model.n_layers, parameters(model)
    assert list(found.parts) == ["embedding", "positions", "attention", "gates", "mixer", "mlp", "norms", "head"]
    assert (found.parts["gates"], found.parts["mixer"], found.norms) == (7 * n, 5 * n, counted.norms + 3 * n)
    assert found.total == counted.total - counted.parts["mixer"] + 15 * n
    new = dict(forward_flops(model, 8))
    assert (new["scan"], sum(new.values())) == (10.0 * n, flops.total - flops.mixer + 10 * n)


def test_parts_of_absent_components_are_zero():
    """A script can ask any config for the same keys."""
    names = [
        list(dict(f(load_config("tiny-llama", *ov).model)))
        for f in (parameters, lambda m: forward_flops(m, 8))
        for ov in ([], ["model.attention.kind=none", "model.position=none", "model.mixer=mamba2", "model.mlp=none"])
    ]
    assert names[0] == names[1]
    assert names[2] == names[3]
