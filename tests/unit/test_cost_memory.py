"""Bytes of caches, weights and training, and the summary of all counts."""

import pytest
import torch

from archlab.config.optimizer import AdamW, Muon
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.infer.session import Session
from archlab.model.decoder import Decoder
from archlab.pricing.memory import kv_bytes_per_token, kv_cache_bytes, training_memory
from archlab.pricing.params import parameters
from archlab.pricing.summary import cost
from archlab.pricing.units import binary, count, si
from archlab.pricing.work import forward_flops


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3-8b", 131_072),
        ("llama-2-7b", 524_288),
        ("llama-2-70b", 327_680),
        ("mistral-7b-v0.1", 131_072),
        ("qwen2.5-7b", 57_344),
        ("gpt-2", 36_864),
    ],
)
def test_kv_bytes_per_token_in_bf16(name, expected):
    assert kv_bytes_per_token(load_config(name).model) == expected


def test_head_dim_need_not_be_d_model_over_heads():
    model = load_config("tiny-llama", "model.attention={n_heads: 4, n_kv_heads: 1, head_dim: 80}").model
    assert kv_bytes_per_token(model) == 6 * 2 * 80 * 2
    assert kv_bytes_per_token(model, bytes_each=4) == 6 * 2 * 80 * 4


def test_latent_attention_keeps_one_vector_per_token():
    """DeepSeek-V3 caches 576 numbers, instead of 128 heads with 128 + 64 and 128 each."""
    sizes = "n_heads: 128, q_rank: 1536, kv_rank: 512, nope_dim: 128, rope_dim: 64"
    model = load_config("tiny-llama", f"model.attention={{kind: latent, {sizes}}}", "model.n_layers=61").model
    assert kv_bytes_per_token(model) == 61 * 576 * 2
    heads = load_config(
        "tiny-llama", "model.n_layers=61", "model.attention={n_heads: 128, n_kv_heads: 128, head_dim: 192, v_dim: 128}"
    )
    assert kv_bytes_per_token(heads.model) == 61 * 128 * (192 + 128) * 2


@pytest.mark.parametrize(("context", "kept"), [(1, 1), (4096, 4096), (4097, 4096), (32768, 4096)])
def test_a_window_bounds_the_cache(context, kept):
    assert kv_cache_bytes(load_config("mistral-7b-v0.1").model, context) == kept * 131_072


def test_only_layers_with_a_window_are_bounded():
    model = load_config("tiny-llama", "model.layers={a: {attention.window: 16}, b: {}, pattern: [a, a, b]}").model
    per_layer = 2 * 2 * 32 * 2
    assert kv_cache_bytes(model, 100, batch=3) == 3 * per_layer * (4 * 16 + 2 * 100)


def test_chunks_bound_the_cache_and_blocks_with_a_summary_do_not():
    for summary, kept in ((0, 16), (2, 100)):
        blocks = f"model.attention.blocks={{size: 16, summary: {summary}}}"
        assert kv_cache_bytes(load_config("tiny-llama", blocks).model, 100) == kept * 6 * 2 * 2 * 32 * 2


def test_a_decoding_step_reads_the_weights_but_one_table_and_the_cache():
    """Llama 3 8B by hand: all weights, one row of the embedding, and 128 KiB of keys and values per token."""
    found = cost(load_config("llama-3-8b"), context=4096)
    assert found.read_bytes_per_decoded_token == 2 * (8_030_261_248 - 128_255 * 4096) + 4096 * 131_072


def test_a_model_with_a_two_sided_layer_does_not_decode_from_a_cache():
    found = cost(
        load_config("tiny-llama", "model.layers={a: {attention.visibility: two_sided}, b: {}, pattern: [a, b]}")
    )
    assert (found.kv_bytes_per_token, found.kv_cache_bytes, found.recurrent_bytes) == (0, 0, 0)
    assert found.read_bytes_per_decoded_token is None
    assert not found.decodes
    assert cost(load_config("mamba-2-2.7b")).decodes, "from its states"


def test_training_keeps_sixteen_bytes_per_parameter():
    counts = parameters(load_config("tiny-llama").model)
    plan = training_memory(counts, AdamW())
    assert (plan.weights, plan.gradients, plan.optimizer) == tuple(n * counts.total for n in (4, 4, 8))
    by_muon = training_memory(counts, Muon())
    assert plan.total - by_muon.total == 4 * counts.matrices
    layer = 2 * (128 * 128 + 64 * 128) + 3 * 128 * 344  # q, out, k, v; gate, up, down
    assert counts.matrices == 6 * layer


def test_the_summary_joins_the_counts():
    found = cost(load_config("llama-3-8b"), batch=2, context=1000)
    assert found.parameters.total == 8_030_261_248
    assert found.weight_bytes == 2 * 8_030_261_248
    assert found.kv_cache_bytes == 2 * 1000 * 131_072
    assert found.forward_flops == forward_flops(load_config("llama-3-8b").model, 1000)
    assert found.model_dump()["parameters"]["total"] == 8_030_261_248


@pytest.mark.parametrize("context", [None, 1000, 32768])
def test_training_is_counted_in_its_own_window_whatever_the_context_served(context):
    config = load_config("mistral-7b-v0.1", "train.tokens=1M")
    found = cost(config, context=context)
    assert found.training_window == 8192
    assert found.training_flops_per_token == 3 * forward_flops(config.model, 8192).total
    assert found.training_tokens == 122 * 8192  # whole batches in 1M tokens
    assert found.training_flops == found.training_flops_per_token * found.training_tokens


def test_a_config_that_does_not_say_how_long_it_is_trained_has_no_total():
    found = cost(load_config("llama-3-8b"))
    assert (found.training_tokens, found.training_flops) == (None, None)


def test_in_float32_the_cache_is_that_of_a_model_as_it_is_trained():
    config = load_config("tiny-llama", "model.attention.window=16")
    session = Session(Decoder(config.model), torch.zeros(3, 9, dtype=torch.int64), capacity=40)
    assert cost(config, batch=3, context=40, dtype="float32").kv_cache_bytes == session.cache.n_bytes
    assert cost(config, dtype="float32").weight_bytes == sum(p.nbytes for p in session.model.parameters())


def test_the_default_context_is_the_training_window():
    assert cost(load_config("mistral-7b-v0.1")).context == 8192
    assert cost(load_config("tiny-llama")).context == 256


def test_learned_positions_end():
    with pytest.raises(UserError, match="context is 2048, but learned positions end at max_seq_len = 1024"):
        cost(load_config("gpt-2"), context=2048)


def test_numbers_for_people():
    assert [si(n) for n in (0, 7, 999, 999.7, 1234567, 14.5e9)] == ["0", "7", "999", "1K", "1.23M", "14.5G"]
    assert [binary(n) for n in (100, 131072, 1048575, 3 * 2**29)] == ["100 B", "128 KiB", "1 MiB", "1.5 GiB"]
    assert count(8_030_261_248) == "8.03B"
