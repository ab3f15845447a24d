"""Mixtures of experts: layouts of files that transformers reads but does not write, and models that are refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.errors import UserError
from archlab.exchange.load import check_hf, load_hf
from archlab.exchange.save import save_pretrained
from archlab.families.registry import FAMILIES
from archlab.hf.family import differing
from archlab.infer.load import from_pretrained
from archlab.model.decoder import Decoder
from archlab.model.router import Router
from tests.parity.cases import CASES
from tests.parity.tiny import tiny_model

TOKENS = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(1))
MIXTURES = {
    case.model_type: case for case in reversed(CASES) if any("mlp.active" in override for override in case.breaks)
}


def written(model_type: str, folder: Path) -> dict[str, torch.Tensor]:
    tiny_model(MIXTURES[model_type]).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("model_type", sorted(MIXTURES.keys() - {"grok-1"}))  # its class has a module for each expert
def test_a_file_with_all_experts_in_one_tensor_is_the_same_model(model_type: str, tmp_path: Path) -> None:
    """The tensors have the layout and names of transformers in memory."""
    written(model_type, tmp_path)
    wanted = load_hf(tmp_path).state_dict()
    model = tiny_model(MIXTURES[model_type])
    head = "lm_head.weight" if model.config.tie_word_embeddings else ""
    save_file(
        {name: t.clone() for name, t in model.state_dict().items() if name != head}, tmp_path / "model.safetensors"
    )
    assert any("experts.gate_up_proj" in name for name in load_file(tmp_path / "model.safetensors"))
    assert not check_hf(tmp_path)
    found = load_hf(tmp_path).state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    "model_type",
    [
        "glm4_moe", "ernie4_5_moe", "minimax_m2", "qwen3_next", "glm4_moe_lite", "solar_open", "exaone_moe", "hy_v3",
        "qwen3_5_moe_text", "mimo_v2_flash", "axk1",
    ],
)  # fmt: skip
def test_layers_for_multi_token_prediction_are_left_out(model_type: str, tmp_path: Path) -> None:
    tensors = written(model_type, tmp_path)
    n_layers = json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"]
    first = {name: t for name, t in tensors.items() if "layers.0." in name}
    more = {name.replace("layers.0.", f"layers.{n_layers}."): t.clone() for name, t in first.items()}
    more |= {f"{name}.weight": torch.zeros(3) for name in ("model.mtp_block.0", "mtp.layers.0.norm", "mtp.fc")}
    save_file({**tensors, **more}, tmp_path / "model.safetensors")
    assert not check_hf(tmp_path)
    with torch.no_grad():
        assert load_hf(tmp_path)(TOKENS).isfinite().all()
    save_file({**tensors, "model.layers.0.mtpfoo.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert check_hf(tmp_path) == ["model.layers.0.mtpfoo.weight  surplus"]
    written("mixtral", other := tmp_path / "other")
    save_file(load_file(other / "model.safetensors") | more, other / "model.safetensors")
    assert any("surplus" in problem for problem in check_hf(other))


def test_published_files_of_axk1_have_no_correction_and_more_norms(tmp_path: Path) -> None:
    """Dense layers, which do not use the norm, have one in these files."""
    tensors, d_model = written("axk1", tmp_path), 32
    corrections = {name for name in tensors if name.endswith("e_score_correction_bias")}
    rest = {name: tensor for name, tensor in tensors.items() if name not in corrections}
    norms = {f"model.layers.{i}.post_mlp_layernorm.weight": torch.full((d_model,), 3.0) for i in range(4)}
    assert corrections
    assert 0 < len(norms.keys() & rest.keys()) < 4
    save_file({**norms, **rest}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(load_hf(tmp_path)(TOKENS), theirs(TOKENS).logits, atol=1e-5, rtol=1e-5)
    zeros = {name: torch.zeros_like(tensors[name]) for name in corrections}
    del rest["model.norm.weight"]
    save_file({**rest, **zeros}, tmp_path / "model.safetensors")
    assert check_hf(tmp_path) == ["model.norm.weight  missing"]


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    tensors = written("qwen3_moe", tmp_path)
    del tensors["model.layers.1.mlp.experts.4.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert check_hf(tmp_path) == ["model.layers.1.mlp.experts.4.up_proj.weight  missing"]


def test_a_correction_keeps_its_precision_in_bfloat16(tmp_path: Path) -> None:
    tensors = written("glm4_moe", tmp_path)
    theirs = [t for name, t in tensors.items() if name.endswith("e_score_correction_bias")]
    for model in (load_hf(tmp_path, torch.bfloat16), from_pretrained(tmp_path).to(torch.bfloat16)):
        found = [router.correction for router in model.modules() if isinstance(router, Router)]
        assert model.head.weight is not None
        assert model.head.weight.dtype is torch.bfloat16
        assert theirs
        assert all(torch.equal(a, b) for a, b in zip(found, theirs, strict=True) if a is not None)


@pytest.mark.parametrize(
    ("model_type", "key", "value", "message"),
    [
        ("olmoe", "clip_qkv", 8.0, "clip_qkv is 8.0, which archlab cannot build; allowed: null"),
        ("ernie4_5_moe", "moe_norm_min", 0.5, "moe_norm_min is 0.5, which archlab cannot build; allowed: up to 1e-6"),
        ("mixtral", "num_experts_per_tok", 9, "num_experts_per_tok  9 exceeds experts = 5; allowed: up to 5"),
        ("phimoe", "num_experts_per_tok", 3, "3, which archlab cannot build; allowed: 2, because the published code"),
        (
            "phimoe",
            "rope_scaling",
            {"type": "linear", "factor": 2.0},
            "'linear', which archlab cannot build; allowed: ",
        ),
        ("phimoe", "rope_scaling", {"type": "longrope"}, "rope_scaling.short_mscale is None"),
        ("axk1", "moe_layer_freq", 0, "moe_layer_freq is 0, which archlab cannot build; allowed: 1 or more"),
        ("glm4_moe", "n_group", 3, "3 does not divide 8 experts"),
        ("qwen2_moe", "decoder_sparse_step", 0, "decoder_sparse_step = 0"),
    ],
)
def test_an_unsupported_value_is_refused(
    model_type: str, key: str, value: object, message: str, tmp_path: Path
) -> None:
    written(model_type, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError) as error:
        load_hf(tmp_path)
    assert message in str(error.value)


def tiny(*overrides: str) -> Decoder:
    raw = {"vocab_size": 61, "d_model": 32, "n_layers": 3, "attention": {"n_heads": 4}}
    return Decoder(build_config({"model": raw}, [f"model.{o}" for o in overrides]).model).eval()


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("qwen3_moe", ["attention.qk_norm={kind: rmsnorm, cast: before_weight, eps: 1e-6}"]),
        ("glm4_moe", ["mlp.router={score: sigmoid, correction: {rate: 0.5}}"]),
    ],
)
def test_mixtures_in_a_layer_kind_are_written_as_the_base(family: str, overrides: list[str], tmp_path: Path) -> None:
    """The base config of the model has a dense MLP. In published files the mixture is the base."""
    mlp = "mlp={kind: moe, experts: 4, d_ff: 16}"
    norm = ["norm={cast: before_weight, eps: 1e-6}"]
    sparse = tiny(mlp, *norm, *overrides)
    common = sparse.config.mlp.model_dump()
    layers = {"layers": {"sparse": {"mlp": common}, "dense": {}, "pattern": ["dense", "sparse", "sparse"]}}
    raw = sparse.config.model_dump() | {"mlp": {"kind": "gated", "d_ff": 40}} | layers
    model = Decoder(build_config({"model": raw}).model).eval()
    save_pretrained(model, tmp_path / "hf", family)
    again = load_hf(tmp_path / "hf")
    assert not differing(again.config, model.config)
    assert [layer.mlp.kind for layer in layer_configs(again.config)] == ["gated", "moe", "moe"]
    with torch.no_grad():
        assert torch.equal(again(TOKENS), model(TOKENS))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("mlp={kind: moe, router: {correction: {}}}", "mlp.router.correction"),
        ("mlp={kind: moe, shared: {}}", "mlp.shared"),
        ("mlp={kind: moe, clamp: 7}", "mlp.clamp"),
        ("mlp={kind: moe, router: {bias: true}}", "mlp.router.bias"),
        ("mlp={kind: moe, gated: false}", "mlp.gated"),
        ("mlp={kind: moe, router: {applied_to: input}}", "mlp.router.applied_to"),
    ],
)
def test_fields_that_mixtral_cannot_express_are_named(override: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MixtralForCausalLM cannot express this model") as error:
        save_pretrained(tiny("norm.cast=before_weight", override), tmp_path / "hf", "mixtral")
    assert f"model.layers.*.{named}" in str(error.value).replace("layers.0.", "layers.*.")
    assert not (tmp_path / "hf").exists()


def test_a_fraction_of_laguna_outside_its_rope_is_read_by_nothing() -> None:
    """Published files repeat the fraction of full layers there."""
    family, sizes = FAMILIES["laguna"], {**MIXTURES["laguna"].hf, "partial_rotary_factor": 0.5}
    full = {"rope_theta": 100.0, "partial_rotary_factor": 0.5}
    sliding = {"rope_theta": 20.0, "partial_rotary_factor": 1.0}
    ropes = {"full_attention": full, "sliding_attention": sliding}
    model = family.model_config({**sizes, "rope_parameters": ropes}, "config.json")
    assert [layer.position.fraction for layer in layer_configs(model)] == [0.5, 1.0, 1.0, 0.5]
    ropes["full_attention"] = {"rope_theta": 100.0}
    with pytest.raises(UserError, match=r"allowed: 1\.0, or this key inside rope_parameters"):
        family.model_config({**sizes, "rope_parameters": ropes}, "config.json")
