"""Models trained on pairs of texts: an encoder-decoder and one stack learn to write identifiers in another style."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from archlab.cli import app
from archlab.config.check import validate
from archlab.data.open import open_training_data
from archlab.errors import UserError
from archlab.infer.load import load_codec, load_run, load_tokenizer
from archlab.infer.sampling import Sampling
from archlab.infer.text import best_text, stream_text
from archlab.study.design import arms
from archlab.study.schema import StudyConfig
from archlab.training.callback import Callback
from archlab.training.train import train
from scores import score
from tiny import Killed, config, losses

WORDS = ("get", "set", "item", "file")
SEQ2SEQ = ("train.objective.kind=seq2seq", "data.pairs=[snake,camel]", "data.held_out=0.1", "train.seq_len=64")
STACKS = {
    "encoder": (*SEQ2SEQ, "model.encoder.n_layers=1"),
    "prefix": (*SEQ2SEQ, "model.attention.visibility=prefix"),
    "causal": ("train.objective.kind=next_token", *SEQ2SEQ[1:]),
}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def identifiers(tmp_path: Path) -> Path:
    draw, lines = random.Random(0), list[str]()
    for _ in range(300):
        words = draw.choices(WORDS, k=draw.choice((1, 2, 3, 6)))
        lines.append(json.dumps({"snake": "_".join(words), "camel": "".join(map(str.title, words))}))
    (tmp_path / "identifiers.jsonl").write_text("\n".join(lines))
    return tmp_path / "identifiers.jsonl"


def test_an_encoder_decoder_learns_a_style_and_writes_it(
    identifiers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    larger = ("model.d_model=64", "model.position.kind=learned", "model.max_seq_len=64", "train.lr=5e-3")
    budget = ("train.batch_tokens=512", "train.tokens=81920", "train.eval_tokens=2048", "train.eval_every=1000")
    summary = train(config(*STACKS["encoder"], *larger, *budget, data=identifiers), tmp_path / "run", Callback())
    assert summary.bits_per_byte is not None
    assert summary.bits_per_byte < 0.7
    capsys.readouterr()
    source = ("--source", "set_item_file", "--temperature", "0")
    assert app.main(["generate", str(tmp_path / "run"), *source]) == 0
    assert capsys.readouterr().out == "SetItemFile\n"
    assert app.main(["generate", str(tmp_path / "run"), "--prompt", "Set"]) == 2
    assert "--source: missing; the model has an encoder" in capsys.readouterr().err
    assert app.main(["eval", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bits_per_byte"] == pytest.approx(
        score(str(tmp_path / "run"), (), None).bits_per_byte
    )


@pytest.mark.parametrize("stack", STACKS)
def test_a_run_resumes_exactly_and_in_any_division_of_its_batches(
    stack: str, identifiers: Path, tmp_path: Path
) -> None:
    """The steps have windows of several widths, before and after the interruption."""
    settings = (*STACKS[stack], "train.batch_tokens=256", "train.tokens=3072", "train.checkpoint_every=5")
    settings = config(*settings, data=identifiers)
    with pytest.raises(RuntimeError, match="killed"):
        train(settings, tmp_path / "parts", Killed())
    train(settings, tmp_path / "parts", Callback())
    train(settings, tmp_path / "whole", Callback())
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    whole, parts = (load_run(tmp_path / name)[1].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    divided = config(*STACKS[stack], "train.batch_tokens=256", "train.tokens=3072", "train.micro_batch_tokens=64",
                     data=identifiers)  # fmt: skip
    train(divided, tmp_path / "divided", Callback())
    assert losses(tmp_path / "divided") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_padding_does_not_change_the_loss_of_a_pair(identifiers: Path, tmp_path: Path) -> None:
    """A window of twice the width has more padding, and gives the same score."""
    train(config(*STACKS["encoder"], "train.batch_tokens=256", data=identifiers), tmp_path / "run", Callback())
    scores = [score(str(tmp_path / "run"), (f"train.eval_seq_len={n}",), None).bits_per_byte for n in (64, 128)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


@pytest.mark.parametrize("stack", ["prefix", "causal"])
def test_one_stack_reads_a_source_as_in_training(
    stack: str, identifiers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare with a full pass over a held-out pair for each new token. The run was trained on a data folder, which is
    then deleted."""
    folder, run = tmp_path / "folder", tmp_path / "run"
    written = ["--out", str(folder), "--pairs", "snake,camel", "--vocab-size", "300", "--held-out", "0.1"]
    assert app.main(["data", str(identifiers), *written]) == 0
    fields = [field for field in STACKS[stack] if not field.startswith("data.")]
    settings = config(*fields, "train.batch_tokens=256", "train.tokens=3072", "train.lr=1e-2", data=folder)
    train(settings, run, Callback())
    windows = open_training_data(settings.data, settings.model.vocab_size).held_out(64, 64 * 8)
    shutil.rmtree(folder)
    model, tokenizer = load_run(run)[1], load_tokenizer(run)
    with torch.no_grad():  # after a few steps, attention hardly matters yet
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    assert windows.source_lengths is not None
    source = start = ""
    for row, given in zip(windows.tokens.tolist(), windows.source_lengths.tolist(), strict=True):
        source, start = tokenizer.decode(row[1 : given - 1]), tokenizer.decode(row[given : given + 1])
        for prompt, n_read in (("", given), (start, given + 1)):
            read, prefix = row[:n_read], torch.tensor([given]) if stack == "prefix" else None
            for _ in range(6):
                read.append(int(model(torch.tensor([read]), prefix=prefix)[0, -1].argmax()))
            expected = read[n_read:]
            expected = tokenizer.decode(expected[: [*expected, row[0]].index(row[0])]).rstrip("\ufffd")
            arguments = model, load_codec(run), prompt, 6
            greedy = Sampling()
            assert "".join(stream_text(*arguments, greedy, source=source)).rstrip("\ufffd") == expected
            assert best_text(*arguments, source=source, beams=1).rstrip("\ufffd") == expected
    capsys.readouterr()
    assert app.main(["generate", str(run), "--source", source, "--prompt", start, "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith(start)


def test_a_stack_that_was_not_trained_on_pairs_has_no_source(text: Path, tmp_path: Path) -> None:
    train(config("train.tokens=256", data=text), tmp_path / "run", Callback())
    with pytest.raises(UserError, match=r"source: the model has no encoder .* trained on pairs .*leave it out"):
        stream_text(load_run(tmp_path / "run")[1], load_codec(tmp_path / "run"), "", source="get_item")


@pytest.mark.parametrize("outcome", ["continuation", "beyond", "window_part", "repetition"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_study_of_pairs_refuses_outcomes_of_plain_text(
    outcome: str, is_folder: bool, identifiers: Path, tmp_path: Path
) -> None:
    data: dict[str, object] = {"data.path": str(identifiers), "data.pairs": ["snake", "camel"]}
    if is_folder:
        out = str(tmp_path / "folder")
        assert app.main(["data", str(identifiers), "--out", out, "--pairs", "snake,camel", "--vocab-size", "300"]) == 0
        data = {"data.path": out}
    raw = {
        "question": "Which?", "base": "tiny-llama", "budget": {"tokens": 8192}, "set": data, "measure": [outcome],
        "arms": {"a": {}, "b": {"model.n_layers": 2}},
    }  # fmt: skip
    message = rf"measure\.{outcome} +needs text without pairs, .*; allowed: bits_per_byte"
    with pytest.raises(UserError, match=message):
        arms(validate(StudyConfig, raw, "study.yaml"))
