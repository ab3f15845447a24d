"""Objectives: which tokens of a window are hidden, and what counts in the loss."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from archlab.cli import app
from archlab.config.objective import Masked, NextToken, Objective, Prefix, SpanCorruption, score_meaning
from archlab.config.training import resolve_train
from archlab.data import tokenizer as bpe
from archlab.data.batch import Batch, HeldOut, next_token
from archlab.data.objectives import Batches, corrupted, hidden_spans, make_batch, random_batch
from archlab.data.open import open_training_data
from archlab.data.prepare import prepare
from archlab.data.reserved import SpecialIds, special_ids
from archlab.data.tasks.dice import Dice
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.infer.fill import fill
from archlab.infer.load import from_pretrained, load_codec
from archlab.model.decoder import Decoder
from archlab.pricing.work import computed_training_flops
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.run_folder import RunFolder
from archlab.training.step import update
from archlab.training.train import train
from scores import evaluate, score
from tiny import Killed, config, losses

pytestmark = pytest.mark.usefixtures("shared_cache")

CPU = Device("cpu", torch.float32)
END, MASK, N_TOKENS = 0, 300, 320
SPECIAL = SpecialIds(N_TOKENS, (END,), MASK)
SPANS = ("model.attention.visibility=prefix", "train.objective.kind=span_corruption", "data.reserve=[sentinels:3]")
PREFIX = ("model.attention.visibility=prefix", "train.objective.kind=prefix")
MASKED = ("model.attention.visibility=two_sided", "train.objective.kind=masked", "data.reserve=[mask]")


def random_windows(rows: int = 400, length: int = 128, seed: int = 0) -> Windows:
    """Return windows without special tokens, except for the token that begins a document."""
    tokens = np.random.default_rng(seed).integers(1, MASK, (rows, length + 1))
    tokens[:, 5::37] = END
    return Windows(tokens)


def batch(objective: Objective, windows: Windows, seed: int = 0, first: int = 0, *, packed: bool = False) -> Batch:
    dice = Dice(seed, "train", first, len(windows.tokens))
    return make_batch(objective, windows, SPECIAL, END if packed else None, dice)


def arrays(made: Batch) -> dict[str, Any]:
    return {name: value.tolist() for name, value in vars(made).items() if value is not None}


# --- batches ------------------------------------------------------------------------------------------------------


def test_the_next_token_is_predicted_at_every_position() -> None:
    windows = random_windows(3, 8)
    made = next_token(windows)
    assert (made.tokens[:, 1:] == made.targets[:, :-1]).all()
    assert arrays(made).keys() == {"tokens", "targets"}
    assert arrays(batch(NextToken(), windows)) == arrays(made)


def test_rows_of_a_batch_are_rows_of_all_its_arrays() -> None:
    made = batch(Masked(), random_windows(6, 40), packed=True)
    some = made.rows(slice(2, 5))
    assert arrays(some) == {name: rows[2:5] for name, rows in arrays(made).items()}
    assert some.documents is not None


# --- masked -------------------------------------------------------------------------------------------------------


def test_masked_tokens_are_chosen_and_replaced_as_in_bert() -> None:
    """15% of the tokens are predicted: 80% of them masked, 10% random, 10% unchanged. The rest is read as it is."""
    windows = random_windows()
    made = batch(Masked(), windows)
    original = windows.tokens[:, 1:]
    np.testing.assert_array_equal(made.targets, original)
    assert made.counted is not None
    words = (original != END).sum(1)
    assert made.counted.sum(1).tolist() == [round(0.15 * n) for n in words.tolist()]
    assert not made.counted[original == END].any()
    np.testing.assert_array_equal(made.tokens[~made.counted], original[~made.counted])
    read, hidden = made.tokens[made.counted], original[made.counted]
    assert (read == MASK).mean() == pytest.approx(0.8, abs=0.015)
    assert ((read != MASK) & (read != hidden)).mean() == pytest.approx(0.1, abs=0.012)
    assert (read == hidden).mean() == pytest.approx(0.1, abs=0.012)
    assert made.counted.mean(0)[original[0] != END].std() < 0.03  # all positions alike


def test_the_shares_are_those_of_the_collator_of_transformers() -> None:
    tokenizer = bpe.train(["the cat sat on a mat"] * 4, 300)
    tokenizer.add_special_tokens(["<mask>", "<pad>"])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="<mask>", pad_token="<pad>")
    mask = tokenizer.token_to_id("<mask>")
    original = np.random.default_rng(0).integers(1, mask, (300, 128))
    torch.manual_seed(0)
    theirs = transformers.DataCollatorForLanguageModeling(fast, mlm_probability=0.15)(
        [{"input_ids": row} for row in torch.from_numpy(original)]
    )
    chosen, read = (theirs["labels"] != -100).numpy(), theirs["input_ids"].numpy()
    windows = Windows(np.concatenate([original[:, :1], original], 1))
    special = SpecialIds(len(fast), (), mask)
    ours = make_batch(Masked(), windows, special, None, Dice(0, "train", 0, 300))
    assert ours.counted is not None
    for share in (
        lambda read, chosen: chosen,
        lambda read, chosen: (read == mask) & chosen,
        lambda read, chosen: read != original,
    ):
        assert share(ours.tokens, ours.counted).mean() == pytest.approx(share(read, chosen).mean(), abs=0.006)


def test_a_batch_depends_on_the_seed_and_the_window_alone() -> None:
    windows = random_windows(12)
    whole = batch(Masked(), windows, seed=3)
    parts = [batch(Masked(), Windows(windows.tokens[i : i + 4]), seed=3, first=i) for i in (0, 4, 8)]
    assert arrays(whole) == arrays(batch(Masked(), windows, seed=3))
    for number, part in enumerate(parts):
        assert arrays(part) == arrays(whole.rows(slice(4 * number, 4 * number + 4)))
    for other in (batch(Masked(), windows, seed=4), batch(Masked(), windows, seed=3, first=12)):
        assert (other.tokens != whole.tokens).any()


def test_a_window_without_words_still_predicts_a_token() -> None:
    made = batch(Masked(), Windows(np.full((2, 9), END)))
    assert made.counted is not None
    assert made.counted.sum(1).tolist() == [1, 1]


def test_documents_are_those_of_the_text_not_of_its_mask_tokens() -> None:
    windows = random_windows(20)
    packed = batch(Masked(rate=0.9), windows, packed=True)
    assert packed.documents is not None
    np.testing.assert_array_equal(packed.documents, (windows.tokens[:, 1:] == END).cumsum(1))


def test_the_score_is_the_loss_per_hidden_token() -> None:
    settings = config(MASKED[0], "model.vocab_size=320")
    model, windows = Decoder(settings.model).eval(), random_windows(6)
    made = batch(Masked(), windows)
    assert made.counted is not None
    found = evaluate(model, HeldOut(made, windows, hides_tokens=True), CPU, batch_tokens=300)
    with torch.no_grad():
        logits = model(torch.from_numpy(made.tokens)).double()[torch.from_numpy(made.counted)]
    hidden = torch.from_numpy(windows.tokens[:, 1:][made.counted])
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, hidden).item(), rel=1e-6)
    assert found.denoising_accuracy == (logits.argmax(-1) == hidden).double().mean().item()
    assert found.measures().keys() == {"denoising_loss", "denoising_accuracy", "held_out_loss"}


@pytest.mark.parametrize("fields", [MASKED, PREFIX], ids=["masked", "prefix"])
def test_micro_batches_make_the_same_update_as_the_whole_batch(fields: tuple[str, ...]) -> None:
    windows = random_windows(4, 16)
    results = []
    for micro in (16, 32, 64):
        settings = config(*fields, "model.vocab_size=320", f"train.micro_batch_tokens={micro}")
        model, settings = Decoder(settings.model).train(), resolve_train(settings)
        made = batch(settings.objective, windows)
        results.append(update(model, make_optimizer(model, settings), made, settings, 0, CPU))
    assert [result.loss for result in results] == pytest.approx([results[0].loss] * 3, rel=1e-6)
    assert [result.grad_norm for result in results] == pytest.approx([results[0].grad_norm] * 3, rel=1e-5)


def test_a_run_learns_resumes_exactly_and_is_scored_by_eval(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(*MASKED, "train.checkpoint_every=3", "train.tokens=1280", "train.lr=1e-2", data=text)
    whole = train(settings, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    parts = train(settings, tmp_path / "parts", Callback())
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert parts.denoising_loss == whole.denoising_loss == whole.score
    assert (whole.bits_per_byte, whole.accuracy) == (None, None)
    first, *_, last = [line for line in RunFolder(tmp_path / "whole").metrics() if "denoising_loss" in line]
    assert last["denoising_loss"] < 0.9 * first["denoising_loss"]
    again = score(str(tmp_path / "whole"), (), 256)
    assert again.denoising_loss == pytest.approx(whole.denoising_loss, rel=1e-6)
    assert "nats per hidden token" in again.result
    assert again.bits_per_byte is None
    hidden = Batches.of(settings, open_training_data(settings.data, 300)).held_out(16, 256).batch.counted
    assert hidden is not None
    assert again.tokens == hidden.sum() < 256 / 4
    capsys.readouterr()
    assert app.main(["eval", str(tmp_path / "whole"), "--tokens", "256"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{again.denoising_loss:.4f} nats per hidden token, {again.denoising_accuracy:.2%} of them correct",
        f"after 20 steps, on {hidden.sum()} predicted tokens in windows of 16, in float32",
    ]
    model = from_pretrained(tmp_path / "whole")
    text = "the cat <mask> on a mat"
    codec = load_codec(tmp_path / "whole")
    (guesses,) = fill(model, text, 3)
    before, after = (codec.encode(part) for part in text.split("<mask>"))
    logits = model(torch.tensor([[*before, codec.special.mask, *after[1:]]]))[0, len(before)]
    assert [guess.token for guess in guesses] == logits.topk(3).indices.tolist()


def test_held_out_masks_are_the_same_for_all_seeds(text: Path) -> None:
    settings = config(*MASKED, data=text)
    data = open_training_data(settings.data, settings.model.vocab_size)
    batches = Batches(data, Masked(), document_mask=False)
    assert arrays(batches.held_out(16, 256).batch) == arrays(batches.held_out(16, 256).batch)
    assert (batches.training(0, 0, 4, 16).tokens != batches.training(1, 0, 4, 16).tokens).any()
    first, second = (batches.training(0, step, 4, 16).counted for step in (0, 1))
    assert first is not None
    assert (first != second).any()  # a step hides other places than the step before it
    assert data.special.mask == data.special.vocab_size - 1


# --- reserved tokens ----------------------------------------------------------------------------------------------


def test_data_reserves_tokens_within_its_vocabulary(text: Path, tmp_path: Path) -> None:
    made = prepare([str(text)], tmp_path / "data", vocab_size=300, held_out=0.1, reserve=["mask", "sentinels:3"])
    found = special_ids(made.tokenizer, made.manifest.vocab_size, made.document_tokens)
    assert (made.manifest.vocab_size, found.mask, found.sentinels) == (300, 296, (297, 298, 299))
    assert made.train.read(0, len(made.train)).max() < 296
    with pytest.raises(UserError, match=r"data.reserve is \['mask'\], but .* is a complete data folder"):
        open_training_data(config("data.reserve=[mask]", data=tmp_path / "data").data, 300)
    with pytest.raises(UserError, match="already contains other data"):
        prepare([str(text)], tmp_path / "data", vocab_size=300, held_out=0.1)


@pytest.mark.parametrize(
    ("reserve", "message"),
    [
        ("[mask,mask]", r"data\.reserve  mask and mask both reserve mask; allowed: one entry for each kind of token"),
        (
            "['sentinels:3',mask,'sentinels:5']",
            r"sentinels:3 and sentinels:5 both reserve sentinels; allowed: one entry",
        ),
        (
            "[mask,'sentinels:50']",
            r"vocab_size is 300; allowed: 308 or more: one token for each .*, and 51 for mask, sentinels:50",
        ),
    ],
)
def test_wrong_reserved_tokens_are_refused_by_name(reserve: str, message: str, text: Path) -> None:
    with pytest.raises(UserError, match=message):
        open_training_data(config(f"data.reserve={reserve}", data=text).data, 300)


def test_a_vocabulary_that_has_no_room_for_reserved_tokens_names_them(text: Path, tmp_path: Path) -> None:
    prepare([str(text)], tmp_path / "data", vocab_size=310, held_out=0.1, reserve=["mask", "sentinels:3"])
    message = r"model.vocab_size is 308; .* has 310 token ids, including mask, sentinels:3; allowed: 310 or more"
    with pytest.raises(UserError, match=message):
        open_training_data(config(data=tmp_path / "data").data, 308)


def test_a_given_tokenizer_keeps_its_own_mask_token(text: Path, tmp_path: Path) -> None:
    tokenizer = bpe.train([text.read_text()], 290)
    tokenizer.add_special_tokens(["[MASK]"])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    made = prepare([str(text)], tmp_path / "data", tokenizer=tmp_path / "tokenizer.json", held_out=0.1)
    assert special_ids(made.tokenizer, 291, ()).mask == 290
    with_sentinels = prepare(
        [str(text)], tmp_path / "more", tokenizer=tmp_path / "tokenizer.json", held_out=0.1, reserve=["sentinels:2"]
    )
    assert special_ids(with_sentinels.tokenizer, 293, ()) == SpecialIds(293, (), 290, (291, 292))


def test_random_windows_take_their_special_tokens_from_the_end_of_the_vocabulary() -> None:
    only_masks = ("train.objective.mask=1", "train.objective.random=0")
    settings = config(*MASKED, f"model.vocab_size={N_TOKENS}", *only_masks)
    made = random_batch(settings, random_windows(4))
    assert made.counted is not None
    assert set(made.tokens[made.counted].tolist()) == {N_TOKENS - 1}


# --- errors and meanings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (MASKED[1:], r"visibility  causal; .* from those on both sides; allowed: two_sided; or .*kind=next_token"),
        (MASKED[:1], r"visibility  two_sided; .* from those before it; allowed: causal; or .*kind=masked"),
        (MASKED[:2], r"masked needs a mask token; the data's tokenizer has none; allowed: data.reserve=\[mask\]"),
        (
            (*PREFIX, "data.task.kind=recall"),
            r"objective.kind  prefix chooses tokens of a text, but data.task = recall .*; allowed: next_token, masked",
        ),
        (
            (*MASKED[:2], "data.task.kind=recall", "model.vocab_size=20"),
            r"masked needs a mask token; the vocabulary of the task has none; allowed: data.reserve=\[mask\]$",
        ),
        (
            (*MASKED, "data.task={kind: state_tracking, group: s3, steps: 4}", "model.vocab_size=14"),
            r"model.vocab_size is 14; allowed: 15 or more for this task with data.reserve = \['mask'\]: Track",
        ),
        ((*MASKED, "train.objective.random=0.3"), r"objective.random  0.3 and mask = 0.8 are more than all"),
        ((*MASKED, "train.objective.rate=0"), r"objective.rate  .*allowed"),
        (("model.attention.visibility=prefix",), r"visibility  prefix; .* allowed: causal; or .*kind=prefix"),
        (
            PREFIX[1:],
            r"visibility  causal; .* after a prefix whose tokens see each other; allowed: prefix; or .*next_token",
        ),
        (
            (*PREFIX, "train.document_mask=true"),
            r"document_mask  true, but with objective prefix each window is one text",
        ),
        ((*PREFIX, "train.objective.rate=0.6"), r"objective.rate  0.6"),
        (SPANS[:2], r"span_corruption needs 1 sentinels for windows of 16 tokens; .* has none; allowed: data.reserve="),
        ((*SPANS, "train.objective={rate: 0.9, mean_span: 1}"), r"mean_span  1.0 and rate 0.9 leave 2 visible tokens"),
        (
            (*SPANS, "model.position.kind=learned"),
            r"seq_len  16, of which objective span_corruption makes 19, exceeds .* allowed: up to 13$",
        ),
        ((*MASKED[:2], "data.reserve=[msk]"), r"data.reserve\S*  'msk'; allowed: mask, sentinels:N with"),
    ],
)
def test_a_wrong_objective_is_refused_with_its_field(
    overrides: tuple[str, ...], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        train(config(*overrides, data=text), tmp_path / "run", Callback())
    assert not (tmp_path / "run").exists()


def test_scores_mean_the_same_if_the_same_tokens_count() -> None:
    assert score_meaning(Masked()) == score_meaning(Masked(kind="masked"))
    assert score_meaning(Masked()) != score_meaning(Masked(rate=0.4))
    assert score_meaning(Masked()) != score_meaning(NextToken())


# --- prefix -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 0.25])
def test_the_tokens_after_a_prefix_of_random_length_are_predicted(rate: float) -> None:
    windows = random_windows(2000, 40)
    made = batch(Prefix(rate=rate), windows)
    assert made.counted is not None
    assert made.prefix is not None
    np.testing.assert_array_equal(made.tokens, windows.tokens[:, :-1])
    np.testing.assert_array_equal(made.targets, windows.tokens[:, 1:])
    n_predicted = made.counted.sum(1)
    assert set(n_predicted.tolist()) == set(range(1, round(80 * rate)))
    assert n_predicted.mean() == pytest.approx(40 * rate, rel=0.05)
    np.testing.assert_array_equal(made.prefix, 41 - n_predicted)  # the last prefix token predicts the first target
    np.testing.assert_array_equal(made.counted, np.arange(40) >= made.prefix[:, None] - 1)


def test_bits_per_byte_are_those_of_the_continuations() -> None:
    settings = config(*PREFIX, "model.vocab_size=320")
    model, token_bytes = Decoder(settings.model).eval(), np.array([0, *range(1, 320)]) % 7
    tokens = random_windows(6, 24).tokens
    windows = Windows.of_text(tokens, token_bytes, (END,), continues=np.zeros(6, bool))
    made = batch(Prefix(), windows)
    found = evaluate(model, HeldOut(made, windows), CPU, batch_tokens=60)
    assert made.prefix is not None
    nats = n_bytes = 0.0
    for row, prefix in zip(tokens, made.prefix.tolist(), strict=True):
        with torch.no_grad():
            logits = model(torch.from_numpy(row[None, :-1]), prefix=torch.tensor([prefix]))[0].double()
        losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(row[1:]), reduction="none").numpy()
        sizes = np.where(row[1:] == END, 0, token_bytes[row[1:]])[prefix - 1 :]
        nats, n_bytes = nats + losses[prefix - 1 :][sizes > 0].sum(), n_bytes + sizes.sum()
    assert found.bits_per_byte == pytest.approx(nats / np.log(2) / n_bytes, rel=1e-6)
    causal = evaluate(model, HeldOut(replace(made, prefix=None), windows), CPU)
    assert abs(causal.loss - found.loss) > 1e-4


def test_a_run_with_prefixes_resumes_exactly_and_is_scored_by_eval(text: Path, tmp_path: Path) -> None:
    settings = config(*PREFIX, "train.checkpoint_every=3", "train.micro_batch_tokens=32", data=text)
    whole = train(settings, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    assert train(settings, tmp_path / "parts", Callback()).bits_per_byte == whole.bits_per_byte
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert score(str(tmp_path / "whole"), (), 256).bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-6)


# --- span corruption ----------------------------------------------------------------------------------------------

WITH_SENTINELS = SpecialIds(N_TOKENS, (END,), MASK, tuple(range(1000, 1400)))


def helper_of_t5(n_tokens: int, rate: float, mean_span: float) -> tuple[int, int]:
    """Return the lengths of inputs and targets, as `random_spans_helper` of T5 computes them."""
    n_noise = round(n_tokens * rate)
    n_spans = round(n_noise / mean_span)
    return n_tokens - n_noise + n_spans + 1, n_noise + n_spans + 1


def spans_of_t5(row: list[int], hidden: list[bool], sentinels: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return inputs and targets of one window, token by token, as T5's preprocessors make them."""
    inputs, targets, n_spans, n_visible = list[int](), list[int](), 0, 0
    for i, (token, is_hidden) in enumerate(zip(row, hidden, strict=True)):
        begins = i == 0 or hidden[i - 1] != is_hidden
        if is_hidden:
            targets.append(token)
            if begins:
                inputs.append(sentinels[n_spans])
                n_spans += 1
        else:
            inputs.append(token)
            if begins:
                targets.append(sentinels[n_visible])
                n_visible += 1
    return [*inputs, END], [*targets, END]


@pytest.mark.parametrize(
    ("n_tokens", "rate", "mean_span"), [(512, 0.15, 3.0), (128, 0.5, 8.0), (64, 0.15, 64.0), (40, 0.5, 1.0)]
)
def test_spans_are_hidden_and_restored_as_in_t5(n_tokens: int, rate: float, mean_span: float) -> None:
    objective, windows = SpanCorruption(rate=rate, mean_span=mean_span), random_windows(200, n_tokens)
    dice = Dice(0, "train", 0, 200)
    raw = windows.tokens[:, 1:]
    inputs, targets = corrupted(objective, raw, WITH_SENTINELS, dice)
    if mean_span < 64:  # T5's helper would hide no span at all
        assert (inputs.shape[1], targets.shape[1]) == helper_of_t5(n_tokens, rate, mean_span)
    hidden = hidden_spans(objective, n_tokens, dice)
    assert (hidden.sum(1) == round(n_tokens * rate)).all()
    assert not hidden[:, 0].any()
    assert hidden[:, -1].all()
    for i in range(200):
        expected = spans_of_t5(raw[i].tolist(), hidden[i].tolist(), WITH_SENTINELS.sentinels)
        assert (inputs[i].tolist(), targets[i].tolist()) == expected
    made = make_batch(objective, windows, WITH_SENTINELS, None, dice)
    assert made.tokens.shape[1] == objective.tokens_read(n_tokens).stack == inputs.shape[1] + targets.shape[1] - 1
    assert made.counted is not None
    assert made.prefix is not None
    assert made.prefix.tolist() == [inputs.shape[1]] * 200
    np.testing.assert_array_equal(made.tokens[:, : inputs.shape[1]], inputs)
    np.testing.assert_array_equal(made.targets[made.counted].reshape(200, -1), targets)


def test_the_lengths_are_those_that_t5_publishes() -> None:
    """With 15% and spans of 3 tokens, inputs of 512 tokens need windows of 568 tokens and give targets of 114."""
    n_hidden, n_spans = SpanCorruption().spans(568)
    assert (568 - n_hidden + n_spans + 1, n_hidden + n_spans + 1) == (512, 114)


def test_the_cost_of_training_counts_the_tokens_that_the_stack_reads() -> None:
    """A window of 16 tokens has 1 span of 2 tokens, so the stack reads 3 tokens more. Only 4 of them get logits."""
    settings = config(*SPANS)
    of_19 = computed_training_flops(config(*PREFIX[:1], "train.seq_len=19", "train.batch_tokens=76")) * 19
    logits = 3 * 2 * 32 * 300
    assert computed_training_flops(settings) * 16 == pytest.approx(of_19 - (19 - 4) * logits)


def test_all_divisions_into_spans_are_equally_likely() -> None:
    """6 hidden tokens in 2 spans have 5 divisions, as have 6 visible ones."""
    hidden = hidden_spans(SpanCorruption(rate=0.5, mean_span=3.0), 12, Dice(0, "train", 0, 20_000))
    rows, counts = np.unique(hidden, axis=0, return_counts=True)
    assert len(rows) == 25
    assert counts / 20_000 == pytest.approx(np.full(25, 1 / 25), abs=0.006)


def test_a_run_with_hidden_spans_learns_resumes_exactly_and_is_scored_by_eval(text: Path, tmp_path: Path) -> None:
    settings = config(*SPANS, "train.checkpoint_every=3", "train.micro_batch_tokens=32", "train.lr=1e-2", data=text)
    whole = train(settings, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    assert train(settings, tmp_path / "parts", Callback()).denoising_loss == whole.denoising_loss
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert score(str(tmp_path / "whole"), (), 256).denoising_loss == pytest.approx(whole.denoising_loss, rel=1e-6)
    assert whole.tokens == 640  # tokens of windows, as for all objectives
