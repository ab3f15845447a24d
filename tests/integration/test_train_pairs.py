"""Models with an encoder, trained on a source and a target text that an objective makes from each window."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archlab.config.objective import Prefix, SpanCorruption
from archlab.config.training import tokens_read
from archlab.data.batch import HeldOut
from archlab.data.objectives import corrupted, make_batch, make_encoder_batch
from archlab.data.reserved import SpecialIds
from archlab.data.tasks.dice import Dice
from archlab.data.training_data import Windows
from archlab.errors import UserError
from archlab.infer.load import load_run
from archlab.model.decoder import Decoder
from archlab.pricing.work import training_flops, visible_training_flops
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.train import train
from scores import evaluate, score
from tiny import Killed, config, losses

pytestmark = pytest.mark.usefixtures("shared_cache")

CPU = Device("cpu", torch.float32)
END, N_TOKENS = 0, 320
SPECIAL = SpecialIds(N_TOKENS, (END,), None, tuple(range(300, N_TOKENS)))
PREFIX = ("model.encoder.n_layers=2", "train.objective.kind=prefix")
SPANS = ("model.encoder.n_layers=2", "train.objective.kind=span_corruption", "data.reserve=[sentinels:3]")
MIXTURE = "train.objective={kind: mixture, parts: {r: {objective: {kind: span_corruption}, mode: R}, s: {objective: {kind: prefix}}}}"
MODES = "data.reserve=[sentinels:3,mode:R]"
MIXTURE_OF_PAIRS = ("model.encoder.n_layers=2", MIXTURE, MODES)
ONE_STACK = (
    ("model.attention.visibility=two_sided", "train.objective.kind=masked", "data.reserve=[mask]"),
    ("model.attention.visibility=prefix", "train.objective.kind=prefix"),
    ("model.attention.visibility=prefix", "train.objective.kind=span_corruption", "data.reserve=[sentinels:3]"),
    ("model.attention.visibility=prefix", MIXTURE, MODES),
)
"""Settings of runs without an encoder."""


def random_windows(rows: int = 300, length: int = 24) -> Windows:
    return Windows(np.random.default_rng(0).integers(1, 300, (rows, length + 1)))


def dice(rows: int) -> Dice:
    return Dice(0, "train", 0, rows)


@pytest.mark.parametrize(("rate", "drawn"), [(0.05, True), (0.3, True), (0.5, True), (0.05, False), (0.5, False)])
def test_source_and_target_are_the_window_and_one_stack_predicts_the_same_tokens(rate: float, drawn: bool) -> None:
    windows, objective = random_windows(), Prefix(rate=rate, drawn=drawn)
    made = make_encoder_batch(objective, windows, SPECIAL, dice(300))
    alone = make_batch(objective, windows, SPECIAL, None, dice(300))
    assert (made.tokens.shape[1], made.source.shape[1]) == objective.tokens_read(24, has_encoder=True)
    for row, (n_source, n_target) in enumerate(zip(made.source_lengths, made.lengths, strict=True)):
        target = made.targets[row, :n_target].tolist()
        assert [*made.source[row, :n_source], *target] == windows.tokens[row].tolist()
        assert made.tokens[row, :n_target].tolist() == [END, *target[:-1]]
        assert made.counted[row].tolist() == [i < n_target for i in range(made.targets.shape[1])]
        assert alone.targets[row, alone.counted[row]].tolist() == target
    if drawn:
        assert set(made.lengths) == set(range(1, objective.most_predicted(24) + 1))
    else:  # nothing is padded: both together read the window and the token before it
        assert set(made.lengths) == {round(24 * rate)}
        assert made.tokens.shape[1] + made.source.shape[1] == 25


def test_the_encoder_reads_what_t5_reads_and_the_decoder_writes_what_t5_writes() -> None:
    windows, objective = random_windows(), SpanCorruption()
    made = make_encoder_batch(objective, windows, SPECIAL, dice(300))
    source, target = corrupted(objective, windows.tokens[:, 1:], SPECIAL, dice(300))
    assert (made.source.tolist(), made.targets.tolist()) == (source.tolist(), target.tolist())
    assert (made.tokens[:, 0] == END).all()
    assert (made.tokens[:, 1:] == target[:, :-1]).all()
    assert (made.tokens.shape[1], made.source.shape[1]) == objective.tokens_read(24, has_encoder=True)


def test_bits_per_byte_are_those_of_the_targets_given_their_sources() -> None:
    model = Decoder(config(*PREFIX).model, seed=3)
    tokens = np.random.default_rng(1).integers(0, 300, (6, 13))
    token_bytes = np.arange(300) % 5
    windows = Windows.of_text(tokens, token_bytes, (END,), continues=np.zeros(6, bool))
    made = make_encoder_batch(Prefix(), windows, SPECIAL, dice(6))
    found = evaluate(model, HeldOut(made, windows), CPU, batch_tokens=60)
    nats = n_bytes = 0.0
    for row, n_source in enumerate(made.source_lengths.tolist()):
        source, target = torch.from_numpy(tokens[row, :n_source]), torch.from_numpy(tokens[row, n_source:])
        inputs = torch.cat([torch.tensor([END]), target[:-1]])
        with torch.no_grad():
            logits = model(inputs[None], source=source[None])[0].double()
        losses = torch.nn.functional.cross_entropy(logits, target, reduction="none").numpy()
        sizes = np.where(target.numpy() == END, 0, token_bytes[target.numpy()])
        counts = windows.scored[row, n_source - 1 :]
        nats, n_bytes = nats + losses[counts].sum(), n_bytes + sizes[counts].sum()
    assert found.bits_per_byte == pytest.approx(nats / np.log(2) / n_bytes, rel=1e-6)


@pytest.mark.parametrize("objective", [PREFIX, SPANS], ids=["prefix", "spans"])
def test_a_run_learns_resumes_exactly_and_is_scored_by_eval(objective: Any, text: Path, tmp_path: Path) -> None:
    settings = config(*objective, "train.checkpoint_every=3", "train.tokens=1280", data=text)
    whole = train(settings, tmp_path / "whole", Callback())
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    train(settings, tmp_path / "parts", Callback())
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]
    again = score(str(tmp_path / "whole"), (), 256)
    name = "denoising_loss" if objective is SPANS else "bits_per_byte"
    assert getattr(again, name) == pytest.approx(getattr(whole, name), rel=1e-6)
    _, model = load_run(tmp_path / "whole")
    before, trained = Decoder(settings.model).state_dict(), model.state_dict()
    assert all(not torch.equal(before[name], trained[name]) for name in before if name.startswith("encoder.layers"))


@pytest.mark.parametrize(
    ("objective", "setting"),
    [
        (PREFIX, "train.micro_batch_tokens=16"),
        (PREFIX, "train.recompute=true"),
        (PREFIX, "train.compile=true"),
        *(
            pytest.param(objective, "train.compile=true", marks=pytest.mark.slow)
            for objective in (MIXTURE_OF_PAIRS, *ONE_STACK)
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[:2]),
)
def test_settings_of_speed_and_memory_do_not_change_the_losses(
    objective: Any, setting: str, text: Path, tmp_path: Path
) -> None:
    for name, overrides in (("plain", ()), ("other", (setting,))):
        train(config(*objective, "train.tokens=256", *overrides, data=text), tmp_path / name, Callback())
    assert losses(tmp_path / "other") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)


@pytest.mark.parametrize(("objective", "predicted"), [(PREFIX, 8), (SPANS, 4)], ids=["prefix", "spans"])
def test_flops_count_the_tokens_of_source_and_target(objective: Any, predicted: int) -> None:
    settings = config(*objective)
    stack, source = tokens_read(settings)
    whole = training_flops(settings.model, stack, source=source) * stack
    logits = 3 * 2 * 32 * 300
    assert visible_training_flops(settings) * 16 == pytest.approx(whole - (stack - predicted) * logits)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ((*PREFIX[:1], "train.objective.kind=next_token"), "train.objective.kind"),
        ((*PREFIX[:1], "train.objective.kind=masked", "data.reserve=[mask]"), "train.objective.kind"),
        ((*PREFIX, "train.document_mask=true"), "train.document_mask"),
        ((*SPANS[:2],), "sentinels"),
    ],
)
def test_what_cannot_train_an_encoder_is_refused_by_name(
    overrides: tuple[str, ...], field: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        train(config(*overrides, data=text), tmp_path / "run", Callback())
    assert field in str(error.value)
    assert "allowed" in str(error.value)
