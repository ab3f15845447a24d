"""Plans for several devices: calculated by hand, and general properties."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archlab.cli import app
from archlab.config.components.component import MatrixShape
from archlab.config.io import devices
from archlab.config.layers import LayerConfig
from archlab.config.optimizer import Muon
from archlab.errors import UserError
from archlab.evidence.claims import sources
from archlab.exchange.configs import load_config
from archlab.pricing.budget import Spent, at_published_mfu, budgets
from archlab.pricing.hardware import load_hardware
from archlab.pricing.params import parameters
from archlab.pricing.partition import Parallel, even_stages, pipeline_stages
from archlab.pricing.training_plan import plan_training
from archlab.pricing.units import seconds
from archlab.pricing.update import orthogonalizing

DOCS = Path(__file__).parents[2] / "docs"
H100 = load_hardware("h100")
N = 8_030_261_248
LAYER = 218_112_000
SMALL_VOCABULARY = ("llama-3-8b", "model.vocab_size=8192")
"""Config with a small vocabulary, whose loss needs less memory than its layers."""


def planned(parallel, *config, batch=128, tokens=8192, micro_batch=1, device=H100, **options):
    name, *changes = config or ("llama-3-8b",)
    sizes = {"seq_len": tokens, "batch_tokens": batch * tokens, "micro_batch_tokens": micro_batch * tokens}
    own = load_config(name, *changes, "train.tokens=1T", *(f"train.{field}={n}" for field, n in sizes.items()))
    return plan_training(own, Parallel.parse(parallel), device, **options)


def test_sharding_by_hand():
    """Each device has an eighth of 16 bytes per parameter of Llama 3 8B. For each of 16 sequences, weights are gathered
    twice and gradients are summed once, all in float32. Each device sends seven eighths of them."""
    one = planned("shard=8")
    assert one.memory["weights, gradients, averages"] == 16 * N // 8
    ends = 2 * 128_256 * 4096 + 4096  # embedding, head and final norm are gathered once
    assert one.sent["shard"] == round(16 * 7 / 8 * 4 * (3 * N - ends))
    assert one.sending == pytest.approx(one.sent["shard"] / 450e9)
    assert planned("replicate=8").memory["weights, gradients, averages"] == 16 * N
    assert planned("replicate=8").sent["replicate"] == round(2 * 7 / 8 * 4 * N)


@pytest.mark.parametrize("way", ["replicate=8", "shard=8"])
def test_layers_keep_copies_of_their_weights_for_the_backward_pass(way):
    """Autograd keeps the bfloat16 weights of each product, even if the float32 weights are freed. A recomputed layer
    has none while it waits."""
    assert planned(way, *SMALL_VOCABULARY).memory["bfloat16 weights"] == 2 * 32 * LAYER
    assert planned(way, *SMALL_VOCABULARY, recompute=True).memory["bfloat16 weights"] == 0


@pytest.mark.parametrize(("name", "largest"), [("rtx-4090", "up to 4 devices"), ("xeon-8480", "one device")])
def test_a_network_that_a_file_states_links_more_devices(name, largest, tmp_path):
    device, file = load_hardware(name), tmp_path / "mine.yaml"
    with pytest.raises(
        UserError, match=f"{re.escape(device.name)} .* between 8 devices; allowed: {largest}, "
    ) as refused:
        planned("shard=8", device=device)
    network = re.search(r"`(network: .*)`", str(refused.value))[1]
    file.write_text(devices()[name].read_text() + network)
    assert planned("shard=8", device=load_hardware(str(file))).sending > 0
    assert planned("replicate=1", device=device).sending == 0


def test_the_device_in_the_documentation_is_a_device(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        re.search(r"```yaml\n(name: .*?)```", (DOCS / "cost.md").read_text(), re.DOTALL)[1]
    )
    assert planned("shard=8", device=load_hardware(str(tmp_path / "mine.yaml"))).sending > 0


def test_a_pipeline_waits_and_sends_little():
    """Huang 2019: a device waits for p - 1 of m + p - 1 time slots. It sends the stream forward and its gradient back."""
    one = planned("pipeline=8", micro_batch=4)
    assert one.bubble == pytest.approx(7 / (32 + 7))
    assert one.sent["pipeline"] == 2 * 128 * 8192 * 4096 * 2
    assert (
        planned("pipeline=2").sent["pipeline"] == one.sent["pipeline"] // 2
    )  # the first stage sends forward, the last one back
    alone = planned("replicate=1", micro_batch=4)
    slowest = 5 / (32 + 128_256 * 4096 / 218_112_000)  # layers; the head does the work of two or three
    # The formula leaves out norms, the loss and the update.
    assert one.computing * (1 - one.bubble) == pytest.approx(alone.computing * slowest, rel=0.01)


def test_the_update_waits_for_no_other_stage():
    """With one micro-batch, each of eight devices waits for seven eighths of the time, but updates its layers once."""
    one, two = (planned("pipeline=8", batch=n) for n in (1, 2))
    turn = two.computing - one.computing  # a ninth time slot
    assert one.bubble == pytest.approx(7 / 8)
    updating = one.computing - 8 * turn
    parameters_of_the_slowest = 5 * 218_112_000
    assert updating == pytest.approx(10 * 4 * parameters_of_the_slowest / H100.bandwidth, rel=0.01)


def test_tensor_parallelism_sends_the_stream_at_every_branch():
    """Korthikanti 2022: the stream is gathered and scattered around attention and MLP, forward and backward."""
    one = planned("tensor=8")
    assert one.sent["tensor"] == 32 * 2 * 4 * 128 * 8192 * 4096 * 2 * 7 // 8
    norms = 2 * 32 * 4096  # whole on every device
    assert one.memory["weights, gradients, averages"] == 16 * (N + 7 * norms) // 8


def test_activations_of_a_layer_as_published():
    """Korthikanti 2022: in 16 bits a GPT layer of 4 d_ff keeps 34 bytes per token and width, without the scores.

    There are no dropout masks (2 bytes) here, and norms keep their input in float32 (4 bytes more).
    """
    model = ["gpt-2", "model.n_layers=1", "model.dropout=0.0"]
    one = planned("replicate=1", *model, batch=1, tokens=1024)
    around = 4 + 2 * 4  # the final norm, hidden states and their gradient
    scores = 12 * 4 / 768  # the sum of each query's exponentials, per head
    assert one.memory["activations"] == pytest.approx((34 - 2 + 4 + scores + around) * 1024 * 768, rel=0.02)


@pytest.mark.parametrize("way", ["shard", "tensor", "pipeline"])
def test_more_devices_never_hold_more(way):
    memory = [planned(f"{way}={n}", "llama-3-70b").total_memory for n in (1, 2, 4, 8)]
    assert memory == sorted(memory, reverse=True)


def test_recomputation_holds_less_and_lets_more_texts_in():
    plain, recomputed = (planned("shard=8", recompute=r) for r in (False, True))
    assert recomputed.total_memory < plain.total_memory
    assert recomputed.largest_micro_batch > plain.largest_micro_batch
    at_most = planned("shard=8", recompute=True, micro_batch=8)
    assert at_most.fits == (recomputed.largest_micro_batch >= 8)


def test_wide_shapes_suit_tensor_parallelism_and_deep_ones_a_pipeline():
    """With equal parameters, the traffic of tensor parallelism grows with layers times width, so a wide model sends
    less."""
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
        ("shard=0", "allowed: replicate, shard"),
        ("shard=2,shard=2", "each at most once"),
        ("tensor=7", "query heads: 32 cannot be divided evenly among 7 devices"),
        ("pipeline=33", "33 stages are too many for 32 layers"),
        (
            "replicate=3",
            "train.batch_tokens is 128 sequences of 8,192 tokens; allowed: a multiple of replicate . shard = 3",
        ),
    ],
)
def test_what_cannot_be_divided(parallel, message):
    with pytest.raises(UserError, match=message):
        planned(parallel)


def test_gathered_layers_are_those_in_use_and_what_stands_around_them():
    """Llama 3 8B with a small vocabulary, in the backward pass of its last layer, in float32: two layers, one layer's gradient,
    embedding, head and final norm, and the gradient of the head."""
    ends, head = 2 * 8192 * 4096 + 4096, 8192 * 4096
    assert planned("shard=8", *SMALL_VOCABULARY).memory["gathered layers"] == 4 * (3 * LAYER + ends + head)
    # With recomputation, memory is largest one layer later: the gradient of the last layer is still being reduced.
    recomputed = planned("shard=8", *SMALL_VOCABULARY, recompute=True)
    assert recomputed.memory["gathered layers"] == 4 * (4 * LAYER + ends + head)


def test_the_gradient_of_the_head_is_converted_beside_the_head():
    """In the loss of Llama 3 8B, a device has the whole embedding, head and final norm in float32 and a copy of the head in
    bfloat16. It has the gradient of a chunk of 523 tokens in both formats, the gradient of earlier chunks, and logits."""
    head = 128_256 * 4096
    plan = planned("shard=8")
    assert plan.memory["gathered layers"] == 4 * (2 * head + 4096)
    assert plan.memory["bfloat16 weights"] == 2 * (32 * LAYER + head)
    assert plan.memory["logits"] == (2 + 4 + 4) * head + 2 * 523 * 128_256


def test_the_fullest_moment_depends_on_the_shape():
    """Large vocabularies need the most memory in the loss. Many learned positions need the most when the gradients of
    everything outside the layers are complete. Then there are no activations."""
    small = "llama-3-8b", "model.n_layers=1", "model.mlp.d_ff=1024"
    positions = "model.position=learned", "model.max_seq_len=131072", "model.vocab_size=1024"
    short = planned("shard=8", *small, *positions, tokens=64)
    assert short.memory["gathered layers"] == 2 * 4 * ((131_072 + 2 * 1024) * 4096 + 4096)
    assert short.memory["logits"] == short.memory["bfloat16 weights"] == 0
    assert planned("shard=8", *small, tokens=64).memory["logits"] > 0


def test_recomputation_keeps_the_inputs_of_every_micro_batch_and_the_rest_of_one():
    one, eight = (planned("pipeline=8", micro_batch=n, recompute=True).memory["activations"] for n in (1, 8))
    inputs = 8 * 4 * 8192 * 4096 * 4  # the first stage has started eight micro-batches of four layers each
    rest = one - inputs
    assert 0 < rest < inputs / 2
    assert eight == pytest.approx(8 * one)


def test_recomputing_layers_takes_a_forward_pass_more():
    """Recomputation in a tensor group also gathers and scatters the stream again."""
    for way in ("replicate=8", "tensor=8"):
        plain, recomputed = (planned(way, recompute=again) for again in (False, True))
        assert 1.25 < recomputed.computing / plain.computing < 4 / 3
        assert recomputed.sent["tensor"] == pytest.approx(1.5 * plain.sent["tensor"])


def test_small_micro_batches_read_the_weights_again():
    """With micro-batches of 64 tokens, memory is the limit: half the tokens at a time need twice the reading."""
    times = [planned("tensor=8", tokens=64, batch=64, micro_batch=n).computing for n in (1, 2)]
    assert times[0] > 1.7 * times[1]


def test_a_group_across_servers_goes_out_through_all_their_adapters():
    two = planned("shard=16")
    assert two.sending == pytest.approx(two.sent["shard"] / (8 * 50e9))
    apart = planned("tensor=8,shard=16")
    of_tensor = apart.sent["tensor"] / 450e9
    assert apart.sending == pytest.approx(of_tensor + apart.sent["shard"] / 50e9)


@pytest.mark.parametrize("model", ["baichuan-2-13b", "gemma-3-4b", "gemma-2-9b"])
def test_more_stages_never_hold_more(model):
    """In short sequences of 1,024 tokens, ALiBi's masks take much memory.

    Therefore a stage with two of Baichuan's 40 layers, which starts 29 micro-batches, can need more than one with three
    layers, which starts 15.
    """
    memory = [planned(f"pipeline={n}", model, tokens=512, batch=64).total_memory for n in (2, 4, 8, 16, 32)]
    assert memory == sorted(memory, reverse=True)


def test_only_one_of_several_equal_stages_is_counted(monkeypatch):
    """The first stage, a middle stage and the last stage; with several layers per stage, a middle stage of another
    size, too. A plan with a thousand stages once took minutes."""
    counted = []
    original = LayerConfig.parameters_per_device
    monkeypatch.setattr(
        LayerConfig, "parameters_per_device", lambda layer, t: counted.append(layer) or original(layer, t)
    )
    planned("pipeline=100", "tiny-llama", "model.n_layers=100", tokens=128)
    few = len(counted)
    planned("pipeline=10", "tiny-llama", "model.n_layers=100", tokens=128)
    assert len(counted) - few == 4 * few / 3


def _least_of_the_slowest(work, after, n):
    """Try all cuts: for each number of first layers, take the best cut of the others."""
    if n == 1:
        return sum(work) + after
    firsts = range(1, len(work) - n + 2)
    return min(max(sum(work[:first]), _least_of_the_slowest(work[first:], after, n - 1)) for first in firsts)


@given(st.lists(st.sampled_from([0.3, 1.0, 1.4]), min_size=1, max_size=11), st.floats(0, 5), st.integers(1, 5))
def test_no_cut_into_stages_is_faster(work, after, n):
    n = min(n, len(work))
    found = even_stages(work, after, n)
    assert [i for of_stage in found.layers for i in of_stage] == [*range(len(work))]
    assert all(found.layers)
    assert max(found.work) == pytest.approx(_least_of_the_slowest(work, after, n))
    assert sum(found.work) == pytest.approx(sum(work) + after)


def test_the_cut_of_llama_3_405b_is_the_published_one():
    """Grattafiori 2024, 3.3.2: 16 stages with one layer less in the first and in the last, which has the head."""
    model = load_config("llama-3.1-405b").model
    assert [len(of_stage) for of_stage in pipeline_stages(model, 8192, 16).layers] == [7, *[8] * 14, 7]


def test_a_plan_that_does_not_fit_has_no_time(capsys):
    assert app.main(["cost", "llama-3-70b", "--hardware", "h100", "--devices", "8", "--parallel", "replicate=8"]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert "years" not in out


def test_every_stage_has_layers_and_the_fullest_sets_the_pace():
    model = ["gemma-2-2b", "train.seq_len=1024"]
    of_26, alone = planned("pipeline=16", *model, tokens=1024), planned("pipeline=1", *model, tokens=1024)
    assert of_26.computing * (1 - of_26.bubble) > alone.computing * 2 / 26
    assert of_26.memory["weights, gradients, averages"] < alone.memory["weights, gradients, averages"] / 3


def test_a_tied_matrix_stands_at_both_ends_of_a_pipeline():
    tied = load_config("gemma-2-2b").model
    assert 2 * planned("pipeline=2", "gemma-2-2b", tokens=1024).memory["weights, gradients, averages"] > 16 * (
        parameters(tied).total + tied.vocab_size * tied.d_model
    )


def test_muon_deals_matrices_to_shards_by_hand():
    """Llama 3 8B has 32 layers. Their matrices of one shape come in 64s (queries and outputs, keys and values, gate and
    up), except 32 that go down. Eight shards deal all of them, 64 shards all but those that go down. A dealt matrix
    and its update are sent in bfloat16; a matrix that is not dealt is gathered by all."""
    pairs, down = 64 * (4096 * 4096 + 1024 * 4096 + 14336 * 4096), 32 * 4096 * 14336
    muon = ("llama-3-8b", "train.optimizer=muon")
    for n, added in ((8, 4 * (pairs + down) / 8), (64, 4 * pairs / 64 + 2 * down)):
        sent = planned(f"shard={n}", *muon).sent["shard"] - planned(f"shard={n}").sent["shard"]
        assert sent == pytest.approx((n - 1) / n * added, abs=1)


@pytest.mark.parametrize(
    ("way", "optimizer", "message"),
    [
        ("shard=4,tensor=2", "muon", "Muon is planned only without tensor parallelism; allowed: tensor=1"),
        (
            "shard=8",
            "{kind: muon, dtype: float32}",
            "train.optimizer.dtype is float32, but plans are for products in bfloat16",
        ),
    ],
)
def test_muon_is_planned_only_where_it_was_compared(way, optimizer, message):
    with pytest.raises(UserError, match=re.escape(message)):
        planned(way, "llama-3-8b", f"train.optimizer={optimizer}")


def test_muon_divides_the_work_of_dealt_matrices():
    shapes = Counter({MatrixShape(64, 32): 9, MatrixShape(64, 32, stacked=8): 3, MatrixShape(64, 32, stacked=6): 1})
    one, four = (sum(o.flops for o in orthogonalizing(Muon(), shapes, 2, sharing)) for sharing in (1, 4))
    matrices = 9 + 3 * 8 + 6
    of_each = 8 // 4 + 1 + 3 * 8 // 4 + 6  # two dealt, one left over, two experts of each eight, and all of six
    assert four / one == pytest.approx(of_each / matrices)


def test_shards_update_what_they_own():
    assert planned("shard=8").computing < planned("replicate=8").computing


def test_devices_beyond_the_kv_heads_hold_copies():
    """Falcon has one KV head. Each of eight devices has a full copy of it, with head_dim 64 and 4544 wide."""
    model = ["llama-3-8b", "model.attention={n_heads: 32, n_kv_heads: 1}"]
    total = parameters(load_config(*model).model).total
    memory = planned("tensor=8", *model).memory["weights, gradients, averages"]
    norms = (2 * 32) * 4096  # whole on every device
    copied = 32 * 2 * 128 * 4096
    assert memory == 2 * (total + 7 * norms + 7 * copied)
    with pytest.raises(UserError, match="3 KV heads cannot be divided among 2 devices; use a divisor or multiple of 3"):
        planned("tensor=2", "llama-3-8b", "model.attention={n_heads: 30, n_kv_heads: 3, head_dim: 128}")


def test_who_stands_close_sends_fast():
    near = planned("replicate=8,pipeline=2")
    assert near.sending == pytest.approx(near.sent["replicate"] / 450e9 + near.sent["pipeline"] / 50e9)
    pod = planned("shard=64", device=load_hardware("tpu-v5p"))
    assert pod.sending == pytest.approx(pod.sent["shard"] / 600e9)


def test_without_a_batch_a_step_has_a_million_tokens(capsys):
    command = ["cost", "llama-3-8b", "--hardware", "h100", "--devices", "8"]
    assert app.main([*command, "--parallel", "shard=4,tensor=2"]) == 0
    assert "1.05M" in capsys.readouterr().out
    assert app.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [way["parallel"]["shard"] for way in found["plans"]] == [1, 8, 1, 1]
    assert found["plans"][0]["plain"]["batch_tokens"] == 2**20
    assert found["price_per_hour"] is None


def test_what_a_training_costs_by_hand(capsys):
    """20 tokens per parameter of Llama 3 8B. JSON and table have the same hours, at a price of 2 each."""
    command = ["cost", "llama-3-8b", "--hardware", "h100x8", "--parallel", "shard=8", "--price", "2"]
    assert app.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (budget,), (one,) = found["budgets"], found["plans"]
    assert budget["tokens"] == 20 * N
    assert budget["is_rule"]
    assert one["recomputes"]  # without recomputation 89.8 of 79.6 GiB
    seconds = 20 * N / 2**20 * one["recomputed"]["computing"]
    assert one["spent"][0]["seconds"] == pytest.approx(seconds)
    assert one["spent"][0]["price"] == pytest.approx(seconds / 3600 * 8 * 2)
    assert app.main(command) == 0
    assert f"{seconds / 3600 * 8 * 2:,.0f}" in capsys.readouterr().out


def asked(capsys, *arguments):
    assert app.main(["cost", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_utilization_by_hand(capsys):
    """MFU, Chowdhery 2022: model FLOPs of the tokens of a step divided by the peak of all devices in that time.

    A token of Llama 3 8B takes 6 FLOPs for each weight except the embedding, and 12 d_model for each of the 4,096.5
    keys that it sees.
    """
    found = asked(capsys, "llama-3-8b", "--hardware", "h100", "--devices", "8", "--price", "2")
    per_token = 6 * (N - 128_256 * 4096) + 32 * 12 * 4096 * 4096.5
    peak = 8 * 989.4e12
    for one in found["plans"]:
        for spent, published in zip(one["spent"], one["spent_at_published_mfu"], strict=True):
            if spent is None:
                assert published is None
                continue
            plan = one["recomputed" if one["recomputes"] else "plain"]
            step = max(plan["computing"], plan["sending"])
            assert spent["mfu"] == pytest.approx(per_token * 2**20 / (peak * step), rel=2e-3)
            flops = per_token * 20 * N
            assert [t["seconds"] for t in published] == pytest.approx(
                [flops / peak / mfu for mfu in (0.462, 0.302)], rel=2e-3
            )
            assert published[0]["price"] == pytest.approx(published[0]["seconds"] / 3600 * 8 * 2)
    assert {one["source"] for one in found["published_mfu"]} <= sources().keys()


def test_no_published_utilization_is_faster_than_at_best():
    slow = Spent(seconds=100.0, price=5.0, mfu=0.25)
    assert at_published_mfu(slow) == (slow, slow)


@pytest.mark.parametrize(
    ("config", "devices", "chosen"),
    [
        ("llama-3-8b", 8, "tensor"),  # neither shards nor stages fit without recomputation
        ("llama-3.2-3b", 8, "shard"),  # a replica does not fit; tensor groups are equally fast, but send for longer
        ("llama-3.2-1b", 8, "replicate"),  # fits, and sends the least
        ("llama-3.1-405b", 8, None),  # nothing fits
    ],
)
def test_the_way_to_choose(config, devices, chosen, capsys):
    arguments = [config, "--hardware", "h100", "--devices", str(devices), "train.seq_len=8192"]
    plans = asked(capsys, *arguments)["plans"]
    marked = [one for one in plans if one["chosen"]]
    assert [way for one in marked for way, n in one["parallel"].items() if n > 1] == [chosen][: len(marked)]
    assert bool(marked) == (chosen is not None)
    fitting = [one["recomputed" if one["recomputes"] else "plain"] for one in plans if one["spent"][-1]]
    steps = [max(plan["computing"], plan["sending"]) for plan in fitting]
    for one in marked:
        plan = one["recomputed" if one["recomputes"] else "plain"]
        assert max(plan["computing"], plan["sending"]) <= 1.01 * min(steps)
    assert app.main(["cost", *arguments]) == 0
    out = capsys.readouterr().out
    assert (f"* {chosen}=8" in out and f"{chosen}=8 *" in out) if chosen else "*" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("config", "devices"), [("llama-3.2-1b", 2), ("llama-3-8b", 8)])
def test_the_reasons_for_a_choice_agree_with_the_plans(config, devices, capsys):
    """The chosen way need not be the fastest: all ways within 1% of the fastest count as equally fast."""
    arguments = [config, "--hardware", "h100", "--devices", str(devices)]
    ways = asked(capsys, *arguments)["plans"]
    fitting = {way["chosen"]: [] for way in ways}
    for way in ways:
        if way["spent"][-1]:
            plan = way["recomputed" if way["recomputes"] else "plain"]
            fitting[way["chosen"]].append(max(plan["computing"], plan["sending"]))
    assert app.main(["cost", *arguments]) == 0
    out = " ".join(capsys.readouterr().out.split())
    of_chosen, fastest = fitting[True][0], min(fitting[True] + fitting[False])
    assert f"A step takes {seconds(of_chosen)} at best" in out
    faster = re.search(r"; the fastest way needs ([\d.]+) (s|ms|min)\.", out)
    assert (faster is None) == (seconds(of_chosen) == seconds(fastest))
    if faster:
        assert " ".join(faster.groups()) == seconds(fastest)
        assert float(faster[1]) < float(seconds(of_chosen).split()[0])


def test_one_way_alone_is_not_chosen(capsys):
    arguments = ["llama-3-8b", "--hardware", "h100", "--devices", "8", "--parallel", "shard=8"]
    assert [way["chosen"] for way in asked(capsys, *arguments)["plans"]] == [False]
    assert app.main(["cost", *arguments]) == 0
    assert "*" not in capsys.readouterr().out


def test_a_reason_against_all_ways_is_printed_once(capsys):
    batch = [
        "train.batch_tokens=81920",
        "train.tokens=1M",
    ]  # ten sequences, which neither replicate=4 nor shard=4 divides
    assert app.main(["cost", "llama-3-8b", *batch, "--hardware", "h100", "--devices", "4", "--json"]) == 0
    (reason,) = json.loads(capsys.readouterr().out)["refused"]
    assert reason.startswith("replicate=4; shard=4: train.batch_tokens is 10 sequences")


@pytest.mark.parametrize(
    ("model", "tensor", "message"),
    [
        ("mamba-2-2.7b", 2, "groups of the mixer: 1 cannot be divided evenly among 2 devices"),
        ("qwen3-next-80b-a3b", 32, "heads.*: 16 cannot be divided evenly among 32 devices"),
    ],
)
def test_mixers_are_cut_by_whole_heads(model, tensor, message):
    assert planned("shard=8", model, tokens=4096).fits in (True, False)
    with pytest.raises(UserError, match=message):
        planned(f"tensor={tensor}", model, tokens=4096)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch", "2"], "--batch cannot be combined with --devices"),
        (["--html", "x.html"], "--html cannot be combined with --devices"),
        (["--dtype", "float32"], "--dtype cannot be combined with --devices"),
        (["--json", "--html", "x.html"], "--json and --html cannot be combined"),
        (["gpt-2"], "a training run is planned for one config; found 2"),
        (["--parallel", "data=2"], "parallel: cannot read 'data=2'; allowed: replicate, shard, tensor, pipeline,"),
        (["--price", "0"], "--price is '0'; allowed: a number, more than 0, at most 1,000,000,000\n"),
        (["--parallel", "shard=4"], "shard=4 needs 4 devices, but there are 2"),
        (["--price", "-1"], "price"),
    ],
)
def test_options_that_do_not_go_together(more, message, capsys):
    assert app.main(["cost", "llama-3-8b", "--hardware", "h100", "--devices", "2", *more]) == 2
    assert message in capsys.readouterr().err


def test_what_is_printed(capsys):
    batch = ["train.batch_tokens=1048576", "train.micro_batch_tokens=8192", "train.tokens=1T"]
    assert app.main(["cost", "llama-3-8b", "--hardware", "h100x8", *batch, "--devices", "8", "--price", "2"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "1T tokens" in out
    assert "5.15e+22 FLOPs" in " ".join(out.split())
    assert "120 GiB" in out
    assert app.main(["cost", "llama-3-8b", "--devices", "8"]) == 2
    assert "--devices needs --hardware" in capsys.readouterr().err
    assert app.main(["cost", "llama-3-8b", "--hardware", "h100", "--devices", "8", "--parallel", "shard=4"]) == 2
    assert "needs 4 devices, but there are 8" in capsys.readouterr().err


def test_parameters_of_stages_sum_to_at_least_the_model():
    model = load_config("llama-3-8b").model
    assert 8 * planned("pipeline=8").memory["weights, gradients, averages"] >= 16 * parameters(model).total


def test_replicas_of_shards_average_the_part_that_each_owns():
    assert planned("replicate=2,shard=4").sent["replicate"] == round(2 * 1 / 2 * 4 * N / 4)


def test_what_takes_exactly_the_memory_there_is_fits():
    needed = planned("shard=8").total_memory
    exact, less = (H100.model_copy(update={"memory": memory}) for memory in (needed, needed - 1))
    assert planned("shard=8", device=exact).largest_micro_batch == 1
    assert planned("shard=8", device=less).largest_micro_batch == 0


def test_the_token_budget_of_a_config_does_not_count_as_a_rule():
    assert [budget.is_rule for budget in budgets(load_config("tiny-llama", "train.tokens=1M"))] == [False, True]
    assert [budget.is_rule for budget in budgets(load_config("llama-3-8b"))] == [True]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (120, "2 min"),
        (7200, "2 hours"),
        (172_800, "2 days"),
        (2 * 365.25 * 86400, "2 years"),
        (119, "119 s"),
        (7199, "120 min"),
    ],
)
def test_a_unit_begins_at_two_of_it(value, text):
    assert seconds(value) == text
