"""`archlab flatten`: the file that it writes computes the same as the model, for every family and every choice."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from archlab.cli.app import main
from archlab.config.components.activation import Activation
from archlab.config.components.visibility import Visibility
from archlab.config.core.registry import kinds
from archlab.config.io import build_config, presets
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.exchange.load import load_hf
from archlab.flatten.operations import NotWritableError
from archlab.flatten.statements import Statements
from archlab.flatten.write import KNOWN, MOST_LINES, flatten_model
from archlab.model.decoder import Decoder
from archlab.model.norms import LayerNorm, RMSNorm
from tests.parity.cases import CASES
from tests.parity.tiny import Case, tiny_model

TOKENS = torch.randint(3, 23, (2, 30), generator=torch.Generator().manual_seed(1))
SOURCE = torch.randint(3, 23, (2, 31), generator=torch.Generator().manual_seed(2))
"""Source text of models with an encoder."""
LONG, LONGEST = (
    "afmoe", "axk1", "bamba", "cohere2_moe", "exaone_moe", "flint", "gemma4_text", "granitemoe_swa", "granitemoehybrid", "jamba", "kimi_linear", "laguna",
    "llama4_text", "mimo_v2_flash", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
), 1000  # fmt: skip
"""Families whose layers differ so much that the file is longer than usually allowed. It is correct nevertheless."""
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model_type}-{case.name}")
SMALL: dict[str, Any] = {
    "model": {"vocab_size": 23, "d_model": 24, "n_layers": 3, "max_seq_len": 32, "attention": {"n_heads": 4}}
}


@cache
def file_of(model: ModelConfig, name: str) -> str:
    """Return the flattened file. It is written once per process."""
    return flatten_model(model, title=name, most_lines=LONGEST)


def run_file(text: str) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(text, "flattened", "exec"), names)
    return names["Decoder"]().eval()


def gap(text: str, model: Decoder) -> float:
    """Return the largest difference between the file's and the model's logits, in standard deviations of these."""
    flat = run_file(text)
    flat.load_state_dict(model.state_dict())
    gaps = [0.0]
    for source in sources(model.config):
        with torch.no_grad():
            wanted: Tensor = model(TOKENS, **source)
            gaps.append(((flat(TOKENS, **source) - wanted).abs().max() / wanted.std()).item())
    return max(gaps)


def sources(model: ModelConfig) -> list[dict[str, Tensor]]:
    """Return the arguments of a pass, with and without padding of the source. Without an encoder, there are none."""
    if model.encoder is None:
        return [{}]
    return [{"source": SOURCE}, {"source": SOURCE, "source_lengths": torch.tensor([31, 7])}]


def check_text(text: str, most_lines: int | None = None) -> None:
    """Check that the file is short, imports torch only, and has no unused names."""
    assert text.count("\n") <= (most_lines or (450 if "class Encoder(" in text else MOST_LINES))
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.M)) <= {"torch", "math"}
    assert [line for line in text.splitlines() if len(line) > 88] == []
    code = re.sub(r"(?s)\"\"\".*?\"\"\"|#[^\n]*", "", text)
    for name in re.findall(r"^([A-Z_0-9]+) = |^(?:class|def) (\w+)", text, re.M):
        defined = "".join(name)
        assert defined == "Decoder" or len(re.findall(rf"\b{defined}\b", code)) > 1, f"{defined} is not used"
    for name in re.findall(r"self\.(\w+) = ", text):
        assert len(re.findall(rf"\.{name}\b", code)) > 1, f"self.{name} is not used"


def noisy(model: Decoder) -> Decoder:
    """Add noise to all numbers, including norms, biases and corrections."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (*model.parameters(), *model.buffers()):
            parameter.add_(torch.empty(parameter.shape).normal_(0, 0.2, generator=generator))
    return model.eval()


@EVERY_CASE
def test_every_family(case: Case, tmp_path: Path) -> None:
    tiny_model(case).save_pretrained(tmp_path)
    model = load_hf(tmp_path)
    text = file_of(model.config, case.model_type)
    check_text(text, LONGEST if case.model_type in LONG else None)
    assert gap(text, model) < 1e-5


@EVERY_CASE
def test_every_family_in_bfloat16_rounds_factors_and_weights_as_the_model_does(case: Case, tmp_path: Path) -> None:
    tiny_model(case).bfloat16().save_pretrained(tmp_path)
    model = load_hf(tmp_path)
    flat = run_file(file_of(model.config, case.model_type)).bfloat16()
    flat.load_state_dict(model.state_dict())
    for name, buffer in model.named_buffers():  # a router's correction keeps its precision
        assert torch.equal(flat.get_buffer(name), buffer)
    entering, source = list[Tensor](), sources(model.config)[-1]
    for decoder in (flat, model):
        decoder.layers[0].register_forward_pre_hook(lambda _, arguments: entering.append(arguments[0]))
    with torch.no_grad():
        assert flat(TOKENS, **source).dtype is model(TOKENS, **source).dtype is torch.bfloat16
        assert torch.equal(*entering)
        for name, norm in model.named_modules():
            if isinstance(norm, LayerNorm | RMSNorm) and norm.weight is not None:
                x = torch.randn(3, *norm.weight.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
                # Sums in another order are sometimes rounded to the adjacent number.
                assert (norm(x) != flat.get_submodule(name)(x)).float().mean() < 0.02, name


NORMS = [
    f"model.norm={{kind: {kind}, eps: 0.01}}"
    for kind in (
        "rmsnorm", "rmsnorm, weight: false", "rmsnorm, unit_offset: true", "rmsnorm, cast: before_weight", "layernorm",
        "layernorm, bias: false", "layernorm, weight: false", "layernorm, weight: false, bias: false",
        "prmsnorm", "layernorm, unit_offset: true", "layernorm, unit_offset: true, bias: false",
    )
]  # fmt: skip
LONGROPE = "short_factor: [1.0, 1.5, 2.0], long_factor: [2.0, 3.0, 4.0]"
POSITIONS = [
    f"model.position={{kind: {kind}}}"
    for kind in (
        "none", "sinusoidal", "sinusoidal, layout: halves, offset: 2", "learned", "learned, offset: 2",
        "shaw, max_distance: 5", "transformer_xl", "t5, buckets: 8, max_distance: 20",
        "t5, buckets: 8, max_distance: 20, shared: false",
        "alibi", "alibi, max_bias: 4.0", "alibi, form: falcon", "rope", "rope, fraction: 0.7",
        "rope, pairing: interleaved", "rope, pairing: interleaved, fraction: 0.7",
        "rope, scaling: {kind: linear, factor: 3.0}",
        "rope, scaling: {kind: dynamic, factor: 3.0, original_max_seq_len: 16}",
        "rope, scaling: {kind: dynamic, factor: 3.0, original_max_seq_len: 64}",
        "rope, theta: 20.0, scaling: {kind: llama3, factor: 3.0, original_max_seq_len: 16}",
        "rope, theta: 20.0, scaling: {kind: yarn, factor: 3.0, original_max_seq_len: 16, beta_fast: 2.0}",
        "rope, theta: 20.0, scaling: {kind: yarn, factor: 3.0, original_max_seq_len: 16, truncate: false}",
        f"rope, scaling: {{kind: longrope, factor: 3.0, original_max_seq_len: 16, {LONGROPE}}}",
        f"rope, scaling: {{kind: longrope, factor: 3.0, original_max_seq_len: 64, {LONGROPE}}}",
        "rope, scaling: {kind: proportional, turning: 0.7}",
    )
]  # fmt: skip
ATTENTIONS = [
    f"model.attention={{n_heads: 4, {more}}}"
    for more in (
        "n_kv_heads: 2", "n_kv_heads: 1, head_dim: 10", "v_dim: 5", "n_kv_heads: 2, v_dim: 9, softcap: 0.7, sub_norm: true",
        "visibility: two_sided", "visibility: two_sided, window: 3, global_tokens: 2", "window: 5", "window: 5, stride: 3", "window: 5, global_tokens: 2",
        "window: 5, stride: 4, global_tokens: 2", "blocks: {size: 7, summary: 2}", "scale: 0.9", "qkv_bias: true",
        "out_bias: true", "clip_qkv: 0.3", "softcap: 0.7", "softcap: 0.7, n_kv_heads: 2, scale: 0.8", "sub_norm: true",
        *(f"n_kv_heads: 2, qk_norm: {{kind: {kind}, scope: {scope}{eps}}}" for kind in ("rmsnorm", "layernorm")
          for scope in ("head", "each_head", "width") for eps in ("", ", eps: 0.1")),
        "qk_norm: {kind: layernorm, weight: false, bias: false, scope: width}",
        "v_norm: {eps: 0.1}", "n_kv_heads: 2, v_dim: 5, v_norm: {}", "n_kv_heads: 2, keys_as_values: true, qkv_bias: true",
        "keys_as_values: true, v_norm: {}, qk_norm: {kind: rmsnorm}, clip_qkv: 0.3",
        "qk_norm: {kind: rmsnorm, unit_offset: true}", "qk_norm: {kind: rmsnorm, weight: false, scope: width}",
    )
]  # fmt: skip
LAYERS = [
    ("model.layers={local: {attention.window: 4}, full: {position.kind: none}, pattern: [local, full]}",),
    ("model.layers={local: {attention.window: 4}, wider: {attention.window: 9}, pattern: [local, wider]}",),
    ("model.layers={slow: {position.theta: 500.0}, fast: {}, pattern: [slow, slow, fast]}",),
    ("model.layers={part: {position.fraction: 0.4}, whole: {}, pattern: [part, whole]}",),
    ("model.layers={a: {mlp.d_ff: 40}, b: {mlp.activation: relu}, c: {mlp.kind: plain}, pattern: [a, b, c]}",),
    ("model.layers={a: {norm.kind: layernorm}, b: {norm.placement: double}, pattern: [a, b]}",),
    ("model.layers={a: {norm.eps: 0.1}, b: {}, pattern: [a, b]}",),
    ("model.layers={a: {block.parallel: shared}, b: {block.parallel: separate}, c: {}, pattern: [a, b, c]}",),
    ("model.layers={a: {attention.softcap: 1.0}, b: {attention.n_kv_heads: 2}, pattern: [a, b]}",),
    ("model.layers={a: {attention.qk_norm.kind: rmsnorm}, b: {}, pattern: [a, b]}",),
    ("model.layers={a: {position.kind: alibi}, b: {}, pattern: [a, b]}",),
    ("model.layers={1: {attention.window: 4}, in-out: {}, pattern: ['1', in-out]}",),
    ("model.layers={a: {attention.window: 4}, b: {attention.window: 4}, pattern: [a, b]}",),
    ("model.position.kind=t5", "model.layers={a: {position.kind: none}, b: {}, pattern: [a, b]}"),
    ("model.position.kind=alibi", "model.layers={a: {attention.window: 4}, b: {}, pattern: [a, b]}"),
]
MIXTURES = [
    f"model.mlp={{kind: moe, experts: 6, d_ff: 10, {more}}}"
    for more in (
        "active: 1", "active: 2, gated: false", "active: 2, bias: true", "active: 2, gated: false, activation: xielu, bias: true",
        "active: 3, router: {normalise: false}", "active: 3, router: {factor: 2.5, bias: true}",
        "active: 3, router: {score: sigmoid}", "active: 3, router: {score: sigmoid, normalise: false, correction: {}}",
        "active: 3, router: {applied_to: input}", "active: 2, router: {score: sigmoid, applied_to: input}, bias: true",
        "active: 2, router: {correction: {}}", "active: 2, router: {groups: {n: 3, kept: 2}}",
        "active: 2, router: {score: sigmoid, correction: {}, groups: {n: 3, kept: 1, by: max}}",
        "active: 2, router: {norm: true, factor: 2.0}", "active: 2, router: {expert_scale: true, correction: {}}",
        "active: 3, own_norms: true, router: {norm: true, expert_scale: true}, shared: {gate: true}",
        "latent: {width: 7}", "gated: false, latent: {width: 16, bias: true}, own_norms: true, router: {norm: true}, shared: {}",
        "active: 2, shared: {}", "active: 2, shared: {d_ff: 14, gate: true, bias: true}", "clamp: 0.5, shared: {}", "up_offset: 1",
        "clamp: 0.5, up_offset: 1, bias: true, activation: gelu_tanh, shared: {gate: true}, "
        "router: {score: sigmoid, correction: {}, groups: {n: 3, kept: 2}, factor: 2.5, bias: true}",
    )
]  # fmt: skip
ENCODERS: list[tuple[str, ...]] = [
    ("model.encoder={n_layers: 2}",),
    ("model.encoder={n_layers: 2}", "model.norm={kind: layernorm, placement: post}", "model.position.kind=learned", "model.head.tied=true"),
    ("model.encoder={n_layers: 1, attention: {window: 5, n_heads: 2}, mlp.d_ff: 10, norm.eps: 0.1, cross: {n_kv_heads: 2}}", "model.position.kind=t5"),
    ("model.encoder={n_layers: 1, position.kind: alibi, cross: {n_heads: 2, head_dim: 4, v_dim: 3, softcap: 2.0}}", "model.position.kind=shaw"),
    ("model.encoder={n_layers: 1, mlp: {kind: moe, experts: 4}, cross: {sinks: true, gate: {per: head}}}", LAYERS[0][0]),
]  # fmt: skip
CHOICES: list[tuple[str, ...]] = [
    *((norm, f"model.norm.placement={placement}") for norm in NORMS for placement in ("pre", "double")),
    *((f"model.norm.placement={placement}",) for placement in ("post", "output", "carried")),
    ("model.norm={kind: none}",),
    ("model.norm={kind: none}", "model.block.parallel=shared"),
    *(("model.norm.placement=" + p, "model.block.parallel=" + b) for p in ("pre", "double") for b in ("shared", "separate")),
    *((position,) for position in POSITIONS),
    *((position, "model.attention.softcap=0.7", "model.attention.n_kv_heads=2", "model.attention.window=6") for position in POSITIONS),
    ("model.attention={n_heads: 6, n_kv_heads: 3}", "model.position={kind: alibi}"),
    ("model.d_model=25", "model.attention={n_heads: 5}", "model.position.kind=sinusoidal"),
    *((attention,) for attention in ATTENTIONS),
    *((f"model.attention.qk_norm={{kind: rmsnorm, scope: {s}}}", "model.position.order=before_qk_norm") for s in ("head", "each_head", "width")),
    *((f"model.mlp.kind={kind}", f"model.mlp.activation={name}") for kind in ("plain", "gated") for name in kinds(Activation)),
    ("model.mlp.sub_norm=true", "model.attention.sub_norm=true", "model.norm.kind=layernorm"),
    ("model.mlp.bias=true",),
    ("model.block={attention_multiplier: 0.5, mlp_multiplier: 0.7}", "model.norm.placement=double"),
    ("model.block.stream_scale=true",),
    ("model.layers={a: {block.stream_scale: true, attention.keys_as_values: true}, b: {}, pattern: [a, b]}",),
    ("model.embedding.scale=sqrt_d_model",),
    ("model.embedding={scale: sqrt_d_model, round_scale: true}",),
    ("model.embedding={scale: 3.1, round_scale: true, width: 10, norm: true}",),
    ("model.embedding.scale=3.0", "model.embedding.norm=true"),
    ("model.embedding={width: 10, scale: 2.0}",),
    ("model.embedding={width: 10, norm: true}", "model.head={tied: true, bias: true}"),
    ("model.embedding.width=10", "model.head={bias: true}"),
    ("model.head={tied: true}",),
    ("model.head={tied: true, bias: true, scale: 0.5, softcap: 2.0}",),
    ("model.head={bias: true, scale: 0.5}",),
    *LAYERS,
    *ENCODERS,
    ("model.mlp={kind: gated, clamp: 0.5}",),
    ("model.mlp={kind: gated, up_offset: 1, bias: true}",),
    ("model.mlp={kind: gated, clamp: 0.5, up_offset: 1, activation: quick_gelu}",),
    *((mixture,) for mixture in MIXTURES),
    (MIXTURES[-1], "model.layers={dense_first: {mlp: {kind: gated}}, sparse: {}, pattern: [dense_first, sparse, sparse]}"),
    ("model.layers={a: {mlp: {kind: moe, experts: 4}}, b: {mlp.d_ff: 9, attention.v_dim: 5}, pattern: [a, b]}",),
]  # fmt: skip


def built(*overrides: str) -> ModelConfig:
    return build_config(SMALL, overrides).model


@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_every_choice(overrides: tuple[str, ...]) -> None:
    model = noisy(Decoder(built(*overrides)))
    text = file_of(model.config, "a choice")
    check_text(text)
    assert gap(text, model) < 1e-5


@pytest.mark.parametrize("more", [(), ENCODERS[0]])
def test_dropout_is_the_same_as_in_the_model(more: tuple[str, ...]) -> None:
    model = noisy(Decoder(built("model.dropout={embedding: 0.1, attention: 0.2, branch: 0.3}", *more)))
    flat = run_file(flatten_model(model.config, title="dropout"))
    flat.load_state_dict(model.state_dict())
    logits = []
    for decoder in (model.train(), flat.train()):
        torch.manual_seed(0)
        logits.append(decoder(TOKENS, **sources(model.config)[-1]))
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("norm", NORMS)
def test_it_runs_in_bfloat16_and_rounds_much_like_the_model(norm: str) -> None:
    exact = noisy(Decoder(built(norm, "model.attention.qk_norm={kind: rmsnorm}")))
    flat = run_file(flatten_model(exact.config, title="rounded")).bfloat16()
    flat.load_state_dict(exact.state_dict())
    with torch.no_grad():
        wanted = exact(TOKENS)
        error = (flat(TOKENS).float() - wanted).square().mean().sqrt()
        model_error = (exact.bfloat16()(TOKENS).float() - wanted).square().mean().sqrt()
    assert error < 2 * model_error < 0.5 * wanted.std()


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = next(case for case in CASES if case.model_type == "gemma2")
    tiny_model(theirs).save_pretrained(tmp_path / "hf")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(SMALL))
    for source, wanted in (
        ("llama-3-8b", "D_MODEL = 4096"),
        (tmp_path / "hf", "SOFTCAP"),
        (tmp_path / "run", "D_MODEL = 24"),
    ):
        assert main(["flatten", str(source), "model.n_layers=2"]) == 0
        text = capsys.readouterr().out
        assert wanted in text
        assert "N_LAYERS = 2" in text
        check_text(text)
    assert main(["flatten", "llama-3-8c"]) == 2


def test_it_does_not_load_torch() -> None:
    code = "import sys, archlab.cli.configs as f; f.flatten('gpt-2'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_broken_file_is_seen() -> None:
    model = noisy(Decoder(built("model.attention={n_heads: 4, window: 5, softcap: 1.5}", "model.head.softcap=5.0")))
    text = flatten_model(model.config, title="whole")
    for old, new in (
        ("WINDOW = 5", "WINDOW = 6"), ("SOFTCAP = 1.5", "SOFTCAP = 1.6"), ("ROPE_THETA = 10_000.0", "ROPE_THETA = 9_000.0"),
        ("NORM_EPS = 1e-5", "NORM_EPS = 1e-2"), ("F.silu", "F.gelu"), ("own * cos + ", "own * cos - "),
    ):  # fmt: skip
        assert text.count(old) >= 1, old
        assert gap(text.replace(old, new), model) > 1e-4, new
    with_encoder = noisy(Decoder(built(*ENCODERS[0])))
    text = flatten_model(with_encoder.config, title="whole")
    for old, new in (
        ("index_11S < source_lengths", "index_11S <= source_lengths"), ("seen = key >= 0", "seen = key >= -1"),
        ("self.encoder(self.embedding(source)", "self.encoder(self.embedding(source.flip(1))"),
    ):  # fmt: skip
        assert old in text, old
        assert gap(text.replace(old, new), with_encoder) > 1e-4, new
    with pytest.raises(RuntimeError, match="Missing key"):
        gap(text.replace("self.q =", "self.query =").replace("self.q(", "self.query("), model)


def of_choices() -> Iterator[str]:
    return (file_of(built(*overrides), "a choice") for overrides in CHOICES)


def of_presets() -> Iterator[str]:
    models = ((name, load_config(name).model) for name in presets())
    return (flatten_model(model, title=name, most_lines=LONGEST) for name, model in models)


@pytest.mark.parametrize("files", [of_choices, of_presets])
def test_ruff_finds_nothing_to_change(files: Callable[[], Iterator[str]], tmp_path: Path) -> None:
    for i, text in enumerate(files()):
        (tmp_path / f"file_{i}.py").write_text(text)
    ours = Path(__file__).parents[2] / "pyproject.toml"
    ruff = [sys.executable, "-m", "ruff"]
    for arguments in (
        ["check", "--no-cache", "--config", str(ours)], ["format", "--check", "--isolated", "--no-cache"],
    ):  # fmt: skip
        done = subprocess.run([*ruff, *arguments, str(tmp_path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_field_that_the_skeleton_does_not_support_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, Visibility, "visibility stride global_tokens blocks")
    flatten_model(built(), title="plain")
    with pytest.raises(UserError, match=r"model\.attention\.window +5; allowed in a flattened file: null"):
        flatten_model(built("model.attention={n_heads: 4, window: 5}"), title="windowed")
    with pytest.raises(
        UserError, match=r"model\.attention\.visibility +prefix; allowed in a flattened file: causal, two"
    ):
        flatten_model(built("model.attention={n_heads: 4, visibility: prefix}"), title="with a prefix")
    with pytest.raises(UserError, match=r"model\.encoder\.attention\.window +5; allowed in a flattened file: null"):
        flatten_model(built("model.encoder={n_layers: 3, attention.window: 5}"), title="with a windowed encoder")


def test_a_component_whose_source_cannot_be_written_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotWritableError("for c in range(n)")

    monkeypatch.setattr(Statements, "_loop", refuse)
    flatten_model(built(), title="without a loop")
    with pytest.raises(UserError, match=r"model\.mixer\.kind +mamba2 .*`for c in range\(n\)`"):
        flatten_model(
            built(
                "model.attention={kind: none}", "model.position.kind=none", "model.mixer={kind: mamba2, head_dim: 8}"
            ),
            title="with one",
        )


def test_too_many_kinds_are_refused() -> None:
    many = ", ".join(
        f"k{i}: {{attention.qkv_bias: true, attention.scale: {i + 1}.0, mlp.d_ff: {i + 3}}}" for i in range(8)
    )
    with pytest.raises(UserError, match=r"model\.layers: 8 different kinds"):
        flatten_model(
            built("model.n_layers=8", f"model.layers={{{many}, pattern: [{', '.join(f'k{i}' for i in range(8))}]}}"),
            title="many",
        )
