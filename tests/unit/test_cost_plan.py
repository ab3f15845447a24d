"""Plans for several devices: worked by hand, and as properties."""

import pytest

from archlab.cli import app
from archlab.cost.hardware import load_hardware
from archlab.cost.params import parameters
from archlab.cost.plan import Parallel, plan
from archlab.errors import UserError
from archlab.exchange.configs import load_config

H100 = load_hardware("h100")
N = 8_030_261_248


def planned(parallel, *config, batch=128, tokens=8192, **options):
    model = load_config(*(config or ("llama-3-8b",))).model
    return plan(model, Parallel.parse(parallel), H100, batch=batch, tokens=tokens, **options)


def test_sharding_by_hand():
    """Of Llama 3 8B 16 bytes a parameter, an eighth; weights gathered twice in bfloat16 and gradients summed in
    float32, each device sending seven eighths of them."""
    one = planned("shard=8")
    assert one.memory["weights, gradients, AdamW"] == 16 * N // 8
    assert one.sent["shard"] == round(7 / 8 * (2 * 2 + 4) * N)
    assert one.sending == pytest.approx(one.sent["shard"] / 450e9)
    assert planned("data=8").memory["weights, gradients, AdamW"] == 16 * N
    assert planned("data=8").sent["data"] == round(2 * 7 / 8 * 4 * N)


def test_a_pipeline_waits_and_sends_little():
    """Huang 2019: p - 1 of m + p - 1 turns; a device sends the stream on and its gradient back."""
    one = planned("pipeline=8", micro_batch=4)
    assert one.bubble == pytest.approx(7 / (32 + 7))
    assert one.sent["pipeline"] == 2 * 128 * 8192 * 4096 * 2
    alone = planned("data=1", micro_batch=4)
    assert one.computing == pytest.approx(alone.computing / 8 / (1 - one.bubble))


def test_tensor_parallelism_sends_the_stream_at_every_branch():
    """Korthikanti 2022: gathered and scattered around attention and MLP, forward and backward."""
    one = planned("tensor=8")
    assert one.sent["tensor"] == 32 * 2 * 4 * 128 * 8192 * 4096 * 2 * 7 // 8
    assert one.memory["weights, gradients, AdamW"] == 16 * N // 8


def test_activations_of_a_layer_as_published():
    """Korthikanti 2022: a GPT layer of 4 d_ff keeps 34 bytes per token and width in 16 bits without the scores; dropout's
    masks, 2 of them, are not here, and norms keep their input in float32 here: 4 more."""
    model = ["gpt-2", "model.n_layers=1", "model.dropout=0.0"]
    one = planned("data=1", *model, batch=1, tokens=1024)
    around = 4 + 2 * 4  # the final norm, hidden states and their gradient
    scores = 12 * 4 / 768  # the sum of each query's exponentials, per head
    assert one.memory["activations"] == pytest.approx((34 - 2 + 4 + scores + around) * 1024 * 768, rel=0.02)


@pytest.mark.parametrize("way", ["shard", "tensor", "pipeline"])
def test_more_devices_never_hold_more(way):
    held = [planned(f"{way}={n}", "llama-3-70b").total_memory for n in (1, 2, 4, 8)]
    assert held == sorted(held, reverse=True)


def test_recomputation_holds_less_and_lets_more_texts_in():
    plain, recomputed = (planned("shard=8", recompute=r) for r in (False, True))
    assert recomputed.total_memory < plain.total_memory
    assert recomputed.largest_micro_batch > plain.largest_micro_batch
    at_most = planned("shard=8", recompute=True, micro_batch=8)
    assert at_most.fits == (recomputed.largest_micro_batch >= 8)


def test_wide_shapes_suit_tensor_parallelism_and_deep_ones_a_pipeline():
    """At equal parameters: what tensor parallelism sends grows with layers times width, so less with a wide one."""
    shapes = {"wide": (8, 8192), "deep": (128, 2048)}
    sent = {}
    for name, (layers, d) in shapes.items():
        size = [f"model.n_layers={layers}", f"model.d_model={d}", f"model.attention={{n_heads: {d // 128}}}"]
        config = ["llama-3-8b", *size, f"model.mlp.d_ff={4 * d}", "model.vocab_size=1024"]
        tensor, pipeline = (planned(f"{way}=8", *config) for way in ("tensor", "pipeline"))
        sent[name] = tensor.sending / tensor.computing, pipeline.sending / pipeline.computing
    assert sent["wide"][0] < sent["deep"][0] / 2
    assert all(pipeline < tensor for tensor, pipeline in sent.values())


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ("shards=2", "did you mean shard"),
        ("shard=0", "allowed: data, shard"),
        ("shard=2,shard=2", "each once"),
        ("tensor=7", "7: does not divide the 32 query heads"),
        ("pipeline=33", "more than the 32 layers"),
        ("data=3", "3: does not divide the batch of 128 texts"),
    ],
)
def test_what_cannot_be_divided(parallel, message):
    with pytest.raises(UserError, match=message):
        planned(parallel)


def test_what_is_printed(capsys):
    batch = ["train.batch_tokens=1048576", "train.micro_batch_tokens=8192", "train.tokens=1T"]
    assert app.main(["cost", "llama-3-8b", "--hardware", "h100x8", *batch, "--devices", "8", "--price", "2"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "1T tokens, 5.15e+22 FLOPs" in " ".join(out.split())
    assert "120 GiB" in out
    assert app.main(["cost", "llama-3-8b", "--devices", "8"]) == 2
    assert "need --hardware" in capsys.readouterr().err
    assert app.main(["cost", "llama-3-8b", "--hardware", "h100", "--devices", "8", "--parallel", "shard=4"]) == 2
    assert "is 4 devices, and --devices says 8" in capsys.readouterr().err


def test_parameters_of_stages_sum_to_at_least_the_model():
    model = load_config("llama-3-8b").model
    assert 8 * planned("pipeline=8").memory["weights, gradients, AdamW"] >= 16 * parameters(model).total
