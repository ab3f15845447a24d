"""Times on named hardware: calculated by hand, and general properties."""

import pytest

from archlab.exchange.configs import load_config
from archlab.pricing.hardware import load_hardware
from archlab.pricing.pass_time import ideal
from archlab.pricing.summary import cost

H100 = load_hardware("h100")
PEAK, BANDWIDTH = 989.4e12, 3.35e12


def passes(*config, batch=1, context=4096):
    found = cost(load_config(*config), batch, context)
    return {name: ideal(work, H100, "bfloat16", found.tokens[name]) for name, work in found.work.items()}


def test_decoding_one_text_takes_as_long_as_reading_the_weights():
    """Llama 3 8B: 16.06 GB of weights minus 1.05 GB of embedding, and 0.54 GB of keys and values, at 3.35 TB/s."""
    read = 2 * (8_030_261_248 - 128_255 * 4096) + 4096 * 131_072
    found = passes("llama-3-8b")["decoding"]
    assert found.seconds == pytest.approx(read / BANDWIDTH, rel=0.005)  # activations are few
    assert (found.limit, found.tokens_per_second) == ("memory", pytest.approx(215, abs=2))
    assert found.ridge == pytest.approx(295, abs=1)
    assert found.flops_per_byte == pytest.approx(1.1, abs=0.05)


def test_reading_a_text_takes_as_long_as_its_products():
    """Llama 3 8B at 4,096 tokens: 2 FLOPs per token and weight of the layers, 4 per pair and head dimension, and the
    head for one token."""
    layers, d, n = 32, 4096, 4096
    weights = layers * (d * 6144 + d * d + 3 * d * 14336)
    flops = 2 * weights * n + layers * 4 * d * n * (n + 1) / 2 + 2 * d * 128256
    found = passes("llama-3-8b")["prefill"]
    assert found.limit == "compute"
    assert found.seconds_by_kind["products"] + found.seconds_by_kind["attention"] == pytest.approx(flops / PEAK)
    assert 0.85 < found.of_peak < 1


def test_a_batch_shares_the_weights_until_products_are_the_limit():
    """Computing is the limit from 295 FLOPs per byte on. A short cache is negligible, and a bfloat16 weight takes one
    FLOP per byte and sequence."""
    speeds = {batch: passes("llama-3-8b", batch=batch, context=16)["decoding"] for batch in (1, 8, 2048)}
    assert speeds[8].tokens_per_second == pytest.approx(8 * speeds[1].tokens_per_second, rel=0.02)
    assert (speeds[8].limit, speeds[2048].limit) == ("memory", "compute")


def test_a_decoding_step_under_a_soft_cap_writes_and_reads_its_scores():
    plain, capped = (
        sum(work.moved_bytes for work in cost(load_config("tiny-llama", *cap), 1, 256).computed_work["decoding"])
        for cap in ((), ("model.attention.softcap=50.0",))
    )
    model = load_config("tiny-llama").model
    assert capped - plain >= 2 * 4 * model.n_layers * model.attention.n_heads * 256


def test_fewer_key_heads_decode_faster_if_the_cache_is_long():
    long = {"batch": 64, "context": 32768}
    speeds = [
        passes("llama-2-7b", f"model.attention.n_kv_heads={n}", "model.max_seq_len=32768", **long)["decoding"]
        for n in (32, 8, 1)
    ]
    times = [one.seconds for one in speeds]
    kept = 32 * 64 * 32768 * 2 * 128 * 2  # bytes of one key head in all layers
    assert times[0] > times[1] > times[2]
    assert times[0] - times[1] == pytest.approx((24 * kept + 2 * 32 * 24 * 2 * 128 * 4096) / BANDWIDTH, rel=0.01)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-27b", "deepseek-v3", "gpt-oss-20b", "mamba-2-2.7b"])
def test_more_never_takes_less(name):
    for passed in ("training", "prefill", "decoding"):
        small, longer, wider = (
            passes(name, batch=b, context=c).get(passed) for b, c in ((2, 512), (2, 9000), (9, 512))
        )
        assert small.seconds <= longer.seconds
        assert small.seconds <= wider.seconds


@pytest.mark.parametrize("window", [1, 64, 1024, 4095, 4096])
def test_a_window_never_costs_more_than_seeing_all(window):
    """A window of almost the whole sequence is not divided into blocks. Kernels then multiply the full square, which is
    reported separately."""
    changes = [f"model.attention.window={window}", "train.seq_len=4096"]
    some, full = (cost(load_config("llama-3-8b", *change), 2, 4096) for change in (changes, changes[1:]))
    assert some.forward_flops.scores <= full.forward_flops.scores
    assert some.kv_cache_bytes <= full.kv_cache_bytes
    assert some.read_bytes_per_decoded_token <= full.read_bytes_per_decoded_token
    if window <= 1024:
        some, full = (passes("llama-3-8b", *change) for change in (changes, changes[1:]))
        assert all(some[name].seconds <= full[name].seconds for name in full)


def test_a_mixture_of_one_expert_is_a_dense_layer_behind_a_router():
    dense = cost(load_config("tiny-llama"), 3, 64)
    one = cost(load_config("tiny-llama", "model.mlp={kind: moe, experts: 1, active: 1, d_ff: 344}"), 3, 64)
    routers = 6 * 128
    assert one.parameters.total == dense.parameters.total + routers
    assert one.parameters.idle == 0
    assert one.forward_flops.total == dense.forward_flops.total + 2 * routers
    assert one.read_bytes_per_decoded_token == dense.read_bytes_per_decoded_token + 2 * routers
