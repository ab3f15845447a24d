"""Operations and bytes of passes, compared with parameter counts, caches, and sums written out by hand."""

import pytest

from archlab.config.components.position import Learned
from archlab.config.components.work import Operation, Pass
from archlab.config.io import presets
from archlab.config.layers import layer_configs, sees_as
from archlab.exchange.configs import load_config
from archlab.pricing.memory import kv_cache_bytes, recurrent_bytes
from archlab.pricing.params import parameters
from archlab.pricing.work import by_kind, forward, products_by_part, training_step

ODD = {
    "learned": ["model.position=learned"],
    "T5's table": ["model.position=t5"],
    "T5's tables": ["model.position={kind: t5, shared: false}"],
    "Shaw": ["model.position=shaw"],
    "Transformer-XL": ["model.position=transformer_xl"],
    "narrow embedding": ["model.embedding={width: 20, norm: true, scale: 2.0}", "model.head={tied: true, bias: true}"],
    "biases": ["model.attention.qkv_bias=true", "model.attention.out_bias=true", "model.mlp.bias=true"],
    "sinks and a gate": ["model.attention={n_heads: 4, sinks: true, gate: {bias: true}, sub_norm: true}"],
    "norms of heads": ["model.attention={n_heads: 4, n_kv_heads: 2, qk_norm: {kind: layernorm, scope: width}}"],
    "latent": ["model.attention={kind: latent, n_heads: 4, q_rank: 9, kv_rank: 24, nope_dim: 20, rope_dim: 12}"],
    "xielu": ["model.mlp={kind: plain, activation: xielu, sub_norm: true}"],
    "mixture": ["model.mlp={kind: moe, experts: 8, active: 3, shared: {d_ff: 40, gate: true}, bias: true}"],
    "Mamba": [
        "model.attention=none",
        "model.position=none",
        "model.mixer={kind: mamba, in_bias: true, out_bias: true, inner_norm: {kind: rmsnorm, cast: before_weight}}",
    ],
    "Mamba 2": [
        "model.attention=none",
        "model.position=none",
        "model.mixer={kind: mamba2, head_dim: 16, in_bias: true, out_bias: true}",
    ],
    "delta rule": [
        "model.attention=none",
        "model.position=none",
        "model.mixer={kind: gated_delta, n_key_heads: 2, n_value_heads: 4}",
    ],
    "Kimi delta": [
        "model.attention=none",
        "model.position=none",
        "model.mixer={kind: kimi_delta, n_key_heads: 2, n_value_heads: 4}",
    ],
    "RG-LRU": ["model.attention=none", "model.position=none", "model.mixer={kind: rglru, n_heads: 4}"],
    "short convolution": ["model.mixer={kind: short_conv, bias: true}", "model.norm.kind=dyt"],
}
WITHOUT_ENCODER = [name for name in presets() if load_config(name).model.encoder is None]
CONFIGS = {name: [name] for name in WITHOUT_ENCODER} | {name: ["tiny-llama", *more] for name, more in ODD.items()}


def model_of(name):
    return load_config(*CONFIGS[name]).model


@pytest.mark.parametrize("name", [name for name in CONFIGS if not sees_as(model_of(name), "two_sided")])
def test_a_decoding_step_reads_every_active_weight_once_and_all_that_is_kept(name):
    """Rows of the embedding and of learned positions that the token does not look up are not read."""
    model = model_of(name)
    step = list(forward(model, Pass(1, 1, n_cached=99, is_cached=True)))
    width = model.embedding.width or model.d_model
    unread = 0 if model.head.tied else (model.vocab_size - 1) * width
    if isinstance(model.position, Learned):
        unread += (model.position.offset + model.max_seq_len - 1) * model.d_model
    assert sum(o.weights for o in step) == pytest.approx(2 * (parameters(model).active - unread), rel=1e-12)
    assert sum(o.kept for o in step) == kv_cache_bytes(model, 100) + recurrent_bytes(model)


@pytest.mark.parametrize("name", CONFIGS)
def test_many_rows_read_all_weights_and_compute_in_proportion(name):
    """The expected number of experts becomes all of them. Learned positions are read up to the length of the sequence.
    All sequences share the projected distances of Transformer-XL."""
    model = model_of(name)
    once, twice = (list(forward(model, Pass(texts, 1024))) for texts in (8, 16))
    shared = sum(o.flops for o in once if (o.kind, o.part) == ("products", "positions"))
    assert sum(o.flops for o in twice) + shared == pytest.approx(2 * sum(o.flops for o in once), rel=1e-9)
    layers = sum(sum(layer.parameters().values()) for layer in layer_configs(model))
    read = sum(o.weights for layer in layer_configs(model) for o in layer.work(Pass(8, 1024)))
    assert read == pytest.approx(2 * layers, rel=1e-6)


@pytest.mark.parametrize("name", ["tiny-llama", "gemma-3-1b", "mistral-7b-v0.1", "mixtral-8x7b", "gpt-oss-20b"])
def test_a_pass_in_two_pieces_computes_what_it_would_whole(name):
    """Products and pairs. After 5,000 tokens, windows have an effect."""
    model = model_of(name)
    whole = sum(o.flops for o in forward(model, Pass(1, 7000)))
    pieces = sum(
        o.flops
        for n_cached, new in ((0, 5000), (5000, 2000))
        for o in forward(model, Pass(1, new, n_cached, is_cached=n_cached > 0))
    )
    assert pieces == pytest.approx(whole, rel=1e-12)


def test_llama_3_8b_by_hand():
    """A forward pass over 8 sequences of 1,000 tokens in bfloat16. Norms and sums with the stream have few FLOPs but
    many bytes."""
    found = {work.kind: work for work in by_kind(forward(model_of("llama-3-8b"), Pass(8, 1000)))}
    rows, d, layers, d_ff, vocab = 8000, 4096, 32, 14336, 128256
    assert found["norms"].flops == (2 * layers + 1) * 4 * rows * d
    assert found["norms"].moved_bytes == (2 * layers + 1) * 2 * 2 * rows * d
    assert found["norms"].weight_bytes == (2 * layers + 1) * 2 * d
    assert found["activations"].moved_bytes == layers * 2 * 2 * rows * d_ff
    rotated, gates, streams = 2 * 40 * 128, 3 * d_ff, 2 * 3 * d
    assert found["element-wise"].moved_bytes == layers * 2 * rows * (rotated + gates + streams)
    assert found["attention"].flops == layers * 8 * 4 * 32 * 128 * (1000 * 1001 // 2)
    assert found["attention"].moved_bytes == layers * 2 * rows * (2 * 4096 + 2 * 1024)
    assert found["softmax"].flops == layers * 8 * 5 * 32 * (1000 * 1001 // 2)
    inputs_outputs = d + 6144 + d + d + 2 * (d + d_ff) + d_ff + d
    assert found["products"].moved_bytes == 2 * rows * (layers * inputs_outputs + d + vocab)
    assert found["embedding"].moved_bytes == 2 * rows * d


def test_products_of_llama_3_8b_by_place():
    """The sums of all parts are those of all products. In a step of one token, the MLP reads three matrices per layer."""
    step = list(forward(model_of("llama-3-8b"), Pass(1, 1, n_cached=8191, is_cached=True)))
    parts, whole = products_by_part(step), next(work for work in by_kind(step) if work.kind == "products")
    assert list(parts) == ["projections", "mlp", "head"]
    assert parts["mlp"].weight_bytes == 32 * 3 * 4096 * 14336 * 2
    assert parts["projections"].flops == 32 * 2 * 4096 * (4096 + 2 * 1024 + 4096)
    for what in ("flops", "n_bytes", "count"):
        assert sum(getattr(part, what) for part in parts.values()) == getattr(whole, what)


def test_norms_are_a_five_hundredth_of_the_flops_and_much_more_of_the_bytes():
    """Ivanov 2021: normalization, including softmax, is 0.17% of BERT's FLOPs."""
    bert = load_config(
        "transformer-base", "model.d_model=1024", "model.n_layers=24", "model.attention={n_heads: 16, visibility: two_sided}",
        "model.mlp.d_ff=4096", "model.encoder=null",
    ).model  # fmt: skip
    work = by_kind(training_step(bert, Pass(8, 512)))
    flops, moved = sum(w.flops for w in work), sum(w.n_bytes for w in work)
    normalizing = [w for w in work if w.kind in ("norms", "softmax")]
    assert 0.0005 < sum(w.flops for w in normalizing) / flops < 0.004
    assert sum(w.n_bytes for w in normalizing) / moved > 0.05


@pytest.mark.parametrize("heads", [64, 8, 1])
def test_decoding_needs_what_shazeer_counted(heads):
    """Shazeer 2019: memory access per multiplication is n/d + 1/b with one key head per query head, and n/(d h) + 1/b
    with a single key head.

    The attention layer has batch b, width d, h heads and n tokens.
    """
    n, b, d, h = 4096, 32, 8192, 64
    overrides = [f"model.d_model={d}", f"model.attention={{n_heads: {h}, n_kv_heads: {heads}, head_dim: {d // h}}}"]
    model = load_config("tiny-llama", *overrides).model
    layer = layer_configs(model)[0]
    work = list(layer.attention.work(layer.site_of("attention"), Pass(b, 1, n_cached=n - 1, is_cached=True)))
    read = sum(o.weights + o.kept for o in work) / 2
    multiplied = sum(o.flops for o in work if o.kind in ("products", "attention")) / 2
    share = heads / h
    by_hand = (d * d * (2 + 2 * share) + b * n * 2 * d * share) / (b * d * d * (2 + 2 * share) + b * n * 2 * d)
    assert read / multiplied == pytest.approx(by_hand, rel=1e-3)  # norms and rotations are not in that count


def test_written_out_attention_moves_four_streams_and_all_scores_four_times():
    """The operation makes the mixed values, all scores and all weights."""
    found = Pass(2, 8, bytes_each=4).attention("scores", n_heads=3, head_dim=5)
    stream, scores = 4 * (2 * 8) * (3 * 5), 4 * (2 * 3 * 8 * 8)
    assert (found.moved, found.made) == (4 * stream + 4 * scores, stream + 2 * scores)


def test_every_doubling_of_an_rglru_reads_four_numbers_and_writes_two():
    mixer = ["model.attention=none", "model.position=none", "model.mixer={kind: rglru, n_heads: 4, lru_width: 128}"]
    (layer, *_) = layer_configs(load_config("tiny-llama", *mixer).model)
    (doublings,) = (work for work in layer.work(Pass(2, 16)) if work.flops == 3 * 4 * (2 * 16) * 128)
    assert doublings.moved == (4 + 2) * 4 * (2 * 16) * 128 * 2


def test_queries_and_keys_are_normed_as_wide_as_they_are():
    """Same cost per number as a norm of the stream."""
    heads = "model.attention={n_heads: 6, n_kv_heads: 2, head_dim: 8"
    plain, normed = (
        sum(work.flops for work in layer.work(Pass(2, 16)) if work.kind == "norms")
        for more in ("}", ", qk_norm: {kind: rmsnorm}}")
        for layer in layer_configs(load_config("tiny-llama", heads + more).model)[:1]
    )
    d_model = load_config("tiny-llama").model.d_model
    assert (normed - plain) / plain == pytest.approx((6 + 2) * 8 / (2 * d_model))  # a layer has two norms


def test_an_operation_moves_and_keeps_no_more_than_it_says():
    assert Operation("softmax", "scores", flops=1.0)[2:] == (1, 0, 0, 0, 0, 0, 1)


def test_a_mixers_norm_computes_as_much_per_number_as_one_of_the_stream():
    mixer = "model.mixer={kind: mamba2, n_heads: 4, head_dim: 16"
    plain, normed = (
        sum(work.flops for work in layer.work(Pass(2, 16)) if work.kind == "norms")
        for more in (", norm: none}", "}")
        for layer in layer_configs(
            load_config("tiny-llama", "model.attention=none", "model.position=none", mixer + more).model
        )[:1]
    )
    d_model = load_config("tiny-llama").model.d_model
    assert (normed - plain) / plain == pytest.approx(4 * 16 / (2 * d_model))


def test_a_table_of_biases_that_layers_share_is_read_once():
    model = load_config("tiny-llama", "model.position={kind: t5, buckets: 16}").model
    (table,) = (work for work in forward(model, Pass(1, 8, bytes_each=4)) if work.part == "positions" and work.weights)
    assert table.weights == 16 * model.attention.n_heads * 4
