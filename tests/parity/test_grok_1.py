"""Grok-1 in float64, the names of its tensors, and its preset."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.exchange.load import load_hf
from archlab.exchange.save import save_pretrained
from archlab.families.registry import FAMILIES
from archlab.hf.family import differing
from archlab.pricing.params import parameters
from tests.parity.cases.grok_1 import CASES
from tests.parity.tiny import Case, tiny_model

PUBLISHED = {
    "model_type": "grok-1", "architectures": ["Grok1ModelForCausalLM"], "vocab_size": 131072, "hidden_size": 6144,
    "intermediate_size": 32768, "num_hidden_layers": 64, "num_attention_heads": 48, "num_key_value_heads": 8,
    "attn_output_multiplier": 0.08838834764831845, "embedding_multiplier_scale": 78.38367176906169,
    "output_multiplier_scale": 0.5773502691896257, "max_attn_value": 30.0, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "use_cache": True, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": True, "num_experts_per_tok": 2, "num_experts": 8, "output_router_logits": False,
    "router_aux_loss_coef": 0.001, "torch_dtype": "bfloat16", "transformers_version": "4.35.0",
}  # fmt: skip
"""config.json of hpcai-tech/grok-1."""
PER_LAYER = [
    *(f"attn.{x}_proj.weight" for x in "qkvo"), "moe_block.gate.weight",
    *(f"{x}_norm.scale" for x in ("pre_attn", "post_attn", "pre_moe", "post_moe")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float64_agrees_almost_to_the_last_digit(case: Case, tmp_path: Path) -> None:
    tokens = torch.randint(3, 61, (2, 40), generator=torch.Generator().manual_seed(1))
    theirs = tiny_model(case).double()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(load_hf(tmp_path, torch.float64)(tokens), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_files_have_the_tensors_of_the_port(case: Case, tmp_path: Path) -> None:
    tiny_model(case).save_pretrained(tmp_path / "theirs")
    save_pretrained(load_hf(tmp_path / "theirs"), tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    experts = [
        f"moe_block.experts.{e}.{x}.weight"
        for e in range(written["num_experts"])
        for x in ("linear", "linear_v", "linear_1")
    ]
    names = {f"model.layers.{i}.{x}" for i in range(written["num_hidden_layers"]) for x in (*PER_LAYER, *experts)}
    names |= {"model.embed_tokens.weight", "model.norm.scale"} | (
        set() if written["tie_word_embeddings"] else {"lm_head.weight"}
    )
    assert ours.keys() == theirs.keys() == names
    assert all(torch.equal(ours[name], theirs[name]) for name in names)
    assert (written["model_type"], written["architectures"]) == ("grok-1", ["Grok1ModelForCausalLM"])


def test_the_preset_is_the_published_model_but_for_the_form_of_gelu() -> None:
    preset, published = load_config("grok-1-314b").model, FAMILIES["grok-1"].model_config(PUBLISHED, "config.json")
    assert differing(preset, published) == {f"layers.{i}.mlp.activation": ("gelu_tanh", "gelu") for i in range(64)}
    # attention, router and experts, norms of each layer; then embedding and last norm
    layer = 6144 * (2 * 6144 + 2 * 1024) + 8 * 6144 + 8 * 3 * 6144 * 32768 + 4 * 6144
    assert parameters(published).total == parameters(preset).total == 64 * layer + 131072 * 6144 + 6144
    with pytest.raises(UserError, match=r"mlp\.activation: gelu_tanh in this model, gelu if exported"):
        FAMILIES["grok-1"].hf_config(preset)
    exact = load_config("grok-1-314b", "model.mlp.activation=gelu").model
    assert FAMILIES["grok-1"].hf_config(exact).items() <= {**PUBLISHED, "pad_token_id": None}.items()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_theta": 5e5}, "rope_theta is 500000.0, which archlab cannot build; allowed: 10000.0"),
        ({"max_attn_value": 0}, "max_attn_value"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok  9 exceeds experts = 8; allowed: up to 8"),
        ({"hidden_act": "silu"}, "archlab does not know these keys of family grok-1: hidden_act = 'silu'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        FAMILIES["grok-1"].model_config(PUBLISHED | change, "config.json")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "override", ["model.position.theta=5e5", "model.attention.head_dim=64", "model.attention.softcap=null"]
)
def test_a_model_that_the_port_cannot_express_is_not_exported(override: str) -> None:
    model = load_config("grok-1-314b", "model.mlp.activation=gelu", override).model
    with pytest.raises(UserError, match="Grok1ModelForCausalLM cannot express this model"):
        FAMILIES["grok-1"].hf_config(model)
