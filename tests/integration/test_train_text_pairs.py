"""Models trained on pairs of texts: an encoder-decoder and one stack learn to write identifiers in another style."""

import json
import random
from pathlib import Path

import pytest
import torch

from archlab.cli import app
from archlab.infer.load import load_run
from archlab.infer.score import score
from archlab.training.callback import Callback
from archlab.training.train import train
from tiny import Killed, config, losses

WORDS = ("get", "set", "item", "file")
SEQ2SEQ = ("train.objective.kind=seq2seq", "data.pairs=[snake,camel]", "data.held_out=0.1", "train.seq_len=64")
STACKS = {
    "encoder": (*SEQ2SEQ, "model.encoder.n_layers=1"),
    "prefix": (*SEQ2SEQ, "model.attention.visibility=prefix"),
    "causal": ("train.objective.kind=next_token", *SEQ2SEQ[1:]),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))


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


def test_what_stands_beside_a_pair_does_not_change_its_loss(identifiers: Path, tmp_path: Path) -> None:
    """A window of twice the width, which is longer by padding, gives the same score."""
    train(config(*STACKS["encoder"], "train.batch_tokens=256", data=identifiers), tmp_path / "run", Callback())
    scores = [score(str(tmp_path / "run"), (f"train.eval_seq_len={n}",), None).bits_per_byte for n in (64, 128)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
