"""The objective seq2seq: what is read and what counts, compared with plain loops over the tokens of each window."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from archlab.config.objective import Masked, NextToken, Objective, Prefix, Seq2Seq, SpanCorruption, score_meaning
from archlab.config.tasks.recall import Recall
from archlab.config.tasks.transduction import Lexicon, Reverse
from archlab.config.training import check_objective, tokens_read
from archlab.data.batch import Batch, HeldOut, next_token
from archlab.data.objectives import Batches, make_batch, make_encoder_batch, random_batch
from archlab.data.reserved import SpecialIds
from archlab.data.tasks.dice import Dice
from archlab.data.tasks.task_data import TaskData
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.model.context import Collected
from archlab.model.decoder import Decoder
from archlab.pricing.hardware import load_hardware
from archlab.pricing.partition import Parallel
from archlab.pricing.summary import cost, training_pass
from archlab.pricing.training_plan import plan_training
from archlab.pricing.work import training_flops, visible_training_flops
from archlab.report.cost.tables import of_one
from archlab.training.device import Device
from archlab.training.evaluate import predict
from archlab.training.step import hidden_and_targets
from tiny import config

CPU = Device("cpu", torch.float32)
BEGIN, N_TOKENS = 0, 320
SPECIAL = SpecialIds(N_TOKENS, (BEGIN,))
ONE_STACK = ("model.attention.visibility=prefix", "train.objective.kind=seq2seq")
WITH_ENCODER = ("model.encoder.n_layers=2", "train.objective.kind=seq2seq")
CAUSAL = ("train.objective.kind=next_token",)


def pairs(rows: int = 200, seq_len: int = 21, seed: int = 0) -> Windows:
    """Return windows with sources and targets of every length that fits, including the longest ones."""
    draw = np.random.default_rng(seed)
    given, target = draw.integers(1, seq_len // 2 + 1, rows), draw.integers(1, seq_len // 2 + 1, rows)
    tokens = draw.integers(1, 300, (rows, seq_len + 1))
    return Windows.of_pairs(tokens, given, given + target)


def dice(windows: Windows) -> Dice:
    return Dice(0, "train", 0, len(windows.tokens))


def batches(windows: Windows) -> dict[str, Batch]:
    return {
        "one stack": make_batch(Seq2Seq(), windows, SPECIAL, None, dice(windows)),
        "encoder": make_encoder_batch(Seq2Seq(), windows, SPECIAL, dice(windows)),
        "causal": next_token(windows),
    }


def repadded(windows: Windows, seed: int = 5) -> Windows:
    """Return the same pairs with other tokens in the padding."""
    assert windows.lengths is not None
    other = np.random.default_rng(seed).integers(1, 300, windows.tokens.shape)
    is_padding = np.arange(windows.tokens.shape[1]) >= windows.lengths[:, None]
    return replace(windows, tokens=np.where(is_padding, other, windows.tokens))


# --- batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [2, 3, 8, 21])
def test_the_encoder_reads_the_source_and_the_decoder_writes_the_target(seq_len: int) -> None:
    windows = pairs(seq_len=seq_len)
    made, half = batches(windows)["encoder"], seq_len // 2
    assert made.source.shape == made.tokens.shape == (200, half)
    assert Seq2Seq().tokens_read(seq_len, has_encoder=True) == (half, half)
    for i, row in enumerate(windows.tokens.tolist()):
        source, target = row[: windows.source_lengths[i]], row[windows.source_lengths[i] : windows.lengths[i]]
        assert made.source[i, : made.source_lengths[i]].tolist() == source
        assert made.source_lengths[i] == len(source)
        assert made.lengths[i] == len(target)
        assert made.tokens[i, : len(target)].tolist() == [BEGIN, *target[:-1]]
        assert made.targets[i, : len(target)].tolist() == target
        assert made.counted[i].tolist() == [t < len(target) for t in range(half)]
        for t in range(len(target)):
            assert row[made.index[i, t] + 1] == target[t]


@pytest.mark.parametrize("seq_len", [2, 3, 8, 21])
def test_one_stack_sees_the_source_and_predicts_the_target(seq_len: int) -> None:
    windows = pairs(seq_len=seq_len)
    made = batches(windows)["one stack"]
    assert Seq2Seq().tokens_read(seq_len) == (seq_len, 0)
    assert made.tokens.shape == (200, seq_len)
    for i, row in enumerate(windows.tokens.tolist()):
        given, length = windows.source_lengths[i], windows.lengths[i]
        assert made.prefix[i] == given
        assert made.lengths[i] == length
        assert made.tokens[i].tolist() == row[:-1]
        assert made.targets[i, made.counted[i]].tolist() == row[given:length]
        assert np.flatnonzero(made.counted[i])[0] == given - 1  # the separator predicts the first token of the target


def test_all_ways_to_read_pairs_score_the_same_targets() -> None:
    windows = pairs()
    scored = [HeldOut(made, windows) for made in batches(windows).values()]
    targets = [held_out.batch.targets[held_out.counted].tolist() for held_out in scored]
    assert targets[0] == targets[1] == targets[2]
    places = [held_out.of_targets(np.tile(np.arange(21), (200, 1)))[held_out.counted].tolist() for held_out in scored]
    assert places[0] == places[1] == places[2]


def test_the_bytes_are_those_of_the_targets() -> None:
    windows = pairs()
    text_bytes = np.random.default_rng(1).integers(0, 5, windows.scored.shape)
    expected = [
        text_bytes[i, g - 1 : n - 1].sum()
        for i, (g, n) in enumerate(zip(windows.source_lengths, windows.lengths, strict=True))
    ]
    windows = replace(windows, bytes=text_bytes)
    for made in batches(windows).values():
        assert HeldOut(made, windows).measure == "bits_per_byte"
        assert HeldOut(made, windows).bytes.sum(1).tolist() == expected


MODELS = {
    "one stack": ONE_STACK,
    "encoder": WITH_ENCODER,
    "causal": CAUSAL,
    "one stack with experts": (*ONE_STACK, "model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16}"),
    "encoder with experts": (*WITH_ENCODER, "model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16}"),
    "causal with experts": (*CAUSAL, "model.mlp={kind: moe, experts: 4, active: 2, d_ff: 16}"),
    "causal with a state": (*CAUSAL, "model.mixer.kind=short_conv", "model.attention.kind=none", "model.position.kind=none"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_nothing_depends_on_the_padding(name: str) -> None:
    """Other tokens in the padding change no prediction, no gradient and no load of an expert."""
    settings = config(*MODELS[name], "model.max_seq_len=32")
    found = list[Any]()
    for windows in (pairs(8), repadded(pairs(8))):
        model = Decoder(settings.model, seed=1)
        made = batches(windows)[name.split(" with")[0]]
        nats = predict(model, HeldOut(made, windows), CPU).nats
        collected = Collected()
        hidden_ND, _ = hidden_and_targets(model, made, CPU, collected)
        hidden_ND.square().sum().backward()
        loads = [[loss.tolist() for loss in values] for values in collected.values()]
        found.append((nats.tolist(), [p.grad.tolist() for p in model.parameters() if p.grad is not None], loads))
    assert (pairs(8).tokens != repadded(pairs(8)).tokens).any()
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["one stack", "encoder"])
def test_a_prediction_is_that_of_the_pair_alone(name: str) -> None:
    """The loss of each target token is that of a pass over the pair without padding."""
    settings, windows = config(*MODELS[name], "model.max_seq_len=32"), pairs(6)
    model = Decoder(settings.model, seed=1).eval()
    held_out = HeldOut(batches(windows)[name], windows)
    nats = predict(model, held_out, CPU).nats
    for i, row in enumerate(torch.from_numpy(windows.tokens)):
        given, length = int(windows.source_lengths[i]), int(windows.lengths[i])
        target = row[given:length]
        with torch.no_grad():
            if name == "encoder":
                begun = torch.cat([torch.tensor([BEGIN]), target[:-1]])
                logits = model(begun[None], source=row[None, :given])[0]
            else:
                logits = model(row[None, : length - 1], prefix=torch.tensor([given]))[0, given - 1 :]
        expected = torch.nn.functional.cross_entropy(logits.double(), target, reduction="none")
        assert nats[i][held_out.counted[i]] == pytest.approx(expected.numpy(), rel=1e-4)


# --- what fits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [ONE_STACK, WITH_ENCODER])
def test_the_model_must_see_the_source(overrides: tuple[str, ...]) -> None:
    settings = config(*overrides)
    check_objective(settings.model, settings.train.objective)
    with pytest.raises(UserError, match="causal; training and scoring predict the tokens after a prefix"):
        check_objective(config().model, Seq2Seq())


def task_data(task: Any = None) -> TaskData:
    return TaskData(task or Reverse(shortest=2, longest=4), 300, 0)


@pytest.mark.parametrize(("objective", "has_encoder"), [(NextToken(), False), (Seq2Seq(), False), (Seq2Seq(), True)])
def test_pairs_are_read_by_two_objectives(objective: Objective, has_encoder: bool) -> None:
    made = Batches(task_data(), objective, document_mask=True, has_encoder=has_encoder)
    made.check(16)
    batch = made.training(0, 3, 4, 16)
    assert made.held_out(16, 64).counted.sum() > 0
    assert (batch.source is not None) == has_encoder


@pytest.mark.parametrize("objective", [Masked(), Prefix(), SpanCorruption()])
def test_objectives_that_choose_tokens_refuse_pairs(objective: Objective) -> None:
    with pytest.raises(UserError, match=rf"{objective.kind} chooses the tokens .*allowed: next_token, seq2seq"):
        Batches(task_data(), objective, document_mask=False).check(16)


def test_data_without_pairs_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"seq2seq needs pairs of a source and a target, but the data has none; allowed"
    ):
        Batches(task_data(Recall(pairs=2)), Seq2Seq(), document_mask=False).check(16)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.objective.kind=seq2seq", "data.task.kind=recall"), "but data.task = recall has none; allowed: next_token, masked; or"),
        (("train.objective.kind=prefix", "data.task.kind=sort"), "data.task = sort has answers; allowed: next_token, seq2seq"),
        (("train.objective.kind=masked", "data.task.kind=sort"), "data.task = sort has answers; allowed: next_token, seq2seq$"),
        ((*ONE_STACK, "train.document_mask=true"), "each window is one text with a prefix; allowed: false"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_pairs_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(*overrides)


def test_scores_of_next_token_and_seq2seq_mean_the_same() -> None:
    assert score_meaning(Seq2Seq()) == score_meaning(NextToken())
    assert score_meaning(Seq2Seq()) != score_meaning(Prefix())


# --- cost ---------------------------------------------------------------------------------------------------------


def test_random_pairs_are_the_longest_ones() -> None:
    tokens = np.random.default_rng(0).integers(0, 300, (3, 17))
    made = random_batch(config(*WITH_ENCODER), Windows(tokens))
    assert made.counted.all()
    assert made.source_lengths.tolist() == made.lengths.tolist() == [8, 8, 8]
    one = random_batch(config(*ONE_STACK), Windows(tokens))
    assert one.counted.sum() == made.counted.sum()
    own = TaskData(Lexicon(longest=3, symbols=4), 300, 0).windows(0, 0, 3, 16)
    assert (random_batch(config(*WITH_ENCODER), own).lengths == own.lengths - own.source_lengths).all()


def test_the_cost_counts_half_a_window_in_each_stack() -> None:
    settings = config(*WITH_ENCODER, "train.seq_len=17", "train.batch_tokens=68")
    assert tokens_read(settings) == (8, 8)
    whole = training_flops(settings.model, 8, source=8) * 8
    assert visible_training_flops(settings) * 17 == pytest.approx(whole)
    read = training_pass(settings, "bfloat16")
    assert (read.texts, read.tokens, read.source) == (4, 8, 8)
    found = cost(settings)
    assert (found.training_window, found.training_target, found.training_source) == (17, 8, 8)
    assert found.tokens["training"] == 32
    titles = [table.columns[0] for table in of_one(found)]
    assert "training, windows of 8 target + 8 source tokens" in titles


def test_a_plan_counts_the_tokens_that_each_stack_reads() -> None:
    """A plan for windows of 16 tokens of pairs computes what a plan for windows of 8 tokens computes whose encoder
    reads 8 tokens."""
    h100 = load_hardware("h100")
    halves = plan_training(config(*WITH_ENCODER, "train.seq_len=16", "train.batch_tokens=64"), Parallel(), h100)
    whole = plan_training(config(WITH_ENCODER[0], "train.seq_len=8", "train.batch_tokens=32"), Parallel(), h100)
    assert (halves.computing, halves.memory) == (whole.computing, whole.memory)
    assert halves.batch_tokens == 2 * whole.batch_tokens == 64
