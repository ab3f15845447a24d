"""Tests of the definitions in docs/conventions.md: one test per word, named there."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import logsumexp, softmax
from torch import Tensor
from transformers.masking_utils import sliding_window_overlay
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as interleaved_as_in_gptj
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as half_as_in_llama

from archlab.config.components import norm as norm_schema
from archlab.config.components import position as position_schema
from archlab.config.components.kernel_choice import RULES, KernelNeeds
from archlab.config.core.base import LONGEST, MOST_TOKENS
from archlab.config.identity import config_hash
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.batch import HeldOut, next_token
from archlab.data.training_data import Windows
from archlab.exchange.configs import load_config
from archlab.model.decoder import Decoder
from archlab.model.kernels import KERNELS
from archlab.model.masks import TensorMask
from archlab.model.norms import make_norm
from archlab.model.rotary import rotation
from archlab.model.softmax import Softmax
from archlab.model.state import Cache
from archlab.pricing.params import parameters
from archlab.study.schema import StudyConfig
from archlab.training.device import Device
from archlab.training.loss import objective
from archlab.training.schedule import learning_rate
from scores import evaluate

DOCS = Path(__file__).parents[2] / "docs" / "conventions.md"
RNG = np.random.default_rng(0)


def tiny(*overrides: str) -> Config:
    raw: dict[str, Any] = {
        "model": {
            "vocab_size": 17,
            "d_model": 16,
            "n_layers": 1,
            "max_seq_len": 16,
            "attention": {"n_heads": 4},
        }
    }
    return build_config(raw, overrides)


def randomized(*overrides: str) -> Decoder:
    """Return a float64 decoder with random parameters, so that zero biases and unit norms hide no errors."""
    model = Decoder(tiny(*overrides).model).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, 0.3, generator=generator))
    return model


def random(*shape: int) -> Tensor:
    return torch.from_numpy(RNG.normal(size=shape))


TOKENS = torch.from_numpy(RNG.integers(0, 17, size=(2, 12)))


def test_every_test_that_the_document_names_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", DOCS.read_text())
    for file, test in named:
        (found,) = Path(__file__).parents[1].glob(f"*/{file}")
        assert f"def {test}(" in found.read_text(), f"{file}::{test}"
    here = set(re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE))
    assert here - {test for _, test in named} == {"test_every_test_that_the_document_names_exists"}


# --- numbers -----------------------------------------------------------------------------------------------


def _integers(schema: Any, definitions: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every property of a JSON schema that accepts an integer, with its dotted name."""
    for part in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            yield from _integers(definitions.pop(name), definitions, name) if name in definitions else ()
        for name, value in part.get("properties", {}).items():
            types = {option.get("type") for option in (value, *value.get("anyOf", ()))}
            yield from [(f"{at}.{name}", value)] if "integer" in types else []
            yield from _integers(value, definitions, f"{at}.{name}")


def test_suffixes_of_numbers() -> None:
    """`8K` is 8,000 and `8Ki` is 8,192 in every field that counts tokens. A run has one name for all spellings."""
    plain = load_config("tiny-llama", "model.max_seq_len=8192", "train.tokens=2097152")
    for k, m in (("8Ki", "2Mi"), ("8ki", "2MI"), ("8.192K", "2.097152M")):
        written = load_config("tiny-llama", f"model.max_seq_len={k}", f"train.tokens={m}")
        assert config_hash(written) == config_hash(plain)
    counted = set[str]()
    for config in (Config, StudyConfig):
        schema = config.model_json_schema(mode="validation")
        for name, value in _integers(schema, schema.get("$defs", {})):
            options = [value, *value.get("anyOf", ())]
            if {LONGEST, MOST_TOKENS} & {option.get("maximum") for option in options}:
                assert "string" in {option.get("type") for option in options}, name
                counted.add(name)
    assert {"ModelConfig.max_seq_len", "TrainConfig.tokens", "MultiHead.window", "Budget.tokens"} <= counted


def test_examples_with_contexts_use_powers_of_two() -> None:
    """Commands in the documents, the topics and the help write a context of thousands as `8Ki`, never as `8K`."""
    home = DOCS.parents[1]
    pages = [
        home / "README.md",
        *home.glob("docs/**/*.md"),
        *home.glob("src/archlab/**/*.yaml"),
        *home.glob("src/**/*.py"),
    ]
    found = [text for page in pages for text in re.findall(r"--context [\w,]+|context: \d\w+", page.read_text("utf-8"))]
    assert any("8Ki" in text for text in found)
    assert not [text for text in found if re.search(r"\dK\b", text)]


# --- attention ---------------------------------------------------------------------------------------------


def keys_seen(*overrides: str, prefix: Tensor | None = None) -> list[list[int]]:
    """Return, for each of 12 queries in one layer, the keys that change its logits."""
    model, keys = randomized(*overrides), range(12)
    before, seen = model(TOKENS[:1], prefix=prefix), [[] for _ in keys]
    for key in keys:
        changed = TOKENS[:1].clone()
        changed[0, key] = (changed[0, key] + 1) % 17
        for query in ((model(changed, prefix=prefix) - before).abs().amax(-1)[0] > 1e-9).nonzero()[:, 0].tolist():
            seen[query].append(key)
    return seen


def test_window() -> None:
    theirs = sliding_window_overlay(3)
    expected = [[key for key in range(query + 1) if theirs(0, 0, query, key)] for query in range(12)]
    assert keys_seen("model.attention.window=3") == expected
    assert expected[7] == [5, 6, 7]


def test_visibility() -> None:
    assert keys_seen("model.attention={n_heads: 4, visibility: two_sided, window: 3}")[5] == [3, 4, 5, 6, 7]
    seen = keys_seen("model.attention={n_heads: 4, visibility: prefix}", prefix=torch.tensor([7]))
    assert (seen[2], seen[6], seen[7]) == ([*range(7)], [*range(7)], [*range(8)])


def test_stride() -> None:
    assert keys_seen("model.attention={n_heads: 4, window: 2, stride: 4}")[10] == [2, 6, 9, 10]


def test_global_tokens() -> None:
    seen = keys_seen("model.attention={n_heads: 4, window: 2, global_tokens: 3}")
    assert seen[2] == [0, 1, 2]
    assert seen[10] == [0, 1, 2, 9, 10]


def test_blocks() -> None:
    assert keys_seen("model.attention={n_heads: 4, blocks: {size: 4, summary: 1}}")[9] == [3, 7, 8, 9]


def test_fraction() -> None:
    positions, lengths = torch.arange(9)[None], torch.tensor([[9]])
    turn = rotation(position_schema.Rope(fraction=0.3, theta=100.0), 14, positions, lengths, torch.float64)
    angles = np.arange(9)[:, None] * 100.0 ** (-np.array([0, 2]) / 4)  # 4 of 14 dimensions
    np.testing.assert_allclose(turn.cos[0, 0], np.cos(np.tile(angles, 2)), rtol=1e-12)
    x = torch.from_numpy(RNG.normal(size=(1, 1, 9, 14)))
    assert torch.equal(turn.rotate(x)[..., 4:], x[..., 4:])


def test_scales_and_multipliers() -> None:
    """A factor of 0.25 makes a branch, the logits or the scores a quarter as large."""
    plain = randomized().double()
    found: dict[str, list[Tensor]] = {}
    for name in ("", "model.attention.scale=0.125", "model.block.attention_multiplier=0.25", "model.head.scale=0.25"):
        model = randomized(*filter(None, [name]))
        model.load_state_dict(plain.state_dict())
        block, kept = model.layers[0], []
        block.mlp_norms.before.register_forward_pre_hook(lambda _, x, kept=kept: kept.append(x[0]))
        logits = model(TOKENS)
        found[name] = [kept[0] - model.embedding(TOKENS), logits, model.hidden(TOKENS)]
        assert block.attention.attend.scale == (0.125 if "attention.scale" in name else 0.5)
    branch, logits, hidden = found[""]
    torch.testing.assert_close(found["model.block.attention_multiplier=0.25"][0], 0.25 * branch)
    torch.testing.assert_close(found["model.head.scale=0.25"][1], 0.25 * logits)
    torch.testing.assert_close(found["model.head.scale=0.25"][2], hidden)
    assert not torch.allclose(found["model.attention.scale=0.125"][0], branch)


def test_depth_scaled() -> None:
    deep = "model.n_layers=8"
    for given in ("null", "0.3"):
        plain, scaled = (
            Decoder(tiny(deep, f"model.init.output={given}", f"model.init.depth_scaled={on}").model).state_dict()
            for on in ("false", "true")
        )
        for name, value in plain.items():
            is_output = name.endswith(("attention.out.weight", "mlp.down.weight"))
            torch.testing.assert_close(scaled[name], value / 4 if is_output else value)


@pytest.mark.parametrize(
    "kernel",
    [name for name, rules in RULES.items() if not rules.lacks(KernelNeeds(softcap=True, bias=True, float64=True))],
)
def test_soft_cap(kernel: str) -> None:
    q, k, v = (random(1, 2, 5, 4) for _ in range(3))
    bias, mask = random(1, 2, 5, 5), torch.ones(5, 5, dtype=torch.bool).tril(0)[None]
    capped = 3 * np.tanh((0.7 * q.numpy() @ k.numpy().swapaxes(-1, -2) + bias.numpy()) / 3)
    expected = softmax(np.where(mask, capped, -np.inf), axis=-1) @ v.numpy()
    got = KERNELS[kernel](q, k, v, TensorMask(mask), bias, Softmax(0.7, 3.0, 0.0))
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    head = ("model.head.scale=0.5", "model.head.bias=true")
    plain = randomized(*head)(TOKENS)
    torch.testing.assert_close(randomized(*head, "model.head.softcap=2")(TOKENS), 2 * torch.tanh(plain / 2))


def test_head_dim() -> None:
    config = tiny("model.attention={n_heads: 4, n_kv_heads: 2, head_dim: 6}")
    attention = Decoder(config.model).layers[0].attention
    assert attention.q.weight.shape == (4 * 6, 16)
    assert attention.k.weight.shape == attention.v.weight.shape == (2 * 6, 16)
    assert attention.out.weight.shape == (16, 4 * 6)
    assert attention.attend.scale == pytest.approx(1 / math.sqrt(6))


def test_qk_norm_scope() -> None:
    x, shapes = random(2, 4, 5, 6), {"head": (6,), "each_head": (4, 6), "width": (24,)}
    for scope, shape in shapes.items():
        qk_norm = f"{{kind: layernorm, bias: false, scope: {scope}}}"
        config = tiny(f"model.attention={{n_heads: 4, head_dim: 6, qk_norm: {qk_norm}}}")
        norm = Decoder(config.model).layers[0].attention.q_norm.double()
        assert norm.norm.weight.shape == shape
        norm.norm.weight.data = weight = random(*shape)
        rows = x.transpose(1, 2)  # [batch, tokens, heads, head_dim]
        rows = rows.flatten(-2) if scope == "width" else rows
        variance = rows.var(-1, keepdim=True, correction=0)
        expected = (rows - rows.mean(-1, keepdim=True)) / (variance + 1e-5).sqrt()
        expected = (expected * weight).reshape(2, 5, 4, 6).transpose(1, 2)
        torch.testing.assert_close(norm(x), expected)
        if scope == "each_head":
            cohere = CohereLayerNorm((4, 6), eps=1e-5)
            cohere.weight.data = weight.float()
            theirs = cohere(x.transpose(1, 2)).transpose(1, 2)
            torch.testing.assert_close(norm(x), theirs, rtol=1e-5, atol=1e-6)


# --- positions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_pairing(pairing: str) -> None:
    x, at = random(1, 2, 7, 8), torch.arange(7)[None]
    angles = at[0, :, None].double() * 100.0 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = angles.cos(), angles.sin()
    if pairing == "half":
        expected, _ = half_as_in_llama(x, x, torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None])
    else:
        expected = interleaved_as_in_gptj(x.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
    config = position_schema.Rope(theta=100.0, pairing=pairing)
    turn = rotation(config, 8, at, torch.tensor([[7]]), torch.float64).rotate
    torch.testing.assert_close(turn(x), expected)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope", "alibi"])
def test_positions_with_padding_and_documents(position: str) -> None:
    model = randomized(f"model.position.kind={position}")
    padding = torch.tensor([0, 5])
    cache = Cache(model.config, 2, 12, dtype=torch.float64, padding=padding)
    padded = model(TOKENS, cache=cache)
    torch.testing.assert_close(padded[1:, 5:], model(TOKENS[1:, 5:]))
    packed = model(TOKENS[:1], documents=torch.tensor([[0] * 4 + [1] * 8]))
    torch.testing.assert_close(packed, torch.cat((model(TOKENS[:1, :4]), model(TOKENS[:1, 4:])), 1))


# --- block and norms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre", "post", "double", "output", "carried"])
def test_placement(placement: str) -> None:
    model = randomized(f"model.norm={{kind: rmsnorm, placement: {placement}}}", "model.position.kind=none")
    block = model.layers[0]
    x = seen = model.embedding(TOKENS)
    view_of_causal = _recorded_view(model)

    def n(norm: torch.nn.Module, y: Tensor) -> Tensor:
        return F.rms_norm(y, (16,), norm.weight, 1e-5)

    branches = (
        (lambda y: block.attention(y, view_of_causal), block.attention_norms),
        (block.mlp, block.mlp_norms),
    )
    for f, norms in branches:
        match placement:
            case "pre":
                x = x + f(n(norms.before, x))
            case "post":
                x = n(norms.stream, x + f(x))
            case "double":
                x = x + n(norms.after, f(n(norms.before, x)))
            case "output":
                x = x + n(norms.after, f(x))
            case "carried":
                x = n(norms.before, x) + f(n(norms.before, x))
    torch.testing.assert_close(block(seen, view_of_causal), x)
    final = x if placement == "post" else n(model.norm, x)
    torch.testing.assert_close(model.hidden(TOKENS), final)


def test_the_final_norm_goes_by_the_last_layer() -> None:
    """The stream before the head is normalized exactly once."""
    kinds = "model.layers={a: {norm.placement: post}, b: {norm.placement: pre}, pattern: [%s]}"
    for pattern, normed in (("a, b", True), ("b, a", False)):
        model = randomized("model.n_layers=2", kinds % pattern)
        assert isinstance(model.norm, torch.nn.Identity) != normed
        assert parameters(model.config).total == sum(p.numel() for p in model.parameters())


def _recorded_view(model: Decoder) -> Any:
    """Return the view of TOKENS that the model passes to its layer."""
    views = []
    hook = model.layers[0].register_forward_pre_hook(lambda _, inputs: views.append(inputs[1]))
    model(TOKENS)
    hook.remove()
    return views[0]


def test_unit_offset() -> None:
    ours, gemma = make_norm(norm_schema.RMSNorm(unit_offset=True, eps=1e-6), 12), GemmaRMSNorm(12)
    weight = random(12).float()
    ours.weight.data, gemma.weight.data = weight, weight
    x = random(3, 12).float()
    torch.testing.assert_close(ours(x), gemma(x))
    fresh = Decoder(tiny("model.norm.unit_offset=true").model).norm.weight
    assert torch.equal(fresh, torch.zeros(16))


def test_d_ff() -> None:
    for kind, matrices in (("plain", 2), ("gated", 3)):
        config = tiny(f"model.mlp={{kind: {kind}, d_ff: 24}}")
        mlp = Decoder(config.model).layers[0].mlp
        assert sum(p.numel() for p in mlp.parameters()) == matrices * 24 * 16
        assert mlp.up.weight.shape == (24, 16)
    defaults = {kind: layer_configs(tiny(f"model.mlp.kind={kind}").model)[0].mlp.d_ff for kind in ("plain", "gated")}
    assert defaults == {"plain": 64, "gated": 48}  # 4 * 16; 8/3 * 16 = 42.7, rounded up to a multiple of 8


# --- training and evaluation -------------------------------------------------------------------------------


def test_z_loss() -> None:
    logits, targets = random(2, 3, 7), torch.tensor([[0, 1, 2], [3, 4, 5]])
    log_z = logsumexp(logits.numpy(), axis=-1)
    cross_entropy = (log_z - np.take_along_axis(logits.numpy(), targets.numpy()[..., None], -1)[..., 0]).mean()
    minimized, reported = objective(logits, targets, 0.1)
    assert reported.item() == pytest.approx(cross_entropy)
    assert minimized.item() == pytest.approx(cross_entropy + 0.1 * (log_z**2).mean())


def test_warm_up() -> None:
    shape = "lr: 1.0, tokens: 160, batch_tokens: 16"
    train = resolve_train(tiny(f"train={{{shape}, warmup: 4, schedule: linear, final_lr: 0}}"))
    rates = [learning_rate(train, step) for step in range(10)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[5:] == pytest.approx([5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    share = resolve_train(tiny(f"train={{{shape}, warmup: 0.4}}"))
    assert learning_rate(share, 2) == pytest.approx(0.75)


def test_bits_per_byte() -> None:
    model = Decoder(tiny().model).eval()
    token_bytes = np.array([0, *RNG.integers(1, 5, size=16)])
    windows = RNG.integers(0, 17, size=(7, 13))
    logits = model(torch.from_numpy(windows[:, :-1])).detach().double().numpy()
    targets = windows[:, 1:]
    nats = logsumexp(logits, axis=-1) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    is_text = token_bytes[targets] > 0
    expected = nats[is_text].sum() / np.log(2) / token_bytes[targets].sum()
    text = Windows.of_text(windows, token_bytes, (0,), continues=np.zeros(len(windows), bool))
    found = evaluate(model, HeldOut(next_token(text), text), Device("cpu", torch.float32), batch_tokens=30)
    assert found.bits_per_byte == pytest.approx(expected, rel=1e-6)
