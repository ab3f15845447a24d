"""Probes: each number is compared with an independent formula, and the model stays unchanged."""

import json
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import logsumexp

from archlab.data.batch import HeldOut, next_token
from archlab.data.training_data import Windows
from archlab.model.decoder import Decoder
from archlab.model.kernels import Attend
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.measures import OF_LAYERS
from archlab.training.probe_attention import Reached, WatchedAttend
from archlab.training.probes import Probing, dead_units, probe, watched
from archlab.training.run_folder import RunFolder
from archlab.training.train import train
from tiny import config

CPU = Device("cpu", torch.float32)
WINDOWS = torch.randint(1, 300, (3, 17), generator=torch.Generator().manual_seed(0))


def batch(windows, separator=None):
    return next_token(Windows(windows.numpy()), separator)


BATCH = batch(WINDOWS)
SEPARATOR = 0


def made(*overrides, spread=0.3):
    """Return a model with random parameters, because zero biases would hide errors."""
    model = Decoder(config(*overrides).model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, spread, generator=generator))
    return model


def packed(windows):
    """Return windows with documents that begin at tokens 5 and 9."""
    windows = windows.clone()
    windows[:, [5, 9]] = SEPARATOR
    return windows


# --- attention ------------------------------------------------------------------------------------------------

LATENT = "model.attention={kind: latent, n_heads: 4, q_rank: 16, kv_rank: 16, nope_dim: 8, rope_dim: 4, v_dim: 12}"
KINDS = {
    "mha": ("model.attention.n_kv_heads=4",),
    "gqa": (),
    "mqa": ("model.attention.n_kv_heads=1",),
    "values of another width": ("model.attention.v_dim=12",),
    "window": ("model.attention.window=3",),
    "stride": ("model.attention={n_heads: 4, window: 2, stride: 4}",),
    "global tokens": ("model.attention={n_heads: 4, window: 2, global_tokens: 3}",),
    "blocks": ("model.attention={n_heads: 4, blocks: {size: 4, summary: 1}}",),
    "softcap": ("model.attention.softcap=2.0",),
    "scale": ("model.attention.scale=0.7",),
    "alibi": ("model.position={kind: alibi}",),
    "falcon's alibi": ("model.position={kind: alibi, form: falcon}",),
    "t5": ("model.position={kind: t5, buckets: 8, max_distance: 12}",),
    "shaw": ("model.position={kind: shaw, max_distance: 4}",),
    "transformer_xl": ("model.position={kind: transformer_xl}",),
    "sinks": ("model.attention.sinks=true",),
    "sinks, window": ("model.attention.sinks=true", "model.attention.window=4"),
    "softcap, alibi, window": ("model.attention.softcap=2.0", "model.position={kind: alibi}", "model.attention.window=4"),
    "latent": (LATENT,),
    "latent, softcap": (LATENT, "model.attention.softcap=2.0"),
    "parallel": ("model.block.parallel=shared",),
    "two-sided": ("model.attention.visibility=two_sided",),
    "two-sided, window": ("model.attention={n_heads: 4, window: 3, visibility: two_sided}",),
    "two-sided, alibi": ("model.attention.visibility=two_sided", "model.position={kind: alibi}"),
    "prefix": ("model.attention.visibility=prefix",),
}  # fmt: skip


class Recorded(WatchedAttend):
    """WatchedAttend that records its inputs and output."""

    calls: ClassVar = []

    def __call__(self, q, k, v, mask, bias, *, sinks_H=None, **others):
        given = self.attend(q, k, v, mask, bias, sinks_H=sinks_H, **others)
        self.calls.append((Reached.of(self.attend, q, k, mask, bias, sinks_H), v[0], given[0]))
        return given


@pytest.mark.parametrize("separator", [None, SEPARATOR], ids=["one text", "packed documents"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("at_once", "longest"), [(256, 2048), (5, 2048), (256, 11)])
def test_the_recomputed_weights_mix_values_as_the_kernel_does(kind, separator, at_once, longest, monkeypatch):
    monkeypatch.setattr("archlab.training.probe_attention.QUERIES_AT_ONCE", at_once)
    monkeypatch.setattr("archlab.training.probe_attention.LONGEST", longest)
    monkeypatch.setattr("archlab.training.probes.WatchedAttend", Recorded)
    monkeypatch.setattr(Recorded, "calls", [])
    prefix = np.array([13, 4, 1]) if kind == "prefix" and separator is None else None
    probe(made(*KINDS[kind]), replace(batch(packed(WINDOWS), separator), prefix=prefix), CPU)
    assert len(Recorded.calls) == 2
    for reached, v_KSV, mixed_HQV in Recorded.calls:
        found = [reached.weights(queries) for queries in reached.pieces()]
        weights_HQS = torch.cat([one.weights_HQS for one in found], 1)
        v_HSV, mixed_HQV = (
            v_KSV.repeat_interleave(4 // len(v_KSV), 0)[:, : weights_HQS.shape[-1]],
            mixed_HQV[:, :longest],
        )
        torch.testing.assert_close(weights_HQS @ v_HSV, mixed_HQV, rtol=1e-4, atol=1e-5)
        all_of_it = weights_HQS.sum(-1) + torch.cat([one.on_sink_HQ for one in found], 1)
        torch.testing.assert_close(all_of_it, torch.ones_like(all_of_it))


def even(*overrides):
    """Return a model whose queries are all zero, so that all visible keys have equal weight."""
    model = made(*overrides)
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.q.weight.zero_()
    return model


@pytest.mark.parametrize(
    ("overrides", "separator", "seen", "is_first_seen"),
    [
        ((), None, lambda t: t + 1, lambda t: True),
        (("model.attention.window=4",), None, lambda t: min(t + 1, 4), lambda t: t < 4),
        ((), SEPARATOR, lambda t: t + 1 if t < 5 else t - 4 if t < 9 else t - 8, lambda t: True),
    ],
)
def test_even_weights_have_all_of_the_entropy(overrides, separator, seen, is_first_seen):
    found = probe(even(*overrides), batch(packed(WINDOWS), separator), CPU).layer_values
    choosing = [t for t in range(16) if seen(t) > 1]
    assert found["largest_score"] == [0, 0]
    assert found["entropy_share"] == pytest.approx([1, 1])
    assert found["entropy"] == pytest.approx([np.mean([math.log(seen(t)) for t in choosing])] * 2, rel=1e-5)
    first = np.mean([is_first_seen(t) / seen(t) for t in choosing])
    assert found["first_token"] == pytest.approx([first] * 2, rel=1e-5)
    assert "learned_sink" not in found


def test_a_learned_sink_is_weighed_with_the_keys():
    model = even("model.attention.sinks=true")
    with torch.no_grad():
        model.layers[0].attention.sinks.fill_(0)  # like one more key
        model.layers[1].attention.sinks.fill_(40)  # takes all weight
    found = probe(model, BATCH, CPU).layer_values
    n = np.arange(1, 17)
    assert found["learned_sink"] == pytest.approx([np.mean(1 / (n + 1)), 1], rel=1e-5)
    assert found["first_token"] == pytest.approx([np.mean(1 / (n + 1)), 0], abs=1e-6)
    assert found["entropy_share"] == pytest.approx([1, 0], abs=1e-6)


def test_the_largest_score_is_that_of_the_seen_keys():
    """Compare with all scores in float64, for the first window only."""
    model = made("model.attention.softcap=9.0").double()
    found = probe(made("model.attention.softcap=9.0"), BATCH, CPU).layer_values["largest_score"][0]
    attention, kept = model.layers[0].attention, []
    attention.register_forward_pre_hook(lambda _, given: kept.append(given))
    model(WINDOWS[:1, :-1])
    (x, context, _), heads = kept[0], []
    for head in range(4):
        q, k = (
            context.rotation.rotate(norm(product(x).unflatten(-1, (-1, 8)).transpose(1, 2)))[0]
            for product, norm in ((attention.q, attention.q_norm), (attention.k, attention.k_norm))
        )
        scores = 9 * np.tanh((q[head] @ k[head // 2].T).detach().numpy() / math.sqrt(8) / 9)
        heads.append(scores[np.tril_indices(16)].max())
    assert found == pytest.approx(max(heads), rel=1e-4)


# --- gradients, stream, logits --------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [(), ("model.norm.placement=post",), ("model.head.softcap=3.0",)])
def test_gradients_and_the_stream_are_those_of_the_whole_loss(overrides, monkeypatch):
    """Compare pieces of logits with one backward pass over all of them."""
    monkeypatch.setattr("archlab.training.loss.rows_at_once", lambda *_: 7)
    found = probe(made(*overrides), BATCH, CPU)
    model, streams = made(*overrides), []
    for layer in model.layers:
        layer.register_forward_hook(lambda _, given, x: streams.append((given[0], x)))
    logits = model(WINDOWS[:, :-1])
    for _, x in streams:
        x.retain_grad()
    loss = F.cross_entropy(logits.flatten(0, 1), WINDOWS[:, 1:].flatten())
    loss.backward()
    assert found.model_values["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for i, (layer, (before, after)) in enumerate(zip(model.layers, streams, strict=True)):
        squares = sum(p.grad.double().square().sum().item() for p in layer.parameters())
        assert found.layer_values["gradient"][i] == pytest.approx(math.sqrt(squares), rel=1e-4)
        assert found.layer_values["stream_gradient"][i] == pytest.approx(after.grad.norm().item(), rel=1e-4)
        x, y = before.detach().numpy(), after.detach().numpy()
        assert found.layer_values["stream_rms"][i] == pytest.approx(np.sqrt((y**2).mean()), rel=1e-5)
        assert found.layer_values["drift"][i] == pytest.approx(np.sqrt(((y - x) ** 2).mean() / (x**2).mean()), rel=1e-5)
    assert found.model_values["embedding_rms"] == pytest.approx(streams[0][0].square().mean().sqrt().item(), rel=1e-5)


def test_log_z_is_that_of_the_logits_with_and_without_their_cap(monkeypatch):
    monkeypatch.setattr("archlab.training.loss.rows_at_once", lambda *_: 7)
    how = ("model.head.softcap=3.0", "model.head.scale=0.5", "model.head.bias=true")
    found = probe(made(*how), BATCH, CPU).model_values
    plain = made("model.head.scale=0.5", "model.head.bias=true")
    logits = plain(WINDOWS[:, :-1]).detach().numpy()
    for name, values in (("log_z_uncapped", logits), ("log_z", 3 * np.tanh(logits / 3))):
        log_z = logsumexp(values, -1)
        assert found[name] == pytest.approx(log_z.mean(), rel=1e-4)
        assert found[f"{name}_rms"] == pytest.approx(np.sqrt((log_z**2).mean()), rel=1e-4)
    assert found["log_z_uncapped"] > found["log_z"] + 0.1
    assert "log_z_uncapped" not in probe(plain, BATCH, CPU).model_values


def test_under_post_norm_the_gradient_is_larger_with_depth_than_under_pre_norm():
    """At initialization, in the layers of 2017 (Xiong 2020)."""
    mlp = "model.mlp={kind: plain, activation: relu, d_ff: 128}"
    how = ("model.n_layers=12", "model.norm.kind=layernorm", mlp, "model.position={kind: sinusoidal}")
    last_to_first = {}
    for placement in ("pre", "post"):
        model = Decoder(config(*how, f"model.norm.placement={placement}").model)
        gradient = probe(model, BATCH, CPU).layer_values["gradient"]
        last_to_first[placement] = gradient[-1] / gradient[0]
    assert last_to_first["pre"] < 0.5
    assert last_to_first["post"] > 2 * last_to_first["pre"]


# --- units and experts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "kind"), [("relu", "plain"), ("relu_squared", "plain"), ("gelu", "plain"), ("silu", "gated")]
)
def test_units_far_below_zero_are_dead(activation, kind):
    how = (f"model.mlp.kind={kind}", f"model.mlp.activation={activation}", "model.mlp.bias=true")
    model = made(*how)
    assert probe(model, BATCH, CPU).layer_values["dead_units"] == pytest.approx([0, 0], abs=0.05)
    with torch.no_grad():
        mlp = model.layers[1].mlp
        (mlp.up if kind == "plain" else mlp.gate).bias[:16] = -100
    before, after = probe(made(*how), BATCH, CPU), probe(model, BATCH, CPU)
    assert after.layer_values["dead_units"][0] == before.layer_values["dead_units"][0]
    assert after.layer_values["dead_units"][1] >= 16 / 64


def test_a_unit_is_dead_that_no_token_uses():
    units = torch.ones(2, 300, 8)
    units[:, :, :2] = 0
    units[1, 2, 0] = 1  # one token of 600 uses it
    units[:, :, 7] = -0.001
    assert dead_units(units) == 2 / 8
    assert dead_units(torch.zeros(2, 3, 8)) == 1
    assert dead_units(1e-9 * units) == 2 / 8


def test_loads_of_experts_are_those_of_the_layers_that_have_them():
    mixture = "model.layers={a: {}, b: {mlp: {kind: moe, experts: 6, active: 2, d_ff: 16, router: {bias: true}}}, pattern: [a, b]}"
    model = made(mixture)
    with torch.no_grad():
        model.layers[1].mlp.router.bias.copy_(torch.tensor([90.0, 80, 0, 0, 0, 0]))
    found = probe(model, BATCH, CPU).layer_values
    assert found["largest_load"] == [None, 1]
    assert found["dead_experts"] == [None, 4]
    assert found["dead_units"] == [0, None]


# --- the model stays unchanged --------------------------------------------------------------------------------


def state_of(model):
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    attends = [type(layer.attention.attend) for layer in model.layers]
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return hooks, attends, model.training, gradients, torch.get_rng_state().tolist()


@pytest.mark.parametrize("breaks", [False, True])
def test_a_probe_leaves_nothing_behind(breaks, monkeypatch):
    model = made("model.dropout=0.5").train()
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    before = state_of(model)
    assert before[:3] == (0, [Attend, Attend], True)
    if breaks:
        monkeypatch.setattr(model.layers[1].mlp, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            probe(model, BATCH, CPU)
    else:
        probe(model, BATCH, CPU)
    assert state_of(model) == before
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())


def test_it_watches_while_it_is_asked_to():
    """Otherwise the previous test could not fail."""
    model = made()
    with watched(model):
        assert state_of(model)[:2] == (6, [WatchedAttend, WatchedAttend])


def test_compiled_layers_are_probed_as_they_were_written():
    model, plain = made(), probe(made(), BATCH, CPU)
    for layer in model.layers:
        layer._compiled_call_impl = lambda *_: 1 / 0
    assert probe(model, BATCH, CPU) == plain


def test_what_is_not_finite_is_null():
    model = made()
    with torch.no_grad():
        model.layers[1].mlp.down.weight.fill_(math.inf)
    found = probe(model, BATCH, CPU)
    assert found.model_values["loss"] is None
    assert found.layer_values["stream_rms"][1] is None
    assert found.layer_values["stream_rms"][0] > 0
    json.dumps(found.as_json(), allow_nan=False)


# --- while training -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _cache(shared_cache):
    """Cache for all training below."""


def lines(folder):
    """Return the metrics without the speed, and the probes."""
    metrics = RunFolder(folder).metrics()
    plain = [{k: v for k, v in m.items() if k != "tokens_per_second"} for m in metrics if "probes" not in m]
    return plain, [m for m in metrics if "probes" in m]


def weights(folder):
    (file,) = folder.glob("checkpoints/*/model.safetensors")
    return file.read_bytes()


MIXTURE = "model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16, router: {score: sigmoid, correction: {}}}"


@pytest.mark.parametrize("how", [(), ("model.dropout=0.2",), (MIXTURE,), ("train.document_mask=true",)])
def test_a_training_ends_the_same_with_probes_and_without(how, text, tmp_path):
    train(config(*how, data=text), tmp_path / "without", Callback())
    train(config(*how, "train.probe_every=3", data=text), tmp_path / "with", Callback())
    (plain, none), (same, probes) = lines(tmp_path / "without"), lines(tmp_path / "with")
    assert (same, none) == (plain, [])
    assert weights(tmp_path / "with") == weights(tmp_path / "without")
    assert [line["step"] for line in probes] == [0, 3, 6, 9]
    assert ["update_ratio" in line["probes"] for line in probes] == [False, True, True, True]
    assert len(probes[1]["probes"]["gradient"]) == 2
    assert ("largest_load" in probes[1]["probes"]) == (how == (MIXTURE,))


class Stop(Callback):
    """Callback that raises an error after a step, as if the process were killed."""

    def __init__(self, step):
        self.step = step

    def on_step(self, metrics):
        if metrics.step == self.step:
            raise RuntimeError("killed")


def test_a_run_that_goes_on_has_each_probe_once(text, tmp_path):
    run = config("train.probe_every=2", "train.checkpoint_every=3", "model.dropout=0.2", data=text)
    train(run, tmp_path / "whole", Callback())
    for step in (5, 8):
        with pytest.raises(RuntimeError, match="killed"):
            train(run, tmp_path / "killed", Stop(step))
    train(run, tmp_path / "killed", Callback())
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert [line["step"] for line in lines(tmp_path / "killed")[1]] == [0, 2, 4, 6, 8, 10]


def test_a_run_may_go_on_with_other_probes(text, tmp_path):
    with pytest.raises(RuntimeError, match="killed"):
        train(config("train.checkpoint_every=3", data=text), tmp_path, Stop(5))
    train(config("train.checkpoint_every=3", "train.probe_every=4", data=text), tmp_path, Callback())
    assert [line["step"] for line in lines(tmp_path)[1]] == [4, 8]


def test_the_update_is_measured_against_the_weights_before_it(tmp_path):
    model, folder = made(), RunFolder(tmp_path)
    probing = Probing(model, HeldOut(BATCH, Windows(WINDOWS.numpy())), 5, CPU)
    for step in range(4, 6):
        probing.before_update(step)
        with torch.no_grad():
            for parameter in model.layers[1].parameters():
                parameter.mul_(1.02)
        probing.after_update(step, folder)
    (line,) = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert line["step"] == 5
    assert line["probes"]["update_ratio"] == pytest.approx([0, 0.02], abs=1e-6)
    assert set(line["probes"]) & set(OF_LAYERS) >= {"gradient", "stream_rms", "largest_score", "update_ratio"}


def test_in_bfloat16_the_numbers_are_nearly_those_of_float32():
    wide, narrow = (probe(made(), BATCH, Device("cpu", dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert narrow.model_values["loss"] == pytest.approx(wide.model_values["loss"], rel=0.02)
    assert narrow != wide
    for name in wide.layer_values:
        assert narrow.layer_values[name] == pytest.approx(wide.layer_values[name], rel=0.05, abs=0.01), name


def test_the_loss_is_about_the_scored_tokens():
    scored = torch.zeros(3, 16, dtype=torch.bool)
    scored[0, 3] = scored[2, 15] = True
    found = probe(made(), replace(BATCH, counted=scored.numpy()), CPU)
    model = made()
    losses = F.cross_entropy(model(WINDOWS[:, :-1])[scored], WINDOWS[:, 1:][scored])
    losses.backward()
    assert found.model_values["loss"] == pytest.approx(losses.item(), rel=1e-5)
    squares = sum(p.grad.square().sum().item() for p in model.layers[0].parameters())
    assert found.layer_values["gradient"][0] == pytest.approx(math.sqrt(squares), rel=1e-4)
