"""FLOPs, compared with torch's own counter and with sums written out by hand."""

import pytest

from archlab.config.components.work import Pass, matrix_flops
from archlab.config.layers import layer_configs
from archlab.exchange.configs import load_config
from archlab.pricing.work import computed_training_flops, forward, forward_flops, training_flops

SEQ_LEN = 24
LATENT = "kind: latent, n_heads: 4, kv_rank: 24, nope_dim: 20, rope_dim: 12"
SHAPES = (
    ["model.attention={n_heads: 4, n_kv_heads: 4}"],
    ["model.attention={n_heads: 4, n_kv_heads: 1, head_dim: 48}"],
    ["model.mlp={kind: plain, activation: relu, d_ff: 100}", "model.head.tied=false"],
    ["model.attention.window=5"],
    ["model.layers={a: {attention.window: 3}, b: {mlp.d_ff: 64}, pattern: [a, b]}"],
    ["model.attention={n_heads: 4, n_kv_heads: 2, v_dim: 20, sinks: true, gate: {}}"],
    ["model.attention={n_heads: 4, v_dim: 50, gate: {per: head}, blocks: {size: 5, summary: 0}}"],
    [f"model.attention={{{LATENT}}}"],
    [f"model.attention={{{LATENT}, q_rank: 30, v_dim: 9, window: 4}}"],
)


def counted_by_torch(model_config, *, backward):
    """Count the FLOPs of every matrix product of one sequence."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import archlab

    decoder = archlab.Decoder(model_config, kernel="reference")
    tokens = torch.zeros((1, SEQ_LEN), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        loss = decoder(tokens).sum()
        if backward:
            loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("overrides", SHAPES)
def test_forward_is_what_torch_counts_once_squares_are_cut_to_what_is_visible(overrides):
    model = load_config("tiny-llama", *overrides).model
    ours = forward_flops(model, SEQ_LEN)
    assert counted_by_torch(model, backward=False) == round((ours.total - ours.scores + whole_square(model)) * SEQ_LEN)


def whole_square(model):
    """Scores and values per token as the reference kernel multiplies them: every key counts, visible or hidden."""
    attentions = [layer.attention for layer in layer_configs(model)]
    return sum(2 * a.n_heads * (a.query_width + a.v_dim) * SEQ_LEN for a in attentions)


def test_a_decoding_step_of_latent_attention_makes_no_keys_and_values():
    """Per visible key and head there are 24 + 12 multiplications, twice, instead of 20 + 12. Making them takes 20 and
    24 * 40."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import archlab
    from archlab.model.state import Cache

    model = load_config("tiny-llama", f"model.attention={{{LATENT}}}").model
    decoder, cache = archlab.Decoder(model, kernel="reference"), Cache(model, 1, SEQ_LEN)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        decoder(torch.zeros((1, 1), dtype=torch.long), cache=cache)
    ours = forward_flops(model, SEQ_LEN)
    scores = model.n_layers * 2 * 4 * 2 * (24 + 12)  # the first token sees itself
    assert counter.get_total_flops() == round(ours.total - ours.scores) + scores


def test_shaw_adds_a_product_with_the_vectors_of_the_distance():
    plain, shaw = (
        forward_flops(load_config("tiny-llama", f"model.position={kind}").model, SEQ_LEN).scores
        for kind in ("none", "shaw")
    )
    assert shaw == plain * 3 / 2


def test_transformer_xl_projects_every_distance_once_and_the_query_of_a_decoding_step():
    """4 heads of 32 dimensions and d_model = 128. Of the products with distances, each pair needs one."""
    model = load_config("tiny-llama", "model.position=transformer_xl").model
    plain = load_config("tiny-llama", "model.position=none").model

    def extra(model_pass):
        with_it, without = (matrix_flops(forward(m, model_pass)) for m in (model, plain))
        return (with_it.total() - without.total()) / model.n_layers

    pairs = 3 * 24 * 25 / 2
    assert extra(Pass(3, 24)) == 2 * 24 * 128 * 128 + 2 * 128 * pairs
    step = Pass(3, 1, n_cached=23, is_cached=True, counting="computed")
    assert extra(step) == 3 * (2 * 128 * 128 + 2 * 4 * 128 * 24)


def test_torch_counts_the_flops_of_a_decoding_step_with_transformer_xl():
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import archlab
    from archlab.model.state import Cache

    models = [load_config("tiny-llama", f"model.position={kind}").model for kind in ("transformer_xl", "none")]
    counted, ours = [], []
    for model in models:
        decoder, cache = archlab.Decoder(model, kernel="reference").eval(), Cache(model, 2, SEQ_LEN)
        with torch.no_grad():
            decoder(torch.zeros((2, 7), dtype=torch.long), cache=cache)
            with FlopCounterMode(display=False) as counter:
                decoder(torch.zeros((2, 1), dtype=torch.long), cache=cache)
        counted.append(counter.get_total_flops())
        step = Pass(2, 1, n_cached=7, is_cached=True, counting="computed")
        ours.append(matrix_flops(forward(model, step)).total())
    assert counted[0] - counted[1] == ours[0] - ours[1]


def test_training_is_three_forward_passes():
    model = load_config("tiny-llama").model
    ours = forward_flops(model, SEQ_LEN)
    assert counted_by_torch(model, backward=True) == round(
        3 * (ours.total - ours.scores + whole_square(model)) * SEQ_LEN
    )
    assert training_flops(model, SEQ_LEN) == 3 * ours.total


def test_llama_3_8b_by_hand():
    found = forward_flops(load_config("llama-3-8b").model, 8192)
    d, layers, d_ff = 4096, 32, 14336
    assert found.projections == layers * 2 * (2 * d * d + 2 * d * 1024)
    assert found.scores == layers * 4 * d * (8192 + 1) / 2
    assert found.mlp == layers * 2 * 3 * d * d_ff
    assert found.head == 2 * d * 128256


def test_six_times_the_matrix_parameters_when_the_context_is_short():
    """Kaplan 2020's rule 6N, with the head's matrix in N and a very short context."""
    from archlab.pricing.params import parameters

    model = load_config("llama-3-8b").model
    counts = parameters(model)
    matrices = counts.total - counts.embedding - counts.norms
    assert training_flops(model, 1) == pytest.approx(6 * matrices, rel=1e-4)


def test_a_window_costs_what_it_sees():
    full = forward_flops(load_config("mistral-7b-v0.1", "model.attention.window=null").model, 8192)
    windowed = forward_flops(load_config("mistral-7b-v0.1").model, 8192)
    pairs = sum(min(position + 1, 4096) for position in range(8192))
    assert windowed.scores * 8192 == 32 * 4 * 4096 * pairs
    assert windowed.scores < full.scores
    assert (windowed.mlp, windowed.projections, windowed.head) == (full.mlp, full.projections, full.head)


HIDDEN_IS_COMPUTED = (
    "model.attention.window=5",
    "model.attention={n_heads: 4, window: 5, global_tokens: 1}",
    "model.attention.softcap=30.0",
    "model.position.kind=alibi",
    "model.dropout.attention=0.1",
    "train.document_mask=true",
)


@pytest.mark.parametrize("override", HIDDEN_IS_COMPUTED)
def test_training_computes_the_whole_square_if_no_kernel_skips_hidden_pairs(override):
    """The products of the reference kernel, which torch counts completely, minus the pairs that the model does not see."""
    config = load_config("tiny-llama", f"train.seq_len={SEQ_LEN}", override)
    seen = forward_flops(config.model, SEQ_LEN)
    square = 3 * (seen.total - seen.scores + whole_square(config.model))
    assert computed_training_flops(config) == pytest.approx(square, rel=1e-12)
    assert computed_training_flops(config) > training_flops(config.model, SEQ_LEN)


@pytest.mark.parametrize(
    ("override", "pairs"),
    [
        # A window of 100: the first queries are in one causal block, then blocks of 192 queries with 99 keys before
        # them.
        ("model.attention.window=100", 100 * 101 // 2 + 10 * 192 * 291 + 28 * 127),
        ("model.attention={n_heads: 4, window: 100, softcap: 3.0}", 100**2 + 10 * 192 * 291 + 28 * 127),
        ("model.attention.blocks={size: 256, summary: 0}", 8 * 256 * 257 // 2),
    ],
)
def test_training_computes_blocks_of_queries_if_a_text_is_cut_into_them(override, pairs):
    config = load_config("tiny-llama", "train.seq_len=2048", override)
    layer = layer_configs(config.model)[0]
    per_pair = 2 * 2 * layer.attention.n_heads * layer.attention.head_dim
    scores = config.model.n_layers * per_pair * pairs / 2048
    seen = forward_flops(config.model, 2048)
    assert computed_training_flops(config) == pytest.approx(3 * (seen.total - seen.scores + scores), rel=1e-12)


@pytest.mark.parametrize("override", ["model.head.tied=true", f"model.attention.window={SEQ_LEN}"])
def test_training_computes_only_visible_pairs_if_attention_is_plain_causal(override):
    config = load_config("tiny-llama", f"train.seq_len={SEQ_LEN}", override)
    assert computed_training_flops(config) == training_flops(config.model, SEQ_LEN)


def test_the_head_costs_the_same_tied_or_not():
    tied, untied = (
        forward_flops(load_config("tiny-llama", f"model.head.tied={t}").model, 8) for t in ("true", "false")
    )
    assert tied == untied
    assert tied.head == 2 * 128 * 2048
