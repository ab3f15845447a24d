"""Costs of a model with an encoder, compared with the model itself, torch's counters, and sums written out by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import archlab
from archlab.config.components.work import Pass, matrix_flops
from archlab.config.core.merge import Raw
from archlab.config.io import build_config
from archlab.config.layers import encoder_of, layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.model.inputs import Inputs
from archlab.model.roles import roles_of
from archlab.model.state import Cache
from archlab.pricing.hardware import load_hardware
from archlab.pricing.memory import bytes_before, layer_bytes, layer_passes
from archlab.pricing.params import parameters
from archlab.pricing.partition import Parallel
from archlab.pricing.summary import cost
from archlab.pricing.training_plan import plan_training
from archlab.pricing.work import computed_training_flops, forward, forward_flops, training_flops
from autograd_memory import kept_by_autograd

SMALL: Raw = {
    "vocab_size": 37,
    "d_model": 24,
    "n_layers": 2,
    "max_seq_len": 32,
    "attention": {"n_heads": 4},
    "mlp": {"kind": "plain", "activation": "relu", "d_ff": 40},
    "position": "t5",
    "encoder": {"n_layers": 3},
}

CHOICES = (
    [],
    ["encoder={n_layers: 1, mlp.d_ff: 56, cross: {n_kv_heads: 2}}"],
    ["encoder={n_layers: 3, attention.n_kv_heads: 1, cross: {head_dim: 10, v_dim: 5, qkv_bias: true, out_bias: true}}"],
    ["attention.n_kv_heads=2", "encoder.cross={n_kv_heads: 1, qk_norm: {kind: rmsnorm}, gate: {}, sub_norm: true}"],
    ["encoder.cross={qk_norm: {kind: layernorm, scope: width}, n_kv_heads: 2, sinks: true, clip_qkv: 3}"],
    ["encoder.cross={qk_norm: {kind: rmsnorm, scope: each_head}, n_kv_heads: 2, softcap: 20}"],
    ["position={kind: t5, shared: false}", "encoder.position={kind: t5, buckets: 8}"],
    ["position=learned", "encoder.position={kind: learned, offset: 2}"],
    ["position=learned", "encoder.position.kind=sinusoidal", "embedding.norm=sum", "norm.kind=layernorm"],
    ["position=sinusoidal", "embedding.norm=sum", "encoder.norm={kind: layernorm, placement: post}"],
    ["embedding.norm=true", "encoder.norm={kind: layernorm, placement: double}", "head.tied=true"],
    ["norm.placement=post", "encoder.norm.placement=pre", "head={bias: true, transform: {}}"],
    ["embedding={width: 10, widened: sum, norm: sum}", "position=learned", "head.transform={}"],
    ["embedding.width=10", "head.tied=true", "position=rope"],
    [
        "position=rope",
        "encoder={n_layers: 2, attention.window: 5, position.theta: 500, mlp: {kind: gated, bias: true}}",
    ],
    ["layers={a: {mlp.d_ff: 16}, b: {attention.n_kv_heads: 2}, pattern: [a, b]}", "n_layers=5"],
    ["mlp={kind: moe, experts: 4, active: 2, d_ff: 24}", "encoder.mlp={kind: moe, experts: 6, active: 1, d_ff: 16}"],
    ["dropout=0.1", "encoder.dropout.attention=0"],
)
TEXTS, TOKENS, SOURCE = 2, 7, 13


def config_of(overrides: list[str]) -> Config:
    return build_config({"model": SMALL}, [f"model.{override}" for override in overrides])


def model_of(overrides: list[str]) -> ModelConfig:
    return config_of(overrides).model


def zeros(tokens: int, texts: int = TEXTS) -> torch.Tensor:
    return torch.zeros(texts, tokens, dtype=torch.int64)


@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_parameters_are_those_of_the_model(overrides):
    model = model_of(overrides)
    decoder, counted = archlab.Decoder(model), parameters(model)
    assert counted.total == sum(p.numel() for p in decoder.parameters())
    matrices = [p for _, p, role, _ in roles_of(decoder) if role.group == "matrix"]
    assert counted.matrices == sum(p.numel() for p in matrices)
    assert decoder.encoder is not None
    rows = {
        "encoder": [p for layer in decoder.encoder.layers for p in _of_components(layer)],
        "cross": [p for layer in decoder.layers for p in _of_component(layer.cross)],
    }
    assert {name: counted.parts[name] for name in rows} == {
        name: sum(p.numel() for p in own) for name, own in rows.items()
    }


def _of_components(layer):
    return [p for name in ("attention", "mlp") for p in _of_component(getattr(layer, name))]


def _of_component(module):
    outside = ("norm", "position_bias")
    return [p for name, p in module.named_parameters() if not any(word in name for word in outside)]


def test_active_parameters_leave_out_idle_experts_of_both_stacks():
    counted = parameters(model_of(CHOICES[-2]))
    assert counted.idle == 2 * 2 * 3 * 24 * 24 + 3 * 5 * 3 * 24 * 16
    assert counted.active == counted.total - counted.idle


def test_t5_small_has_60_5_million_parameters():
    """Raffel 2020, counted by hand: 32,128 tokens, 6 + 6 layers of 512, 8 heads of 64, d_ff 2048, two tables of 32
    buckets."""
    sizes: Raw = {"vocab_size": 32128, "d_model": 512, "n_layers": 6, "attention": {"n_heads": 8}}
    mlp = {"kind": "plain", "activation": "relu", "d_ff": 2048}
    rest: Raw = {"position": "t5", "head": {"tied": True}, "encoder": {"n_layers": 6}}
    counted = parameters(build_config({"model": {**sizes, "mlp": mlp, **rest}}).model)
    assert counted.total == 60_506_624
    assert counted.encoder == 6 * (4 * 512**2 + 2 * 512 * 2048)
    assert counted.cross == 6 * 4 * 512**2
    assert counted.positions == 2 * 32 * 8
    assert counted.norms == (2 * 6 + 1 + 3 * 6 + 1) * 512


def test_transformer_base_has_about_65_million_parameters():
    """Vaswani 2017, table 3: 65M, with a shared vocabulary of about 37,000 tokens. By hand: four matrices of attention,
    two of the MLP, their biases, and a layer norm after each of them."""
    model = load_config("transformer-base").model
    assert model.head.tied
    attention, mlp, norm = 4 * (512**2 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder, decoder = 6 * (attention + mlp + 2 * norm), 6 * (2 * attention + mlp + 3 * norm)
    assert parameters(model).total == 37_000 * 512 + encoder + decoder
    assert parameters(model).total == pytest.approx(65e6, rel=0.03)


def all_pairs(model: ModelConfig) -> int:
    """FLOPs of the scores of self-attention in the decoder. The reference kernel computes every pair."""
    attentions = [layer.multi_head for layer in layer_configs(model)]
    return TEXTS * TOKENS**2 * sum(2 * a.n_heads * (a.head_dim + a.v_dim) for a in attentions)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_flops_are_those_that_torch_counts(overrides, passes):
    """A training step has three times as many FLOPs, except for the gradient of the embedding's rows."""
    model = model_of(overrides)
    decoder = archlab.Decoder(model, kernel="reference").train(passes == 3)
    with FlopCounterMode(display=False) as counter:
        logits = decoder(zeros(TOKENS), source=zeros(SOURCE))
        if passes == 3:
            logits.sum().backward()
    ours = matrix_flops(forward(model, Pass(TEXTS, TOKENS, counting="computed", source=SOURCE)))
    del ours["scores"]
    assert counter.get_total_flops() == passes * (ours.total() + all_pairs(model))


@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_a_decoding_step_computes_no_keys_of_the_source(overrides):
    model = model_of(overrides)
    decoder = archlab.Decoder(model, kernel="reference").eval()
    cache = Cache(model, TEXTS, TOKENS, source=SOURCE)
    with torch.no_grad():
        decoder(zeros(TOKENS - 1), source=zeros(SOURCE), cache=cache)
        with FlopCounterMode(display=False) as counter:
            decoder(zeros(1), cache=cache)
    step = Pass(TEXTS, 1, TOKENS - 1, is_cached=True, counting="computed", source=SOURCE)
    assert counter.get_total_flops() == matrix_flops(forward(model, step)).total()


def test_visible_pairs_of_a_window_in_the_encoder():
    """Each of the 13 source tokens sees its own key and up to 4 keys on each side."""
    whole, window = (
        forward_flops(model_of(["position=rope", f"encoder.attention.window={w}"]), TOKENS, source=SOURCE)
        for w in ("null", 5)
    )
    pairs = sum(min(12, i + 4) - max(0, i - 4) + 1 for i in range(SOURCE))
    assert (whole.encoder - window.encoder) * TOKENS == pytest.approx(3 * 4 * 24 * (SOURCE**2 - pairs))


def test_flops_of_t5_by_hand():
    """Per window of n source and m target tokens, with width d, d_ff f, and L layers per stack."""
    d, f, n, m = 24, 40, SOURCE, TOKENS
    flops = forward_flops(model_of([]), m, source=n)
    assert flops.encoder * m == pytest.approx(3 * (n * 2 * (4 * d * d + 2 * d * f) + 4 * d * n * n))
    assert flops.cross * m == pytest.approx(2 * (m * 2 * 2 * d * d + n * 2 * 2 * d * d + 4 * d * m * n))
    assert flops.projections * m == pytest.approx(2 * m * 2 * 4 * d * d)
    assert flops.scores * m == pytest.approx(2 * 4 * d * m * (m + 1) / 2)
    assert flops.head == 2 * d * 37


def test_a_window_of_training_has_a_source_as_long_as_the_target():
    config = config_of(["position=rope"])
    window = 3 * sum(matrix_flops(forward(config.model, Pass(1, 32, source=32))).values())
    assert training_flops(config.model, 32) * 32 == pytest.approx(window)
    assert computed_training_flops(config) == training_flops(config.model, 32)
    found = cost(config, context=8, source=5)
    assert (found.training_window, found.training_source, found.source) == (32, 32, 5)
    assert found.training_flops_per_token * 32 == pytest.approx(window)


@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_cached_bytes_are_those_of_the_cache(overrides):
    config = config_of([*overrides])
    for source in (5, 21):
        found = cost(config, batch=3, context=20, source=source, dtype="float32")
        assert found.kv_cache_bytes == Cache(config.model, 3, 20, source=source).n_bytes
        crosses = [layer.cross for layer in layer_configs(config.model)]
        per_token = sum(cross.n_kv_heads * (cross.head_dim + cross.v_dim) * 4 for cross in crosses)
        assert found.source_kv_bytes == 3 * source * per_token
    assert found.kv_bytes_per_token == (found.kv_cache_bytes - found.source_kv_bytes) / 3 / 20
    assert found.recurrent_bytes == 0


def test_a_decoding_step_reads_the_decoder_and_all_keys():
    """All weights except the encoder, the projections of cross-attention to keys and values, and unread rows of the
    embedding; and the cache."""
    config = config_of(["position=rope", "norm.kind=none"])
    model, counted = config.model, parameters(config.model)
    found = cost(config, context=20, source=11, dtype="float32")
    unread = counted.encoder + 2 * 2 * 24 * 24 + 36 * 24
    assert found.read_bytes_per_decoded_token == 4 * (counted.total - unread) + found.kv_cache_bytes
    longer = cost(config, context=20, source=12, dtype="float32")
    per_token = model.n_layers * 2 * 24 * 4
    assert longer.read_bytes_per_decoded_token == found.read_bytes_per_decoded_token + per_token


@pytest.mark.parametrize(("texts", "tokens", "source"), [(1, 128, 192), (3, 192, 64)])
@pytest.mark.parametrize(
    "overrides",
    [
        "model.position=t5",
        "model.position=rope",
        "model.position=learned",
        "model.encoder.cross={n_kv_heads: 1}",
        "model.encoder.cross={qk_norm: {kind: rmsnorm}, gate: {}}",
        "model.encoder.cross={softcap: 20}",
        "model.encoder.cross={clip_qkv: 2, sub_norm: true, v_dim: 16}",
        "model.encoder.attention.window=20",
        "model.encoder.cross.sinks=true",
        "model.norm={kind: layernorm, placement: post}",
        "model.dropout=0.1",
        "model={position: {kind: learned}, embedding.norm: sum}",
    ],
)
def test_training_stores_what_autograd_keeps(overrides, texts, tokens, source):
    config = load_config("tiny-llama", "model.n_layers=3", "model.encoder={n_layers: 2}", overrides)
    model = archlab.Decoder(config.model).train()
    model_pass = Pass(texts, tokens, bytes_each=4, counting="computed", is_training=True, source=source)
    found = kept_by_autograd(model, lambda: model.hidden(zeros(tokens, texts), Inputs(source=zeros(source, texts))))
    layers = sum(n * layer_bytes(layer, own_pass) for layer, n, own_pass in layer_passes(config.model, model_pass))
    final = texts * tokens * 128 * 4 * (0 if "post" in overrides else 1)
    assert layers + bytes_before(config.model, model_pass) + final == pytest.approx(found, rel=0.02)


def test_the_source_is_as_long_as_the_context_unless_it_is_set():
    config = config_of([])
    assert cost(config).source == 32
    assert cost(config, context=9).source == 9
    assert cost(config, context=9) == cost(config, context=9, source=9)
    assert cost(load_config("tiny-llama")).source == 0


def test_a_source_needs_an_encoder_and_positions():
    with pytest.raises(UserError, match="source is 5, but the model has no encoder; leave it out"):
        cost(load_config("tiny-llama"), source=5)
    learned = config_of(["encoder.position.kind=learned"])
    with pytest.raises(UserError, match="source is 33, but learned positions end at max_seq_len = 32"):
        cost(learned, context=40, source=33)
    assert cost(learned, context=40, source=32).context == 40
    with pytest.raises(UserError, match="0 source tokens; allowed: 1 or more for a model with an encoder"):
        list(forward(learned.model, Pass(1, 8)))
    with pytest.raises(UserError, match="8 source tokens; allowed: 0, because the model has no encoder"):
        list(forward(load_config("tiny-llama").model, Pass(1, 8, source=8)))


def test_a_training_plan_has_both_stacks_on_every_device():
    config, device = config_of(["position=rope"]), load_hardware("h100")
    one, four = (plan_training(config, Parallel(replicate=n), device) for n in (1, 4))
    assert one.memory["weights, gradients, averages"] == 16 * parameters(config.model).total
    assert one.memory["weights, gradients, averages"] == four.memory["weights, gradients, averages"]
    assert one.stages == [5]
    of_decoder = config_of(["position=rope", "encoder.n_layers=1"])
    assert plan_training(of_decoder, Parallel(), device).memory["activations"] < one.memory["activations"]
    for parallel in (Parallel(tensor=2), Parallel(pipeline=2)):
        with pytest.raises(UserError, match="a model with an encoder is planned only with replicate and shard"):
            plan_training(config, parallel, device)


def test_an_encoder_without_a_decoder_has_no_source():
    """Encoder-only models have one stack."""
    model = load_config("tiny-llama", "model.attention.visibility=two_sided").model
    assert encoder_of(model) is None
    assert "encoder" not in parameters(model).parts
