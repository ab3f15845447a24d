"""Probes of models with an encoder: every number is compared with plain torch in float64, without padding."""

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.cli import app
from archlab.data.batch import Batch
from archlab.model.decoder import Decoder
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.probes import Probed, probe, training_probes
from archlab.training.train import train
from tiny import Killed, config, losses

CPU = Device("cpu", torch.float32)
ENCODER = ("model.encoder.n_layers=3", "train.objective.kind=prefix")
HEADS, CHANNELS = 4, 8

SOURCE_LENGTHS, LENGTHS = (9, 1, 6, 3), (2, 7, 1, 5)


def padded_batch(more_source: int = 0, more_target: int = 0) -> Batch:
    """Return windows whose sources and targets have padding with random tokens. The first tokens are always the same."""
    draw = np.random.default_rng(0)
    source, tokens, targets = (draw.integers(1, 300, (4, n)) for n in (9, 7, 7))
    source, tokens, targets = (
        np.concatenate([x, draw.integers(1, 300, (4, n))], axis=1)
        for x, n in ((source, more_source), (tokens, more_target), (targets, more_target))
    )
    counted = np.arange(tokens.shape[1]) < np.array(LENGTHS)[:, None]
    lengths, source_lengths = np.array(LENGTHS), np.array(SOURCE_LENGTHS)
    return Batch(tokens, targets, counted, lengths=lengths, source=source, source_lengths=source_lengths)


def model_of(*overrides: str) -> Decoder:
    """Return a model with random parameters, because zero biases would hide errors."""
    model = Decoder(config(*ENCODER, *overrides).model)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data += torch.empty(parameter.shape).normal_(0, 0.3, generator=generator)
    return model


# --- every number in float64 -----------------------------------------------------------------------------------


@dataclass
class Noted:
    """Values of one layer, with one entry for each window."""

    before: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    units: list[Tensor] = field(default_factory=list)
    scores: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    weights: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))


def normed(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-5)


def attended(attention: Any, name: str, x_TD: Tensor, y_SD: Tensor, noted: Noted, *, is_causal: bool) -> Tensor:
    q, k, v = (
        F.linear(z, product.weight, product.bias).unflatten(-1, (-1, CHANNELS)).transpose(0, 1)
        for z, product in ((x_TD, attention.q), (y_SD, attention.k), (y_SD, attention.v))
    )
    mixed = list[Tensor]()
    for head in range(HEADS):
        scores_TS = q[head] @ k[head // 2].T / math.sqrt(CHANNELS)
        if is_causal:
            scores_TS = scores_TS + torch.full_like(scores_TS, -math.inf).triu(1)
        weights_TS = scores_TS.softmax(-1)
        noted.scores[name].append(scores_TS)
        noted.weights[name].append(weights_TS)
        mixed.append(weights_TS @ v[head // 2])
    return F.linear(torch.cat(mixed, -1), attention.out.weight, attention.out.bias)


def through(layer: Any, x_TD: Tensor, memory_SD: Tensor | None, noted: Noted) -> Tensor:
    noted.before.append(x_TD)
    read_TD = normed(layer.attention_norms.before, x_TD)
    is_causal = memory_SD is not None
    x_TD = x_TD + attended(layer.attention, "attention", read_TD, read_TD, noted, is_causal=is_causal)
    if memory_SD is not None:
        read_TD = normed(layer.cross_norms.before, x_TD)
        x_TD = x_TD + attended(layer.cross, "cross", read_TD, memory_SD, noted, is_causal=False)
    units_TF = F.linear(normed(layer.mlp_norms.before, x_TD), layer.mlp.up.weight, layer.mlp.up.bias).relu()
    noted.units.append(units_TF)
    x_TD = x_TD + F.linear(units_TF, layer.mlp.down.weight, layer.mlp.down.bias)
    x_TD.retain_grad()
    noted.after.append(x_TD)
    return x_TD


def rms(tensors: list[Tensor]) -> float:
    return math.sqrt(torch.cat([x.detach().flatten() for x in tensors]).square().mean())


def attention_numbers(noted: Noted, name: str) -> dict[str, float]:
    """Return the measures of one attention, query by query. Queries that see one key have no choice."""
    largest = max(scores.max().item() for scores in noted.scores[name])
    entropies, shares, firsts = list[float](), list[float](), list[float]()
    for scores_TS, weights_TS in zip(noted.scores[name], noted.weights[name], strict=True):
        for scores_S, weights_S in zip(scores_TS, weights_TS.detach().numpy(), strict=True):
            n_seen = int(scores_S.isfinite().sum())
            if n_seen == 1:
                continue
            entropies.append(-sum(p * math.log(p) for p in weights_S[:n_seen]))
            shares.append(entropies[-1] / math.log(n_seen))
            firsts.append(weights_S[0])
    means = (float(np.mean(values)) for values in (entropies, shares, firsts))
    return dict(zip(("entropy", "entropy_share", "first_token"), means, strict=True)) | {"largest_score": largest}


def expected_numbers(model: Decoder, batch: Batch) -> dict[str, Any]:
    """Return all measures of a pre-norm model, from passes over one window at a time without padding."""
    model = model.double()
    stacks: dict[str, tuple[Any, list[Noted]]] = {
        "encoder.": (model.encoder, [Noted() for _ in range(3)]),
        "": (model, [Noted() for _ in range(2)]),
    }
    losses, log_z = list[Tensor](), list[Tensor]()
    for row in range(len(batch.tokens)):
        source, tokens, targets = (
            torch.from_numpy(x[row, :n])
            for x, n in (
                (batch.source, batch.source_lengths[row]),
                (batch.tokens, batch.lengths[row]),
                (batch.targets, batch.lengths[row]),
            )
        )
        memory = None
        for read, (stack, notes) in zip((source, tokens), stacks.values(), strict=True):
            x_TD = model.embedding.weight[read]
            for layer, noted in zip(stack.layers, notes, strict=True):
                x_TD = through(layer, x_TD, memory, noted)
            memory = normed(stack.norm, x_TD)
        logits_TV = F.linear(memory, model.embedding.weight if model.head.weight is None else model.head.weight)
        losses.append(F.cross_entropy(logits_TV, targets, reduction="none"))
        log_z.append(logits_TV.logsumexp(-1))
    loss = torch.cat(losses).mean()
    loss.backward()
    numbers: dict[str, Any] = {"loss": loss.item()}
    numbers |= {"log_z": torch.cat(log_z).mean().item(), "log_z_rms": rms(log_z)}
    for prefix, (stack, notes) in stacks.items():
        numbers[f"{prefix}embedding_rms"] = rms(notes[0].before)
        per_layer = defaultdict[str, list[float]](list)
        for layer, noted in zip(stack.layers, notes, strict=True):
            per_layer["gradient"].append(math.sqrt(sum(p.grad.square().sum() for p in layer.parameters())))
            per_layer["stream_gradient"].append(math.sqrt(sum(x.grad.square().sum() for x in noted.after)))
            per_layer["stream_rms"].append(rms(noted.after))
            change = [y - x for x, y in zip(noted.before, noted.after, strict=True)]
            per_layer["drift"].append(rms(change) / rms(noted.before))
            units_NF = torch.cat(noted.units)
            dead_F = units_NF.abs().amax(0) <= 0.01 * rms([units_NF])
            per_layer["dead_units"].append(dead_F.double().mean().item())
            for name, value in attention_numbers(noted, "attention").items():
                per_layer[name].append(value)
            for name, value in attention_numbers(noted, "cross").items() if not prefix else ():
                per_layer[f"cross_attention.{name}"].append(value)
        numbers |= {f"{prefix}{name}": values for name, values in per_layer.items()}
    return numbers


PLAIN = (
    "model.norm.kind=layernorm",
    "model.attention={n_heads: 4, n_kv_heads: 2, qkv_bias: true, out_bias: true}",
    "model.mlp={kind: plain, activation: relu, d_ff: 64, bias: true}",
    "model.position=none",
)


@pytest.mark.parametrize("queries_at_once", [256, 2])
def test_every_number_is_that_of_plain_torch_without_padding(
    queries_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archlab.training.probe_attention.QUERIES_AT_ONCE", queries_at_once)
    model = model_of(*PLAIN)
    with torch.no_grad():  # so that some units are dead, and others only in padding
        model.encoder.layers[1].mlp.up.bias[:24] -= 4
        model.layers[0].mlp.up.bias[:24] -= 4
    found = probe(model, padded_batch(more_source=3, more_target=2), CPU).as_json()
    expected = expected_numbers(model, padded_batch())
    assert expected["encoder.dead_units"][1] > 0 < expected["dead_units"][0]
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=2e-4), name


# --- padding ---------------------------------------------------------------------------------------------------

KINDS = {
    "rope": (),
    "t5": ("model.position={kind: t5, buckets: 8, max_distance: 12}",),
    "learned": ("model.position={kind: learned}", "model.max_seq_len=32"),
    "alibi": ("model.position={kind: alibi}",),
    "sinks": ("model.attention.sinks=true",),
    "sinks, window": ("model.attention.sinks=true", "model.attention.window=3"),
    "softcap": ("model.attention.softcap=2.0",),
    "post-norm": ("model.norm.placement=post",),
    "experts": ("model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16}",),
    "experts of the encoder": ("model.encoder.mlp={kind: moe, experts: 4, active: 2, d_ff: 16}",),
}


def same_numbers(found: Probed, expected: Probed) -> None:
    assert found.as_json().keys() == expected.as_json().keys()
    for name, values in expected.as_json().items():
        assert found.as_json()[name] == pytest.approx(values, rel=2e-4, abs=1e-6), name


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_number(kind: str) -> None:
    plain = probe(model_of(*KINDS[kind]), padded_batch(), CPU)
    same_numbers(probe(model_of(*KINDS[kind]), padded_batch(more_source=5, more_target=3), CPU), plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [0, 3])
def test_a_padded_window_has_the_numbers_of_one_without_padding(kind: str, row: int) -> None:
    whole = padded_batch().rows(slice(row, row + 1))
    n, n_source = LENGTHS[row], SOURCE_LENGTHS[row]
    cut = Batch(whole.tokens[:, :n], whole.targets[:, :n], source=whole.source[:, :n_source])
    same_numbers(probe(model_of(*KINDS[kind]), whole, CPU), probe(model_of(*KINDS[kind]), cut, CPU))


def test_every_query_of_cross_attention_sees_its_whole_source_and_nothing_else() -> None:
    model = model_of()
    with torch.no_grad():
        for layer in model.all_layers:
            for name in ("attention", "cross"):
                if attention := getattr(layer, name, None):
                    attention.q.weight.zero_()
    found = probe(model, padded_batch(), CPU).layer_values
    n_seen = np.repeat(SOURCE_LENGTHS, LENGTHS)
    n_seen = n_seen[n_seen > 1]
    assert found["cross_attention.entropy_share"] == pytest.approx([1] * 2)
    assert found["cross_attention.entropy"] == pytest.approx([np.log(n_seen).mean()] * 2, rel=1e-5)
    assert found["cross_attention.first_token"] == pytest.approx([(1 / n_seen).mean()] * 2, rel=1e-5)
    in_encoder = np.repeat(SOURCE_LENGTHS, SOURCE_LENGTHS)
    in_encoder = in_encoder[in_encoder > 1]
    assert found["encoder.entropy"] == pytest.approx([np.log(in_encoder).mean()] * 3, rel=1e-5)


def test_loads_of_experts_belong_to_their_stack() -> None:
    mixture = "{kind: moe, experts: 6, active: 2, d_ff: 16, router: {bias: true}}"
    model = model_of(f"model.encoder.mlp={mixture}")
    with torch.no_grad():
        model.encoder.layers[1].mlp.router.bias.copy_(torch.tensor([90.0, 80, 0, 0, 0, 0]))
    found = probe(model, padded_batch(), CPU).layer_values
    assert (found["encoder.largest_load"][1], found["encoder.dead_experts"][1]) == (1, 4)
    assert found["encoder.largest_load"][0] < 1
    assert "largest_load" not in found
    assert "dead_units" in found
    assert "encoder.dead_units" not in found


def test_a_probe_leaves_nothing_behind() -> None:
    model = model_of("model.dropout=0.5").train()
    before = [(type(layer.attention.attend), layer.training) for layer in model.all_layers]
    probe(model, padded_batch(), CPU)
    assert [(type(layer.attention.attend), layer.training) for layer in model.all_layers] == before
    modules: list[nn.Module] = [*model.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    assert all(parameter.grad is None for parameter in model.parameters())


# --- while training --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(
    "objective",
    [ENCODER, (ENCODER[0], "train.objective.kind=span_corruption", "data.reserve=[sentinels:3]")],
    ids=["prefix", "spans"],
)
def test_a_run_is_probed_and_stays_the_same(objective: tuple[str, ...], text: Path, tmp_path: Path) -> None:
    plain = (*objective, "train.checkpoint_every=3", "model.dropout=0.1")
    train(config(*plain, data=text), tmp_path / "without", Callback())
    probed = config(*plain, "train.probe_every=5", data=text)
    train(probed, tmp_path / "with", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(probed, tmp_path / "parts", Killed())
    train(probed, tmp_path / "parts", Callback())
    assert losses(tmp_path / "with") == losses(tmp_path / "without") == losses(tmp_path / "parts")
    rows = training_probes(tmp_path / "with")
    assert rows == training_probes(tmp_path / "parts")
    assert [row["step"] for row in rows] == [0, 5, 10]
    assert (len(rows[1]["encoder.update_ratio"]), len(rows[1]["update_ratio"])) == (3, 2)
    assert all(0 < ratio < 1 for ratio in (*rows[1]["encoder.update_ratio"], *rows[1]["update_ratio"]))
    assert [name for name in rows[1] if rows[1][name] is None] == []


# --- output ----------------------------------------------------------------------------------------------------

SMALL = (
    "model.d_model=32",
    "model.n_layers=24",
    "model.vocab_size=300",
    "model.attention={n_heads: 4, n_kv_heads: 2}",
    "model.encoder={n_layers: 24, position: {theta: 500}}",
    "train.objective.kind=prefix",
    "train.seq_len=24",
)


def test_tables_name_the_stacks_and_fit_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert app.main(["probe", "tiny-llama", *SMALL]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    names = ("decoder: gradient of parameters", "cross-attention: on the first token", "encoder: dead units")
    assert all(name in text for name in (*names, "encoder: RMS of the embedding", "encoder layer"))


def test_the_page_has_a_chart_for_each_measure_of_each_stack(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "probe.html"
    assert app.main(["probe", "tiny-llama", *SMALL, "--html", str(page)]) == 0
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page.read_text())[1])
    assert {"gradient", "encoder.gradient", "cross_attention.entropy", "rope"} <= set(specs)
    assert all(f'id="chart-{name}"' in page.read_text() for name in specs)
    points = max(specs["encoder.gradient"]["datasets"].values(), key=len)  # the other one is the healthy range
    assert [point["x"] for point in points] == list(range(1, 25))
    assert points[2]["text"].startswith("encoder layer 3: ")


def test_an_encoder_alone_is_one_stack(capsys: pytest.CaptureFixture[str]) -> None:
    """BERT has no decoder, so the names of its measures have no prefix. Its queries see the whole window."""
    widths = ("model.d_model=32", "model.n_layers=2", "model.vocab_size=300", "model.attention={n_heads: 4}")
    small = ("bert-base", *widths, "train.objective.kind=masked", "--context", "32", "--json")
    assert app.main(["probe", *small]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not any("." in name for name in found)
    assert len(found["gradient"]) == 2
    for entropy, share in zip(found["entropy"], found["entropy_share"], strict=True):
        assert entropy == pytest.approx(share * math.log(32), rel=1e-4)
